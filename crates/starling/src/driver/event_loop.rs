//! The event loop behind channels: an endpoint that makes the calls of other threads. Whoever drives
//! it has it to itself.

use std::collections::HashMap;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use starling_endpoint::{
    CallError, CallId, Code, Completion, ContinuationId, Encoding, LargeBuffers, OwnedMessage,
    SessionId, Status, unsent_message,
};
use starling_io::{IoError, MessageMemory, ReactorWait, Wake};
use starling_share::Step;

use super::command::Command;
use super::deadline_waker::wake_at;
use super::measures::Measures;
use super::open_channel::OpenChannel;
use crate::binding::IdHasher;
use crate::core::Core;
use crate::device::Device;
use crate::health::watch_health;
use crate::plane::{CallHandle, Operation, OutgoingCall, Reply, stopped};
use crate::retry::{Attempt, Failed, Made, call_of, is_retryable};
use crate::streaming::spare_for;
use crate::threads::Questions;

/// How long sessions may take to close when the last channel is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// What has arrived since a turn so long ago is looked at before commands are executed.
const STALE_NS: u64 = 20_000;

/// A call that the loop has taken from the inbox and not finished.
struct PendingCall {
    reply: Reply,
    channel: u64,
    stage: Stage,
}

enum Stage {
    /// Handed to the endpoint. The cell keeps the request, in case it is never sent.
    Made(CallId),
    /// In a task that waits for the connection.
    Waiting(Option<Waker>),
}

/// A call whose session ended before the call was sent. Its cell has the request.
struct UnsentCall {
    reply: Reply,
    channel: u64,
}

/// The loop's calls.
#[derive(Default)]
struct Calls {
    /// By the key that their cells hold.
    table: Slab<PendingCall>,
    unsent: Vec<UnsentCall>,
    /// Channels with a call that failed as if their session had ended.
    suspected: Vec<u64>,
    measures: Measures,
}

impl Calls {
    fn insert(&mut self, call: PendingCall) -> usize {
        let entry = self.table.vacant_entry();
        let key = entry.key();
        call.reply.call().0.set_key(key);
        entry.insert(call);
        key
    }

    /// The call of this cell, unless its key belongs to another call by now.
    fn get_mut(&mut self, key: usize, call: &CallHandle) -> Option<&mut PendingCall> {
        let pending = self.table.get_mut(key)?;
        Arc::ptr_eq(&pending.reply.call().0, &call.0).then_some(pending)
    }

    fn remove(&mut self, key: usize) -> Option<PendingCall> {
        self.table.try_remove(key)
    }

    /// Takes the call that this completion ends.
    #[inline]
    fn take(&mut self, completion: &Completion<'_>, now_ns: u64) -> Option<PendingCall> {
        let call = self.remove(completion.tag as usize)?;
        if let Ok(response) = &completion.result {
            let bytes = response.body().len();
            (self.measures).end(call.channel, call.reply.call(), Ok(bytes), || now_ns);
        }
        Some(call)
    }
}

pub(crate) struct EventLoop<I: Device> {
    core: Core<I>,
    /// Shared with the continuation, which the loop's own turns run. Never contended.
    calls: Arc<Mutex<Calls>>,
    continuation: ContinuationId,
    channels: HashMap<u64, OpenChannel, IdHasher>,
    /// The last request of a stream that was handed to the endpoint, by its key: its cell still has it.
    last_of_stream: Option<usize>,
    /// The wait for the device is that of executors' reactors.
    reactors_wait: bool,
}

/// A loop on a device of any kind, for [`starling_share::SharedLoop`].
pub(crate) struct OpenedLoop {
    pub(crate) event_loop: Box<dyn starling_share::EventLoop<Command = Command>>,
    /// Ends a sleep of the loop.
    pub(crate) waker: Arc<dyn Wake>,
    /// For reactors.
    #[cfg(feature = "tokio")]
    pub(crate) descriptor: Option<OwnedFd>,
    /// The memory for messages of the device.
    pub(crate) memory: MessageMemory,
    /// Those of the endpoint.
    pub(crate) buffers: LargeBuffers,
    /// What others want to know of the endpoint.
    pub(crate) questions: Arc<Questions>,
}

impl<I: Device> starling_share::EventLoop for EventLoop<I> {
    type Command = Command;

    fn resume(&mut self) -> Result<(), IoError> {
        self.end_wait()?;
        // A thread that makes one call after the other resumes each time.
        match self.core.raw.since_last_turn_ns() {
            ..STALE_NS => Ok(()),
            _ => self.turn().map(drop),
        }
    }

    fn execute(&mut self, command: Command) {
        // A panic is that of a caller's waker, as in a turn.
        let _ = catch_unwind(AssertUnwindSafe(|| self.execute_command(command)));
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        self.end_wait()?;
        // A panic is that of a caller's waker. Its call has ended, and the others go on.
        let turn = catch_unwind(AssertUnwindSafe(|| self.core.turn()));
        let mut busy = match turn {
            Ok(turn) => !turn?.is_idle(),
            Err(_) => true,
        };
        busy |= self.handle_failures();
        Ok(match busy {
            true => Step::Busy,
            false => Step::Idle,
        })
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.forget_last_request();
        self.core.count_left();
        self.end_wait()?;
        self.core.wait(limit)
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        self.forget_last_request();
        self.core.count_left();
        // One that has begun says no more what arrived before.
        self.end_wait()?;
        let wait = self.core.raw.begin_wait()?;
        self.reactors_wait = wait == ReactorWait::Begun;
        Ok(wait)
    }

    fn spins(&mut self) -> bool {
        self.core.raw.spins()
    }

    fn is_expecting(&self) -> bool {
        // Also when nobody calls somebody has to notice that a server answers a connect, or goes.
        !self.calls.lock().table.is_empty() || self.core.is_opening()
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        let next_ns = self.core.raw.next_timer_ns()?;
        let executor = &self.core.executor;
        if !executor.time.is_manual() {
            return Some(next_ns);
        }
        // Manual time wakes the keeper when it moves.
        (next_ns <= executor.now_ns()).then_some(0)
    }

    /// Closes all sessions, or ends all calls with the device's error.
    fn end(mut self: Box<Self>, failure: Option<&str>) {
        self.channels.clear();
        // If it fails, so does the turn that follows.
        let _ = self.end_wait();
        let Some(failure) = failure else {
            self.core.let_time_pass();
            // A failure of the device ends the sessions, too.
            let _ = self.core.raw.drain(CLOSE_TIMEOUT);
            return;
        };
        let Calls {
            table,
            unsent,
            mut measures,
            ..
        } = std::mem::take(&mut *self.calls.lock());
        let calls = table
            .into_iter()
            .map(|(_, call)| (call.reply, call.channel));
        let unsent = unsent.into_iter().map(|call| (call.reply, call.channel));
        for (reply, channel) in calls.chain(unsent) {
            let status = stopped(Some(failure));
            measures.end(channel, reply.call(), Err(status.code()), || {
                self.core.executor.now_ns()
            });
            reply.finish(Err(status));
        }
    }
}

impl<I: Device> EventLoop<I> {
    pub(crate) fn open(mut core: Core<I>) -> OpenedLoop {
        OpenedLoop {
            waker: core.raw.waker(),
            #[cfg(feature = "tokio")]
            descriptor: core.raw.descriptor(),
            memory: core.raw.memory(),
            buffers: core.raw.large_buffers(),
            questions: Arc::clone(&core.questions),
            event_loop: Box::new(Self::new(core)),
        }
    }

    fn new(mut core: Core<I>) -> Self {
        core.count_later();
        let calls = Arc::new(Mutex::new(Calls::default()));
        let its_calls = Arc::clone(&calls);
        let buffers = core.raw.large_buffers();
        let continuation = core.raw.register_continuation(move |cx, completion| {
            let now_ns = cx.now_ns();
            let call = its_calls.lock().take(&completion, now_ns);
            if let Some(call) = call {
                handle_completion(call, completion, &its_calls, &buffers, now_ns);
            }
        });
        Self {
            core,
            calls,
            continuation,
            channels: HashMap::default(),
            last_of_stream: None,
            reactors_wait: false,
        }
    }

    #[inline]
    fn end_wait(&mut self) -> Result<(), IoError> {
        match std::mem::take(&mut self.reactors_wait) {
            true => self.core.raw.end_wait(),
            false => Ok(()),
        }
    }

    fn execute_command(&mut self, command: Command) {
        match command {
            Command::Start { channel, reply } => self.start(channel, reply),
            Command::Open {
                channel,
                address,
                state,
            } => {
                let connection = self.core.connections.open(address);
                connection.publish_to(state);
                self.calls.lock().measures.open(channel, &connection);
                self.channels.insert(channel, OpenChannel::new(connection));
            }
            Command::Close { channel } => {
                self.channels.remove(&channel);
                self.calls.lock().measures.close(channel);
            }
            Command::Report(answer) => {
                answer.set(Some(self.core.stats()));
            }
            Command::Cancel(cell) => self.cancel(&cell),
            Command::WatchHealth {
                channel,
                service,
                health,
            } => {
                if let Some(open) = self.channels.get(&channel) {
                    let connection = Arc::clone(&open.connection);
                    let executor = Arc::clone(&self.core.executor);
                    let task = watch_health(connection, Arc::clone(&executor), service, health);
                    executor.local.spawn(task);
                }
            }
            Command::Spawn(make) => {
                let executor = Arc::clone(&self.core.executor);
                executor.local.spawn(make(Arc::clone(&executor)));
            }
            Command::WakeAt { deadline, waker } => {
                let executor = &self.core.executor;
                let task = wake_at(deadline, waker, Arc::clone(executor));
                executor.local.spawn(task);
            }
        }
    }

    /// The last request of a stream is with the endpoint: its cell need not keep it.
    #[inline]
    fn forget_last_request(&mut self) {
        if let Some(key) = self.last_of_stream.take()
            && let Some(call) = self.calls.lock().table.get(key)
            && matches!(call.stage, Stage::Made(_))
        {
            call.reply.call().0.handle_sent();
        }
    }

    /// Makes the calls again that were never sent. Returns whether there were any.
    fn handle_failures(&mut self) -> bool {
        let mut calls = self.calls.lock();
        if calls.unsent.is_empty() && calls.suspected.is_empty() {
            return false;
        }
        let unsent = std::mem::take(&mut calls.unsent);
        let suspected = std::mem::take(&mut calls.suspected);
        drop(calls);
        for channel in suspected {
            if let Some(channel) = self.channels.get(&channel) {
                channel.connection.suspect(Code::Unavailable);
            }
        }
        for UnsentCall { reply, channel } in unsent {
            self.call_later(reply, channel, Attempt::Last);
        }
        true
    }

    /// Makes a call: now if the connection is ready for it, else in a task that waits.
    fn start(&mut self, channel: u64, reply: Reply) {
        let Some(open) = self.channels.get_mut(&channel) else {
            return;
        };
        let stream = reply.call().0.opened_stream();
        let is_admitted = stream.is_none_or(|it| it.find_slot(&open.connection.stream_slots()));
        let mut calls = self.calls.lock();
        let entry = calls.table.vacant_entry();
        let (core, continuation, key) = (&mut self.core, self.continuation, entry.key());
        let made = reply.call().0.with_request(|call| {
            if let Some(metrics) = &open.connection.metrics {
                // Not the last turn's time: the loop may have slept since.
                let now_ns = core.raw.context().now_ns();
                metrics.begin(call, now_ns, &reply.call().0.measure);
            }
            let session = (call.types).and_then(|types| open.session(types.id, call));
            match session {
                Some(session) if is_admitted && open.connection.takes(call) => {
                    call_now(core, session, call, continuation, key as u64)
                }
                _ => Err(NotMade::Later),
            }
        });
        match made {
            Some(Ok(id)) => {
                reply.call().0.set_key(key);
                let stage = Stage::Made(id);
                let call = entry.insert(PendingCall {
                    reply,
                    channel,
                    stage,
                });
                if call.reply.call().0.is_of_stream() {
                    drop(calls);
                    // The next one forgets it, or a sleep: that takes time, and this one has not left yet.
                    self.forget_last_request();
                    self.last_of_stream = Some(key);
                }
            }
            Some(Err(NotMade::Refused(error)))
                if !matches!(error, CallError::SessionOver | CallError::Draining) =>
            {
                let (status, now_ns) = (Status::from(error), || self.core.raw.turn_ns());
                (calls.measures).end(channel, reply.call(), Err(status.code()), now_ns);
                drop(calls);
                reply.finish(Err(status));
            }
            // The call was not sent, so it may be sent in another session.
            Some(Err(NotMade::Refused(_))) => {
                drop(calls);
                open.connection.suspect(Code::Unavailable);
                let attempt = Attempt::first(&reply);
                self.call_later(reply, channel, attempt);
            }
            // It is another operation, or was given up.
            Some(Err(NotMade::Later)) | None => {
                drop(calls);
                let attempt = Attempt::first(&reply);
                self.call_later(reply, channel, attempt);
            }
        }
    }

    fn call_later(&mut self, reply: Reply, channel: u64, attempt: Attempt) {
        let (Some(operation), Some(open)) = (reply.take_operation(), self.channels.get(&channel))
        else {
            // It was given up.
            let (now_ns, mut calls) = (|| self.core.executor.now_ns(), self.calls.lock());
            return (calls.measures).end(channel, reply.call(), Err(Code::Cancelled), now_ns);
        };
        let (executor, connection) = (&self.core.executor, &open.connection);
        let (executor, connection) = (Arc::clone(executor), Arc::clone(connection));
        let handle = reply.call().clone();
        self.wait(reply, channel, async move {
            match operation {
                Operation::Call(call) => {
                    call_of(&handle.0, &connection, &executor, call, attempt).await
                }
                Operation::Connect { wait_for_ready } => {
                    connection.open(wait_for_ready).await?;
                    Ok((OwnedMessage::default(), Encoding::Native))
                }
            }
        });
    }

    /// Finishes a call with the result of a future, unless the call is cancelled before.
    fn wait(
        &mut self,
        reply: Reply,
        channel: u64,
        future: impl Future<Output = Made> + Send + 'static,
    ) {
        let handle = reply.call().clone();
        let key = self.calls.lock().insert(PendingCall {
            reply,
            channel,
            stage: Stage::Waiting(None),
        });
        let (calls, executor) = (Arc::clone(&self.calls), Arc::clone(&self.core.executor));
        self.core.executor.local.spawn(async move {
            let mut future = pin!(future);
            let result = std::future::poll_fn(|cx| {
                if let Some(call) = calls.lock().get_mut(key, &handle) {
                    call.stage = Stage::Waiting(Some(cx.waker().clone()));
                } else {
                    return Poll::Ready(None);
                }
                future.as_mut().poll(cx).map(Some)
            })
            .await;
            if let Some(made) = result {
                let mut calls = calls.lock();
                if let Some(PendingCall { reply, channel, .. }) = calls.remove(key) {
                    (calls.measures).end_made(channel, &reply, &made, || executor.now_ns());
                    drop(calls);
                    finish(reply, made);
                }
            }
        });
    }

    fn cancel(&mut self, call: &CallHandle) {
        let key = call.0.key();
        let mut calls = self.calls.lock();
        if let Some(channel) = calls.get_mut(key, call).map(|call| call.channel) {
            let now_ns = || self.core.executor.now_ns();
            (calls.measures).end(channel, call, Err(Code::Cancelled), now_ns);
        }
        match calls.get_mut(key, call).map(|call| &mut call.stage) {
            Some(Stage::Made(id)) => {
                let id = *id;
                drop(calls);
                // The continuation takes the call from the table.
                self.core.raw.cancel(id);
            }
            Some(Stage::Waiting(waker)) => {
                let waker = waker.take();
                let call = calls.remove(key);
                drop(calls);
                drop(call);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            None => {}
        }
    }
}

/// Why a call was not made.
enum NotMade {
    /// The connection is not ready for it.
    Later,
    Refused(CallError),
}

/// Requests up to this size are copied into the endpoint's buffers, which are in the cache; longer ones
/// are moved there.
const COPIED_BYTES: usize = 512;

/// Hands a call to the endpoint, in the native layout. A request that was moved there is empty afterwards.
#[inline]
fn call_now<I: Device>(
    core: &mut Core<I>,
    session: SessionId,
    call: &mut OutgoingCall,
    continuation: ContinuationId,
    tag: u64,
) -> Result<CallId, NotMade> {
    let (raw, time) = (&mut core.raw, &core.executor.time);
    let message = &mut call.message;
    let (method, options) = (message.method, message.header_options(|| time.now()));
    let payload = &mut message.payload;
    if !payload.has_tail() && payload.len() <= COPIED_BYTES {
        let body = &payload.head()[message.headroom..];
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(body);
        let made = raw.call(session, method, &options, build, continuation, tag);
        return made.map_err(NotMade::Refused);
    }
    let moved = std::mem::take(payload);
    let made = raw.call_message(session, method, &options, moved, continuation, tag);
    made.map_err(|not_made| {
        *payload = not_made.message;
        NotMade::Refused(not_made.error)
    })
}

/// Takes in the end of a call. A call that was never sent is to be made again.
fn handle_completion(
    call: PendingCall,
    completion: Completion<'_>,
    calls: &Mutex<Calls>,
    buffers: &LargeBuffers,
    now_ns: u64,
) {
    let PendingCall {
        reply,
        channel,
        stage,
    } = call;
    let mut status = match completion.result {
        Ok(response) => {
            return reply.finish_with(|request| {
                let spare = request.and_then(OutgoingCall::take_spare);
                let response = response
                    .into_owned_in(|bytes| spare.unwrap_or_else(|| spare_for(bytes, buffers)));
                Ok((response, Encoding::Native))
            });
        }
        Err(status) => status,
    };
    if is_retryable(&status) {
        let mut calls = calls.lock();
        calls.suspected.push(channel);
        if let (Some(message), Stage::Made(_)) = (unsent_message(&mut status), stage) {
            reply.call().0.put_back_message(message);
            if !reply.may_go_elsewhere() {
                calls.unsent.push(UnsentCall { reply, channel });
                return;
            }
            // Another server's loop may measure it at once.
            calls.measures.leave(channel, reply.call());
            drop(calls);
            return reply.finish_unsent(status);
        }
    }
    (calls.lock().measures).end(channel, reply.call(), Err(status.code()), || now_ns);
    reply.finish(Err(status));
}

/// Gives a call its result, or has another server make it.
fn finish(reply: Reply, made: Made) {
    match made {
        Ok(response) => reply.finish(Ok(response)),
        Err(Failed {
            status,
            unsent: Some(unsent),
        }) => {
            reply.put_back(*unsent);
            reply.finish_unsent(status);
        }
        Err(Failed { status, .. }) => reply.finish(Err(status)),
    }
}
