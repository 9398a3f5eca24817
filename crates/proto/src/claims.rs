//! Which requests workers have claimed: what they and the dispatcher of a server share, so that a
//! request runs once although several threads receive.
//!
//! ```text
//!  worker:      look ─▶ its kind of request? ─▶ claim ─▶ run ─▶ send ─▶ Protocol::handle_claimed_response
//!                 │              │                │ lost
//!                 └──────────────┴────────────────┴─▶ the dispatcher: a datagram like any other
//!  dispatcher:  raise ─▶ run, or see that a worker has
//! ```
//!
//! For each slot of a session there is a word with the highest request number that was claimed. To
//! claim a request is to raise the word from below its number to its number, in one step, so of
//! all that try one succeeds. Everything else about a session stays with the dispatcher. It goes by
//! the same words while there are workers, and learns from them what it has not received itself.
//!
//! A word also has the lower bits of how often the session's place was used, and while there is no
//! session a number that nothing is above. What else a worker needs to know of a session is written
//! before its words are opened. So a claim whose step succeeds has read what belongs to it: it is a
//! sequence lock (Lameter, 2005), with the claim itself as the second look.

use crate::peer::preamble;
use crate::table::SessionHandle;
use crate::wire::{Frame, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, flags, split_frame_of};
use crate::{Msgbuf, PeerId, RequestId, RequestNumber, SessionId};
use atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The real ones, or those that loom can interleave.
mod atomic {
    #[cfg(all(loom, test))]
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(all(loom, test)))]
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

/// Bits of a word that are the request number.
const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The highest number that workers are for. A session has had so many requests after years; then,
/// or if it skips that many, its slots are the dispatcher's alone.
const LAST_NUMBER: u64 = NUMBER_MASK - 1;
/// Workers can claim nothing.
const CLOSED: u64 = u64::MAX;

/// What workers and dispatcher share. Sessions at places beyond its size are the dispatcher's.
#[derive(Debug)]
pub struct Claims {
    preamble: [u8; PREAMBLE_BYTES],
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
    token: AtomicU32,
    single: AtomicU32,
}

/// What a worker has to know of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionInfo {
    pub(crate) handle: SessionHandle,
    pub(crate) peer: PeerId,
    /// The client's number of the session.
    pub(crate) remote: u32,
    /// The client's incarnation.
    pub(crate) token: u32,
    /// The largest response of one packet.
    pub(crate) single: u32,
}

/// A datagram that is one whole plain request, which nobody has claimed yet.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    peer: PeerId,
    frame: Frame<'a>,
}

impl<'a> Candidate<'a> {
    /// The message.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.frame.payload
    }
}

/// A request that is its holder's to run. It has to end up at [`crate::Protocol::handle_claimed_response`] or
/// [`crate::Protocol::handle_claimed_request`].
#[derive(Debug)]
#[must_use = "nobody else runs the request"]
pub struct Claim {
    id: RequestId,
    pub(crate) info: SessionInfo,
    /// [`flags::ECHO`] if a congestion mark is to be echoed.
    pub(crate) mark: u8,
}

impl Claim {
    /// The request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Who asks.
    pub fn peer(&self) -> PeerId {
        self.info.peer
    }

    /// What precedes `response` in a datagram that answers the request: preamble and frame header.
    /// None: the response does not fit one packet, or takes memory that the dispatcher has to
    /// account for; then the dispatcher responds.
    pub fn response_head(
        &self,
        response: &Msgbuf,
    ) -> Option<([u8; PREAMBLE_BYTES], [u8; HEADER_BYTES])> {
        let len = response.len();
        if response.is_bulky() || !response.tail().is_empty() || len > self.info.single as usize {
            return None;
        }
        let header = Header {
            kind: Kind::Response,
            flags: self.flags(),
            slot: self.id.slot(),
            session: self.info.remote,
            number: self.id.number,
        };
        Some((preamble(self.info.token), header.to_bytes(len)))
    }

    /// Those of the response. It is late in any case: nobody knows how long the request waited.
    pub(crate) fn flags(&self) -> u8 {
        self.mark | flags::LATE
    }
}

impl Claims {
    /// For sessions at the first `places` places, with up to `slots` slots each, of the endpoint
    /// with this token.
    pub(crate) fn new(token: u32, places: usize, slots: u16) -> Self {
        let entry = || Entry {
            slots: (0..slots).map(|_| AtomicU64::new(CLOSED)).collect(),
            id: AtomicU32::new(0),
            round: AtomicU32::new(0),
            peer: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            token: AtomicU32::new(0),
            single: AtomicU32::new(0),
        };
        Self {
            preamble: preamble(token),
            entries: (0..places).map(|_| entry()).collect(),
        }
    }

    // ---- workers ----

    /// A datagram from `peer`, if it is something to claim.
    #[inline]
    pub fn parse<'a>(&self, peer: PeerId, datagram: &'a [u8]) -> Option<Candidate<'a>> {
        let (start, rest) = datagram.split_first_chunk::<PREAMBLE_BYTES>()?;
        let (frame, rest) = split_frame_of(Kind::Request, rest)?;
        // Nothing but zeros where there have to be any: what only matters to other versions.
        let is_plain = *start == self.preamble && rest.is_empty();
        let needs_dispatcher = frame.header.flags & (flags::EXT | flags::WANT) != 0;
        (is_plain && !needs_dispatcher).then_some(Candidate { peer, frame })
    }

    /// Claims a request. None: another one has, or it is not for workers; it is to be handed over
    /// to the dispatcher. `marked`: its datagram has a congestion mark.
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
        // Of a word that is closed the number is higher than any.
        if before & NUMBER_MASK >= number || number > LAST_NUMBER {
            return None;
        }
        let info = entry.info(session);
        if !entry.is_of(session) || info.peer != candidate.peer {
            return None;
        }
        // Whoever has changed what was read has closed the word before, and the step sees that.
        fence(Ordering::Acquire);
        let after = before & !NUMBER_MASK | number;
        let step = word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
        step.ok()?;
        Some(Claim {
            id: RequestId::new(session, info.handle.round, slot, number),
            info,
            mark: if marked { flags::ECHO } else { 0 },
        })
    }

    // ---- dispatcher ----

    /// A session begins; `numbers` are the highest of its slots' requests.
    pub(crate) fn open(&self, info: &SessionInfo, numbers: impl Iterator<Item = RequestNumber>) {
        let SessionHandle { id, round } = info.handle;
        let Some(entry) = self.entries.get(id.index()) else {
            return;
        };
        fence(Ordering::Release);
        entry.id.store(id.to_wire(), Ordering::Relaxed);
        entry.round.store(round, Ordering::Relaxed);
        entry.peer.store(info.peer.0, Ordering::Relaxed);
        entry.remote.store(info.remote, Ordering::Relaxed);
        entry.token.store(info.token, Ordering::Relaxed);
        entry.single.store(info.single, Ordering::Relaxed);
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

    /// A session is over: none of its requests can be claimed any more. `claimed` is told of each
    /// slot the highest number that was.
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

    /// The dispatcher claims everything of a slot up to `number`; returns the highest number that
    /// was claimed before. If that is `number` or higher, a worker has it or the dispatcher had it.
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
    /// What is written here, if `id` is the session's.
    fn info(&self, id: SessionId) -> SessionInfo {
        SessionInfo {
            handle: SessionHandle {
                id,
                round: self.round.load(Ordering::Relaxed),
            },
            peer: PeerId(self.peer.load(Ordering::Relaxed)),
            remote: self.remote.load(Ordering::Relaxed),
            token: self.token.load(Ordering::Relaxed),
            single: self.single.load(Ordering::Relaxed),
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
