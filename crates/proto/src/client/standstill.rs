//! Groups that stand still: requests of streams hold all slots, and the group gets no more.
//!
//! A server answers such a request when its stream goes on. For that it may need another request of the same stream,
//! which waits for a slot:
//!
//! ```text
//!  queue ── the stream's next request ──▶ a slot: none is free ◀── held by the requests of streams
//!                                                                        │
//!                        the server answers one when its stream goes on ◀┘
//! ```
//! A caller leaves slots free when it begins streams. But sessions of its group may give way to those of other
//! clients, or it does not know that its calls are those of streams. So some streams end, and the others go on. What a
//! request is for, the layer above says.

use super::Client;
use super::session::{ClientSession, Queued, State};
use super::slot::{Phase, Slot};
use crate::shared::Shared;
use crate::{Event, FrameSink, RequestError, RequestNumber, SessionId};

/// No request has got a slot for so long.
const STANDSTILL_NS: u64 = 1_000_000_000;
/// Of so many slots, one is freed, and twice as many each time after that was of no use.
const FREED: usize = 64;

/// What a request of a stream is to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPart {
    /// It goes on.
    GoesOn,
    /// It is given up, and nobody waits for this request.
    GivenUp,
}

/// A group that cannot grow while requests wait.
pub(super) struct Standing {
    /// The last request that got a slot.
    number: RequestNumber,
    since: u64,
    /// How often some of its streams have ended since, for others that waited.
    rounds: u32,
}

impl Client {
    /// A group cannot grow, and requests wait. Tells the layer above when it has stood still for long.
    pub(super) fn watch_standstill(&mut self, shared: &mut Shared, now: u64, first: SessionId) {
        let sessions = self.group(first).filter_map(|id| self.sessions.get(id));
        let slots = sessions.flat_map(|session| session.slots.iter());
        // Not the queue's first: it may be cancelled there.
        let number = slots.map(|slot| slot.number).max().unwrap_or(0);
        let standing = self.groups.standing.entry(first.to_wire());
        let standing = standing.or_insert(Standing {
            number,
            since: now,
            rounds: 0,
        });
        if standing.number != number {
            *standing = Standing {
                number,
                since: now,
                rounds: 0,
            };
        }
        let is_long = now.saturating_sub(standing.since) >= STANDSTILL_NS;
        if is_long && !self.is_paused(now, first) && self.all_execute(shared, now, first) {
            if let Some(standing) = self.groups.standing.get_mut(&first.to_wire()) {
                standing.since = now;
            }
            let session = first;
            shared.events.push_back(Event::Standstill { session });
        }
    }

    /// Whether every slot of a group has a request that the server executes, which is heard of.
    fn all_execute(&self, shared: &Shared, now: u64, first: SessionId) -> bool {
        let executes = |slot: &Slot| slot.may_execute() && slot.phase != Phase::Receiving;
        let mut sessions = self.group(first).filter_map(|id| self.sessions.get(id));
        let is_heard = (self.sessions.get(first)).is_some_and(|session| {
            let silent_ns = shared.peers.silent_ns(session.peer, now);
            silent_ns <= shared.config.keepalive_ns.saturating_mul(3) / 2
        });
        is_heard
            && sessions.all(|session| match session.state {
                State::Open => {
                    let mut slots = session.slots.iter();
                    !session.suspected && session.free == 0 && slots.all(executes)
                }
                State::Connecting | State::Closing => true,
            })
    }

    /// Ends some streams of a group that still stands still, unless a call that is no stream's holds a slot: that one
    /// ends by itself. Those that have not begun go first, then those that wait to go on, then those whose requests got
    /// their slots last.
    pub(crate) fn end_streams<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        part_of: impl Fn(&[u8]) -> Option<StreamPart>,
        sink: &mut S,
    ) {
        let sessions = self.group(first).filter_map(|id| self.sessions.get(id));
        let open = sessions.filter(|session| session.state == State::Open);
        let mut held = Vec::new();
        for session in open {
            let slots = session.slots.iter().enumerate();
            held.extend(slots.map(|(index, slot)| (slot.number, session.id, index)));
        }
        // Streams are in extensions only: without one, the bytes are the body's.
        let goes_on = |id, index: usize| {
            let slot = self.sessions.get(id).map(|session| &session.slots[index]);
            slot.is_some_and(|it| it.ext && part_of(it.message().0) == Some(StreamPart::GoesOn))
        };
        let all_do = held.iter().all(|(_, id, index)| goes_on(*id, *index));
        if !all_do || held.is_empty() || !self.all_execute(shared, now, first) {
            return;
        }
        let rounds = self.groups.standing.get(&first.to_wire());
        let rounds = rounds.map_or(0, |standing| standing.rounds);
        let most = held.len().div_ceil(FREED) << rounds.min(16);
        let Some(session) = self.sessions.get_mut(first) else {
            return;
        };
        let part_of = |it: &Queued| match it.prefix.ext {
            true => part_of(it.message.head()),
            false => None,
        };
        let (begun, waits) = end_queued(session, most, part_of, |queued| {
            shared.events.push_back(Event::RequestFailed {
                session: first,
                number: queued.number,
                tag: queued.tag,
                request: queued.message,
                error: RequestError::NoSlot,
                may_have_run: false,
            });
        });
        if !waits {
            return;
        }
        if let Some(standing) = self.groups.standing.get_mut(&first.to_wire()) {
            standing.rounds += 1;
        }
        // What waits for a slot may be all that its stream has.
        let was_of_no_use = rounds > 0;
        if begun == 0 || was_of_no_use {
            held.sort_unstable_by_key(|it| it.0);
            for (_, id, index) in held.into_iter().rev().take(most) {
                self.end_held(shared, now, id, index, sink);
            }
        }
    }

    fn end_held<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        index: usize,
        sink: &mut S,
    ) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.free & 1 << index == 0
        {
            session.push_cancel(index, sink);
            self.fail_request(shared, now, id, index, RequestError::NoSlot, sink);
        }
    }
}

/// Ends requests in a queue: those that begin streams, and `most` of those that continue some. Returns how many of
/// these, and whether others wait.
fn end_queued(
    session: &mut ClientSession,
    most: usize,
    part_of: impl Fn(&Queued) -> Option<StreamPart>,
    end: impl FnMut(Queued),
) -> (usize, bool) {
    let goes_on = |it: &Queued| part_of(it) == Some(StreamPart::GoesOn);
    let queue = std::mem::take(&mut session.queue);
    let (mut ended, others): (Vec<_>, Vec<_>) =
        (queue.into_iter()).partition(|it| !it.prefix.continues && goes_on(it));
    session.queue = others.into();
    // They have no slots: what else waits needs some.
    let needs = |it: &Queued| part_of(it) != Some(StreamPart::GivenUp);
    let waits = session.queue.iter().any(needs);
    let beginners = ended.len();
    while ended.len() - beginners < most
        && let Some(last) = session.queue.iter().rposition(goes_on)
    {
        ended.extend(session.queue.remove(last));
    }
    let begun = ended.len() - beginners;
    ended.into_iter().for_each(end);
    (begun, waits)
}
