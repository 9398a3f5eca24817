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
use super::session::{Queued, State};
use crate::shared::Shared;
use crate::{Event, FrameSink, RequestError, SessionId};

/// Nothing has left the queue for so long.
const STANDSTILL_NS: u64 = 1_000_000_000;
/// Of so many slots, one is freed.
const FREED: usize = 64;

impl Client {
    /// A group cannot grow, and requests wait. Tells the layer above when it has stood still for long.
    pub(super) fn watch_standstill(&mut self, shared: &mut Shared, now: u64, first: SessionId) {
        let queue = self.sessions.get(first).map(|session| &session.queue);
        let Some(front) = queue.and_then(|queue| queue.front()) else {
            return;
        };
        let number = front.number;
        let standing = &mut self.groups.standing;
        let seen = standing.entry(first.to_wire()).or_insert((number, now));
        if seen.0 != number {
            *seen = (number, now);
        }
        let is_over = now.saturating_sub(seen.1) >= STANDSTILL_NS;
        if is_over && !self.is_paused(now, first) && self.all_execute(first) {
            self.groups.standing.remove(&first.to_wire());
            let session = first;
            shared.events.push_back(Event::Standstill { session });
        }
    }

    /// Whether every slot of a group has a request that the server executes.
    fn all_execute(&self, first: SessionId) -> bool {
        let mut sessions = self.group(first).filter_map(|id| self.sessions.get(id));
        sessions.all(|session| match session.state {
            State::Open => {
                let mut slots = session.slots.iter();
                !session.suspected && session.free == 0 && slots.all(|slot| slot.may_execute())
            }
            State::Connecting | State::Closing => true,
        })
    }

    /// Ends some streams of a group that still stands still, unless a call that is no stream's holds a slot: that one
    /// ends by itself. Those that have not begun go first, then those that wait to go on, then the youngest.
    pub(crate) fn end_streams<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        is_of_stream: impl Fn(&[u8]) -> bool,
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
        let of_stream = |id, index: usize| {
            let slot = self.sessions.get(id).map(|session| &session.slots[index]);
            slot.is_some_and(|slot| slot.ext && is_of_stream(slot.message().0))
        };
        let all_are = held.iter().all(|(_, id, index)| of_stream(*id, *index));
        if !all_are || held.is_empty() || !self.all_execute(first) {
            return;
        }
        let Some(session) = self.sessions.get_mut(first) else {
            return;
        };
        let most = held.len().div_ceil(FREED);
        let is_of_stream = |it: &Queued| it.prefix.ext && is_of_stream(it.message.head());
        let begins = |queued: &Queued| !queued.prefix.continues && is_of_stream(queued);
        let waits = !session.queue.is_empty();
        let queue = std::mem::take(&mut session.queue);
        let (mut ended, others): (Vec<_>, Vec<_>) = queue.into_iter().partition(begins);
        session.queue = others.into();
        while ended.len() < most
            && let Some(last) = session.queue.iter().rposition(is_of_stream)
            && session.queue[last].prefix.continues
        {
            ended.extend(session.queue.remove(last));
        }
        let any = !ended.is_empty();
        for queued in ended {
            shared.events.push_back(Event::RequestFailed {
                session: first,
                number: queued.number,
                tag: queued.tag,
                request: queued.message,
                error: RequestError::NoSlot,
                may_have_run: false,
            });
        }
        if any || !waits {
            return;
        }
        let Some((_, id, index)) = held.into_iter().max_by_key(|it| it.0) else {
            return;
        };
        let session = self.sessions.get_mut(id).expect("just seen");
        session.push_cancel(index, sink);
        self.fail_request(shared, now, id, index, RequestError::NoSlot, sink);
    }
}
