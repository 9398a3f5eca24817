//! Where a driver leaves the result of a call, and where the caller waits for it.
//!
//! A cell is all that a call needs between its caller and its driver, so a small call takes no memory
//! but its cell, and a thread uses the cells of its calls again.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::LocalKey;

use parking_lot::Mutex;
use starling_endpoint::{CallNumber, Msgbuf};
use starling_msgbuf::spare;
use starling_share::TaskHandle;

use crate::balancing::{Attempt, Placement};
use crate::metrics::CallMeasure;
use crate::permits::Permits;
use crate::plane::{CallResult, Operation, OutgoingCall};
use crate::streaming::ClientEnd;

/// Cells that a thread keeps for its next calls, at most: some 400 bytes each.
const SPARE_CELLS: usize = 256;

/// The same of streams: one item each way at a time has two.
const SPARE_STREAM_CELLS: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<Arc<CallCell>>> = const { RefCell::new(Vec::new()) };
    /// Of streams: without a permit, and nobody drives for their calls.
    static SPARE_OF_STREAMS: RefCell<Vec<Arc<CallCell>>> = const { RefCell::new(Vec::new()) };
}

/// A cell that this thread has kept there.
#[inline]
fn take_spare(from: &'static LocalKey<RefCell<Vec<Arc<CallCell>>>>) -> Option<Arc<CallCell>> {
    let spare = from.try_with(|spare| spare.try_borrow_mut().ok()?.pop());
    spare.ok().flatten()
}

/// Keeps a cell there, unless there are so many.
#[inline]
fn keep_spare(
    to: &'static LocalKey<RefCell<Vec<Arc<CallCell>>>>,
    most: usize,
    cell: Arc<CallCell>,
) {
    let _ = to.try_with(|spare| {
        if let Ok(mut spare) = spare.try_borrow_mut()
            && spare.len() < most
        {
            spare.push(cell);
        }
    });
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Of the caller, or of the task that makes the call for a stream.
    waker: Option<Waker>,
    /// A cell that is used again keeps the memory. The call of a stream that waits at the server has none.
    content: Option<Box<Content>>,
}

#[derive(Default)]
struct Content {
    result: Option<CallResult>,
    /// What is asked for, until the transport takes it.
    operation: Option<Operation>,
}

impl State {
    #[inline]
    fn operation(&mut self) -> Option<&mut Operation> {
        self.content.as_mut()?.operation.as_mut()
    }

    #[inline]
    fn take_operation(&mut self) -> Option<Operation> {
        self.content.as_mut()?.operation.take()
    }

    #[inline]
    fn set_operation(&mut self, operation: Operation) {
        self.content.get_or_insert_default().operation = Some(operation);
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Waiting,
    /// There is a result.
    Finished,
    /// The caller has taken the result, or does not want it.
    Done,
}

/// One call. The mutex is not a waker's alone: result, waker and cancellation change in one step, and
/// it is almost never contended.
pub(crate) struct CallCell {
    state: Mutex<State>,
    number: CallNumber,
    /// The key of the call in the driver's table. Only the driver uses it.
    key: AtomicU32,
    /// If the call is measured. Only the driver uses it.
    pub(crate) measure: CallMeasure,
    /// The call has one of these permits. A cell that is used again keeps the reference.
    permits: Option<Arc<Permits>>,
    has_permit: AtomicBool,
    /// The driver task that drives for the caller. A cell that is used again keeps the reference.
    task: OnceLock<TaskHandle>,
    /// Another task was to drive for the caller: the next one gets a task anew.
    has_other_task: AtomicBool,
    is_watched: AtomicBool,
    /// Of a call of a balanced channel. A cell that is used again keeps the memory.
    placement: OnceLock<Box<Placement>>,
    /// The stream that gets the result.
    stream: Option<Arc<ClientEnd>>,
    /// The stream begins with this call.
    opens_stream: bool,
}

/// The call is not in the driver's table.
const NO_KEY: u32 = u32::MAX;

impl CallCell {
    /// An operation that has a permit, if `permits` are given.
    pub(crate) fn new(operation: Operation, permits: Option<&Arc<Permits>>) -> Arc<Self> {
        let number = operation.number();
        let mut cell = match take_spare(&SPARE) {
            Some(cell) => cell,
            None => Arc::new(Self::empty(number)),
        };
        let Some(unused) = Arc::get_mut(&mut cell) else {
            unreachable!("a cell is kept by its last owner");
        };
        unused.number = number;
        *unused.key.get_mut() = NO_KEY;
        *unused.has_permit.get_mut() = permits.is_some();
        let has_other_task = std::mem::take(unused.has_other_task.get_mut());
        if has_other_task || unused.task.get().is_some_and(TaskHandle::is_gone) {
            unused.task.take();
        }
        if let Some(placement) = unused.placement.get_mut() {
            placement.clear();
        }
        if let Some(permits) = permits
            && !matches!(&unused.permits, Some(own) if Arc::ptr_eq(own, permits))
        {
            unused.permits = Some(Arc::clone(permits));
        }
        let state = unused.state.get_mut();
        state.phase = Phase::Waiting;
        state.set_operation(operation);
        cell
    }

    /// A call of a stream.
    pub(crate) fn of_stream(call: OutgoingCall, stream: Arc<ClientEnd>) -> Arc<Self> {
        let number = call.message.call;
        let spare = take_spare(&SPARE_OF_STREAMS);
        let mut cell = spare.unwrap_or_else(|| Arc::new(Self::empty(number)));
        let Some(unused) = Arc::get_mut(&mut cell) else {
            unreachable!("a cell is kept by its last owner");
        };
        unused.number = number;
        *unused.key.get_mut() = NO_KEY;
        if let Some(placement) = unused.placement.get_mut() {
            placement.clear();
        }
        unused.stream = Some(stream);
        unused.opens_stream = call
            .message
            .stream
            .is_some_and(|position| position.number == 0);
        let state = unused.state.get_mut();
        state.phase = Phase::Waiting;
        state.set_operation(Operation::Call(call));
        cell
    }

    fn empty(number: CallNumber) -> Self {
        Self {
            number,
            state: Mutex::default(),
            key: AtomicU32::new(NO_KEY),
            measure: CallMeasure::default(),
            permits: None,
            has_permit: AtomicBool::new(false),
            task: OnceLock::new(),
            has_other_task: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            placement: OnceLock::new(),
            stream: None,
            opens_stream: false,
        }
    }

    /// Keeps a cell whose result was taken, for another call of this thread.
    #[inline]
    pub(crate) fn recycle(mut self: Arc<Self>) {
        // The driver may not have let go of it yet.
        if self.stream.is_none() && Arc::get_mut(&mut self).is_some() {
            keep_spare(&SPARE, SPARE_CELLS, self);
        }
    }

    /// Keeps a cell of a stream that has had its result, for another call of a stream.
    #[inline(never)]
    pub(crate) fn recycle_of_stream(mut self: Arc<Self>) {
        if let Some(cell) = Arc::get_mut(&mut self) {
            // First: it may be the last reference, and run destructors.
            drop(cell.stream.take());
            keep_spare(&SPARE_OF_STREAMS, SPARE_STREAM_CELLS, self);
        }
    }

    /// Has this driver task drive for the caller until the end of the call. False if another task has driven
    /// for the cell before.
    #[inline]
    pub(crate) fn watch_by(&self, task: &TaskHandle) -> bool {
        if self.stream.is_some() {
            return false;
        }
        if !self.task.get_or_init(|| task.clone()).is(task) {
            self.has_other_task.store(true, Ordering::Relaxed);
            return false;
        }
        task.begin_call();
        self.is_watched.store(true, Ordering::Relaxed);
        true
    }

    /// Whether a driver task drives for the caller.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// The caller does not wait any more.
    #[inline]
    fn end_watch(&self) {
        if self.is_watched()
            && let Some(task) = self.task.get()
        {
            self.is_watched.store(false, Ordering::Relaxed);
            task.end_call();
        }
    }

    /// Returns the permit, if the call has one. Only whoever owes the result does so.
    #[inline]
    pub(crate) fn return_permit(&self) {
        if self.has_permit.load(Ordering::Relaxed)
            && let Some(permits) = &self.permits
        {
            self.has_permit.store(false, Ordering::Relaxed);
            permits.release();
        }
    }

    pub(crate) fn number(&self) -> CallNumber {
        self.number
    }

    /// What `with` makes of the request. None if the call is over, or its request was taken.
    #[inline]
    pub(crate) fn with_request<T>(&self, with: impl FnOnce(&mut OutgoingCall) -> T) -> Option<T> {
        match self.state.lock().operation() {
            Some(Operation::Call(call)) => Some(with(call)),
            _ => None,
        }
    }

    /// What `with` makes of what is asked for. None if the caller has given up, or it was taken.
    pub(crate) fn with_operation<T>(&self, with: impl FnOnce(&mut Operation) -> T) -> Option<T> {
        self.state.lock().operation().map(with)
    }

    /// What is asked for. None if the caller has given up.
    pub(crate) fn take_operation(&self) -> Option<Operation> {
        self.state.lock().take_operation()
    }

    /// The stream that begins with this call.
    #[inline]
    pub(crate) fn opened_stream(&self) -> Option<&ClientEnd> {
        match self.opens_stream {
            true => self.stream.as_deref(),
            false => None,
        }
    }

    #[inline]
    pub(crate) fn is_of_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// The request has left. The call of a stream keeps nothing of it: it may wait at the server for long, and its
    /// stream can make the request again.
    #[inline]
    pub(crate) fn handle_sent(&self) {
        if self.stream.is_some() {
            self.forget_request();
        }
    }

    #[inline(never)]
    fn forget_request(&self) {
        let mut state = self.state.lock();
        if let Some(Operation::Call(call)) = state.operation()
            // What begins a stream has more in its header.
            && call.message.stream.is_some_and(|position| position.number > 0)
        {
            let content = state.content.take();
            drop(state);
            if let Some(Operation::Call(call)) = content.and_then(|content| content.operation) {
                spare::give(call.message.payload.into_parts().0);
            }
        }
    }

    /// Gives the message back to the request of a call that was never sent, for the next attempt.
    pub(crate) fn put_back_message(&self, message: Msgbuf) {
        let mut message = Some(message);
        let kept = self.with_request(|call| {
            if call.message.payload.is_empty() {
                // It has the header that was written, also where there was no body to write it in front of.
                call.message.headroom = call.message.header_len();
                call.message.payload = message.take().unwrap_or_default();
            }
        });
        if kept.is_none()
            && let (Some(stream), Some(message)) = (&self.stream, message)
            && let Some(again) = stream.request_again(self, message)
        {
            self.put_back(again);
        }
    }

    /// Leaves the result, if the caller still waits and there is none yet.
    pub(crate) fn finish(&self, result: CallResult) {
        self.finish_with(|_| result);
    }

    /// The same. `make` gets the request, whose memory the result may use. Returns whether it was the result of a
    /// call of a stream, which nobody else takes.
    #[inline]
    pub(crate) fn finish_with(
        &self,
        make: impl FnOnce(Option<&mut OutgoingCall>) -> CallResult,
    ) -> bool {
        let mut state = self.state.lock();
        if state.phase != Phase::Waiting {
            return false;
        }
        let result = make(match state.operation() {
            Some(Operation::Call(call)) => Some(call),
            _ => None,
        });
        let waker = state.waker.take();
        if let Some(stream) = &self.stream {
            state.phase = Phase::Done;
            let content = state.content.take();
            drop(state);
            drop((content, waker));
            stream.handle_result(self, result);
            return true;
        }
        state.phase = Phase::Finished;
        state.content.get_or_insert_default().result = Some(result);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        false
    }

    /// Takes the result.
    #[inline]
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<CallResult> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Waiting => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Phase::Finished => {
                self.end_watch();
                state.phase = Phase::Done;
                let content = state.content.as_mut();
                let result = content.and_then(|content| content.result.take());
                Poll::Ready(result.expect("it is finished"))
            }
            Phase::Done => panic!("a call was polled after it had ended"),
        }
    }

    /// The caller does not wait any more. True if the call had no result yet.
    pub(crate) fn abandon(&self) -> bool {
        self.end_shared_watch();
        let mut state = self.state.lock();
        let was = std::mem::replace(&mut state.phase, Phase::Done);
        let (waker, operation) = (state.waker.take(), state.take_operation());
        let result = (state.content.as_mut()).and_then(|content| content.result.take());
        drop(state);
        // Without the lock: destructors may call back.
        drop((operation, result));
        // A caller's own waker is no use any more; the task of a stream's call ends.
        if let Some(waker) = waker
            && self.stream.is_some()
        {
            waker.wake();
        }
        was == Phase::Waiting
    }

    /// The output of `future`, unless the call is abandoned before.
    pub(crate) async fn unless_abandoned<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.phase != Phase::Waiting {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            drop(state);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.lock().phase == Phase::Done
    }

    // ---- of a balanced channel ----

    /// Notes which backend has the call.
    pub(crate) fn place(&self, attempt: Attempt) {
        self.placement.get_or_init(Box::default).set(attempt);
    }

    #[inline]
    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.placement.get().map(|placement| &**placement)
    }

    /// The backend that has the call, or had it last; 0: none.
    #[inline]
    pub(crate) fn backend(&self) -> u64 {
        self.placement().map_or(0, Placement::backend)
    }

    /// What the backend knows of the call, if one has it. Only whoever owes the result asks for it.
    #[inline]
    pub(crate) fn take_attempt(&self) -> Option<Attempt> {
        self.placement().and_then(Placement::take)
    }

    /// Gives the request back to a call that is not over.
    pub(crate) fn put_back(&self, call: OutgoingCall) {
        let mut state = self.state.lock();
        if state.phase == Phase::Waiting {
            state.set_operation(Operation::Call(call));
            return;
        }
        // Without the lock: the call has a caller's memory.
        drop(state);
        drop(call);
    }

    /// Another loop has the call now: has the caller look at it, and wait for that loop.
    pub(crate) fn move_on(&self) {
        self.end_shared_watch();
        let waker = self.state.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// As [`CallCell::end_watch`]; another thread may do the same.
    fn end_shared_watch(&self) {
        if self.is_watched.swap(false, Ordering::Relaxed)
            && let Some(task) = self.task.get()
        {
            task.end_call();
        }
    }

    pub(crate) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set_key(&self, key: usize) {
        let key = u32::try_from(key).expect("fewer calls than that");
        self.key.store(key, Ordering::Relaxed);
    }
}
