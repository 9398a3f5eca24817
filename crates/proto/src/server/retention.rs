//! How long a server keeps responses that nobody acknowledged, and which it forgets when they take too
//! much memory.
//!
//! A response that is forgotten leaves its slot [`Phase::Over`]: a client that asks for it again learns that
//! it is no longer kept, and the request does not run again.

use super::slot::Phase;
use super::{ACTIVE_NS, Server};
use crate::PeerId;
use crate::shared::Shared;

/// A response of up to this many bytes is always kept: a status that reports a refusal is one.
const ALWAYS_KEPT: usize = 16 << 10;

impl Server {
    /// Makes room to keep a response of `bytes` for `peer`: drops the oldest response of the peer that holds
    /// the most, as often as it takes. `false`: that is `peer` itself, and it still fetches its oldest one. If it
    /// lost that one, it would lose the new one to the next, and so on.
    pub(super) fn make_response_room(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        bytes: usize,
    ) -> bool {
        let limit = shared.config.retained_bytes;
        while shared.kept.total() + bytes > limit {
            let Some((_, oldest)) = shared.kept.oldest_of_largest() else {
                return false;
            };
            let session = self.sessions.get_mut(oldest.what.session);
            let session = session.expect("a session's responses go with it");
            let fetching = shared.absences.present_since(session.active_at, now) < ACTIVE_NS;
            if oldest.holder.peer == peer && fetching && bytes > ALWAYS_KEPT {
                return false;
            }
            let slot = &mut session.slots[usize::from(oldest.what.slot)];
            slot.release_memory(shared);
            slot.phase = Phase::Over;
            shared.stats.responses_evicted += 1;
        }
        true
    }

    /// Drops large responses that were kept long enough for any client that is alive.
    #[cold]
    pub(super) fn expire_responses(&mut self, shared: &mut Shared, now: u64) {
        while let Some(&(until, id, index)) = self.retention_queue.front() {
            if until > now {
                break;
            }
            self.retention_queue.pop_front();
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let idle_since = session.active_at;
            let slot = &mut session.slots[usize::from(index)];
            slot.in_retention_queue = false;
            if slot.phase != Phase::Done || !slot.is_bulky() {
                continue;
            }
            let until = idle_since.max(slot.arrived_at) + shared.config.response_retention_ns;
            if until > now {
                slot.in_retention_queue = true;
                self.retention_queue.push_back((until, id, index));
                continue;
            }
            slot.release_memory(shared);
            slot.phase = Phase::Over;
        }
    }
}
