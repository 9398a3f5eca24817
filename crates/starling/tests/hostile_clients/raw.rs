//! A client that speaks the session protocol without the library, and so breaks whichever rule it likes.

use std::collections::BTreeMap;

use starling_message::method_id;

use crate::wire::{MAX_DATAGRAM, Wire, open};

pub(crate) const PREAMBLE_BYTES: usize = 8;
const HEADER_BYTES: usize = 16;
/// CONNECTs that are sent at once.
const CONNECTS: usize = 32;
/// Slots that a session asks for: as many as a server gives.
pub(crate) const SLOTS: u64 = 32;
/// The largest message.
pub(crate) const MAX_MESSAGE: u32 = 64 << 20;

/// What a frame is.
pub(crate) mod kind {
    pub(crate) const REQUEST: u8 = 1;
    pub(crate) const RESPONSE: u8 = 2;
    pub(crate) const REQUEST_FRAGMENT: u8 = 3;
    pub(crate) const RESPONSE_FRAGMENT: u8 = 4;
    pub(crate) const REJECT: u8 = 8;
    pub(crate) const CONNECT: u8 = 9;
    pub(crate) const CHALLENGE: u8 = 10;
    pub(crate) const ACCEPT: u8 = 11;
    pub(crate) const CLOSE: u8 = 13;
    pub(crate) const RESET: u8 = 15;
    pub(crate) const PING: u8 = 16;
    pub(crate) const CREDIT: u8 = 18;
    pub(crate) const CREDIT_ACK: u8 = 19;
    /// A call header has fields.
    pub(crate) const EXT: u8 = 1 << 5;
    /// The session has more to send.
    pub(crate) const WANT: u8 = 1 << 7;
    /// Names in summaries.
    pub(crate) const NAMES: [&str; 32] = [
        "none",
        "request",
        "response",
        "fragment",
        "response fragment",
        "CR",
        "RFR",
        "CANCEL",
        "REJECT",
        "CONNECT",
        "CHALLENGE",
        "ACCEPT",
        "REFUSE",
        "CLOSE",
        "CLOSED",
        "RESET",
        "PING",
        "PONG",
        "CREDIT",
        "CREDIT ACK",
        "DRAIN",
        "DRAIN ACK",
        "22",
        "23",
        "24",
        "25",
        "26",
        "27",
        "28",
        "29",
        "30",
        "31",
    ];
}

/// A session of the server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// The server's.
    pub(crate) id: u32,
    /// Of its last request.
    pub(crate) number: u64,
}

/// One peer of the server.
pub(crate) struct Raw {
    wire: Box<dyn Wire>,
    /// What the server sends under.
    token: u64,
    /// What the server takes. 0: it has not said it yet.
    pub(crate) server: u64,
    pub(crate) sessions: Vec<Session>,
    /// Whether a CONNECT was accepted, by the client's number of the session.
    accepted: Vec<bool>,
    /// A datagram that is not full, and its token.
    open: Vec<u8>,
    open_token: u64,
    /// Requests that were rejected: the client's session and the slot.
    pub(crate) rejected: Vec<(u32, u8)>,
    /// What the server has said of credits: the client's session, and the number that a confirmation has.
    pub(crate) credits: Vec<(u32, u64)>,
    /// The server's sessions, by the client's.
    ids: BTreeMap<u32, u32>,
    /// Frames that have come, by kind.
    pub(crate) got: BTreeMap<u8, u64>,
}

/// How a datagram begins, under a token or none (0).
pub(crate) fn preamble(token: u64) -> [u8; PREAMBLE_BYTES] {
    match token {
        0 => [0x5a, 3, 0, 0, 0, 0, 0, 0],
        _ => token.to_le_bytes(),
    }
}

impl Raw {
    pub(crate) fn new(address: &str, number: u64) -> Self {
        Self {
            wire: open(address),
            // The low bits alone are no token.
            token: number << 16,
            server: 0,
            sessions: Vec::new(),
            accepted: Vec::new(),
            open: Vec::new(),
            open_token: 0,
            rejected: Vec::new(),
            credits: Vec::new(),
            ids: BTreeMap::new(),
            got: BTreeMap::new(),
        }
    }

    /// Peers, numbered from 1.
    pub(crate) fn many(address: &str, count: u64) -> Vec<Self> {
        (1..=count).map(|peer| Self::new(address, peer)).collect()
    }

    /// Adds a frame to the datagram that is open; with another token, to the next one.
    pub(crate) fn frame(
        &mut self,
        token: u64,
        kind: u8,
        slot: u8,
        session: u32,
        number: u64,
        payload: &[&[u8]],
    ) {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        let is_full = self.open.len() + HEADER_BYTES + length > MAX_DATAGRAM;
        if is_full || self.open_token != token {
            self.flush();
        }
        if self.open.is_empty() {
            self.open_token = token;
            self.open.extend_from_slice(&preamble(token));
        }
        self.open.extend_from_slice(&[kind, slot]);
        self.open.extend_from_slice(&(length as u16).to_le_bytes());
        self.open.extend_from_slice(&session.to_le_bytes());
        self.open.extend_from_slice(&number.to_le_bytes());
        for part in payload {
            self.open.extend_from_slice(part);
        }
    }

    /// Sends what is open.
    pub(crate) fn flush(&mut self) {
        if !self.open.is_empty() {
            self.wire.send(&self.open);
            self.open.clear();
        }
    }

    /// Sends any bytes.
    pub(crate) fn datagram(&mut self, bytes: &[u8]) {
        self.flush();
        self.wire.send(bytes);
    }

    /// Takes what has come, and asks for more sessions if it has fewer than so many.
    pub(crate) fn keep_sessions(&mut self, count: usize) {
        self.receive();
        if self.sessions.len() < count {
            // Before it is a peer, a datagram is answered for its first CONNECT only.
            let connects = match self.server {
                0 => 1,
                _ => CONNECTS.min(count - self.sessions.len()),
            };
            for _ in 0..connects {
                self.connect(self.accepted.len() as u32, &[0; 16]);
                self.accepted.push(false);
            }
        }
        self.flush();
    }

    fn connect(&mut self, session: u32, cookie: &[u8]) {
        let token = self.token.to_le_bytes();
        let limits = [
            (MAX_DATAGRAM as u32).to_le_bytes(),
            MAX_MESSAGE.to_le_bytes(),
        ]
        .concat();
        let wants = [(SLOTS as u16).to_le_bytes(), 1024u16.to_le_bytes()].concat();
        let payload: [&[u8]; 5] = [&token, &session.to_le_bytes(), &limits, &wants, cookie];
        self.frame(0, kind::CONNECT, 0, 0, 0, &payload);
    }

    /// Takes what has come.
    pub(crate) fn receive(&mut self) {
        let mut datagrams = Vec::new();
        self.wire.receive(&mut datagrams);
        for datagram in datagrams {
            self.handle(datagram.get(PREAMBLE_BYTES..).unwrap_or_default());
        }
    }

    fn handle(&mut self, mut frames: &[u8]) {
        while let Some((header, rest)) = frames.split_first_chunk::<HEADER_BYTES>() {
            let length = usize::from(u16::from_le_bytes([header[2], header[3]]));
            let Some((payload, after)) = rest.split_at_checked(length) else {
                return;
            };
            frames = after;
            let session = u32_at(header, 4);
            let kind = header[0] & 0x1f;
            *self.got.entry(kind).or_default() += 1;
            match kind {
                kind::CHALLENGE => self.connect(session, payload),
                kind::ACCEPT => self.handle_accept(session, payload),
                kind::REJECT => self.rejected.push((session, header[1])),
                kind::CREDIT => self.credits.push((session, u64_at(header, 8))),
                _ => {}
            }
        }
    }

    fn handle_accept(&mut self, session: u32, payload: &[u8]) {
        let Some(accepted) = self.accepted.get_mut(session as usize) else {
            return;
        };
        if !std::mem::replace(accepted, true) {
            self.server = u64_at(payload, 0);
            let id = u32_at(payload, 8);
            self.ids.insert(session, id);
            self.sessions.push(Session { id, number: 0 });
        }
    }

    /// Sends a whole request with the next number of a session. `flags` are those of its frame.
    pub(crate) fn request(&mut self, session: usize, slot: u8, flags: u8, message: &[u8]) {
        let own = &mut self.sessions[session];
        own.number += 1;
        let Session { id, number } = *own;
        let kind = kind::REQUEST | kind::EXT | flags;
        self.frame(self.server, kind, slot, id, number, &[message]);
    }

    /// Sends a full fragment of a request that is as large as a message may be.
    pub(crate) fn fragment(&mut self, session: usize, slot: u8, number: u64, index: u32) {
        let id = self.sessions[session].id;
        let data = vec![7; MAX_DATAGRAM - PREAMBLE_BYTES - HEADER_BYTES - 8];
        let payload: [&[u8]; 3] = [&MAX_MESSAGE.to_le_bytes(), &index.to_le_bytes(), &data];
        let kind = kind::REQUEST_FRAGMENT | kind::EXT;
        self.frame(self.server, kind, slot, id, number, &payload);
    }

    /// Confirms all that the server has said of credits, and says that it keeps so many.
    pub(crate) fn confirm_credits(&mut self, kept: u32) {
        for (session, number) in std::mem::take(&mut self.credits) {
            if let Some(&id) = self.ids.get(&session) {
                let payload = kept.to_le_bytes();
                self.frame(self.server, kind::CREDIT_ACK, 0, id, number, &[&payload]);
            }
        }
    }

    /// Says that it is alive.
    pub(crate) fn ping(&mut self) {
        if let Some(session) = self.sessions.last() {
            let id = session.id;
            self.frame(self.server, kind::PING, 0, id, 1, &[]);
            self.flush();
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes
        .get(at..at + 4)
        .map(|bytes| bytes.try_into().expect("four"));
    bytes.map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Bytes of a request's message: a call header that says that the body is protobuf, further fields, the body.
pub(crate) fn message(method: &str, fields: &[u8], body: &[u8]) -> Vec<u8> {
    let path = format!("/target.Target/{method}");
    let fields = [&[2, 1, 0, 1][..], fields].concat();
    let head = [
        &method_id(&path).to_le_bytes()[..],
        &(fields.len() as u16).to_le_bytes(),
    ]
    .concat();
    [&head, &fields[..], body].concat()
}

/// A field of bytes, in protobuf.
pub(crate) fn bytes_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    put_varint(&mut field, bytes.len() as u64);
    field.extend_from_slice(bytes);
    field
}

/// `Amount`, in protobuf.
pub(crate) fn amount(value: u64) -> Vec<u8> {
    let mut field = vec![1 << 3];
    put_varint(&mut field, value);
    field
}

fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Requests of peers that were answered.
pub(crate) fn answered(raws: &[Raw]) -> u64 {
    let kinds = [kind::RESPONSE, kind::RESPONSE_FRAGMENT, kind::REJECT];
    let of = |raw: &Raw| kinds.map(|kind| raw.got.get(&kind).copied().unwrap_or_default());
    raws.iter().flat_map(of).sum()
}

/// Frames that peers got, by kind.
pub(crate) fn summary<'a>(raws: impl IntoIterator<Item = &'a Raw> + Clone) -> String {
    let mut all: BTreeMap<u8, u64> = BTreeMap::new();
    for (kind, count) in raws.clone().into_iter().flat_map(|raw| &raw.got) {
        *all.entry(*kind).or_default() += count;
    }
    let sessions: usize = raws.into_iter().map(|raw| raw.sessions.len()).sum();
    let got = all
        .iter()
        .map(|(kind, count)| format!(", {count} {}", kind::NAMES[usize::from(*kind)]));
    format!("{sessions} sessions{}", got.collect::<String>())
}
