//! A client's end of a stream: its requests are calls of a channel.

mod halves;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Instant;

use parking_lot::Mutex;
use smallvec::SmallVec;
use starling_endpoint::{
    CallDescriptor, CallNumber, Direction, Encoding, Metadata, MethodId, MethodPath, Msgbuf,
    Status, StreamFlags,
};
use starling_io::forks;
use starling_message::MethodDescriptor;
use starling_stream::{Bundle, ClientStream, StreamRequest, StreamResponse};

use super::account::body_of;
use super::again::FirstRequest;
use super::route::Route;
use super::slots::{StreamSlot, StreamSlots};
use super::uncommon::{Parts, Uncommon};
use super::{StreamEnd, wake};
use crate::call_cell::CallCell;
use crate::coding::CallCoding;
use crate::options::CallOptions;
use crate::plane::{CallHandle, CallResult, Operation, OutgoingCall, Reply};

/// The calls that are out. A stream at rest has one, and one item each way at a time has two.
type Calls = SmallVec<[Outstanding; CALLS_HERE]>;
const CALLS_HERE: usize = 2;

/// A request that has no response.
struct Outstanding {
    call: CallHandle,
    number: u64,
}

struct State {
    stream: ClientStream,
    /// The requests that have no response.
    calls: Calls,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Among the streams of a connection, from when it begins there until it is over.
    slot: Option<StreamSlot>,
}

impl State {
    /// Gives up its slot among those of its connection.
    fn leave(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.leave(self.stream.is_pipelined());
            self.stream.forbid_pipelining();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A client's end of a stream.
pub(crate) struct ClientEnd {
    this: Weak<Self>,
    route: Route,
    method: &'static MethodDescriptor,
    /// The process that began the stream; see [`forks`].
    process: u32,
    // Beside the number above, where they take no room of their own. Written with the lock.
    /// The last response was in protobuf.
    is_protobuf: AtomicBool,
    /// Items of the server say how they are compressed.
    is_coded: AtomicBool,
    /// Its connection has no slot for it yet: no request has left.
    lacks_slot: AtomicBool,
    uncommon: Uncommon,
    state: Mutex<State>,
}

impl ClientEnd {
    /// A stream of this method. It begins with the first item that is sent or waited for.
    pub(super) fn new(
        route: Route,
        method: &'static MethodDescriptor,
        options: CallOptions,
        deadline: Option<Instant>,
        coding: Option<CallCoding>,
    ) -> Arc<Self> {
        let window = options
            .stream_window
            .unwrap_or(starling_stream::DEFAULT_WINDOW);
        let wait_for_ready = options.waits_for_ready();
        let policy = match &route {
            Route::Channel(shared, _) => shared.policy.as_deref(),
            Route::Local(..) => None,
        };
        let (first, refused) = match FirstRequest::of(policy, method) {
            Ok(first) => (first, None),
            Err(status) => (None, Some(status)),
        };
        let uncommon = Uncommon::new(Parts {
            metadata: options.metadata,
            deadline,
            wait_for_ready,
            coding,
            first: first.map(Box::new),
        });
        Arc::new_cyclic(|this| {
            let mut end = Self {
                this: Weak::clone(this),
                route,
                method,
                process: forks(),
                is_protobuf: AtomicBool::new(false),
                is_coded: AtomicBool::new(false),
                lacks_slot: AtomicBool::new(false),
                uncommon,
                state: Mutex::new(State {
                    stream: ClientStream::new(0, 1, 0, false),
                    calls: Calls::new(),
                    reader: None,
                    writer: None,
                    slot: None,
                }),
            };
            let room = end.describe(StreamRequest::default()).header_len();
            let sends = method.client_streaming;
            let mut stream = ClientStream::new(next_id(), window.max(1), room, sends);
            // Until it may have more slots than one.
            stream.forbid_pipelining();
            end.state.get_mut().stream = stream;
            if let Some(status) = refused {
                end.state.get_mut().stream.cancel(status);
            }
            end
        })
    }

    /// A stream that has failed before it began.
    pub(crate) fn failed(
        route: Route,
        method: &'static MethodDescriptor,
        status: Status,
    ) -> Arc<Self> {
        let end = Self::new(route, method, CallOptions::default(), None, None);
        end.state.lock().stream.cancel(status);
        end
    }

    /// The call that carries a request of the stream. One without items has no memory for a body.
    fn describe(&self, request: StreamRequest) -> CallDescriptor {
        let StreamRequest { mut position, body } = request;
        let codes = (self.uncommon.coding()).is_some_and(|coding| coding.algorithm().is_some());
        position.flags = position.flags.with_if(codes, StreamFlags::CODED);
        let mut message = CallDescriptor {
            call: CallNumber::next(),
            path: MethodPath::Static(self.method.path),
            method: MethodId(self.method.id),
            direction: Direction::Request,
            // It may be over when the server is told so.
            deadline: match position.flags.has(StreamFlags::CANCEL) {
                true => None,
                false => self.uncommon.deadline(),
            },
            metadata: Metadata::default(),
            encoding: Encoding::Native,
            coding: (self.uncommon.coding()).and_then(|coding| coding.of_stream(false)),
            stream: Some(position),
            payload: Msgbuf::new(),
            headroom: 0,
        };
        if !body.head.is_empty() {
            message.headroom = message.header_len();
        }
        let (head, tail) = body.into_parts();
        message.payload = Msgbuf::from_parts(head, tail);
        message
    }

    /// Sends what may leave now. Returns whether anything did.
    fn transmit(&self) -> bool {
        let mut any = false;
        loop {
            let Some(this) = self.this.upgrade() else {
                return any;
            };
            let mut state = self.state.lock();
            let Some(request) = state.stream.poll_request() else {
                // What has left makes room.
                let writer = match any && state.stream.may_push() {
                    true => state.writer.take(),
                    false => None,
                };
                drop(state);
                if let Some(writer) = writer {
                    writer.wake();
                }
                return any;
            };
            let number = request.position.number;
            let call = CallHandle(CallCell::of_stream(self.outgoing(request), this));
            let reply = Reply::new(call.clone());
            state.calls.push(Outstanding { call, number });
            let goes_on = state.stream.has_request() || state.writer.is_some();
            drop(state);
            self.route.start(reply);
            if !goes_on {
                return true;
            }
            any = true;
        }
    }

    fn outgoing(&self, request: StreamRequest) -> OutgoingCall {
        let is_first = request.position.number == 0;
        let mut message = self.describe(request);
        if is_first && self.uncommon.is_of_header() {
            let before = message.headroom;
            message.metadata = self.uncommon.metadata();
            message.coding = (self.uncommon.coding()).and_then(|coding| coding.of_stream(true));
            message.headroom = message.header_len();
            message.payload.set_headroom(before, message.headroom);
        }
        self.with_types(message, is_first)
    }

    fn with_types(&self, message: CallDescriptor, is_first: bool) -> OutgoingCall {
        let wait_for_ready = is_first && self.uncommon.waits_for_ready();
        let mut call = OutgoingCall::new(message, Some(self.method), wait_for_ready);
        call.counted_by_caller = true;
        if let (true, Some(first), Route::Channel(shared, _)) =
            (is_first, self.uncommon.first(), &self.route)
        {
            first.keep(shared, &call);
        }
        call
    }

    /// The request of one of its calls once more, which was never sent: this is its message. None: it is not out.
    pub(crate) fn request_again(&self, call: &CallCell, message: Msgbuf) -> Option<OutgoingCall> {
        let state = self.state.lock();
        let own = (state.calls.iter()).find(|own| std::ptr::eq(&*own.call.0, call))?;
        let position = state.stream.position_of(own.number);
        drop(state);
        let mut again = self.describe(StreamRequest {
            position,
            body: Bundle::default(),
        });
        again.call = call.number();
        again.headroom = again.header_len();
        again.payload = message;
        Some(self.with_types(again, false))
    }

    /// Whether it has a slot of this connection. If not, it gets one if one is left.
    pub(crate) fn find_slot(&self, slots: &Arc<StreamSlots>) -> bool {
        let mut state = self.state.lock();
        let has_slot = (state.slot.as_ref()).is_some_and(|slot| slot.is_of(slots));
        if has_slot || state.stream.is_over() {
            return true;
        }
        // The one that it had is one of another connection.
        state.leave();
        state.slot = slots.begin();
        let has_slot = state.slot.is_some();
        self.lacks_slot.store(!has_slot, Ordering::Relaxed);
        has_slot
    }

    /// Takes in the end of one of its calls.
    pub(crate) fn handle_result(&self, call: &CallCell, result: CallResult) {
        let mut state = self.state.lock();
        let State {
            stream,
            calls,
            slot,
            ..
        } = &mut *state;
        if let Some(index) = calls
            .iter()
            .position(|own| std::ptr::eq(&*own.call.0, call))
        {
            calls.swap_remove(index);
            if calls.spilled() && calls.len() <= CALLS_HERE {
                calls.shrink_to_fit();
            }
        }
        if let (Some(first), Route::Channel(shared, _)) = (self.uncommon.first(), &self.route)
            && !stream.is_over()
            && let Some(until) = first.handle_end(shared, call.number(), &result)
        {
            drop(state);
            self.route.handle_end(false, None);
            let timer = first.timer(Weak::clone(&self.this));
            return shared.transport.wake_at(until, timer);
        }
        let result = match self.uncommon.first() {
            Some(first) => result.map_err(|status| first.with_attempts(status)),
            None => result,
        };
        let was_over = stream.is_over();
        let mut has_no_room = false;
        let progress = stream.handle_response(result.and_then(|(message, its_encoding)| {
            let position = message.stream().ok_or_else(|| {
                Status::internal("the server answered a stream as if it were a single call")
            })?;
            self.note_form(its_encoding, position.flags);
            let is_late = || self.route.time().is_over(self.uncommon.deadline());
            let status = (message.stream_status()).map(|status| status.unless_late(is_late));
            let metadata = message.to_metadata();
            let mut body = body_of(message, self.route.large_buffers());
            if !stream.is_within_window(&body) {
                let held = self.hold(body.len());
                has_no_room = held.is_err();
                body = held?.around(body);
            }
            Ok(StreamResponse {
                position,
                status,
                metadata,
                body,
            })
        }));
        if stream.asks_to_hold() && slot.as_ref().is_none_or(StreamSlot::hold_more) {
            stream.allow_pipelining();
        }
        // A client that has no room gives the stream up, which says nothing of the server.
        if let Some(is_ok) = stream.is_ok().filter(|_| !was_over && !has_no_room) {
            self.route.handle_end(is_ok, stream.trailers());
        }
        let wakers = match progress {
            true => [state.reader.take(), state.writer.take()],
            false => [None, None],
        };
        let failed = stream_failed(&mut state);
        if state.stream.is_over() && state.calls.is_empty() {
            state.leave();
        }
        let has_request = state.stream.has_request();
        drop(state);
        self.give_up(failed);
        wake(wakers);
        // Whoever has something to send from now on sends it.
        if has_request {
            self.transmit();
        }
    }

    /// How the server's items come.
    fn note_form(&self, encoding: Encoding, flags: StreamFlags) {
        let is_protobuf = encoding == Encoding::Protobuf;
        self.is_protobuf.store(is_protobuf, Ordering::Relaxed);
        if flags.has(StreamFlags::CODED) {
            self.is_coded.store(true, Ordering::Relaxed);
        }
    }

    /// Begins the stream again: nothing of it has come from the server that it was begun at.
    pub(super) fn begin_again(&self) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        let id = next_id();
        let again = self.uncommon.first().and_then(|first| first.again(id));
        let Some(call) = again.filter(|_| !state.stream.is_over()) else {
            return;
        };
        let call = CallHandle(CallCell::of_stream(call, this));
        let reply = Reply::new(call.clone());
        state.stream.rename(id);
        state.calls.push(Outstanding { call, number: 0 });
        let reader = state.reader.take();
        drop(state);
        self.route.start(reply);
        self.route.flush();
        // It waits for another backend now, perhaps in another loop.
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Cancels the calls that are out, and tells the server why.
    fn give_up(&self, (request, calls): (Option<StreamRequest>, Calls)) {
        if let Some(request) = request {
            // Nobody waits for its response.
            let operation = Operation::Call(self.outgoing(request));
            let handle = CallHandle(CallCell::new(operation, None));
            self.route.start(Reply::new(handle));
        }
        for outstanding in calls {
            self.route.cancel(&outstanding.call);
        }
    }

    fn cancel(&self, why: Status) {
        if self.process != forks() {
            // The calls are the parent's. So is the lock, which a thread of the parent may have had at the fork.
            return;
        }
        let mut state = self.state.lock();
        if state.stream.is_over() {
            return;
        }
        let has_left = !self.lacks_slot.load(Ordering::Relaxed);
        let request = state.stream.cancel(why).filter(|_| has_left);
        let calls = std::mem::take(&mut state.calls);
        let wakers = [state.reader.take(), state.writer.take()];
        state.leave();
        drop(state);
        if let Some(first) = self.uncommon.first() {
            first.cancel();
        }
        self.give_up((request, calls));
        self.route.flush();
        wake(wakers);
    }
}

/// The end of a stream in a child of the process that began it.
#[cold]
pub(crate) fn belongs_to_parent() -> Status {
    Status::unavailable(
        "the process has forked since the stream began: it belongs to the parent; begin another \
         one here",
    )
}

/// The calls of a stream that has failed here and not at the server, and the request that tells the server.
fn stream_failed(state: &mut State) -> (Option<StreamRequest>, Calls) {
    match state.stream.take_failure() {
        None => (None, Calls::new()),
        Some(request) => (request, std::mem::take(&mut state.calls)),
    }
}

/// An id that no other stream of this process has. Ids of another process are others, too: the server may
/// know that one's streams by the same address.
fn next_id() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = *FIRST.get_or_init(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::process::id())
    });
    first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests;
