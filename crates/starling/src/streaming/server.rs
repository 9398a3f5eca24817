//! A server's end of a stream: a handler's future, and the requests that are held for it.

mod halves;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::{Mutex, MutexGuard};
use starling_compress::AlgorithmSet;
use starling_endpoint::header::STREAM_RESPONSE_LEN;
use starling_endpoint::{
    Cancellation, Encoding, HeldReply, LargeBuffers, LocalHandle, Metadata, OwnedMessage, Status,
    StreamFlags,
};
use starling_message::Bytes;
use starling_stream::{Answer, Arrival, ServerStream};

use super::account::body_of;
use super::limits::StreamShare;
use super::open_bundle::{self, Open, Owner};
use super::table::{Key, Streams};
use super::{StreamEnd, wake};
use crate::nested::ResponseMetadata;

struct State {
    stream: ServerStream<HeldReply>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The handler's task.
    handler: Option<Waker>,
    /// The handler runs now: what it sends leaves when it returns, together.
    in_handler: bool,
    /// The handler has not run, and will not.
    is_refused: bool,
    /// The handler has ended. Items of its may still wait for the client.
    has_ended: bool,
    /// It has sent an item since it runs.
    has_pushed: bool,
    /// A bundle is with the thread that runs the handler.
    is_lent: bool,
    /// Sent behind all items, unless the handler sets trailers.
    response_metadata: Option<ResponseMetadata>,
    /// The client's, if there is any.
    metadata: Option<Box<Metadata>>,
}

impl State {
    fn take_wakers(&mut self) -> [Option<Waker>; 2] {
        [self.reader.take(), self.writer.take()]
    }
}

/// A server's end of a stream.
pub(crate) struct ServerEnd {
    table: Weak<Streams>,
    key: Key,
    share: StreamShare,
    local: LocalHandle,
    encoding: Encoding,
    cancellation: Cancellation,
    /// The client's items say how they are compressed.
    is_coded: bool,
    /// The algorithms that the client takes.
    accepts: AlgorithmSet,
    /// The server's items say how they are compressed.
    codes: AtomicBool,
    state: Mutex<State>,
}

/// Windows that a client of another version may have unread: it counts its own form of the messages. A negative int32
/// has 4 bytes there and 11 in protobuf, a bool with a large number 1 and 6. What is beyond the window counts for the
/// client.
const PROTOBUF_WINDOWS: u8 = 8;

// Thousands of streams may be at rest.
const _: () = assert!(size_of::<ServerEnd>() <= 464);

impl ServerEnd {
    /// The end of a stream that this request opens.
    pub(super) fn new(
        table: &Arc<Streams>,
        key: Key,
        share: StreamShare,
        local: LocalHandle,
        opening: &OwnedMessage,
    ) -> Arc<Self> {
        let mut stream = ServerStream::new(key.id(), share.window, STREAM_RESPONSE_LEN);
        stream.keep_fewer_than(share.to_send);
        if !share.is_pipelined {
            stream.forbid_pipelining();
        }
        let (encoding, coding) = opening.form();
        if encoding == Encoding::Protobuf {
            stream.tolerate(PROTOBUF_WINDOWS);
        }
        let flags = opening.stream().unwrap_or_default().flags;
        let metadata = opening.to_metadata();
        let metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
        let end = Arc::new(Self {
            is_coded: flags.has(StreamFlags::CODED),
            accepts: AlgorithmSet::from_bits(coding.accepts),
            codes: AtomicBool::new(false),
            table: Arc::downgrade(table),
            key,
            share,
            local,
            encoding,
            cancellation: Cancellation::default(),
            state: Mutex::new(State {
                stream,
                reader: None,
                writer: None,
                handler: None,
                in_handler: false,
                is_refused: false,
                has_ended: false,
                has_pushed: false,
                is_lent: false,
                response_metadata: None,
                metadata,
            }),
        });
        let waker = Waker::from(Arc::new(EndWaker(Arc::downgrade(&end))));
        let cancelled = (end.cancellation).poll_cancelled(&Context::from_waker(&waker));
        debug_assert!(cancelled.is_pending(), "nobody has it yet");
        end
    }

    /// Whether the client still wants the stream.
    pub(super) fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Takes in a request.
    pub(super) fn handle_request(
        &self,
        request: OwnedMessage,
        reply: HeldReply,
        buffers: &LargeBuffers,
    ) {
        let Some(position) = request.stream() else {
            return;
        };
        let encoding = request.encoding();
        let is_coded = position.flags.has(StreamFlags::CODED);
        let body = body_of(request, Some(buffers));
        let mut state = self.state.lock();
        let (body, full) = match self.counted(&state, body) {
            Ok(body) => (body, None),
            Err(status) => (Bytes::new(), Some(status)),
        };
        let arrival = state.stream.handle_request(position, body, reply);
        if let Some(status) = full {
            return self.abort_with(state, status);
        }
        let arrival = match arrival {
            Ok(Arrival::Cancelled) => {
                return self.abort_with(state, Status::cancelled("the client cancelled the call"));
            }
            Err(violation) => {
                let text = format!("the client broke the stream: {violation}");
                return self.abort_with(state, Status::invalid_argument(text));
            }
            Ok(_) if encoding != self.encoding || is_coded != self.is_coded => {
                let text = "the client broke the stream: the encoding changed";
                return self.abort_with(state, Status::invalid_argument(text));
            }
            Ok(arrival) => arrival,
        };
        let wakers = match arrival {
            Arrival::Progress => state.take_wakers(),
            _ => [None, None],
        };
        if wakers.iter().all(Option::is_none) {
            return self.flush(state);
        }
        // The task that goes on has something to say, perhaps: its answer and this one are one.
        drop(state);
        wake(wakers);
    }

    /// Items that came, which count if they are beyond the window.
    fn counted(&self, state: &State, body: Bytes) -> Result<Bytes, Status> {
        match state.stream.is_within_window(&body) {
            true => Ok(body),
            false => self.hold(body.len()).map(|held| held.around(body)),
        }
    }

    /// Ends the stream at once.
    pub(super) fn abort(&self, status: Status) {
        self.abort_with(self.state.lock(), status);
    }

    fn abort_with(&self, mut state: MutexGuard<'_, State>, status: Status) {
        state.stream.abort(status.clone());
        let wakers = state.take_wakers();
        let handler = state.handler.take();
        self.flush(state);
        self.cancellation.cancel(status);
        wake(wakers);
        if let Some(handler) = handler {
            handler.wake();
        }
    }

    /// What the stream may hold.
    pub(super) fn share(&self) -> StreamShare {
        self.share
    }

    /// Whether the client has sent no request since this was asked last, and none is held.
    pub(super) fn is_forgotten(&self) -> bool {
        self.state.lock().stream.is_forgotten()
    }

    /// See [`ServerStream::spare`].
    pub(super) fn spare(&self) {
        self.state.lock().stream.spare();
    }

    /// Sends what may leave now, unless the handler may have more in a moment.
    fn flush(&self, state: MutexGuard<'_, State>) {
        if !state.in_handler {
            self.flush_now(state);
        }
    }

    /// Sends what may leave now.
    fn flush_now(&self, mut state: MutexGuard<'_, State>) {
        let codes = self.codes.load(Ordering::Relaxed);
        while let Some(mut answer) = state.stream.poll_answer() {
            let is_over = state.stream.is_over();
            let has_ended = state.has_ended;
            MutexGuard::unlocked(&mut state, || {
                // Before the last answer wakes a thread that shuts down when there are no streams.
                if is_over && let Some(table) = self.table.upgrade() {
                    table.remove(self.key, self);
                }
                // Until then the client may give the stream up, whose items nobody else lets go of.
                if is_over && has_ended {
                    self.cancellation.finish();
                }
                answer.position.flags = answer.position.flags.with_if(codes, StreamFlags::CODED);
                respond(&self.local, answer, &self.cancellation);
            });
        }
        // What has left makes room.
        let writer = match state.stream.may_push() {
            true => state.writer.take(),
            false => None,
        };
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    fn owner(&self) -> Owner {
        open_bundle::owner_of(self)
    }

    /// Takes back the bundle that was lent. False: another thread has it, which runs the handler.
    fn take_back(&self, state: &mut State) -> bool {
        if state.is_lent
            && let Some(lent) = open_bundle::take_back(self.owner())
        {
            state.stream.take_back(lent);
            state.is_lent = false;
        }
        !state.is_lent
    }

    /// Adds an item. Lends the bundle that it is in if it is not the handler's first.
    fn push_locked(
        &self,
        state: &mut State,
        head: &[u8],
        tail: Option<&Bytes>,
    ) -> Result<(), Status> {
        state.stream.push(head, tail)?;
        if std::mem::replace(&mut state.has_pushed, true)
            && open_bundle::is_polling(self.owner())
            && let Some(bundle) = state.stream.lend_bundle()
        {
            state.is_lent = true;
            open_bundle::lend(bundle);
        }
        Ok(())
    }

    /// Ready when there is room for an item.
    fn poll_room(&self, cx: &Context<'_>) -> Poll<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        let is_here = self.take_back(&mut state);
        match is_here && state.stream.may_push() && !state.stream.has_bundle_to_send() {
            true => Poll::Ready(state),
            false => self.wait_for_room(state, cx),
        }
    }

    #[cold]
    fn wait_for_room<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        cx: &Context<'_>,
    ) -> Poll<MutexGuard<'a, State>> {
        if state.is_lent {
            // The sender has moved here from the handler, which another thread runs just now.
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // With room, a full bundle leaves first, and the client reads it while the handler goes on. So the
        // handler gives up its thread, which sends.
        let has_room = state.stream.may_push();
        if !has_room {
            state.writer = Some(cx.waker().clone());
        }
        self.flush_now(state);
        if has_room {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    pub(super) fn begin_handler(&self, cx: &Context<'_>) -> Running<'_> {
        let mut state = self.state.lock();
        state.in_handler = true;
        state.has_pushed = false;
        match &mut state.handler {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.handler = Some(cx.waker().clone()),
        }
        drop(state);
        Running {
            end: self,
            outer: open_bundle::begin(self.owner()),
            is_over: false,
        }
    }

    pub(super) fn finish(&self, result: Result<(), Status>) {
        let mut state = self.state.lock();
        let metadata = state.response_metadata.take();
        let metadata = metadata.map(|metadata| metadata.take());
        if let Some(metadata) = metadata.filter(|metadata| !metadata.is_empty())
            && state.stream.trailers().is_none()
        {
            state.stream.set_trailers(metadata);
        }
        // A handler may return the status of a nested call that did not run.
        let is_refused = state.is_refused;
        state
            .stream
            .finish(result.map_err(|status| match is_refused {
                true => status.with_not_run(),
                false => status.with_run(),
            }));
        let wakers = state.take_wakers();
        state.handler = None;
        state.has_ended = true;
        let was_over = state.stream.is_over();
        self.flush(state);
        if was_over {
            self.cancellation.finish();
        }
        wake(wakers);
    }
}

/// This thread runs the handler, while this lives.
pub(super) struct Running<'a> {
    end: &'a ServerEnd,
    outer: Open,
    is_over: bool,
}

impl<'a> Running<'a> {
    /// The handler waits. Sends what it has sent in this poll. Returns how the stream has ended, if it has.
    pub(super) fn end(mut self) -> Option<Result<(), Status>> {
        let state = self.leave();
        let finished = state.stream.finished().cloned();
        self.end.flush_now(state);
        finished
    }

    fn leave(&mut self) -> MutexGuard<'a, State> {
        self.is_over = true;
        let lent = open_bundle::end(std::mem::take(&mut self.outer));
        let mut state = self.end.state.lock();
        state.in_handler = false;
        if let Some(lent) = lent {
            state.stream.take_back(lent);
            state.is_lent = false;
        }
        state
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.leave());
        }
    }
}

/// A request that is held was cancelled.
struct EndWaker(Weak<ServerEnd>);

impl Wake for EndWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(end) = self.0.upgrade() else {
            return;
        };
        if !end.cancellation.is_finished()
            && let Some(status) = end.cancellation.status()
        {
            end.abort(status);
        }
    }
}

/// Why a handler's initial metadata is refused.
#[cold]
pub(crate) fn too_late() -> Status {
    Status::failed_precondition(
        "the metadata is too late: initial metadata or a message has been sent",
    )
}

/// Answers a request of a stream.
fn respond(local: &LocalHandle, answer: Answer<HeldReply>, cancellation: &Cancellation) {
    let Answer {
        to,
        position,
        status,
        metadata,
        body,
    } = answer;
    let mut reply = to.into_reply(cancellation);
    let (head, tail) = body.into_parts();
    *reply.buffer() = head;
    if let Some(tail) = tail {
        reply.set_tail(tail);
    }
    if !metadata.is_empty() {
        reply.set_metadata(metadata);
    }
    reply.set_stream(position, status, STREAM_RESPONSE_LEN);
    local.complete_with(reply, Ok(()));
}
