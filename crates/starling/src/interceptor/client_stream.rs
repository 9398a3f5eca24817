//! Interceptors of channels: streams. Interceptors see a stream as one call, which lasts as long as it.
//!
//! ```text
//!  the user's halves ── poll ──▶ ChainedEnd ── poll ──▶ the interceptors, and in them `next.run`
//!                                    │                        │ begins the stream
//!                                    └─ items ─▶ Progress ◀───┘ waits for its end
//! ```
//!
//! No task of its own runs the interceptors: the stream's reader and writer do, while they wait.

mod progress;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use parking_lot::Mutex;
use starling_endpoint::{Encoding, Metadata, MethodPath, Status};
use starling_io::forks;
use starling_message::protobuf::DecodeLimits;
use starling_message::{Bytes, MethodDescriptor};
use starling_stream::Items;

use self::progress::{Half, Progress, Wakers};
use super::call::Method;
use super::client::{earlier, late, within_deadline};
use super::items::hooked;
use super::{BoxFuture, Callee, InterceptedCall, InterceptedResponse, Interceptors, Outcome, Side};
use crate::options::CallOptions;
use crate::plane::Waiting;
use crate::streaming::{
    HeldBytes, Route, StreamEnd, belongs_to_parent, client_end, only_servers_send,
};

/// What stands behind a channel's interceptors.
struct Behind {
    route: Mutex<Option<Route>>,
    method: &'static MethodDescriptor,
    /// Those that interceptors do not see.
    options: CallOptions,
    deadline: Option<Instant>,
    progress: Arc<Progress>,
    wakers: Arc<Wakers>,
}

impl Callee for Behind {
    fn run(&self, call: InterceptedCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let Some(route) = self.route.lock().take() else {
                return Err(Status::failed_precondition(
                    "an interceptor began one stream twice: the channel refuses that",
                ));
            };
            let options = CallOptions {
                metadata: call.metadata,
                ..self.options.clone()
            };
            let deadline = earlier(call.deadline, self.deadline);
            let timer = route.timer();
            let end = client_end(route, self.method, options, deadline);
            let deadline = deadline.map(|deadline| (timer, deadline));
            let end = hooked(end, call.hooks, Side::Client, self.method, deadline);
            if self.progress.begun.set(Arc::clone(&end)).is_ok() {
                // The other half may wait for the stream to begin.
                self.wakers.wake_by_ref();
            }
            poll_fn(|cx| self.progress.poll_end(cx)).await?;
            Ok(InterceptedResponse::of_stream(
                end.trailers().unwrap_or_default(),
            ))
        })
    }
}

/// The interceptors at work, or what they have made of the stream.
enum Chain {
    Running(BoxFuture<'static, Outcome>),
    Over(Answer),
}

/// How a stream ends for its reader.
struct Answer {
    /// A message of the interceptors' own.
    item: Option<(Items, Encoding)>,
    result: Result<(), Status>,
    trailers: Metadata,
}

impl Answer {
    fn of(outcome: Outcome, was_begun: bool, method: &'static MethodDescriptor) -> Self {
        let taken = outcome.and_then(|response| {
            let trailers = response.metadata;
            let Some(body) = response.body else {
                return Ok((None, trailers));
            };
            if was_begun {
                return Err(Status::internal(
                    "an interceptor answered a stream with a message after it had run it",
                ));
            }
            body.check(Some(method.response))?;
            let encoding = body.encoding();
            Ok((Some((Items::one(&body.bytes()), encoding)), trailers))
        });
        match taken {
            Ok((item, trailers)) => Self {
                item,
                result: Ok(()),
                trailers,
            },
            Err(status) => Self {
                item: None,
                trailers: status.metadata().cloned().unwrap_or_default(),
                result: Err(match was_begun {
                    true => status,
                    false => status.with_not_run(),
                }),
            },
        }
    }
}

/// What the user did before the stream began.
#[derive(Default)]
struct Early {
    item: Option<(Vec<u8>, Option<Bytes>, bool)>,
    is_closed: bool,
}

/// A client's end of a stream that goes through interceptors.
struct ChainedEnd {
    method: &'static MethodDescriptor,
    chain: Mutex<Chain>,
    is_over: AtomicBool,
    progress: Arc<Progress>,
    wakers: Arc<Wakers>,
    early: Mutex<Early>,
    /// The process that began the stream; see [`forks`].
    process: u32,
}

/// Begins a stream through interceptors: they run when a half of it is polled.
pub(crate) fn stream_through(
    interceptors: &Interceptors,
    route: Route,
    method: &'static MethodDescriptor,
    mut options: CallOptions,
) -> Arc<dyn StreamEnd> {
    let timer = route.timer();
    let deadline = options
        .timeout
        .and_then(|left| timer.now().checked_add(left));
    let call = InterceptedCall {
        side: Side::Client,
        timer: timer.clone(),
        method: Method {
            path: MethodPath::Static(method.path),
            descriptor: Some(method),
        },
        metadata: std::mem::take(&mut options.metadata),
        deadline,
        peer: None,
        body: None,
        hooks: None,
    };
    let (progress, wakers) = (Arc::<Progress>::default(), Arc::<Wakers>::default());
    let behind = Behind {
        route: Mutex::new(Some(route)),
        method,
        options,
        deadline,
        progress: Arc::clone(&progress),
        wakers: Arc::clone(&wakers),
    };
    let interceptors = interceptors.clone();
    let chain = async move {
        let chain = interceptors.run(call, &behind);
        let progress = &behind.progress;
        within_deadline(chain, &timer, deadline, || {
            (!progress.is_running()).then(|| late("the stream"))
        })
        .await
    };
    wakers.is_woken.store(true, Ordering::Relaxed);
    Arc::new(ChainedEnd {
        method,
        chain: Mutex::new(Chain::Running(Box::pin(chain))),
        is_over: AtomicBool::new(false),
        progress,
        wakers,
        early: Mutex::default(),
        process: forks(),
    })
}

impl ChainedEnd {
    /// Has the interceptors go on, if they can. True if they are done with the stream. It costs two loads
    /// while they rest.
    fn drive(&self) -> bool {
        if self.is_over.load(Ordering::Acquire) {
            return true;
        }
        let is_woken = &self.wakers.is_woken;
        while is_woken.load(Ordering::SeqCst) && is_woken.swap(false, Ordering::SeqCst) {
            let mut chain = self.chain.lock();
            let Chain::Running(future) = &mut *chain else {
                return true;
            };
            let waker = Waker::from(Arc::clone(&self.wakers));
            if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                let answer = Answer::of(outcome, self.stream().is_some(), self.method);
                let before = std::mem::replace(&mut *chain, Chain::Over(answer));
                self.is_over.store(true, Ordering::Release);
                drop(chain);
                drop(before);
                self.finish();
                return true;
            }
            drop(chain);
            self.send_early();
        }
        false
    }

    /// This half waits, for the interceptors too.
    fn wait<T>(&self, half: Half, cx: &Context<'_>) -> Poll<T> {
        self.wakers.register(half, cx);
        if self.wakers.is_woken.load(Ordering::SeqCst) {
            // They were woken before this half was there to drive them.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// The interceptors are done: the stream must not go on without them, and the other half hears of it.
    fn finish(&self) {
        if self.progress.is_running()
            && let Some(stream) = self.stream()
        {
            stream.stop_reading();
        }
        self.wakers.wake_by_ref();
    }

    fn stream(&self) -> Option<&Arc<dyn StreamEnd>> {
        self.progress.begun.get()
    }

    /// Sends what the user has sent before the stream began.
    fn send_early(&self) {
        let Some(stream) = self.stream() else {
            return;
        };
        let Early { item, is_closed } = std::mem::take(&mut *self.early.lock());
        if let Some((head, tail, is_last)) = item {
            // If it fails, the reader hears of it.
            let _ = stream.push(&head, tail.as_ref(), is_last);
        }
        if is_closed {
            stream.close();
        }
    }

    /// Gives the stream up.
    fn give_up(&self, end: impl FnOnce(&dyn StreamEnd)) {
        if self.process != forks() {
            // The interceptors are the parent's, with the lock that one of its threads may have had at the fork.
            return;
        }
        let answer = Answer {
            item: None,
            result: Err(Status::cancelled("the client no longer reads the stream")),
            trailers: Metadata::default(),
        };
        let mut chain = self.chain.lock();
        let before = match &*chain {
            Chain::Running(_) => Some(std::mem::replace(&mut *chain, Chain::Over(answer))),
            Chain::Over(_) => None,
        };
        self.is_over.store(true, Ordering::Release);
        drop(chain);
        // Without the lock: it runs the interceptors' destructors.
        drop(before);
        if let Some(stream) = self.stream() {
            end(&**stream);
        }
        self.wakers.wake_by_ref();
    }

    /// What the reader gets when the interceptors are done.
    fn answer(&self) -> Result<Option<(Items, Encoding)>, Status> {
        let mut chain = self.chain.lock();
        let Chain::Over(answer) = &mut *chain else {
            return Ok(None);
        };
        match answer.item.take() {
            Some(item) => Ok(Some(item)),
            None => answer.result.clone().map(|()| None),
        }
    }

    /// How the stream has ended, if the interceptors are done.
    fn result(&self) -> Result<(), Status> {
        match &*self.chain.lock() {
            Chain::Over(answer) => answer.result.clone(),
            Chain::Running(_) => Ok(()),
        }
    }

    /// The reader waits for what `read` finds in the stream: None if that has come to its end. `at_end` is what it gets
    /// when the interceptors are done.
    fn poll_reader<T>(
        &self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&dyn StreamEnd, &mut Context<'_>) -> Poll<Option<Result<T, Status>>>,
        at_end: impl Fn(&Self) -> Result<T, Status>,
    ) -> Poll<Result<T, Status>> {
        if self.is_of_another_process() {
            return Poll::Ready(Err(belongs_to_parent()));
        }
        if self.drive() {
            return Poll::Ready(at_end(self));
        }
        let stream = self.stream().filter(|_| self.progress.is_running());
        let Some(stream) = stream else {
            return self.wait(Half::Reader, cx);
        };
        // Nobody else waits for the only request to go on, and the stream must not begin without it. If it
        // fails, so does the stream.
        if !self.method.client_streaming && stream.poll_pushed(cx).is_pending() {
            return self.wait(Half::Reader, cx);
        }
        match read(&**stream, cx) {
            Poll::Pending => return self.wait(Half::Reader, cx),
            Poll::Ready(Some(Ok(found))) => return Poll::Ready(Ok(found)),
            Poll::Ready(Some(Err(status))) => self.progress.end(Err(status)),
            Poll::Ready(None) => self.progress.end(Ok(())),
        }
        // The interceptors see the end, and may take their time.
        match self.drive() {
            true => Poll::Ready(at_end(self)),
            false => self.wait(Half::Reader, cx),
        }
    }

    fn is_of_another_process(&self) -> bool {
        self.process != forks()
    }
}

impl StreamEnd for ChainedEnd {
    fn poll_ready(&self, cx: &mut Context<'_>, waiting: &mut Waiting) -> Poll<()> {
        if self.is_of_another_process() || self.drive() {
            return Poll::Ready(());
        }
        match self.stream() {
            Some(stream) if stream.poll_ready(cx, waiting).is_ready() => Poll::Ready(()),
            _ => self.wait(Half::Writer, cx),
        }
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, is_last: bool) -> Result<(), Status> {
        if self.is_of_another_process() {
            return Err(belongs_to_parent());
        }
        if self.is_over.load(Ordering::Acquire) {
            let over = || Status::cancelled("the stream is over; the item was not sent");
            return Err(match &*self.chain.lock() {
                Chain::Over(answer) => answer.result.clone().err().unwrap_or_else(over),
                Chain::Running(_) => over(),
            });
        }
        if let Some(stream) = self.stream() {
            return stream.push(head, tail, is_last);
        }
        let mut early = self.early.lock();
        if early.item.is_some() {
            return Err(Status::failed_precondition(
                "the stream has not begun, and a message waits already; this one was not sent: a sink has to \
                 be ready first",
            ));
        }
        early.item = Some((head.to_vec(), tail.cloned(), is_last));
        Ok(())
    }

    fn may_hold(&self) -> bool {
        true
    }

    fn poll_pushed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if self.is_of_another_process() {
            return Poll::Ready(Err(belongs_to_parent()));
        }
        // The interceptors may end the stream while they hold an item.
        self.drive();
        let Some(stream) = self.stream() else {
            return Poll::Ready(Ok(()));
        };
        match stream.poll_pushed(cx) {
            Poll::Ready(pushed) => Poll::Ready(pushed.map_err(|status| {
                let ended = self.result().err();
                ended.unwrap_or(status)
            })),
            Poll::Pending => self.wait(Half::Writer, cx),
        }
    }

    fn encoding(&self) -> Encoding {
        Encoding::Native
    }

    fn close(&self) {
        if self.is_of_another_process() {
            return;
        }
        let mut early = self.early.lock();
        match self.stream() {
            Some(stream) if early.item.is_none() => {
                drop(early);
                stream.close();
            }
            _ => early.is_closed = true,
        }
    }

    fn abort(&self) {
        self.give_up(|stream| stream.abort());
    }

    fn fail(&self, status: Status) {
        self.give_up(|stream| stream.fail(status));
    }

    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        let read = |stream: &dyn StreamEnd, cx: &mut Context<'_>| {
            let next = ready!(stream.poll_items(cx, waiting)).transpose();
            Poll::Ready(next.map(|items| items.map(Some)))
        };
        self.poll_reader(cx, read, Self::answer)
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        // Before the stream begins, its messages are the interceptors' own.
        (self.stream()).map_or_else(|| Ok(HeldBytes::default()), |stream| stream.hold(bytes))
    }

    fn decode_limits(&self) -> DecodeLimits {
        // Messages of the interceptors' own are not in protobuf.
        (self.stream()).map_or_else(DecodeLimits::default, |stream| stream.decode_limits())
    }

    fn reject(&self, why: &str) -> Status {
        match self.stream() {
            Some(stream) => stream.reject(why),
            None => Status::internal(format!("an interceptor broke the stream: {why}")),
        }
    }

    fn stop_reading(&self) {
        self.give_up(|stream| stream.stop_reading());
    }

    fn headers(&self) -> Option<Metadata> {
        self.stream()?.headers()
    }

    fn poll_headers(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Metadata, Status>> {
        let read = |stream: &dyn StreamEnd, cx: &mut Context<'_>| {
            stream.poll_headers(cx, waiting).map(Some)
        };
        self.poll_reader(cx, read, |end| {
            let headers = end.stream().and_then(|stream| stream.headers());
            headers.map_or_else(|| end.result().map(|()| Metadata::default()), Ok)
        })
    }

    fn trailers(&self) -> Option<Metadata> {
        if self.process != forks() {
            return None;
        }
        match &*self.chain.lock() {
            Chain::Over(answer) => Some(answer.trailers.clone()),
            Chain::Running(_) => None,
        }
    }

    fn send_headers(&self, _: Metadata) -> Result<(), Status> {
        Err(only_servers_send())
    }

    fn set_trailers(&self, _: Metadata) -> Result<(), Status> {
        Err(only_servers_send())
    }
}
