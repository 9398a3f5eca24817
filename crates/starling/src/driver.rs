//! The background thread behind channels: an endpoint that other threads hand calls to.
//!
//! ```text
//!  callers' threads                         driver's thread
//!  encode ─▶ inbox (lock-free) ─▶ wake ─▶ turn ─▶ endpoint ─▶ network
//!  CallCell ◀──────────────────────────── continuation
//! ```
//!
//! What is in the inbox is bounded by the channels' capacities: a call has a permit of its channel
//! from before it is put in until it is over, and leaves at most one further command.

use std::cell::RefCell;
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use starling_endpoint::{
    CallError, CallId, ContinuationId, Encoding, EndpointConfig, MethodId, Msgbuf, OwnedResponse,
    Status, unsent_message,
};
use starling_io::{IoError, MessageMemory, Wake};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;
use starling_message::MethodDescriptor;

use crate::address::{Address, Scheme, Way};
use crate::cell::{CallCell, End};
use crate::channel::{Permit, StateCell};
use crate::connection::Connection;
use crate::core::Core;
use crate::error::Error;
use crate::local::{Attempt, WaitingCall, call_when_ready, may_try_again};
use crate::options::CallOptions;
use crate::plane::Plane;
use crate::stats::ThreadStats;

/// Commands executed between two turns.
const COMMANDS_PER_TURN: usize = 128;
/// How long sessions may take to be closed when a driver ends.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// A call on its way to the driver.
pub(crate) struct Submission {
    pub(crate) channel: u64,
    pub(crate) method: &'static MethodDescriptor,
    /// In the native layout, with room for the call header.
    pub(crate) message: Msgbuf,
    /// Bytes of that room.
    pub(crate) room: usize,
    pub(crate) options: CallOptions,
    pub(crate) deadline: Option<Instant>,
    pub(crate) reply: Reply,
}

/// What is owed to the caller: the end of the call. Dropping it says that the thread is gone.
pub(crate) struct Reply {
    pub(crate) cell: Arc<CallCell>,
    pub(crate) permit: Option<Permit>,
}

impl Reply {
    fn finish(mut self, end: End) {
        // First: whoever hears of the end may have the next call already.
        self.permit = None;
        self.cell.finish(end);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.permit = None;
        // Has no effect on a call that is over.
        self.cell.finish(Err(stopped(None)));
    }
}

/// What is left of a call's time.
fn left_until(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

#[cold]
fn stopped(why: Option<&str>) -> Status {
    let why = why.unwrap_or("its endpoint was dropped");
    Status::unavailable(format!(
        "the channel's thread stopped: {why}; make a new channel"
    ))
}

pub(crate) enum Command {
    Open {
        channel: u64,
        address: Address,
        state: Arc<StateCell>,
    },
    Close {
        channel: u64,
    },
    Call(Submission),
    Cancel(Arc<CallCell>),
    /// Has the channel connected; the response is empty.
    Connect {
        channel: u64,
        wait_for_ready: bool,
        reply: Reply,
    },
    /// Says what the thread has done.
    Report(Sender<ThreadStats>),
    /// Wakes a caller that waits for a permit, when its time is over.
    WakeAt {
        deadline: Instant,
        alarm: Arc<Alarm>,
    },
}

/// Whom to wake at a time, as long as somebody waits for it.
#[derive(Default)]
pub(crate) struct Alarm(Mutex<AlarmState>);

#[derive(Default)]
struct AlarmState {
    over: bool,
    caller: Option<Waker>,
    task: Option<Waker>,
}

impl Alarm {
    pub(crate) fn set(&self, waker: &Waker) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.caller = Some(waker.clone());
    }

    /// Nobody waits any more.
    pub(crate) fn give_up(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.over = true;
        let (caller, task) = (state.caller.take(), state.task.take());
        drop(state);
        drop(caller);
        if let Some(task) = task {
            task.wake();
        }
    }

    fn poll_over(&self, cx: &std::task::Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return Poll::Ready(());
        }
        state.task = Some(cx.waker().clone());
        Poll::Pending
    }

    fn ring(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let caller = state.caller.take();
        drop(state);
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// What callers share with the driver's thread.
struct Inbox {
    commands: SegQueue<Command>,
    wake: Arc<dyn Wake>,
    stop: AtomicBool,
    /// Why the thread stopped.
    failure: OnceLock<String>,
}

impl Inbox {
    /// Why nothing put in is ever executed, if so.
    fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn fail(&self, why: String) {
        // Only the first reason is kept.
        let _ = self.failure.set(why);
    }

    /// Answers everything that is in it.
    fn refuse_all(&self) {
        while let Some(command) = self.commands.pop() {
            if let Command::Call(Submission { reply, .. }) | Command::Connect { reply, .. } =
                command
            {
                reply.finish(Err(stopped(self.failure())));
            }
        }
    }
}

/// Closes the inbox when the thread ends, in whatever way.
struct Closing(Arc<Inbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.fail("it has ended".to_owned());
        // Who puts something in from now on sees the failure and does the same.
        self.0.refuse_all();
    }
}

/// A background thread with an endpoint. Ends with its last channel.
pub(crate) struct Driver {
    inbox: Arc<Inbox>,
    /// Of the thread's device.
    pub(crate) memory: MessageMemory,
    next_channel: AtomicU64,
    thread: Option<JoinHandle<()>>,
    thread_id: ThreadId,
}

/// The drivers that channels share unless they ask for their own; one for each device.
static SHARED: Mutex<Vec<(Way, Weak<Driver>)>> = Mutex::new(Vec::new());

impl Driver {
    /// The driver that the process's channels share.
    pub(crate) fn shared(address: &Address) -> Result<Arc<Self>, Error> {
        let way = Way::of(address);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, driver)| driver.strong_count() > 0);
        let is_good = |driver: &Arc<Self>| driver.inbox.failure().is_none();
        let mut leading = shared.iter().filter(|(own, _)| own.leads(&way));
        if let Some(driver) = leading.find_map(|(_, driver)| driver.upgrade().filter(is_good)) {
            return Ok(driver);
        }
        let driver = Arc::new(Self::start(address, &EndpointConfig::default())?);
        shared.push((way, Arc::downgrade(&driver)));
        Ok(driver)
    }

    /// A new driver.
    pub(crate) fn start(address: &Address, config: &EndpointConfig) -> Result<Self, Error> {
        match address.scheme() {
            Scheme::Udp => Self::start_on::<UdpIo>(address, config),
            Scheme::Shm => Self::start_on::<ShmIo>(address, config),
            Scheme::Xdp => Self::start_on::<XdpIo>(address, config),
        }
    }

    fn start_on<I: Plane>(address: &Address, config: &EndpointConfig) -> Result<Self, Error> {
        let io = I::client(address.as_str())?;
        let (scheme, way, memory) = (address.scheme(), Way::of(address), io.memory());
        let inbox = Arc::new(Inbox {
            commands: SegQueue::new(),
            wake: io.waker(),
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
        });
        let (config, its_inbox) = (config.clone(), Arc::clone(&inbox));
        let thread = std::thread::Builder::new()
            .name(format!("starling-{scheme}"))
            .spawn(move || {
                let closing = Closing(Arc::clone(&its_inbox));
                let result = Core::new(io, way, &config)
                    .and_then(|core| Ok(Loop::new(core, its_inbox).run()?));
                if let Err(error) = result {
                    closing.0.fail(error.to_string());
                }
            })
            .map_err(|error| Error::system("start a thread for channels", error))?;
        Ok(Self {
            inbox,
            memory,
            next_channel: AtomicU64::new(0),
            thread_id: thread.thread().id(),
            thread: Some(thread),
        })
    }

    /// A number for a new channel.
    pub(crate) fn next_channel(&self) -> u64 {
        self.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// What the thread has done.
    pub(crate) fn stats(&self) -> Result<ThreadStats, Status> {
        let (answer, answered) = channel();
        self.send(Command::Report(answer));
        answered.recv().map_err(|_| stopped(self.inbox.failure()))
    }

    pub(crate) fn send(&self, command: Command) {
        self.inbox.commands.push(command);
        self.inbox.wake.wake();
        if self.inbox.failure().is_some() {
            // The thread may have looked for the last time before the push.
            self.inbox.refuse_all();
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver(..)")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inbox.stop.store(true, Ordering::Release);
        self.inbox.wake.wake();
        // The last reference may go away in the thread itself, with a call's reply.
        if std::thread::current().id() != self.thread_id
            && let Some(thread) = self.thread.take()
        {
            // A panic there was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

/// A call that the driver has in hand.
struct Pending {
    reply: Reply,
    connection: Rc<Connection>,
    stage: Stage,
}

enum Stage {
    /// Handed to the endpoint, with what it takes to make it again if it turns out never to have
    /// been sent.
    Made(Option<CallId>, Again),
    /// In a task that waits for the connection.
    Waiting(Option<Waker>),
}

/// What a call was made from, besides its message.
struct Again {
    method: &'static MethodDescriptor,
    options: CallOptions,
    deadline: Option<Instant>,
}

/// A call whose session ended before it was sent.
struct Unsent {
    reply: Reply,
    connection: Rc<Connection>,
    again: Again,
    message: Msgbuf,
}

/// The calls in hand, by place.
#[derive(Default)]
struct Table {
    places: Vec<Option<Pending>>,
    free: Vec<usize>,
}

impl Table {
    fn insert(&mut self, pending: Pending) -> usize {
        let cell = Arc::clone(&pending.reply.cell);
        let place = self.free.pop().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        self.places[place] = Some(pending);
        cell.set_place(place);
        place
    }

    fn get_mut(&mut self, place: usize, cell: &Arc<CallCell>) -> Option<&mut Pending> {
        let pending = self.places.get_mut(place)?.as_mut()?;
        Arc::ptr_eq(&pending.reply.cell, cell).then_some(pending)
    }

    fn remove(&mut self, place: usize) -> Option<Pending> {
        let pending = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some(pending)
    }
}

struct Loop<I: Plane> {
    core: Core<I>,
    inbox: Arc<Inbox>,
    table: Rc<RefCell<Table>>,
    unsent: Rc<RefCell<Vec<Unsent>>>,
    continuation: ContinuationId,
    channels: std::collections::HashMap<u64, Rc<Connection>>,
}

impl<I: Plane> Loop<I> {
    fn new(mut core: Core<I>, inbox: Arc<Inbox>) -> Self {
        let table = Rc::new(RefCell::new(Table::default()));
        let unsent = Rc::new(RefCell::new(Vec::new()));
        let (its_table, hub) = (Rc::clone(&table), Rc::clone(&core.hub));
        let to_make_again = Rc::clone(&unsent);
        let continuation = core.raw.register_continuation(move |_, completion| {
            let pending = its_table.borrow_mut().remove(completion.tag as usize);
            let Some(pending) = pending else {
                return;
            };
            let mut status = match completion.result {
                Ok(response) => {
                    let response = response.into_owned();
                    return pending.reply.finish(Ok((response, Encoding::Native)));
                }
                Err(status) => status,
            };
            pending.connection.doubt(&hub, status.code());
            match (status.take_unsent().map(unsent_message), pending.stage) {
                (Some(message), Stage::Made(_, again)) if may_try_again(&status) => {
                    to_make_again.borrow_mut().push(Unsent {
                        reply: pending.reply,
                        connection: pending.connection,
                        again,
                        message,
                    });
                }
                _ => pending.reply.finish(Err(status)),
            }
        });
        Self {
            core,
            inbox,
            table,
            unsent,
            continuation,
            channels: std::collections::HashMap::new(),
        }
    }

    /// Works until it is told to stop. If the device fails, the calls in hand hear why.
    fn run(mut self) -> Result<(), IoError> {
        let result = self.work();
        if let Err(error) = &result {
            self.inbox.fail(error.to_string());
            let table = self.table.take();
            let pending = table.places.into_iter().flatten();
            let unsent = self.unsent.take().into_iter();
            let replies = pending.map(|call| call.reply);
            for reply in replies.chain(unsent.map(|call| call.reply)) {
                reply.finish(Err(stopped(self.inbox.failure())));
            }
        }
        result
    }

    fn work(&mut self) -> Result<(), IoError> {
        loop {
            let mut idle = self.core.turn()?.is_idle();
            while let Some(unsent) = self.next_unsent() {
                idle = false;
                self.call_again(unsent);
            }
            for _ in 0..COMMANDS_PER_TURN {
                let Some(command) = self.inbox.commands.pop() else {
                    break;
                };
                idle = false;
                self.obey(command);
            }
            if !idle {
                continue;
            }
            if self.inbox.stop.load(Ordering::Acquire) {
                self.channels.clear();
                self.core.raw.drain(CLOSE_TIMEOUT)?;
                return Ok(());
            }
            self.core.raw.wait(None)?;
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open {
                channel,
                address,
                state,
            } => {
                let connection = self.core.hub.connection(address);
                connection.show_in(state);
                self.channels.insert(channel, connection);
            }
            Command::Close { channel } => {
                self.channels.remove(&channel);
            }
            Command::Call(submission) => self.call(submission),
            Command::Report(answer) => {
                // Who has asked may be gone.
                let _ = answer.send(self.core.stats());
            }
            Command::Cancel(cell) => self.cancel(&cell),
            Command::Connect {
                channel,
                wait_for_ready,
                reply,
            } => {
                if let Some(connection) = self.channels.get(&channel).cloned() {
                    let hub = Rc::clone(&self.core.hub);
                    let opening = Rc::clone(&connection);
                    self.wait(reply, connection, async move {
                        opening.open(&hub, wait_for_ready).await?;
                        Ok((OwnedResponse::default(), Encoding::Native))
                    });
                }
            }
            Command::WakeAt { deadline, alarm } => {
                let local = self.core.hub.local.clone();
                self.core.hub.local.spawn_local(async move {
                    // The caller's clock is another one: it must not find that there is time left.
                    while let Some(left) = left_until(Some(deadline)).filter(|left| !left.is_zero())
                    {
                        let mut sleep = pin!(local.sleep(left));
                        let given_up = std::future::poll_fn(|cx| {
                            if alarm.poll_over(cx).is_ready() {
                                return Poll::Ready(true);
                            }
                            sleep.as_mut().poll(cx).map(|()| false)
                        });
                        if given_up.await {
                            return;
                        }
                    }
                    alarm.ring();
                });
            }
        }
    }

    fn next_unsent(&self) -> Option<Unsent> {
        self.unsent.borrow_mut().pop()
    }

    /// Makes a call once more that was not sent.
    fn call_again(&mut self, unsent: Unsent) {
        let Unsent {
            reply,
            connection,
            again,
            message,
        } = unsent;
        let mut options = again.options;
        // The header that it was made with is as long as these options say.
        let room = options
            .lower(Encoding::Native, options.timeout)
            .header_len();
        options.timeout = left_until(again.deadline);
        let call = WaitingCall {
            method: again.method,
            message,
            room,
            options,
            attempt: Attempt::Last,
        };
        self.call_later(reply, connection, call);
    }

    /// Begins a call: at once if the connection is ready for it, else in a task that waits.
    fn call(&mut self, submission: Submission) {
        let Submission {
            channel,
            method,
            mut message,
            room,
            mut options,
            deadline,
            mut reply,
        } = submission;
        let Some(connection) = self.channels.get(&channel).cloned() else {
            return;
        };
        if reply.cell.is_abandoned() {
            return;
        }
        options.timeout = left_until(deadline);
        if let Some((session, Encoding::Native)) = connection.ready(method.id) {
            let lowered = options.lower(Encoding::Native, options.timeout);
            let place = self.table.borrow_mut().insert(Pending {
                reply,
                connection: Rc::clone(&connection),
                stage: Stage::Made(
                    None,
                    Again {
                        method,
                        options: options.clone(),
                        deadline,
                    },
                ),
            });
            let made = self.core.raw.call_message(
                session,
                MethodId(method.id),
                &lowered,
                message,
                self.continuation,
                place as u64,
            );
            let mut table = self.table.borrow_mut();
            let rejected = match made {
                Ok(call) => {
                    if let Some(Some(pending)) = table.places.get_mut(place)
                        && let Stage::Made(made, _) = &mut pending.stage
                    {
                        *made = Some(call);
                    }
                    return;
                }
                Err(rejected) => rejected,
            };
            let Some(Pending {
                reply: its_reply, ..
            }) = table.remove(place)
            else {
                return;
            };
            drop(table);
            if rejected.error != CallError::SessionOver {
                return its_reply.finish(Err(rejected.error.into()));
            }
            // It was not sent, so it may be sent in another session.
            connection.doubt(&self.core.hub, starling_endpoint::Code::Unavailable);
            (reply, message) = (its_reply, rejected.message);
        }
        let call = WaitingCall {
            method,
            message,
            room,
            options,
            attempt: Attempt::First,
        };
        self.call_later(reply, connection, call);
    }

    fn call_later(&mut self, reply: Reply, connection: Rc<Connection>, call: WaitingCall) {
        let (hub, its_connection) = (Rc::clone(&self.core.hub), Rc::clone(&connection));
        self.wait(reply, connection, async move {
            call_when_ready(&its_connection, &hub, call).await
        });
    }

    /// Answers with what a future comes to, unless nobody waits any more.
    fn wait(
        &mut self,
        reply: Reply,
        connection: Rc<Connection>,
        future: impl Future<Output = End> + 'static,
    ) {
        let cell = Arc::clone(&reply.cell);
        let place = self.table.borrow_mut().insert(Pending {
            reply,
            connection,
            stage: Stage::Waiting(None),
        });
        let table = Rc::clone(&self.table);
        self.core.hub.local.spawn_local(async move {
            let mut future = pin!(future);
            let end = std::future::poll_fn(|cx| {
                if let Some(pending) = table.borrow_mut().get_mut(place, &cell) {
                    pending.stage = Stage::Waiting(Some(cx.waker().clone()));
                } else {
                    return Poll::Ready(None);
                }
                future.as_mut().poll(cx).map(Some)
            })
            .await;
            if let Some(end) = end {
                let pending = table.borrow_mut().remove(place);
                if let Some(pending) = pending {
                    pending.reply.finish(end);
                }
            }
        });
    }

    fn cancel(&mut self, cell: &Arc<CallCell>) {
        let place = cell.place();
        let mut table = self.table.borrow_mut();
        match table.get_mut(place, cell).map(|pending| &mut pending.stage) {
            Some(Stage::Made(Some(call), _)) => {
                let call = *call;
                drop(table);
                // Its continuation takes it from the table.
                self.core.raw.cancel(call);
            }
            Some(Stage::Waiting(waker)) => {
                let waker = waker.take();
                let pending = table.remove(place);
                drop(table);
                drop(pending);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Some(Stage::Made(None, _)) | None => {}
        }
    }
}
