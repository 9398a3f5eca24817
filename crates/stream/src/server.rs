//! The server's end of a stream.

use std::collections::VecDeque;

use bytes::Bytes;
use starling_call::{Metadata, Status, StreamFlags, StreamPosition};

use crate::incoming::Incoming;
use crate::outgoing::{Bundle, Outgoing};
use crate::{MAX_AHEAD, Violation};

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

/// The server's end of a stream.
#[derive(Debug)]
pub struct ServerStream<R> {
    id: u64,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Requests without an answer, oldest first.
    held: VecDeque<R>,
    /// As many as the client wants held.
    hold: usize,
    answer_now: bool,
    headers: Option<Box<Metadata>>,
    trailers: Option<Box<Metadata>>,
    finished: Option<Result<(), Status>>,
    is_over: bool,
}

impl<R> ServerStream<R> {
    /// A stream with this id. `room` is the length of a response's call header without metadata.
    pub fn new(id: u64, window: u32, room: usize) -> Self {
        Self {
            id,
            outgoing: Outgoing::new(room),
            incoming: Incoming::new(window),
            held: VecDeque::new(),
            hold: 1,
            answer_now: false,
            headers: None,
            trailers: None,
            finished: None,
            is_over: false,
        }
    }

    // ---- for the handler ----

    /// Whether an item may be pushed now.
    pub fn may_push(&self) -> bool {
        self.finished.is_some() || self.outgoing.has_room()
    }

    /// From now on an item may be pushed only when none waits.
    pub fn keep_one(&mut self) {
        self.outgoing.most_waiting = 1;
    }

    /// Adds an item: its bytes, and more that are held by reference.
    ///
    /// # Errors
    /// If the stream is over. The item is not sent.
    pub fn push(&mut self, head: &[u8], tail: Option<&Bytes>) -> Result<(), Status> {
        match &self.finished {
            None => {
                self.outgoing.push(head, tail);
                Ok(())
            }
            Some(end) => Err(end
                .clone()
                .err()
                .unwrap_or_else(|| Status::cancelled("the stream is over; the item was not sent"))),
        }
    }

    /// The next item.
    pub fn take(&mut self) -> Option<Bytes> {
        self.incoming.take()
    }

    /// Whether the client's last item was taken, or no more come because the stream is over.
    pub fn is_read(&self) -> bool {
        self.incoming.is_over() || self.finished.is_some()
    }

    /// How the stream ended, if it has.
    pub fn finished(&self) -> Option<&Result<(), Status>> {
        self.finished.as_ref()
    }

    /// Nobody reads the client's items any more.
    pub fn discard(&mut self) {
        self.incoming.discard();
    }

    /// Sends metadata in front of all items. False if the first message has left.
    pub fn set_headers(&mut self, metadata: Metadata) -> bool {
        let is_first = self.outgoing.next == 0;
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
        self.finished.get_or_insert(result);
        self.incoming.discard();
    }

    /// The stream ends at once, without what waits.
    pub fn abort(&mut self, status: Status) {
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
        self.held.push_back(request);
        if position.flags.has(StreamFlags::CANCEL) {
            return Ok(Arrival::Cancelled);
        }
        if self.held.len() as u64 > MAX_AHEAD {
            return Err(Violation::Position);
        }
        self.hold = usize::from(position.hold).max(1);
        self.answer_now |= position.flags.has(StreamFlags::ANSWER);
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
            return self.held.pop_front().map(|to| gone(to, self.id));
        }
        let with_items = self.outgoing.may_send();
        let ends = self.finished.is_some() && self.outgoing.is_empty();
        let first = self.outgoing.next == 0;
        if !with_items && !ends && !self.must_answer() {
            return None;
        }
        let to = self.held.pop_front()?;
        let (number, body) = self.outgoing.pop();
        // What the user sends first and last go apart, for a message has metadata once.
        let is_end = self.finished.is_some()
            && self.outgoing.is_empty()
            && !(first && self.headers.is_some());
        let (metadata, status) = if is_end {
            self.is_over = true;
            let status = self.finished.as_ref().and_then(|end| end.clone().err());
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
        let flags = StreamFlags::NONE
            .with_if(is_end, StreamFlags::END)
            .with_if(!self.outgoing.is_empty(), StreamFlags::MORE);
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
            || self.held.len() > self.hold
            || self.headers.is_some()
            || self.incoming.should_report()
    }

    /// Whether the last answer has left.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Requests that are held.
    pub fn held(&self) -> &VecDeque<R> {
        &self.held
    }

    /// Bytes of messages that the handler has not taken as a whole.
    pub fn unread_bytes(&self) -> usize {
        self.incoming.unread_bytes()
    }
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
