//! Calls from any thread and any executor.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use starling_endpoint::{Encoding, EndpointConfig, Idle, Msgbuf, Status};
use starling_io::MessageMemory;
use starling_message::{Message, MethodDescriptor};

use crate::address::Address;
use crate::cell::CallCell;
use crate::driver::{Alarm, Command, Driver, Reply, Submission};
use crate::error::Error;
use crate::message::{Response, prepare};
use crate::options::CallOptions;
use crate::service::Caller;
use crate::stats::ThreadStats;

/// Calls outstanding on a channel unless it says otherwise.
const DEFAULT_CAPACITY: usize = 4096;

/// Where a channel's connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelState {
    /// Not connected, and nobody has asked for it.
    Idle,
    /// Being connected. Calls wait.
    Connecting,
    /// Connected.
    Ready,
    /// Could not be connected and waits before it tries again. Calls fail at once unless they
    /// wait for the server.
    TransientFailure,
}

/// A channel's state, for other threads to see.
#[derive(Debug)]
pub(crate) struct StateCell(AtomicU8);

impl StateCell {
    pub(crate) fn set(&self, state: ChannelState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    fn state(&self) -> ChannelState {
        match self.0.load(Ordering::Relaxed) {
            1 => ChannelState::Connecting,
            2 => ChannelState::Ready,
            3 => ChannelState::TransientFailure,
            _ => ChannelState::Idle,
        }
    }
}

/// A connection to a server, for use from any thread and inside any executor:
/// `KvClient::new(Channel::connect("udp://kv:9000").await?)`. Cheap to clone; clones share the
/// connection.
///
/// Requests are encoded in the caller's thread; a background thread moves them to the network.
/// The channels of a process share one such thread for each kind of address, which ends with the
/// last of them; [`ChannelBuilder::own_thread`] gives a channel its own.
///
/// Over `xdp://` the thread has a queue of the interface to itself: the first, unless the address
/// ends in `?queue=N`. A server on that interface, channels over the other IP version, and those with
/// a thread of their own take others.
///
/// The connection is opened anew when it fails, with growing pauses. A call that may have reached
/// the server is never made again; one that was not sent when its session ended is, once.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Arc<Driver>,
    id: u64,
    address: Address,
    state: Arc<StateCell>,
    capacity: usize,
    fail_when_full: bool,
    in_flight: AtomicUsize,
    /// Callers in `waiters`.
    waiting: AtomicUsize,
    waiters: Mutex<VecDeque<(u64, Waker)>>,
    next_ticket: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.send(Command::Close { channel: self.id });
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("address", &self.shared.address.as_str())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// How to make a [`Channel`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect` or `lazy`"]
pub struct ChannelBuilder {
    address: String,
    capacity: usize,
    fail_when_full: bool,
    own_thread: Option<EndpointConfig>,
}

impl ChannelBuilder {
    /// Calls outstanding at once, 4096 unless set; at least 1. Further ones wait in their futures.
    pub fn capacity(mut self, calls: usize) -> Self {
        self.capacity = calls.max(1);
        self
    }

    /// Has calls beyond the capacity end with RESOURCE_EXHAUSTED rather than wait.
    pub fn fail_when_full(mut self) -> Self {
        self.fail_when_full = true;
        self
    }

    /// Gives the channel a background thread of its own.
    pub fn own_thread(mut self) -> Self {
        self.own_thread.get_or_insert_default();
        self
    }

    /// What the background thread does when there is nothing to do. Gives the channel its own.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.own_thread.get_or_insert_default().idle = idle;
        self
    }

    /// Sets everything about the endpoint in the background. Gives the channel its own thread.
    pub fn endpoint_config(mut self, config: EndpointConfig) -> Self {
        self.own_thread = Some(config);
        self
    }

    /// A channel that connects with its first call.
    pub fn lazy(self) -> Result<Channel, Error> {
        let address = Address::parse(&self.address)?;
        let driver = match &self.own_thread {
            Some(config) => Arc::new(Driver::start(&address, config)?),
            None => Driver::shared(&address)?,
        };
        let state = Arc::new(StateCell(AtomicU8::new(ChannelState::Idle as u8)));
        let id = driver.next_channel();
        driver.send(Command::Open {
            channel: id,
            address: address.clone(),
            state: Arc::clone(&state),
        });
        Ok(Channel {
            shared: Arc::new(Shared {
                driver,
                id,
                address,
                state,
                capacity: self.capacity,
                fail_when_full: self.fail_when_full,
                in_flight: AtomicUsize::new(0),
                waiting: AtomicUsize::new(0),
                waiters: Mutex::default(),
                next_ticket: AtomicU64::new(0),
            }),
        })
    }

    /// A channel that is connected.
    pub async fn connect(self) -> Result<Channel, Error> {
        let channel = self.lazy()?;
        channel.ready().await.map_err(Error::Unreachable)?;
        Ok(channel)
    }
}

impl Channel {
    /// A channel to `address` that is connected.
    pub async fn connect(address: &str) -> Result<Self, Error> {
        Self::builder(address).connect().await
    }

    /// A channel to `address` that connects with its first call.
    pub fn lazy(address: &str) -> Result<Self, Error> {
        Self::builder(address).lazy()
    }

    /// A channel to `address`, with settings.
    pub fn builder(address: &str) -> ChannelBuilder {
        ChannelBuilder {
            address: address.to_owned(),
            capacity: DEFAULT_CAPACITY,
            fail_when_full: false,
            own_thread: None,
        }
    }

    /// The server's address.
    pub fn address(&self) -> &str {
        self.shared.address.as_str()
    }

    /// Where large bytes fields of requests are best made, for `request.set_..._bytes`: they are sent
    /// from there as they are, where the device can do that.
    pub fn memory(&self) -> &MessageMemory {
        &self.shared.driver.memory
    }

    /// Where the connection stands.
    pub fn state(&self) -> ChannelState {
        self.shared.state.state()
    }

    /// Calls that are not over.
    pub fn calls_outstanding(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// What the background thread and its device have done, for all channels that share it. Waits
    /// for the end of the thread's turn.
    ///
    /// # Errors
    /// UNAVAILABLE if the thread has ended, with the reason.
    pub fn stats(&self) -> Result<ThreadStats, Status> {
        self.shared.driver.stats()
    }

    /// Connects, if it is not connected; fails with the first attempt.
    pub async fn ready(&self) -> Result<(), Status> {
        self.connected(false).await
    }

    /// Waits until the server can be reached, however long that takes.
    pub async fn wait_for_ready(&self) -> Result<(), Status> {
        self.connected(true).await
    }

    async fn connected(&self, wait_for_ready: bool) -> Result<(), Status> {
        let order = ConnectOrder {
            channel: self.shared.id,
            wait_for_ready,
        };
        let mut call = RawCall::new(&self.shared, None, order);
        std::future::poll_fn(|cx| call.poll(cx)).await.map(drop)
    }
}

/// The right to have one call outstanding.
pub(crate) struct Permit(Arc<Shared>);

impl Permit {
    fn acquire(shared: &Arc<Shared>) -> Option<Self> {
        let more = |count| (count < shared.capacity).then_some(count + 1);
        shared
            .in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
            .is_ok()
            .then(|| Self(Arc::clone(shared)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.0.wake_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Waker)>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the first that waits for a permit try again.
    fn wake_one(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let first = self.lock().pop_front();
        if let Some((_, waker)) = first {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            waker.wake();
        }
    }

    /// Waits for a permit: the waker is used when one was returned.
    fn enqueue(&self, ticket: u64, waker: &Waker) {
        let mut waiters = self.lock();
        if let Some((_, kept)) = waiters.iter_mut().find(|(other, _)| *other == ticket) {
            kept.clone_from(waker);
            return;
        }
        waiters.push_back((ticket, waker.clone()));
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits no more. False if it had been woken.
    fn dequeue(&self, ticket: u64) -> bool {
        let mut waiters = self.lock();
        let Some(index) = waiters.iter().position(|(other, _)| *other == ticket) else {
            return false;
        };
        waiters.remove(index);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        true
    }
}

/// What becomes a command when there is a permit for it.
trait Order: Unpin {
    fn into_command(self, reply: Reply) -> Command;
}

struct CallOrder {
    channel: u64,
    method: &'static MethodDescriptor,
    message: Msgbuf,
    room: usize,
    options: CallOptions,
    deadline: Option<Instant>,
}

impl Order for CallOrder {
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

struct ConnectOrder {
    channel: u64,
    wait_for_ready: bool,
}

impl Order for ConnectOrder {
    fn into_command(self, reply: Reply) -> Command {
        Command::Connect {
            channel: self.channel,
            wait_for_ready: self.wait_for_ready,
            reply,
        }
    }
}

/// A call that waits for a permit.
struct Queued<O> {
    order: O,
    ticket: u64,
    deadline: Option<Instant>,
    /// Whom the driver wakes at the deadline.
    alarm: Option<GivenUp>,
}

/// An alarm that goes with who waits for it.
struct GivenUp(Arc<Alarm>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

enum Progress<O> {
    Queued(Queued<O>),
    Submitted(Arc<CallCell>),
    Over,
}

/// A call without its types.
struct RawCall<O: Order> {
    shared: Arc<Shared>,
    progress: Progress<O>,
}

impl<O: Order> RawCall<O> {
    fn new(shared: &Arc<Shared>, deadline: Option<Instant>, order: O) -> Self {
        let mut call = Self {
            shared: Arc::clone(shared),
            progress: Progress::Over,
        };
        match Permit::acquire(shared) {
            Some(permit) => call.submit(permit, order),
            None => {
                call.progress = Progress::Queued(Queued {
                    order,
                    ticket: shared.next_ticket.fetch_add(1, Ordering::Relaxed),
                    deadline,
                    alarm: None,
                });
            }
        }
        call
    }

    fn submit(&mut self, permit: Permit, order: O) {
        let cell = Arc::new(CallCell::new());
        self.progress = Progress::Submitted(Arc::clone(&cell));
        self.shared.driver.send(order.into_command(Reply {
            cell,
            permit: Some(permit),
        }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<crate::cell::End> {
        if let Progress::Queued(queued) = &mut self.progress {
            let mut permit = Permit::acquire(&self.shared);
            if permit.is_none() {
                if self.shared.fail_when_full {
                    self.progress = Progress::Over;
                    return Poll::Ready(Err(Status::resource_exhausted(format!(
                        "the channel has its {} calls outstanding; the call was not made",
                        self.shared.capacity
                    ))));
                }
                if let Some(deadline) = queued.deadline {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        self.leave();
                        return Poll::Ready(Err(Status::deadline_exceeded(
                            "the channel was full until the deadline; the call was not made",
                        )));
                    }
                    match &queued.alarm {
                        Some(GivenUp(alarm)) => alarm.set(cx.waker()),
                        None => {
                            let alarm = Arc::new(Alarm::default());
                            alarm.set(cx.waker());
                            queued.alarm = Some(GivenUp(Arc::clone(&alarm)));
                            self.shared.driver.send(Command::WakeAt { deadline, alarm });
                        }
                    }
                }
                self.shared.enqueue(queued.ticket, cx.waker());
                // One may have been returned before we were in the queue.
                permit = Permit::acquire(&self.shared);
            }
            let Some(permit) = permit else {
                return Poll::Pending;
            };
            if let Progress::Queued(queued) = std::mem::replace(&mut self.progress, Progress::Over)
            {
                self.shared.dequeue(queued.ticket);
                self.submit(permit, queued.order);
            }
        }
        match &self.progress {
            Progress::Submitted(cell) => {
                let end = cell.poll(cx);
                if end.is_ready() {
                    self.progress = Progress::Over;
                }
                end
            }
            Progress::Queued(_) | Progress::Over => panic!("polled after it was ready"),
        }
    }

    /// Gives up.
    fn leave(&mut self) {
        match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::Queued(queued) => {
                if !self.shared.dequeue(queued.ticket) {
                    // It may have been woken for a permit, which somebody else can use.
                    self.shared.wake_one();
                }
            }
            Progress::Submitted(cell) => {
                if cell.abandon() {
                    self.shared.driver.send(Command::Cancel(cell));
                }
            }
            Progress::Over => {}
        }
    }
}

impl<O: Order> Drop for RawCall<O> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A call of a [`Channel`]. Dropping it cancels the call.
#[must_use = "dropping the future cancels the call"]
pub struct ChannelCall<P: Message> {
    raw: RawCall<CallOrder>,
    response: PhantomData<fn() -> P>,
}

impl<P: Message> ChannelCall<P> {
    /// Waits for the call in this thread, which sleeps meanwhile. Not for use inside an executor.
    pub fn wait(self) -> Result<Response<P>, Status> {
        crate::block_on(self)
    }
}

impl<P: Message> Future for ChannelCall<P> {
    type Output = Result<Response<P>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.raw
            .poll(cx)
            .map(|end| end.and_then(|(bytes, encoding)| Response::receive(bytes, encoding)))
    }
}

impl<P: Message> fmt::Debug for ChannelCall<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelCall(..)")
    }
}

impl Caller for Channel {
    type Call<P: Message> = ChannelCall<P>;

    fn unary<Q: Message, P: Message>(
        &self,
        method: &'static MethodDescriptor,
        request: &Q,
        options: &CallOptions,
    ) -> ChannelCall<P> {
        let deadline = options
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        // A time that no clock reaches is no deadline, nor has the call header room for one.
        let options = CallOptions {
            timeout: options.timeout.filter(|_| deadline.is_some()),
            ..options.clone()
        };
        let room = options
            .lower(Encoding::Native, options.timeout)
            .header_len();
        let message = prepare(request, room);
        let order = CallOrder {
            channel: self.shared.id,
            method,
            message,
            room,
            options,
            deadline,
        };
        ChannelCall {
            raw: RawCall::new(&self.shared, deadline, order),
            response: PhantomData,
        }
    }
}
