//! A call of a channel, without its message types: it waits for a permit, then for its result.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use event_listener::EventListener;
use starling_endpoint::{Msgbuf, Status};
use starling_message::MethodDescriptor;

use crate::address::Address;
use crate::call_cell::{CallCell, CallResult};
use crate::channel::{Channel, ChannelBuilder};
use crate::channel_state::StateCell;
use crate::driver::{Command, DeadlineWaker, Driver, Reply, Submission, Watch};
use crate::options::CallOptions;
use crate::permits::{Permit, Permits};

/// The state that the clones of a channel and their calls share.
pub(crate) struct Shared {
    pub(crate) driver: Arc<Driver>,
    pub(crate) id: u64,
    pub(crate) address: Address,
    pub(crate) state: Arc<StateCell>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) fail_when_full: bool,
    /// What the channel was made with.
    pub(crate) settings: ChannelBuilder,
    /// The channel that a child of this process uses in its place.
    pub(crate) in_child: OnceLock<Channel>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.driver.is_of_this_process() {
            self.driver.send(Command::Close { channel: self.id });
        }
    }
}

/// A call that becomes a command when there is a permit for it.
pub(crate) trait IntoCommand: Unpin {
    fn into_command(self, reply: Reply) -> Command;
}

pub(crate) struct CallRequest {
    pub(crate) channel: u64,
    pub(crate) method: &'static MethodDescriptor,
    /// In the native layout, after `room` bytes for the call header.
    pub(crate) message: Msgbuf,
    pub(crate) room: usize,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Option<Instant>,
}

impl IntoCommand for CallRequest {
    fn into_command(self, reply: Reply) -> Command {
        Command::Call(Submission {
            channel: self.channel,
            method: self.method,
            message: self.message,
            room: self.room,
            options: self.options,
            deadline: self.deadline,
            reply,
        })
    }
}

pub(crate) struct ConnectRequest {
    pub(crate) channel: u64,
    pub(crate) wait_for_ready: bool,
}

impl IntoCommand for ConnectRequest {
    fn into_command(self, reply: Reply) -> Command {
        Command::Connect {
            channel: self.channel,
            wait_for_ready: self.wait_for_ready,
            reply,
        }
    }
}

/// A call that waits for a permit.
struct Queued<R> {
    request: R,
    deadline: Option<Instant>,
    listener: Option<EventListener>,
    /// The driver wakes the caller at the deadline.
    deadline_waker: Option<CancelOnDrop>,
}

struct CancelOnDrop(Arc<DeadlineWaker>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

enum Progress<R> {
    Queued(Queued<R>),
    Submitted(Arc<CallCell>),
    /// The call was not made.
    Failed(Status),
    Ended,
}

/// A call without its message types. Dropping it cancels the call.
pub(crate) struct RawCall<R: IntoCommand> {
    shared: Arc<Shared>,
    progress: Progress<R>,
    watch: Option<Watch>,
}

impl<R: IntoCommand> RawCall<R> {
    pub(crate) fn new(shared: &Arc<Shared>, deadline: Option<Instant>, request: R) -> Self {
        let mut call = Self {
            shared: Arc::clone(shared),
            progress: Progress::Ended,
            watch: None,
        };
        match shared.permits.try_acquire() {
            Some(permit) => call.submit(permit, request),
            None => {
                call.progress = Progress::Queued(Queued {
                    request,
                    deadline,
                    listener: None,
                    deadline_waker: None,
                });
            }
        }
        call
    }

    /// A call that is not made, and ends with this status.
    pub(crate) fn failed(shared: &Arc<Shared>, status: Status) -> Self {
        Self {
            shared: Arc::clone(shared),
            progress: Progress::Failed(status),
            watch: None,
        }
    }

    /// The end of a call in a child of the process that made it.
    #[cold]
    fn belongs_to_parent(&mut self) -> Status {
        let made = matches!(self.progress, Progress::Submitted(_));
        self.progress = Progress::Ended;
        let status = Status::unavailable(
            "the process has forked since the call was made: its parent gets the response; \
             make the call again here",
        );
        if made { status } else { status.with_not_run() }
    }

    fn submit(&mut self, permit: Permit, request: R) {
        let cell = Arc::new(CallCell::new());
        self.progress = Progress::Submitted(Arc::clone(&cell));
        self.shared.driver.push(request.into_command(Reply {
            cell,
            permit: Some(permit),
        }));
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CallResult> {
        if !self.shared.driver.is_of_this_process() {
            return Poll::Ready(Err(self.belongs_to_parent()));
        }
        if let Progress::Queued(queued) = &mut self.progress {
            let permit = match queued.poll_permit(&self.shared, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(permit) => permit,
            };
            let queued = std::mem::replace(&mut self.progress, Progress::Ended);
            match (permit, queued) {
                (Ok(permit), Progress::Queued(queued)) => self.submit(permit, queued.request),
                (Err(status), _) => return Poll::Ready(Err(status)),
                (Ok(_), _) => unreachable!("the call is queued"),
            }
        }
        match &self.progress {
            Progress::Submitted(cell) => {
                let mut result = cell.poll(cx);
                if result.is_pending() {
                    self.shared.driver.drive(&mut self.watch);
                    // Over shared memory the response may be here already.
                    result = cell.poll(cx);
                }
                if result.is_ready() {
                    self.watch = None;
                    self.progress = Progress::Ended;
                }
                result
            }
            Progress::Failed(status) => {
                let status = status.clone();
                self.progress = Progress::Ended;
                Poll::Ready(Err(status))
            }
            Progress::Queued(_) | Progress::Ended => {
                panic!("a call was polled after it had ended")
            }
        }
    }
}

impl<R> Queued<R> {
    /// Waits for a permit until the deadline.
    fn poll_permit(
        &mut self,
        shared: &Shared,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit, Status>> {
        loop {
            if self.listener.is_none() {
                if let Some(permit) = shared.permits.try_acquire() {
                    return Poll::Ready(Ok(permit));
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
                    if let Some(permit) = shared.permits.try_acquire() {
                        return Poll::Ready(Ok(permit));
                    }
                    listener
                }
            };
            if Pin::new(listener).poll(cx).is_ready() {
                self.listener = None;
                continue;
            }
            return self.poll_deadline(shared, cx).map(Err);
        }
    }

    fn poll_deadline(&mut self, shared: &Shared, cx: &Context<'_>) -> Poll<Status> {
        let Some(deadline) = self.deadline else {
            return Poll::Pending;
        };
        if deadline <= Instant::now() {
            return Poll::Ready(
                Status::deadline_exceeded(
                    "the channel was full until the deadline; the call was not made",
                )
                .with_not_run(),
            );
        }
        match &self.deadline_waker {
            Some(CancelOnDrop(waker)) => waker.register(cx.waker()),
            None => {
                let waker = Arc::new(DeadlineWaker::default());
                waker.register(cx.waker());
                self.deadline_waker = Some(CancelOnDrop(Arc::clone(&waker)));
                (shared.driver).send(Command::WakeAt { deadline, waker });
            }
        }
        Poll::Pending
    }
}

impl<R: IntoCommand> Drop for RawCall<R> {
    fn drop(&mut self) {
        // A queued call leaves the queue when its listener is dropped.
        if let Progress::Submitted(cell) = &self.progress
            && self.shared.driver.is_of_this_process()
            && cell.abandon()
        {
            self.shared.driver.send(Command::Cancel(Arc::clone(cell)));
        }
    }
}
