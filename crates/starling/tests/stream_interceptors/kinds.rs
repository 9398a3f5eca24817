//! The interceptors of these tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use starling::{
    Code, InterceptedCall, InterceptedItem, InterceptedResponse, Interceptor, Next, Side, Status,
};
use starling_test_protos::streams::{Number, Range, Sum};

pub(crate) type Outcome = Result<InterceptedResponse, Status>;

/// Adds to each number that a client sends, and to each that a server sends.
pub(crate) struct Adds {
    pub(crate) request: u64,
    pub(crate) response: u64,
}

fn add(item: &mut InterceptedItem, more: u64) -> Result<(), Status> {
    if let Ok(mut number) = item.message::<Number>() {
        number.set_value(number.view().value() + more);
        return item.set_message(&number);
    }
    if let Ok(mut sum) = item.message::<Sum>() {
        sum.set_sum(sum.view().sum() + more);
        return item.set_message(&sum);
    }
    let mut range = item.message::<Range>()?;
    range.set_from(range.view().from() + more);
    range.set_to(range.view().to() + more);
    item.set_message(&range)
}

impl Interceptor for Adds {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        let Self { request, response } = *self;
        call.on_requests(move |item| add(item, request))?;
        call.on_responses(move |item| add(item, response))?;
        next.run(call).await
    }
}

/// Writes down what it sees of streams: their begin, messages and end. Changes their trailers.
#[derive(Clone)]
pub(crate) struct Writes(pub(crate) &'static str, pub(crate) Arc<Mutex<Vec<String>>>);

impl Interceptor for Writes {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        let Self(name, log) = self.clone();
        log.lock().push(format!("{name} begins"));
        let (its_name, its_log) = (name, Arc::clone(&log));
        call.on_requests(move |_| {
            its_log.lock().push(format!("{its_name} request"));
            Ok(())
        })?;
        let its_log = Arc::clone(&log);
        call.on_responses(move |_| {
            its_log.lock().push(format!("{name} response"));
            Ok(())
        })?;
        let mut result = next.run(call).await;
        let end = match &result {
            Ok(_) => "ok".to_owned(),
            Err(status) => format!("{:?}", status.code()),
        };
        log.lock().push(format!("{name} {end}"));
        if let Ok(response) = &mut result {
            let seen = response.metadata().value("seen").unwrap_or_default();
            let seen = [seen, name.as_bytes()].concat();
            response
                .metadata_mut()
                .set("seen", seen)
                .expect("a short value");
        }
        result
    }
}

/// What was written down since it was asked for last.
pub(crate) fn logged(log: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut log.lock())
}

/// Ends streams with another status than theirs.
pub(crate) struct Maps(pub(crate) Code, pub(crate) Code);

impl Interceptor for Maps {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        let Self(from, to) = *self;
        match next.run(call).await {
            Err(_) if to == Code::Ok => Ok(InterceptedResponse::empty_stream()),
            Err(status) if status.code() == from => Err(Status::new(to, "mapped")),
            Ok(_) if from == Code::Ok => Err(Status::new(to, "mapped")),
            result => result,
        }
    }
}

/// Answers in place of the server.
pub(crate) enum Answers {
    Number(u64),
    Sum(u64),
    Nothing,
    Status(Code),
}

impl Interceptor for Answers {
    async fn intercept(&self, _: InterceptedCall, _: Next<'_>) -> Outcome {
        let mut response = match self {
            Self::Number(value) => InterceptedResponse::new(&Number::new().with_value(*value)),
            Self::Sum(sum) => InterceptedResponse::new(&Sum::new().with_sum(*sum)),
            Self::Nothing => InterceptedResponse::empty_stream(),
            Self::Status(code) => return Err(Status::new(*code, "refused")),
        };
        response
            .metadata_mut()
            .insert("by", "interceptor")
            .expect("a key");
        Ok(response)
    }
}

/// Refuses messages from the n-th on.
pub(crate) struct RefusesFrom {
    pub(crate) request: usize,
    pub(crate) response: usize,
}

fn refuse_from(most: usize) -> impl Fn(&mut InterceptedItem) -> Result<(), Status> {
    let seen = AtomicUsize::new(0);
    move |_| match seen.fetch_add(1, Ordering::SeqCst) {
        count if count < most => Ok(()),
        _ => Err(Status::permission_denied("one too many")),
    }
}

impl Interceptor for RefusesFrom {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        call.on_requests(refuse_from(self.request))?;
        call.on_responses(refuse_from(self.response))?;
        next.run(call).await
    }
}

/// Has the beginning and each message wait, by the clock.
pub(crate) struct Delays {
    pub(crate) begin: Duration,
    pub(crate) request: Duration,
    pub(crate) response: Duration,
}

impl Interceptor for Delays {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        for (is_request, pause) in [(true, self.request), (false, self.response)] {
            if pause.is_zero() {
                continue;
            }
            let its_call = call.clone();
            let delay = move |item: &mut InterceptedItem| {
                let sleep = its_call.sleep(pause);
                item.wait_for(async move {
                    sleep.await;
                    Ok(())
                });
                Ok(())
            };
            match is_request {
                true => call.on_requests(delay)?,
                false => call.on_responses(delay)?,
            }
        }
        if !self.begin.is_zero() {
            call.sleep(self.begin).await;
        }
        next.run(call).await
    }
}

/// Holds messages from the n-th on, for ever.
#[derive(Clone)]
pub(crate) struct Holds {
    pub(crate) request: usize,
    pub(crate) response: usize,
    /// Messages that are held now.
    pub(crate) held: Arc<AtomicUsize>,
}

impl Holds {
    pub(crate) fn requests_from(request: usize) -> Self {
        Self {
            request,
            response: usize::MAX,
            held: Arc::default(),
        }
    }

    pub(crate) fn responses_from(response: usize) -> Self {
        Self {
            request: usize::MAX,
            response,
            held: Arc::default(),
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

fn hold_from(
    most: usize,
    held: &Arc<AtomicUsize>,
) -> impl Fn(&mut InterceptedItem) -> Result<(), Status> + use<> {
    let (seen, held) = (AtomicUsize::new(0), Arc::clone(held));
    move |item| {
        if seen.fetch_add(1, Ordering::SeqCst) >= most {
            held.fetch_add(1, Ordering::SeqCst);
            let is_held = Running(Arc::clone(&held));
            item.wait_for(async move {
                let _is_held = is_held;
                std::future::pending().await
            });
        }
        Ok(())
    }
}

impl Interceptor for Holds {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        call.on_requests(hold_from(self.request, &self.held))?;
        call.on_responses(hold_from(self.response, &self.held))?;
        next.run(call).await
    }
}

/// Gives streams so much time.
pub(crate) struct GivesUp(pub(crate) Duration);

impl Interceptor for GivesUp {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        let sleep = call.sleep(self.0);
        let (run, sleep) = (std::pin::pin!(next.run(call)), std::pin::pin!(sleep));
        match futures::future::select(run, sleep).await {
            futures::future::Either::Left((result, _)) => result,
            futures::future::Either::Right(_) => Err(Status::aborted("it took too long")),
        }
    }
}

pub(crate) struct Repeats;

impl Interceptor for Repeats {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        next.run(call.clone()).await?;
        next.run(call).await
    }
}

/// Panics where it is told.
pub(crate) struct Panics {
    pub(crate) at_item: bool,
}

fn panic() -> ! {
    std::panic::resume_unwind(Box::new("as requested"));
}

impl Interceptor for Panics {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        if !self.at_item {
            panic();
        }
        call.on_responses(|_| panic())?;
        next.run(call).await
    }
}

/// Sends a pair of metadata.
pub(crate) struct Sends(pub(crate) &'static str, pub(crate) &'static str);

impl Interceptor for Sends {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        assert_eq!(call.side(), Side::Client);
        call.metadata_mut()
            .insert(self.0, self.1)
            .expect("a short pair");
        next.run(call).await
    }
}

/// Adds a pair to what goes in front of a server's messages, and writes down what it saw of that.
#[derive(Clone)]
pub(crate) struct InFront(pub(crate) &'static str, pub(crate) Arc<Mutex<Vec<String>>>);

impl Interceptor for InFront {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        let Self(name, log) = self.clone();
        call.on_initial_metadata(move |metadata| {
            let keys: Vec<_> = metadata.view().iter().map(|(key, _)| key).collect();
            log.lock().push(format!("{name}: {}", keys.join(" ")));
            metadata.insert(name, "seen").expect("a short pair");
            Ok(())
        })?;
        next.run(call).await
    }
}

/// Refuses what goes in front of a server's messages, and counts how often it saw that.
#[derive(Clone, Default)]
pub(crate) struct RefusesInFront(pub(crate) Arc<AtomicUsize>);

impl Interceptor for RefusesInFront {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        let seen = Arc::clone(&self.0);
        call.on_initial_metadata(move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            Err(Status::permission_denied("not this"))
        })?;
        next.run(call).await
    }
}

/// Counts the interceptors that run, and those that end.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) ended: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Interceptor for Counts {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(Arc::clone(&self.running));
        let result = next.run(call).await;
        self.ended.fetch_add(1, Ordering::SeqCst);
        result
    }
}
