//! The client's end of a stream.

use bytes::Bytes;
use starling_call::{Code, Metadata, Status, StreamFlags, StreamPosition};

use crate::incoming::Incoming;
use crate::number::Number;
use crate::outgoing::{Bundle, Outgoing};
use crate::{Items, MAX_HELD, MAX_OUTSTANDING, Violation};

/// A request to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamRequest {
    /// For its call header.
    pub position: StreamPosition,
    /// Its body.
    pub body: Bundle,
}

/// A response that has arrived.
#[derive(Clone, Debug, Default)]
pub struct StreamResponse {
    /// From its call header.
    pub position: StreamPosition,
    /// From its call header, if there is one.
    pub status: Option<Status>,
    /// From its call header.
    pub metadata: Metadata,
    /// Its body.
    pub body: Bytes,
}

/// What the reader gets.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The items of a message, at least one.
    Items(Items),
    /// There are no more items.
    End(Result<(), Status>),
}

/// How a stream ends.
#[derive(Debug)]
enum End {
    /// By the server's last message.
    ByServer(Result<(), Status>),
    /// By a failure, or by the client itself. This counts if both have come.
    Broken(Status),
}

/// The client's end of a stream.
#[derive(Debug)]
pub struct ClientStream {
    id: u64,
    outgoing: Outgoing,
    incoming: Incoming,
    outstanding: u32,
    /// Requests that the server may hold.
    hold: u8,
    /// The server may hold several, if it asks for that.
    is_pipelined: bool,
    /// It has asked for that, and may not.
    asks_to_hold: bool,
    /// A response has come, so the server knows the stream.
    is_known: bool,
    /// Items have come, with all that the server sent before them.
    has_items: bool,
    /// The user may send items.
    sends: bool,
    /// The request that said that no more items come.
    end_sent: Option<Number>,
    /// The last request with items.
    last_with_items: Option<Number>,
    /// So many requests have arrived at the server without a gap.
    received: u64,
    end: Option<Box<End>>,
    /// The server was told that the stream has failed here, or need not be.
    is_told: bool,
    /// The server said that it does not have the stream.
    is_gone: bool,
    /// The server could not be reached, or has refused the stream.
    is_cut_off: bool,
    /// If there is any.
    metadata: Option<Box<ServerMetadata>>,
}

/// What the server has sent beside its items.
#[derive(Debug, Default)]
struct ServerMetadata {
    headers: Metadata,
    trailers: Metadata,
}

impl ClientStream {
    /// A stream. `room` is the length of a request's call header. `sends`: items go to the server.
    pub fn new(id: u64, window: u32, room: usize, sends: bool) -> Self {
        Self {
            id,
            outgoing: Outgoing::new(room),
            incoming: Incoming::new(window),
            outstanding: 0,
            hold: 1,
            is_pipelined: true,
            asks_to_hold: false,
            is_known: false,
            has_items: false,
            sends,
            end_sent: None,
            last_with_items: None,
            received: 0,
            end: None,
            is_told: false,
            is_gone: false,
            is_cut_off: false,
            metadata: None,
        }
    }

    /// Gives the stream another id, because it is begun again. To be called before any response has come.
    pub fn rename(&mut self, id: u64) {
        debug_assert!(!self.is_known, "the server knows the stream by its id");
        self.id = id;
    }

    /// The server holds one request at most, whatever it asks for: it takes a slot, and there may be few.
    pub fn forbid_pipelining(&mut self) {
        self.is_pipelined = false;
    }

    /// Whether the server may hold several requests.
    pub fn is_pipelined(&self) -> bool {
        self.is_pipelined
    }

    /// Whether the server has asked to hold several requests, and may not.
    #[inline]
    pub fn asks_to_hold(&self) -> bool {
        self.asks_to_hold
    }

    /// The server may hold several requests from now on.
    pub fn allow_pipelining(&mut self) {
        self.is_pipelined = true;
        self.asks_to_hold = false;
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    // ---- for the user ----

    /// Whether an item may be pushed now. True after the end, too, so that the user learns of it.
    pub fn may_push(&self) -> bool {
        self.is_over() || self.outgoing.has_room()
    }

    /// Adds an item: its bytes, and more that are held by reference.
    ///
    /// # Errors
    /// How the stream has ended. The item is not sent.
    #[inline]
    pub fn push(&mut self, head: &[u8], tail: Option<&Bytes>) -> Result<(), Status> {
        self.push_packed(head, tail, 0)
    }

    /// Adds an item that has so many bytes more when it is unpacked. It counts as one of those, because it is unpacked
    /// before it leaves if the server does not take it as it is.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[inline]
    pub fn push_packed(
        &mut self,
        head: &[u8],
        tail: Option<&Bytes>,
        unpacked: usize,
    ) -> Result<(), Status> {
        self.check_open()?;
        self.outgoing.push(head, tail, unpacked);
        Ok(())
    }

    /// An empty bundle with memory for so many bytes, for items that are written where they lie.
    pub fn new_bundle(&self, bytes: usize) -> Bundle {
        self.outgoing.new_bundle(bytes)
    }

    /// Adds the items of a bundle that [`Self::new_bundle`] has given.
    ///
    /// # Errors
    /// How the stream has ended. The items are not sent.
    pub fn push_bundle(&mut self, bundle: Bundle) -> Result<(), Status> {
        self.check_open()?;
        self.outgoing.push_bundle(bundle);
        Ok(())
    }

    #[inline]
    fn check_open(&self) -> Result<(), Status> {
        match self.outgoing.closed || self.is_over() {
            false => Ok(()),
            true => Err(self.why_closed()),
        }
    }

    /// Why no more items may be pushed, if the stream is over.
    pub fn closed(&self) -> Option<Status> {
        self.is_over().then(|| self.why_closed())
    }

    #[cold]
    fn why_closed(&self) -> Status {
        match self.end() {
            Some(Err(status)) => status,
            None if !self.is_over() => {
                Status::failed_precondition("this end has closed the stream; the item was not sent")
            }
            _ => Status::cancelled("the server has ended the stream; the item was not sent"),
        }
    }

    /// No more items come.
    pub fn close(&mut self) {
        self.outgoing.closed = true;
    }

    /// The items of the next message, or the end. None while neither is here.
    pub fn poll(&mut self) -> Option<ClientEvent> {
        if let Some(items) = self.incoming.take() {
            return Some(ClientEvent::Items(items));
        }
        self.end().map(ClientEvent::End)
    }

    /// How the stream ended for its reader.
    fn end(&self) -> Option<Result<(), Status>> {
        match self.end.as_deref()? {
            End::Broken(status) => Some(Err(status.clone())),
            End::ByServer(ended) => self.incoming.is_complete().then(|| ended.clone()),
        }
    }

    /// Why the stream has failed, if not by the server's word, which comes behind all items.
    pub fn broken(&self) -> Option<&Status> {
        match self.end.as_deref()? {
            End::Broken(status) => Some(status),
            End::ByServer(_) => None,
        }
    }

    /// The metadata that the server sent in front of its items. None until it is here, or an item, or the end.
    ///
    /// # Errors
    /// How the stream ended, if that was all that came, and not well.
    pub fn headers(&self) -> Option<Result<Metadata, Status>> {
        let sent = self.metadata.as_ref().map(|sent| &sent.headers);
        if let Some(headers) = sent.filter(|headers| !headers.is_empty()) {
            return Some(Ok(headers.clone()));
        }
        match self.has_items {
            true => Some(Ok(Metadata::default())),
            false => Some(self.end()?.map(|()| Metadata::default())),
        }
    }

    /// The metadata that the server sent last.
    pub fn trailers(&self) -> Option<&Metadata> {
        let trailers = self.metadata.as_ref().map(|sent| &sent.trailers);
        trailers.filter(|trailers| !trailers.is_empty())
    }

    /// Gives up. Returns the request that tells the server, if that may know the stream.
    pub fn cancel(&mut self, why: Status) -> Option<StreamRequest> {
        if self.is_over() {
            return None;
        }
        // The server cannot have run what has sent it nothing.
        self.break_with(match self.outgoing.next {
            0 => why.with_not_run(),
            _ => why,
        });
        self.take_failure().flatten()
    }

    /// Some, once, if the stream has failed here: its calls are of no use any more, and the request in it
    /// tells the server.
    pub fn take_failure(&mut self) -> Option<Option<StreamRequest>> {
        self.broken()?;
        if std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        // A server that cannot be reached is not told, and one that lost the stream knows.
        let may_know = self.outgoing.next > 0 && !self.is_cut_off && !self.is_gone;
        Some(may_know.then(|| StreamRequest {
            position: self.position(self.outgoing.next, StreamFlags::CANCEL),
            body: self.outgoing.pop().1,
        }))
    }

    /// Whether nothing more is sent or comes.
    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the stream has ended well, though its reader may not have come to the end. None: it has not ended.
    pub fn is_ok(&self) -> Option<bool> {
        let end = self.end.as_deref()?;
        Some(matches!(end, End::ByServer(Ok(()))))
    }

    /// Requests that have no response.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether the window has room for all of a message's items, beside those that were not taken.
    pub fn is_within_window(&self, body: &Bytes) -> bool {
        self.incoming.is_within_window(body)
    }

    /// Bytes of messages that the reader has not taken.
    pub fn unread_bytes(&self) -> usize {
        self.incoming.unread_bytes()
    }

    // ---- for the transport ----

    /// Whether [`ClientStream::poll_request`] has one.
    pub fn has_request(&self) -> bool {
        !self.is_over() && !self.is_gone && self.may_send()
    }

    /// The next request to send now.
    pub fn poll_request(&mut self) -> Option<StreamRequest> {
        if !self.has_request() {
            return None;
        }
        let with_items = self.outgoing.may_send();
        let (number, body) = self.outgoing.pop();
        if with_items {
            self.last_with_items = Some(Number::new(number));
        }
        let is_end = self.ends();
        if is_end {
            self.end_sent = Some(Number::new(number));
        }
        self.outstanding += 1;
        // The server answers the first request at once if the next ones may carry items: they wait for it.
        let wants_answer = number == 0 && self.sends && !is_end;
        let flags = StreamFlags::NONE
            .with_if(is_end, StreamFlags::END)
            .with_if(wants_answer, StreamFlags::ANSWER)
            .with_if(self.outgoing.is_blocked(), StreamFlags::MORE);
        let position = self.position(number, flags);
        self.incoming.reported();
        Some(StreamRequest { position, body })
    }

    /// The position of a request that was polled, to send it once more.
    pub fn position_of(&self, number: u64) -> StreamPosition {
        let is_end = self.end_sent.map(Number::get) == Some(number);
        let flags = StreamFlags::NONE
            .with_if(is_end, StreamFlags::END)
            .with_if(self.outgoing.is_blocked(), StreamFlags::MORE);
        self.position(number, flags)
    }

    fn position(&self, number: u64, flags: StreamFlags) -> StreamPosition {
        StreamPosition {
            id: self.id,
            number,
            received: self.incoming.next,
            taken: self.incoming.taken(),
            window: self.incoming.window,
            hold: self.hold,
            flags,
        }
    }

    fn may_send(&self) -> bool {
        if self.outstanding == 0 {
            return true;
        }
        if !self.is_known || self.outstanding >= MAX_OUTSTANDING {
            return false;
        }
        if self.outgoing.is_ahead() {
            return self.incoming.should_acknowledge();
        }
        let pulls = self.outstanding < u32::from(self.hold) && self.incoming.keeps_up();
        self.ends()
            || pulls
            || self.may_push_on()
            || self.incoming.should_report()
            || self.incoming.should_acknowledge()
    }

    /// Whether the next request says that no more items come.
    fn ends(&self) -> bool {
        self.outgoing.closed && self.outgoing.is_empty() && self.end_sent.is_none()
    }

    /// Whether items leave now, or wait for more to leave with them.
    fn may_push_on(&self) -> bool {
        let all_received = self
            .last_with_items
            .is_none_or(|last| last.get() < self.received);
        // The server holds the only outstanding request, if it has that.
        let on_its_way = !all_received && self.outstanding > 1;
        self.outgoing.may_send()
            && (!on_its_way || self.outgoing.is_worth_a_message() || self.outgoing.closed)
    }

    /// Takes in the end of one of its calls. Returns whether the user can go on.
    pub fn handle_response(&mut self, result: Result<StreamResponse, Status>) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.broken().is_some() {
            return false;
        }
        self.is_cut_off = (result.as_ref()).is_err_and(|status| {
            // Without a response yet, this was the first request.
            let has_not_begun = !self.is_known && !status.may_have_run();
            has_not_begun || status.code() == Code::Unavailable
        });
        let handled = match result {
            Ok(response) => self.handle_message(response).map_err(|violation| {
                Status::internal(format!("the server broke the stream: {violation}"))
            }),
            // All of the stream's messages may be here but for this one, which has nothing then.
            Err(_) if self.incoming.is_complete() => Ok(false),
            Err(status) if self.is_known => Err(of_later_request(status)),
            Err(status) => Err(status),
        };
        let is_cut = self.outstanding == 0 && !self.incoming.is_complete();
        let lost = is_cut && self.is_gone;
        let handled = match handled {
            Ok(_) if is_cut && self.end.is_some() => Err(Status::internal(format!(
                "the server broke the stream: it ended it, and its message {} never came",
                self.incoming.next
            ))),
            other => other,
        };
        match handled {
            Ok(_) if lost => {
                self.break_with(Status::unavailable(
                    "the server does not have the stream any more; it may have restarted",
                ));
                true
            }
            Ok(progress) => progress,
            Err(status) => {
                self.break_with(status);
                true
            }
        }
    }

    fn handle_message(&mut self, response: StreamResponse) -> Result<bool, Violation> {
        let StreamResponse {
            position,
            status,
            metadata,
            body,
        } = response;
        if position.id != self.id {
            return Err(Violation::Position);
        }
        if position.flags.has(StreamFlags::GONE) {
            self.is_gone = true;
            return Ok(false);
        }
        self.outgoing.handle_received(position.received)?;
        self.is_known = true;
        self.received = self.received.max(position.received);
        let could_push = self.outgoing.has_room();
        (self.outgoing).handle_taken(position.taken, position.window)?;
        let is_end = position.flags.has(StreamFlags::END);
        let mut progress = self.incoming.handle(position.number, body, is_end)?;
        self.has_items |= self.incoming.is_readable();
        if position.flags.has(StreamFlags::MORE) {
            match self.is_pipelined {
                true => self.hold = (self.hold * 2).min(MAX_HELD),
                false => self.asks_to_hold = true,
            }
        }
        if is_end {
            self.end = Some(Box::new(End::ByServer(status.map_or(Ok(()), Err))));
            if !metadata.is_empty() {
                self.metadata.get_or_insert_default().trailers = metadata;
            }
            self.outgoing.clear();
            progress |= self.incoming.is_complete();
        } else {
            // The first one says that the server knows the stream.
            progress |= position.number == 0 || !metadata.is_empty();
            if !metadata.is_empty() {
                self.metadata.get_or_insert_default().headers = metadata;
            }
        }
        Ok(progress || !could_push)
    }

    fn break_with(&mut self, status: Status) {
        if self.broken().is_none() {
            self.end = Some(Box::new(End::Broken(status)));
        }
        self.outgoing.clear();
    }
}

/// How a stream ends by a request after its first: that may not have run, but the stream's handler has.
#[cold]
fn of_later_request(status: Status) -> Status {
    if status.may_have_run() {
        return status.with_run();
    }
    let text = format!(
        "the stream has begun, and a later request of it failed: {}",
        status.message()
    );
    status.with_run().with_message(text)
}
