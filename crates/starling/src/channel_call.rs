//! A call of a channel, without its message types: it waits for a permit, then for its result.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use starling_endpoint::{Code, Status};
use starling_io::forks;
use starling_message::protobuf::DecodeLimits;

use crate::balancing::BalancedTransport;
use crate::call_cell::CallCell;
use crate::channel::{Channel, ChannelBuilder};
use crate::coding::{Bound, CallCoding, open_response};
use crate::driver::DeadlineWaker;
use crate::interceptor::{BoxFuture, Interceptors, call_through};
use crate::metrics::{self, CallerMeasure, SharedRecorders};
use crate::options::CallOptions;
use crate::permits::{PermitListener, Permits};
use crate::plane::{CallHandle, CallResult, Operation, OutgoingCall, Reply, Transport, Waiting};
use crate::policy::CallPolicy;
use crate::streaming::{ByteAccount, Route};
use crate::time::Time;

/// The state that the clones of a channel and their calls share.
pub(crate) struct Shared {
    pub(crate) transport: Box<dyn Transport>,
    /// The transport again, if it has several servers.
    pub(crate) balanced: Option<BalancedTransport>,
    pub(crate) address: String,
    pub(crate) time: Time,
    /// What a service config says of calls.
    pub(crate) policy: Option<Arc<CallPolicy>>,
    /// For what its callers measure, if metrics are enabled.
    pub(crate) recorders: SharedRecorders,
    pub(crate) permits: Arc<Permits>,
    pub(crate) fail_when_full: bool,
    /// What the channel's streams hold.
    pub(crate) streams: Arc<ByteAccount>,
    /// What messages may take that come in protobuf.
    pub(crate) decode: DecodeLimits,
    /// The process that made the channel; see [`forks`].
    pub(crate) process: u32,
    /// What the channel was made with. None if it was given its transport.
    pub(crate) settings: Option<ChannelBuilder>,
    /// The channel that a child of this process uses in its place.
    pub(crate) in_child: OnceLock<Channel>,
}

impl Shared {
    /// Whether this process made it, and not one that this process is a fork of.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == forks()
    }

    /// The options of a call of this method, with what the channel's service config says of it.
    #[inline]
    pub(crate) fn with_policy<'a>(
        &self,
        path: &str,
        options: Cow<'a, CallOptions>,
    ) -> Cow<'a, CallOptions> {
        match &self.policy {
            None => options,
            Some(policy) => policy.apply(path, options),
        }
    }

    /// What is done with the messages of a call with such options, with whose bounds they are.
    pub(crate) fn with_bounds(&self, path: &str, coding: Option<CallCoding>) -> Option<CallCoding> {
        let (mut coding, policy) = (coding?, self.policy.as_ref());
        if let Some(policy) = policy {
            policy.note_bounds(path, &mut coding);
        }
        Some(coding)
    }

    /// The state of a channel like this one over another transport.
    pub(crate) fn with_transport(&self, address: String, transport: Box<dyn Transport>) -> Self {
        Self {
            transport,
            balanced: None,
            address,
            time: self.time.clone(),
            policy: self.policy.clone(),
            recorders: SharedRecorders::default(),
            permits: Permits::new(self.permits.capacity()),
            fail_when_full: self.fail_when_full,
            streams: Arc::clone(&self.streams),
            decode: self.decode,
            process: self.process,
            settings: None,
            in_child: OnceLock::new(),
        }
    }

    /// A channel with the same settings, for a child of the process that made this one.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn remake(&self) -> Result<Channel, String> {
        let settings = self.settings.clone();
        let settings = settings.ok_or("the channel was given its transport: make it anew")?;
        let made = settings.lazy();
        made.map_err(|error| format!("open an endpoint: {error}"))
    }
}

/// A call that waits for a permit.
struct Queued {
    operation: Operation,
    listener: Option<PermitListener>,
    timer: DeadlineTimer,
    /// When it began to wait, if that is measured.
    since: Option<Instant>,
}

/// Has the transport wake a caller at its deadline.
#[derive(Default)]
pub(crate) struct DeadlineTimer(Option<Arc<DeadlineWaker>>);

impl DeadlineTimer {
    /// Ready when the deadline has passed.
    pub(crate) fn poll(
        &mut self,
        deadline: Option<Instant>,
        shared: &Shared,
        cx: &Context<'_>,
    ) -> Poll<()> {
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        if deadline <= shared.time.now() {
            return Poll::Ready(());
        }
        match &self.0 {
            Some(waker) => waker.register(cx.waker()),
            None => {
                let waker = Arc::new(DeadlineWaker::default());
                waker.register(cx.waker());
                self.0 = Some(Arc::clone(&waker));
                shared.transport.wake_at(deadline, waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for DeadlineTimer {
    fn drop(&mut self) {
        if let Some(waker) = &self.0 {
            waker.cancel();
        }
    }
}

enum Progress {
    // Boxed because it is rare and large.
    Queued(Box<Queued>),
    Started(CallHandle),
    /// The channel's interceptors make the call, or it is measured as its caller sees it, or it may be made several
    /// times.
    Intercepted(BoxFuture<'static, CallResult>),
    /// The call was not made.
    Failed(Status),
    /// With the backend that had the call; 0: none.
    Ended(u64),
}

impl Progress {
    const ENDED: Self = Self::Ended(0);
}

/// A call without its message types. Dropping it cancels the call.
pub(crate) struct RawCall {
    shared: Arc<Shared>,
    progress: Progress,
    waiting: Waiting,
    /// On the response.
    bound: Bound,
}

impl RawCall {
    /// A call by a channel without interceptors.
    pub(crate) fn direct(
        shared: &Arc<Shared>,
        mut call: OutgoingCall,
        coding: Option<&CallCoding>,
    ) -> Self {
        let takes_compressed = coding.is_some() && shared.transport.takes_compressed();
        match CallCoding::seal(coding, &mut call.message, takes_compressed) {
            Err(status) => Self::failed(shared, status),
            Ok(bound) => Self::by_policy(shared, call, bound),
        }
    }

    /// A call that is made as often as the channel's service config says.
    fn by_policy(shared: &Arc<Shared>, call: OutgoingCall, bound: Bound) -> Self {
        let call = match &shared.policy {
            None => call,
            Some(policy) => match policy.attempts(shared, call) {
                Ok(attempts) => {
                    let made = async move { open_response(attempts.await, bound) };
                    return Self::with(shared, Progress::Intercepted(Box::pin(made)));
                }
                Err(call) => *call,
            },
        };
        let mut call = Self::new(shared, Operation::Call(call));
        call.bound = bound;
        call
    }

    pub(crate) fn new(shared: &Arc<Shared>, operation: Operation) -> Self {
        if shared.permits.try_acquire() {
            return Self::with_permit(shared, operation);
        }
        let queued = Queued {
            operation,
            listener: None,
            timer: DeadlineTimer::default(),
            since: metrics::is_enabled().then(Instant::now),
        };
        Self::with(shared, Progress::Queued(Box::new(queued)))
    }

    fn with_permit(shared: &Arc<Shared>, operation: Operation) -> Self {
        let mut call = Self::with(shared, Progress::ENDED);
        call.start(operation);
        call
    }

    /// A call that does not wait for a permit: none if there is none.
    pub(crate) fn at_once(
        shared: &Arc<Shared>,
        operation: impl FnOnce() -> Operation,
    ) -> Option<Self> {
        let has_permit = shared.permits.try_acquire();
        has_permit.then(|| Self::with_permit(shared, operation()))
    }

    /// A call that is made once more: as another one, or not at all if that would fail because the channel is full.
    pub(crate) fn again(shared: &Arc<Shared>, operation: Operation) -> Option<Self> {
        match shared.fail_when_full {
            true => Self::at_once(shared, || operation),
            false => Some(Self::new(shared, operation)),
        }
    }

    /// A call by a channel with these interceptors.
    pub(crate) fn intercepted(
        shared: &Arc<Shared>,
        interceptors: &Interceptors,
        mut call: OutgoingCall,
        coding: Option<CallCoding>,
    ) -> Self {
        let coding = shared.with_bounds(call.message.path.as_str(), coding);
        let has_attempts = (shared.policy.as_ref()).is_some_and(|it| it.makes_several(&call));
        if interceptors.is_empty() && coding.is_none() && !has_attempts {
            return Self::by_policy(shared, call, Bound::at_client(None));
        }
        let measure = CallerMeasure::begin(&shared.recorders, &shared.address, &mut call);
        if interceptors.is_empty() && measure.is_none() {
            return Self::direct(shared, call, coding.as_ref());
        }
        let call: BoxFuture<'static, CallResult> = match interceptors.is_empty() {
            false => {
                let route = Route::Channel(Arc::clone(shared), None);
                call_through(interceptors, route, call, coding)
            }
            true => {
                let mut call = Self::direct(shared, call, coding.as_ref());
                Box::pin(std::future::poll_fn(move |cx| call.poll(cx)))
            }
        };
        let call = match measure {
            Some(measure) => Box::pin(measure.end_of(call)),
            None => call,
        };
        Self::with(shared, Progress::Intercepted(call))
    }

    /// What the response may take if it comes in protobuf.
    pub(crate) fn decode_limits(&self) -> &DecodeLimits {
        &self.shared.decode
    }

    /// The backend that has the call, or had it last; 0: none.
    pub(crate) fn backend(&self) -> u64 {
        match &self.progress {
            Progress::Started(call) => call.0.backend(),
            Progress::Ended(backend) => *backend,
            _ => 0,
        }
    }

    /// A call that is not made, and ends with this status.
    pub(crate) fn failed(shared: &Arc<Shared>, status: Status) -> Self {
        Self::with(shared, Progress::Failed(status))
    }

    fn with(shared: &Arc<Shared>, progress: Progress) -> Self {
        Self {
            shared: Arc::clone(shared),
            progress,
            waiting: Waiting::default(),
            bound: Bound::at_client(None),
        }
    }

    /// The end of a call in a child of the process that made it.
    #[cold]
    fn belongs_to_parent(&mut self) -> Status {
        let made = matches!(
            self.progress,
            Progress::Started(_) | Progress::Intercepted(_)
        );
        self.progress = Progress::ENDED;
        let status = Status::unavailable(
            "the process has forked since the call was made: its parent gets the response; \
             make the call again here",
        );
        if made { status } else { status.with_not_run() }
    }

    /// Begins the operation, which has a permit.
    fn start(&mut self, operation: Operation) {
        let call = CallHandle(CallCell::new(operation, Some(&self.shared.permits)));
        self.progress = Progress::Started(call.clone());
        self.shared.transport.start(Reply::new(call));
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CallResult> {
        if !self.shared.is_of_this_process() {
            return Poll::Ready(Err(self.belongs_to_parent()));
        }
        if let Progress::Queued(queued) = &mut self.progress {
            let permit = match queued.poll_permit(&self.shared, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(permit) => permit,
            };
            queued.record(
                &self.shared.address,
                permit.as_ref().err().map(Status::code),
            );
            let queued = std::mem::replace(&mut self.progress, Progress::ENDED);
            match (permit, queued) {
                (Ok(()), Progress::Queued(queued)) => self.start(queued.operation),
                (Err(status), _) => return Poll::Ready(Err(status)),
                (Ok(()), _) => unreachable!("the call is queued"),
            }
        }
        match &mut self.progress {
            Progress::Intercepted(call) => {
                let result = call.as_mut().poll(cx);
                if result.is_ready() {
                    self.progress = Progress::ENDED;
                }
                result
            }
            Progress::Started(call) => {
                let mut result = call.0.poll(cx);
                let transport = &self.shared.transport;
                if result.is_pending() && transport.drive(Some(call), &mut self.waiting) {
                    // Over shared memory the response may be here already.
                    result = call.0.poll(cx);
                }
                if result.is_ready() {
                    self.waiting = Waiting::default();
                    let ended = Progress::Ended(call.0.backend());
                    let ended = std::mem::replace(&mut self.progress, ended);
                    if let Progress::Started(CallHandle(cell)) = ended {
                        cell.recycle();
                    }
                }
                let bound = self.bound;
                result.map(|result| open_response(result, bound))
            }
            Progress::Failed(status) => {
                let status = status.clone();
                self.progress = Progress::ENDED;
                Poll::Ready(Err(status))
            }
            Progress::Queued(_) | Progress::Ended(_) => {
                panic!("a call was polled after it had ended")
            }
        }
    }
}

impl Queued {
    /// It has waited, and is made or ends with this code, if calls are measured.
    fn record(&self, address: &str, ended: Option<Code>) {
        if let Some(since) = self.since {
            metrics::record_queue(address, &self.operation, since.elapsed(), ended);
        }
    }

    /// Waits for a permit until the deadline.
    fn poll_permit(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            if self.listener.is_none() {
                if shared.permits.try_acquire() {
                    return Poll::Ready(Ok(()));
                }
                if shared.fail_when_full {
                    return Poll::Ready(Err(Status::resource_exhausted(format!(
                        "the channel has its {} calls outstanding; the call was not made: \
                         call less often, or raise ChannelBuilder::capacity",
                        shared.permits.capacity()
                    ))
                    .with_not_run()));
                }
            }
            let listener = match &mut self.listener {
                Some(listener) => listener,
                None => {
                    let listener = self.listener.insert(shared.permits.listen());
                    // A permit may have been returned before the call was in the queue.
                    if shared.permits.try_acquire() {
                        return Poll::Ready(Ok(()));
                    }
                    listener
                }
            };
            if listener.poll(cx).is_ready() {
                self.listener = None;
                continue;
            }
            let deadline = self.operation.deadline();
            return self.timer.poll(deadline, shared, cx).map(|()| {
                Err(Status::deadline_exceeded(
                    "the channel was full until the deadline; the call was not made",
                )
                .with_not_run())
            });
        }
    }
}

impl Drop for RawCall {
    fn drop(&mut self) {
        if !self.shared.is_of_this_process() {
            return;
        }
        match &self.progress {
            Progress::Started(call) if call.0.abandon() => self.shared.transport.cancel(call),
            // It leaves the queue when its listener is dropped.
            Progress::Queued(queued) => queued.record(&self.shared.address, Some(Code::Cancelled)),
            _ => {}
        }
    }
}
