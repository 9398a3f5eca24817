//! The server's end of a stream.

use bytes::Bytes;
use smallvec::SmallVec;
use starling_call::{Metadata, Status, StreamFlags, StreamPosition};

use crate::incoming::Incoming;
use crate::outgoing::{Bundle, LentBundle, Outgoing};
use crate::{Items, MAX_HELD, MAX_OUTSTANDING, Violation};

/// An answer to a request that was held. `R` stands for the request.
#[derive(Debug)]
pub struct Answer<R> {
    /// The request.
    pub to: R,
    /// For the call header.
    pub position: StreamPosition,
    /// For the call header: how the stream ends, if not well.
    pub status: Option<Status>,
    /// For the call header.
    pub metadata: Metadata,
    /// The body.
    pub body: Bundle,
}

/// What a request brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing for the handler.
    Nothing,
    /// The reader or the writer can go on.
    Progress,
    /// The client gives up: the handler should end.
    Cancelled,
}

/// Requests that are held without memory of their own.
const HELD_HERE: usize = 2;

/// The server's end of a stream.
#[derive(Debug)]
pub struct ServerStream<R> {
    id: u64,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Requests without an answer, oldest first. A stream at rest has one, and one item each way at a time has a
    /// second one for a moment: these have no memory of their own.
    held: SmallVec<[R; HELD_HERE]>,
    /// As many as the client wants held.
    hold: u8,
    /// The client is told when it should have more requests held.
    is_pipelined: bool,
    answer_now: bool,
    /// No request was held when [`ServerStream::is_forgotten`] was asked last, and none has come since.
    is_quiet: bool,
    headers: Option<Box<Metadata>>,
    /// The headers have left, or items, which headers go in front of.
    is_headed: bool,
    trailers: Option<Box<Metadata>>,
    finished: Option<Box<Result<(), Status>>>,
    is_over: bool,
}

impl<R> ServerStream<R> {
    /// A stream with this id. `room` is the length of a response's call header without metadata.
    pub fn new(id: u64, window: u32, room: usize) -> Self {
        Self {
            id,
            outgoing: Outgoing::new(room),
            incoming: Incoming::new(window),
            held: SmallVec::new(),
            hold: 1,
            is_pipelined: true,
            answer_now: false,
            is_quiet: false,
            headers: None,
            is_headed: false,
            trailers: None,
            finished: None,
            is_over: false,
        }
    }

    /// The client's items come in another encoding than that whose bytes it counts: so many windows may be unread
    /// before it breaks the stream.
    pub fn tolerate(&mut self, windows: u8) {
        self.incoming.tolerance = windows;
    }

    /// The client never hears that items wait, so it has one request held: it has many streams, and a request takes a
    /// slot.
    pub fn forbid_pipelining(&mut self) {
        self.is_pipelined = false;
    }

    // ---- for the handler ----

    /// Whether an item may be pushed now.
    pub fn may_push(&self) -> bool {
        self.finished.is_some() || self.outgoing.has_room()
    }

    /// From now on an item may be pushed only while fewer than so many bytes wait: with 1, when no item does.
    pub fn keep_fewer_than(&mut self, bytes: usize) {
        self.outgoing.keep_fewer_than(bytes);
    }

    /// Adds an item: its bytes, and more that are held by reference.
    ///
    /// # Errors
    /// If the stream is over. The item is not sent.
    #[inline]
    pub fn push(&mut self, head: &[u8], tail: Option<&Bytes>) -> Result<(), Status> {
        self.check_open()?;
        self.outgoing.push(head, tail, 0);
        Ok(())
    }

    /// An empty bundle with memory for so many bytes, for items that are written where they lie.
    pub fn new_bundle(&self, bytes: usize) -> Bundle {
        self.outgoing.new_bundle(bytes)
    }

    /// Adds the items of a bundle that [`Self::new_bundle`] has given.
    ///
    /// # Errors
    /// If the stream is over. The items are not sent.
    pub fn push_bundle(&mut self, bundle: Bundle) -> Result<(), Status> {
        self.check_open()?;
        self.outgoing.push_bundle(bundle);
        Ok(())
    }

    /// Lends the bundle that items are being added to. Until it comes back, nothing else is pushed. None: there
    /// is none, or it has no room.
    pub fn lend_bundle(&mut self) -> Option<LentBundle> {
        self.outgoing.lend_bundle()
    }

    /// A bundle that was lent comes back. Its items are not sent if the stream has ended meanwhile.
    pub fn take_back(&mut self, lent: LentBundle) {
        if self.finished.is_none() {
            self.outgoing.take_back(lent);
        }
    }

    #[inline]
    fn check_open(&self) -> Result<(), Status> {
        match self.finished() {
            None => Ok(()),
            Some(end) => Err(closed_by(end)),
        }
    }

    /// Whether a full bundle could leave now.
    #[inline]
    pub fn has_bundle_to_send(&self) -> bool {
        self.outgoing.has_full_bundle() && !self.held.is_empty() && self.outgoing.may_send()
    }

    /// The items of the next message.
    pub fn take(&mut self) -> Option<Items> {
        self.incoming.take()
    }

    /// Whether the client's last item was taken, or no more come because the stream is over.
    pub fn is_read(&self) -> bool {
        self.incoming.is_over() || self.finished.is_some()
    }

    /// How the stream ended, if it has.
    pub fn finished(&self) -> Option<&Result<(), Status>> {
        self.finished.as_deref()
    }

    /// Nobody reads the client's items any more.
    pub fn discard(&mut self) {
        self.incoming.discard();
    }

    /// Sends metadata in front of all items. False if there is some already, or an item.
    pub fn set_headers(&mut self, metadata: Metadata) -> bool {
        let is_first = !self.is_headed && self.headers.is_none() && self.outgoing.is_empty();
        if is_first {
            self.headers = Some(Box::new(metadata));
        }
        is_first
    }

    /// Sends metadata behind all items.
    pub fn set_trailers(&mut self, metadata: Metadata) {
        self.trailers = Some(Box::new(metadata));
    }

    /// The metadata that is to go behind all items.
    pub fn trailers(&self) -> Option<&Metadata> {
        self.trailers.as_deref()
    }

    /// The handler has ended. Only the first end counts. After an error, items that wait still leave.
    pub fn finish(&mut self, result: Result<(), Status>) {
        self.outgoing.closed = true;
        self.finished.get_or_insert_with(|| Box::new(result));
        self.incoming.discard();
    }

    /// The stream ends at once, without what waits. It ends as its handler did only if nothing waits: items that are
    /// not sent are an error.
    pub fn abort(&mut self, status: Status) {
        if !self.outgoing.is_empty() {
            self.finished = None;
        }
        self.outgoing.clear();
        self.finish(Err(status));
    }

    // ---- for the listener ----

    /// Takes in a request of this stream.
    ///
    /// # Errors
    /// What the client did wrong, and the request. The caller ends the stream.
    pub fn handle_request(
        &mut self,
        position: StreamPosition,
        body: Bytes,
        request: R,
    ) -> Result<Arrival, Violation> {
        self.held.push(request);
        self.is_quiet = false;
        if position.flags.has(StreamFlags::CANCEL) {
            return Ok(Arrival::Cancelled);
        }
        if self.held.len() > MAX_OUTSTANDING as usize {
            return Err(Violation::Position);
        }
        self.hold = position.hold.clamp(1, MAX_HELD);
        self.answer_now |= position.flags.has(StreamFlags::ANSWER);
        self.outgoing.handle_received(position.received)?;
        if !self.incoming.has_later(position.number) {
            self.incoming.is_awaited = position.flags.has(StreamFlags::MORE);
        }
        let could_push = self.outgoing.has_room();
        (self.outgoing).handle_taken(position.taken, position.window)?;
        let is_end = position.flags.has(StreamFlags::END);
        let readable = self.incoming.handle(position.number, body, is_end)?;
        let writable = !could_push && self.outgoing.has_room();
        Ok(match readable || writable {
            true => Arrival::Progress,
            false => Arrival::Nothing,
        })
    }

    /// The next answer to send now.
    pub fn poll_answer(&mut self) -> Option<Answer<R>> {
        if self.held.is_empty() {
            return None;
        }
        if self.is_over {
            return Some(gone(self.pop_held(), self.id));
        }
        let with_items = self.outgoing.may_send();
        let ends = self.finished.is_some() && self.outgoing.is_empty();
        let must_answer = match self.outgoing.is_ahead() {
            true => self.incoming.should_acknowledge(),
            false => with_items || ends || self.must_answer(),
        };
        if !must_answer {
            return None;
        }
        let to = self.pop_held();
        let (number, body) = self.outgoing.pop();
        // What the user sends first and last go apart, for a message has metadata once.
        let is_end = self.finished.is_some() && self.outgoing.is_empty() && self.headers.is_none();
        self.is_headed |= with_items || self.headers.is_some();
        let (metadata, status) = if is_end {
            self.is_over = true;
            let status = self.finished().and_then(|end| end.clone().err());
            let mut trailers = self.trailers.take();
            if let Some(more) = status.as_ref().and_then(Status::metadata) {
                // If both together are too long, the status goes without its own.
                let _ = trailers.get_or_insert_default().extend(more);
            }
            (trailers, status)
        } else {
            (self.headers.take(), None)
        };
        self.answer_now = false;
        let flags = StreamFlags::NONE.with_if(is_end, StreamFlags::END).with_if(
            self.is_pipelined && !self.outgoing.is_empty(),
            StreamFlags::MORE,
        );
        let position = StreamPosition {
            id: self.id,
            number,
            received: self.incoming.next,
            taken: self.incoming.taken(),
            window: self.incoming.window,
            hold: 0,
            flags,
        };
        self.incoming.reported();
        Some(Answer {
            to,
            position,
            status,
            metadata: metadata.map(|metadata| *metadata).unwrap_or_default(),
            body,
        })
    }

    /// Whether a request has to be answered though there are no items for it.
    fn must_answer(&self) -> bool {
        self.answer_now
            || self.held.len() > usize::from(self.hold)
            || self.headers.is_some()
            || self.incoming.should_report()
            || self.incoming.should_acknowledge()
    }

    /// Whether the last answer has left.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the client has forgotten the stream, as it seems: no request was held when this was asked last, none is
    /// now, and none came in between. One that is answered as it comes is never held when somebody looks.
    pub fn is_forgotten(&mut self) -> bool {
        let is_quiet = self.held.is_empty();
        std::mem::replace(&mut self.is_quiet, is_quiet) && is_quiet
    }

    /// The client's next request may have to wait for others: the stream is not forgotten yet.
    pub fn spare(&mut self) {
        self.is_quiet = false;
    }

    /// Requests that are held.
    pub fn held(&self) -> &[R] {
        &self.held
    }

    /// The oldest request. There is one.
    fn pop_held(&mut self) -> R {
        let oldest = self.held.remove(0);
        if self.held.spilled() && self.held.len() <= HELD_HERE {
            self.held.shrink_to_fit();
        }
        oldest
    }

    /// Whether the window has room for all of a message's items, beside those that were not taken.
    pub fn is_within_window(&self, body: &Bytes) -> bool {
        self.incoming.is_within_window(body)
    }

    /// Bytes of messages that the handler has not taken.
    pub fn unread_bytes(&self) -> usize {
        self.incoming.unread_bytes()
    }
}

/// Why no more items may be pushed.
#[cold]
fn closed_by(end: &Result<(), Status>) -> Status {
    let end = end.clone().err();
    end.unwrap_or_else(|| Status::cancelled("the stream is over; the item was not sent"))
}

/// The answer to a request of a stream that there is not.
pub fn gone<R>(to: R, id: u64) -> Answer<R> {
    Answer {
        to,
        position: StreamPosition {
            id,
            flags: StreamFlags::GONE,
            ..StreamPosition::default()
        },
        status: None,
        metadata: Metadata::default(),
        body: Bundle::default(),
    }
}
