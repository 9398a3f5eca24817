//! The event loop behind channels: an endpoint that makes the calls of other threads. Whoever drives
//! it has it to itself.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use starling_endpoint::{
    CallError, CallId, Code, Completion, ContinuationId, Encoding, OwnedMessage, SessionId,
    unsent_message,
};
use starling_io::{IoError, MessageMemory, Wake};
use starling_share::Step;

use super::command::Command;
use super::deadline_waker::wake_at;
use crate::connection::Connection;
use crate::core::Core;
use crate::device::Device;
use crate::plane::{CallHandle, CallResult, Operation, OutgoingCall, Reply, stopped};
use crate::retry::{Attempt, call_when_ready, is_retryable};

/// How long sessions may take to close when the last channel is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// A call that the loop has taken from the inbox and not finished.
struct PendingCall {
    reply: Reply,
    connection: Arc<Connection>,
    stage: Stage,
}

enum Stage {
    /// Handed to the endpoint, with what it takes to make the call again if it was never sent.
    Made(Option<CallId>, OutgoingCall),
    /// In a task that waits for the connection.
    Waiting(Option<Waker>),
}

/// A call whose session ended before the call was sent.
struct UnsentCall {
    reply: Reply,
    connection: Arc<Connection>,
    call: OutgoingCall,
}

/// The loop's calls, by the key that their cells hold.
#[derive(Default)]
struct CallTable(Slab<PendingCall>);

impl CallTable {
    fn insert(&mut self, call: PendingCall) -> usize {
        let entry = self.0.vacant_entry();
        let key = entry.key();
        call.reply.call.0.set_key(key);
        entry.insert(call);
        key
    }

    /// The call of this cell, unless its key belongs to another call by now.
    fn get_mut(&mut self, key: usize, call: &CallHandle) -> Option<&mut PendingCall> {
        let pending = self.0.get_mut(key)?;
        Arc::ptr_eq(&pending.reply.call.0, &call.0).then_some(pending)
    }

    fn remove(&mut self, key: usize) -> Option<PendingCall> {
        self.0.try_remove(key)
    }
}

pub(crate) struct EventLoop<I: Device> {
    core: Core<I>,
    calls: Arc<Mutex<CallTable>>,
    unsent: Arc<Mutex<Vec<UnsentCall>>>,
    continuation: ContinuationId,
    channels: HashMap<u64, Arc<Connection>>,
}

/// A loop on a device of any kind, for [`starling_share::SharedLoop`].
pub(crate) struct OpenedLoop {
    pub(crate) event_loop: Box<dyn starling_share::EventLoop<Command = Command>>,
    /// Ends a sleep of the loop.
    pub(crate) waker: Arc<dyn Wake>,
    /// The memory for messages of the device.
    pub(crate) memory: MessageMemory,
}

impl<I: Device> starling_share::EventLoop for EventLoop<I> {
    type Command = Command;

    fn resume(&mut self) -> Result<(), IoError> {
        self.turn().map(drop)
    }

    fn execute(&mut self, command: Command) {
        // A panic is that of a caller's waker, as in a turn.
        let _ = catch_unwind(AssertUnwindSafe(|| self.execute_command(command)));
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        // A panic is that of a caller's waker. Its call has ended, and the others go on.
        let turn = catch_unwind(AssertUnwindSafe(|| self.core.turn()));
        let mut busy = match turn {
            Ok(turn) => !turn?.is_idle(),
            Err(_) => true,
        };
        while let Some(unsent) = self.next_unsent() {
            busy = true;
            let UnsentCall {
                reply,
                connection,
                call,
            } = unsent;
            self.call_later(reply, connection, call, Attempt::Last);
        }
        Ok(match busy {
            true => Step::Busy,
            false => Step::Idle,
        })
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.core.wait(limit)
    }

    fn spin_ns(&self) -> u64 {
        self.core.raw.idle().spin_ns()
    }

    fn is_expecting(&self) -> bool {
        !self.calls.lock().0.is_empty()
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        self.core.raw.next_timer_ns()
    }

    /// Closes all sessions, or ends all calls with the device's error.
    fn end(mut self: Box<Self>, failure: Option<&str>) {
        self.channels.clear();
        let Some(failure) = failure else {
            // A failure of the device ends the sessions, too.
            let _ = self.core.raw.drain(CLOSE_TIMEOUT);
            return;
        };
        let calls = std::mem::take(&mut *self.calls.lock());
        let unsent = std::mem::take(&mut *self.unsent.lock());
        let calls = calls.0.into_iter().map(|(_, call)| call.reply);
        let unsent = unsent.into_iter().map(|call| call.reply);
        for reply in calls.chain(unsent) {
            reply.finish(Err(stopped(Some(failure))));
        }
    }
}

impl<I: Device> EventLoop<I> {
    pub(crate) fn open(core: Core<I>) -> OpenedLoop {
        let (waker, memory) = (core.raw.waker(), core.raw.memory());
        OpenedLoop {
            event_loop: Box::new(Self::new(core)),
            waker,
            memory,
        }
    }

    fn new(mut core: Core<I>) -> Self {
        let calls = Arc::new(Mutex::new(CallTable::default()));
        let unsent = Arc::new(Mutex::new(Vec::new()));
        let (its_calls, its_unsent) = (Arc::clone(&calls), Arc::clone(&unsent));
        let continuation = core.raw.register_continuation(move |_, completion| {
            let call = its_calls.lock().remove(completion.tag as usize);
            if let Some(call) = call {
                handle_completion(call, completion, &its_unsent);
            }
        });
        Self {
            core,
            calls,
            unsent,
            continuation,
            channels: HashMap::new(),
        }
    }

    fn execute_command(&mut self, command: Command) {
        match command {
            Command::Open {
                channel,
                address,
                state,
            } => {
                let connection = self.core.connections.open(address);
                connection.publish_to(state);
                self.channels.insert(channel, connection);
            }
            Command::Close { channel } => {
                self.channels.remove(&channel);
            }
            Command::Start {
                channel,
                operation,
                reply,
            } => {
                if let Some(connection) = self.channels.get(&channel).cloned() {
                    self.start(connection, operation, reply);
                }
            }
            Command::Report(answer) => {
                answer.set(Some(self.core.stats()));
            }
            Command::Cancel(cell) => self.cancel(&cell),
            Command::WakeAt { deadline, waker } => {
                let local = self.core.executor.local.clone();
                let task = wake_at(deadline, waker, local.clone());
                local.spawn(task);
            }
        }
    }

    fn next_unsent(&self) -> Option<UnsentCall> {
        self.unsent.lock().pop()
    }

    fn start(&mut self, connection: Arc<Connection>, operation: Operation, reply: Reply) {
        match operation {
            Operation::Call(call) => self.call(connection, call, reply),
            Operation::Connect { wait_for_ready } => {
                let opening = Arc::clone(&connection);
                self.wait(reply, connection, async move {
                    opening.open(wait_for_ready).await?;
                    Ok((OwnedMessage::default(), Encoding::Native))
                });
            }
        }
    }

    /// Makes a call: now if the connection is ready for it, else in a task that waits.
    fn call(&mut self, connection: Arc<Connection>, call: OutgoingCall, reply: Reply) {
        if reply.call.is_abandoned() {
            return;
        }
        let ready = call.types.and_then(|types| connection.ready(types.id));
        let Some((session, Encoding::Native)) = ready else {
            return self.call_later(reply, connection, call, Attempt::First);
        };
        if let Some((call, reply)) = self.call_now(session, &connection, call, reply) {
            self.call_later(reply, connection, call, Attempt::First);
        }
    }

    /// Hands a call to the endpoint. Returns the call if its session has ended: it was not sent, so it
    /// may be sent in another session.
    fn call_now(
        &mut self,
        session: SessionId,
        connection: &Arc<Connection>,
        mut call: OutgoingCall,
        reply: Reply,
    ) -> Option<(OutgoingCall, Reply)> {
        let (method, options) = (call.message.method, call.message.header_options());
        let payload = std::mem::take(&mut call.message.payload);
        let key = self.calls.lock().insert(PendingCall {
            reply,
            connection: Arc::clone(connection),
            stage: Stage::Made(None, call),
        });
        let made = self.core.raw.call_message(
            session,
            method,
            &options,
            payload,
            self.continuation,
            key as u64,
        );
        let mut calls = self.calls.lock();
        let rejected = match made {
            Ok(id) => {
                if let Some(call) = calls.0.get_mut(key)
                    && let Stage::Made(made, _) = &mut call.stage
                {
                    *made = Some(id);
                }
                return None;
            }
            Err(rejected) => rejected,
        };
        let PendingCall { reply, stage, .. } = calls.remove(key)?;
        drop(calls);
        if rejected.error != CallError::SessionOver {
            reply.finish(Err(rejected.error.into()));
            return None;
        }
        connection.suspect(Code::Unavailable);
        let Stage::Made(_, mut call) = stage else {
            return None;
        };
        call.message.payload = rejected.message;
        Some((call, reply))
    }

    fn call_later(
        &mut self,
        reply: Reply,
        connection: Arc<Connection>,
        call: OutgoingCall,
        attempt: Attempt,
    ) {
        let executor = Arc::clone(&self.core.executor);
        let its_connection = Arc::clone(&connection);
        self.wait(reply, connection, async move {
            call_when_ready(&its_connection, &executor, call, attempt).await
        });
    }

    /// Finishes a call with the result of a future, unless the call is cancelled before.
    fn wait(
        &mut self,
        reply: Reply,
        connection: Arc<Connection>,
        future: impl Future<Output = CallResult> + Send + 'static,
    ) {
        let handle = reply.call.clone();
        let key = self.calls.lock().insert(PendingCall {
            reply,
            connection,
            stage: Stage::Waiting(None),
        });
        let calls = Arc::clone(&self.calls);
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
            if let Some(result) = result {
                let call = calls.lock().remove(key);
                if let Some(call) = call {
                    call.reply.finish(result);
                }
            }
        });
    }

    fn cancel(&mut self, call: &CallHandle) {
        let key = call.0.key();
        let mut calls = self.calls.lock();
        match calls.get_mut(key, call).map(|call| &mut call.stage) {
            Some(Stage::Made(Some(id), _)) => {
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
            Some(Stage::Made(None, _)) | None => {}
        }
    }
}

/// Takes in the end of a call. A call that was never sent is put into `unsent`, to be made again.
fn handle_completion(
    call: PendingCall,
    completion: Completion<'_>,
    unsent: &Mutex<Vec<UnsentCall>>,
) {
    let PendingCall {
        reply,
        connection,
        stage,
    } = call;
    let mut status = match completion.result {
        Ok(response) => {
            let response = response.into_owned();
            return reply.finish(Ok((response, Encoding::Native)));
        }
        Err(status) => status,
    };
    connection.suspect(status.code());
    match (unsent_message(&mut status), stage) {
        (Some(message), Stage::Made(_, mut call)) if is_retryable(&status) => {
            call.message.payload = message;
            unsent.lock().push(UnsentCall {
                reply,
                connection,
                call,
            });
        }
        _ => reply.finish(Err(status)),
    }
}
