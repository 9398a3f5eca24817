//! Claims: the dispatcher and the workers of a server share which requests are claimed, so that each
//! request runs once although several threads receive datagrams.
//!
//! ```text
//!  worker:      parse ─▶ claim ─▶ run ─▶ send ─▶ report: Protocol::handle_claimed_response
//!                 │        │ not claimed
//!                 └────────┴─▶ the datagram goes to the dispatcher
//!  dispatcher:  raise ─▶ run, unless a worker has claimed it
//! ```
//!
//! For each slot of a session there is a word with the highest request number that was claimed. A
//! thread claims a request by raising the word to the request's number, in one atomic step, so only
//! one thread succeeds. All other state of a session belongs to the dispatcher. While there are
//! workers, the dispatcher uses the same words, and learns from reports what it has not received.
//!
//! A word also has the lower bits of how often the session's place was used. While there is no
//! session, it has a number that no request is above. All that a worker needs to know of a session
//! is written before its words are opened. So a claim whose step succeeds has read the right session:
//! this is a sequence lock (Lameter, 2005), with the claim itself as the second read.

use crate::table::SessionHandle;
use crate::wire::{
    Frame, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, Token, flags, split_frame_of,
};
use crate::{Msgbuf, PeerId, RequestId, RequestNumber, SessionId};
use atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The atomics of the standard library, or those that loom interleaves.
mod atomic {
    #[cfg(all(loom, test))]
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(all(loom, test)))]
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

/// Bits of a word that are the request number.
const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The highest number that workers claim. A session reaches it after years, or by skipping numbers;
/// then its slots belong to the dispatcher alone.
const LAST_NUMBER: u64 = NUMBER_MASK - 1;
/// Workers can claim nothing.
const CLOSED: u64 = u64::MAX;

/// The claims that workers and dispatcher share. Sessions at places beyond its size belong to the
/// dispatcher.
#[derive(Debug)]
pub struct Claims {
    entries: Box<[Entry]>,
}

#[derive(Debug)]
struct Entry {
    /// The slots' words.
    slots: Box<[AtomicU64]>,
    id: AtomicU32,
    round: AtomicU32,
    peer: AtomicU32,
    remote: AtomicU32,
    token: AtomicU64,
    own_preamble: AtomicU64,
    small_buffer: AtomicU32,
}

/// The facts about a session that a worker needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionInfo {
    pub(crate) handle: SessionHandle,
    pub(crate) peer: PeerId,
    /// The client's number of the session.
    pub(crate) remote: u32,
    /// The client's incarnation.
    pub(crate) token: Token,
    /// How the client's datagrams begin.
    pub(crate) own_preamble: [u8; PREAMBLE_BYTES],
    /// The largest response of one packet.
    pub(crate) small_buffer: u32,
}

/// A datagram that is one whole plain request and may be claimed.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    peer: PeerId,
    preamble: [u8; PREAMBLE_BYTES],
    frame: Frame<'a>,
}

impl<'a> Candidate<'a> {
    /// The message.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.frame.payload
    }
}

/// A request that its holder must run and report, with
/// [`crate::Protocol::handle_claimed_response`] or [`crate::Protocol::handle_claimed_request`].
#[derive(Debug)]
#[must_use = "nobody else runs the request"]
pub struct Claim {
    id: RequestId,
    pub(crate) info: SessionInfo,
    /// [`flags::ECHO`] if a congestion mark must be echoed.
    pub(crate) mark: u8,
}

impl Claim {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The client.
    pub fn peer(&self) -> PeerId {
        self.info.peer
    }

    /// Preamble and frame header of a datagram with `response`. None: the response does not fit one
    /// packet, or takes memory that the dispatcher must account for; then the dispatcher responds.
    pub fn response_head(
        &self,
        response: &Msgbuf,
    ) -> Option<([u8; PREAMBLE_BYTES], [u8; HEADER_BYTES])> {
        let len = response.len();
        if response.has_tail() || response.capacity() > self.info.small_buffer as usize {
            return None;
        }
        let header = Header {
            kind: Kind::Response,
            flags: self.flags(),
            slot: self.id.slot(),
            session: self.info.remote,
            number: self.id.number,
        };
        Some((self.info.token.preamble(), header.to_bytes(len)))
    }

    /// The flags of the response. It counts as late: how long the request waited is unknown.
    pub(crate) fn flags(&self) -> u8 {
        self.mark | flags::LATE
    }
}

impl Claims {
    /// For sessions at the first `places` places, with up to `slots` slots each.
    pub(crate) fn new(places: usize, slots: u16) -> Self {
        let entry = || Entry {
            slots: (0..slots).map(|_| AtomicU64::new(CLOSED)).collect(),
            id: AtomicU32::new(0),
            round: AtomicU32::new(0),
            peer: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            token: AtomicU64::new(0),
            own_preamble: AtomicU64::new(0),
            small_buffer: AtomicU32::new(0),
        };
        Self {
            entries: (0..places).map(|_| entry()).collect(),
        }
    }

    // ---- workers ----

    /// Parses a datagram from `peer`. None: workers cannot claim it.
    #[inline]
    pub fn parse<'a>(&self, peer: PeerId, datagram: &'a [u8]) -> Option<Candidate<'a>> {
        let (&preamble, rest) = datagram.split_first_chunk::<PREAMBLE_BYTES>()?;
        let (frame, rest) = split_frame_of(Kind::Request, rest)?;
        let needs_dispatcher = frame.header.flags & (flags::EXT | flags::WANT) != 0;
        (rest.is_empty() && !needs_dispatcher).then_some(Candidate {
            peer,
            preamble,
            frame,
        })
    }

    /// Claims a request. None: another thread has claimed it, or it is not for workers; the datagram
    /// must go to the dispatcher. `marked`: the datagram has a congestion mark.
    #[inline]
    pub fn claim(&self, candidate: &Candidate<'_>, marked: bool) -> Option<Claim> {
        let Header {
            slot,
            session,
            number,
            ..
        } = candidate.frame.header;
        let session = SessionId::from_wire(session);
        let entry = self.entries.get(session.index())?;
        let word = entry.slots.get(usize::from(slot))?;
        let before = word.load(Ordering::Acquire);
        // The number of a closed word is higher than any request's.
        if before & NUMBER_MASK >= number || number > LAST_NUMBER {
            return None;
        }
        let info = entry.info(session);
        let is_from_client = info.peer == candidate.peer && info.own_preamble == candidate.preamble;
        if !entry.is_of(session) || !is_from_client {
            return None;
        }
        // A thread that changed the entry since closed the word first, and the step below sees that.
        fence(Ordering::Acquire);
        let after = before & !NUMBER_MASK | number;
        let step = word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
        step.ok()?;
        Some(Claim {
            id: RequestId::new(info.handle, slot, number),
            info,
            mark: if marked { flags::ECHO } else { 0 },
        })
    }

    // ---- dispatcher ----

    /// A session begins; `numbers` are the highest of its slots' requests.
    pub(crate) fn open(&self, info: &SessionInfo, numbers: impl Iterator<Item = RequestNumber>) {
        let (id, round) = (info.handle.id(), info.handle.round());
        let Some(entry) = self.entries.get(id.index()) else {
            return;
        };
        fence(Ordering::Release);
        entry.id.store(id.to_wire(), Ordering::Relaxed);
        entry.round.store(round, Ordering::Relaxed);
        entry.peer.store(info.peer.0, Ordering::Relaxed);
        entry.remote.store(info.remote, Ordering::Relaxed);
        entry.token.store(info.token.to_wire(), Ordering::Relaxed);
        let own_preamble = u64::from_le_bytes(info.own_preamble);
        entry.own_preamble.store(own_preamble, Ordering::Relaxed);
        entry
            .small_buffer
            .store(info.small_buffer, Ordering::Relaxed);
        let uses = u64::from(round | u32::from(id.generation())) << NUMBER_BITS;
        for (word, number) in entry.slots.iter().zip(numbers) {
            debug_assert_eq!(
                word.load(Ordering::Relaxed),
                CLOSED,
                "one session at a place"
            );
            if number <= LAST_NUMBER {
                word.store(uses | number, Ordering::Release);
            }
        }
    }

    /// A session is over: none of its requests can be claimed any more. `claimed` gets each slot and
    /// the highest number that was claimed in it.
    pub(crate) fn close(&self, id: SessionId, mut claimed: impl FnMut(usize, RequestNumber)) {
        let words = self.entries.get(id.index()).map_or(&[][..], |it| &it.slots);
        for (slot, word) in words.iter().enumerate() {
            // In one step: nothing is claimed in between.
            let before = word.swap(CLOSED, Ordering::AcqRel);
            if before != CLOSED {
                claimed(slot, before & NUMBER_MASK);
            }
        }
    }

    /// The dispatcher claims all requests of a slot up to `number`. Returns the highest number that
    /// was claimed before. If that is `number` or higher, the request was claimed already.
    pub(crate) fn raise(&self, id: SessionId, slot: usize, number: RequestNumber) -> RequestNumber {
        let entry = self.entries.get(id.index());
        let Some(word) = entry.and_then(|entry| entry.slots.get(slot)) else {
            return 0;
        };
        let uses = word.load(Ordering::Relaxed) & !NUMBER_MASK;
        let before = match number <= LAST_NUMBER {
            true => word.fetch_max(uses | number, Ordering::AcqRel),
            false => word.swap(CLOSED, Ordering::AcqRel),
        };
        if before == CLOSED {
            return 0;
        }
        before & NUMBER_MASK
    }
}

impl Entry {
    /// The contents of this entry, if `id` is the session's.
    fn info(&self, id: SessionId) -> SessionInfo {
        SessionInfo {
            handle: SessionHandle::new(id, self.round.load(Ordering::Relaxed)),
            peer: PeerId(self.peer.load(Ordering::Relaxed)),
            remote: self.remote.load(Ordering::Relaxed),
            token: Token::from_wire(self.token.load(Ordering::Relaxed)).unwrap_or_default(),
            own_preamble: self.own_preamble.load(Ordering::Relaxed).to_le_bytes(),
            small_buffer: self.small_buffer.load(Ordering::Relaxed),
        }
    }

    fn is_of(&self, id: SessionId) -> bool {
        self.id.load(Ordering::Relaxed) == id.to_wire()
    }
}

#[cfg(all(loom, test))]
mod loom_model;
#[cfg(all(not(loom), test))]
mod tests;
