//! How sessions end at the server: with their client, by its silence, because the client has dropped the
//! session, or because it has many and gives way to a client that has few.

use std::ops::Bound::{Excluded, Unbounded};

use super::slot::Phase;
use super::{ClientKey, Server, abandon};
use crate::holdings::Holder;
use crate::peer::Role;
use crate::shared::Shared;
use crate::wire::Token;
use crate::{FrameSink, PeerId, SessionId};

/// Sessions of one client that are compared when one of them gives way.
const SESSIONS_COMPARED: usize = 16;
/// Sessions that one idle check looks at.
const SESSIONS_CHECKED: usize = 64;

/// How far [`Server::check_idle`] has come.
#[derive(Default)]
pub(super) struct IdleRound {
    /// The session that was seen last, by its client's name for it; none: a round has not begun.
    seen: Option<ClientKey>,
    /// When the next round begins, at the soonest.
    due_at: u64,
    /// When a session is idle for long, as far as this round has seen.
    next_at: u64,
}

impl Server {
    pub(super) fn drop_session(&mut self, shared: &mut Shared, id: SessionId) {
        if self.sessions.get(id).is_none() {
            return;
        }
        self.set_credits(shared, id, 0);
        let mut session = self.sessions.remove(id).expect("just seen");
        for index in 0..session.slots.count() {
            if (session.slots.get(index)).is_some_and(|slot| slot.phase == Phase::Executing) {
                abandon(shared, session.request_id(index));
            }
        }
        for slot in session.slots.iter_mut() {
            slot.release_memory(shared);
        }
        self.close_claims(shared, id, &session);
        shared.served.remove(session.holding);
        self.by_client
            .remove(&(session.peer, session.token, session.remote));
        shared
            .peers
            .release(session.peer, Role::Server, &mut shared.events);
        // Entries of the queue whose session is over would wake an idle endpoint.
        while let Some((_, id, _)) = self.retention_queue.front()
            && self.sessions.get(*id).is_none()
        {
            self.retention_queue.pop_front();
        }
    }

    /// Ends a session of a client that has many, for one that then still has no more than half as many. Of a few,
    /// the one with the fewest requests ends: of those without, the one that was used least recently, and of others
    /// the one that was opened last. The oldest one stays: others may have joined it, and would end with it. The client
    /// learns that when it uses the session again. `false`: nobody has many.
    pub(super) fn make_session_room(&mut self, shared: &mut Shared, wants: Holder) -> bool {
        let (mut compared, mut count) = ([SessionId::NONE; SESSIONS_COMPARED], 0);
        while count < SESSIONS_COMPARED
            && let Some((holding, oldest)) = shared.served.gives_way_to(Some(wants), 1)
            && (count == 0 || compared[0] != oldest.what)
        {
            shared.served.renew(holding);
            compared[count] = oldest.what;
            count += 1;
        }
        let session = |id: &SessionId| {
            let session = self.sessions.get(*id);
            session.expect("a session goes with its holding")
        };
        let compared = &compared[..count];
        let oldest = compared.iter().min_by_key(|id| session(id).place);
        let others = compared
            .iter()
            .filter(|id| count == 1 || Some(*id) != oldest);
        let least = others.copied().min_by_key(|id| match session(id).busy() {
            0 => (0, session(id).active_at),
            requests => (requests, u64::from(u32::MAX - session(id).place)),
        });
        let Some(id) = least else {
            return false;
        };
        shared.stats.sessions_evicted += 1;
        self.drop_session(shared, id);
        true
    }

    /// Drops all sessions of a client.
    pub(crate) fn drop_peer(&mut self, shared: &mut Shared, peer: PeerId) {
        self.drop_range(shared, (peer, Token::NONE, 0), (peer, Token::MAX, u32::MAX));
    }

    /// Drops all sessions of one incarnation of a client.
    pub(crate) fn drop_incarnation(&mut self, shared: &mut Shared, peer: PeerId, token: Token) {
        self.drop_range(shared, (peer, token, 0), (peer, token, u32::MAX));
    }

    fn drop_range(
        &mut self,
        shared: &mut Shared,
        from: (PeerId, Token, u32),
        to: (PeerId, Token, u32),
    ) {
        let ids: Vec<SessionId> = self.by_client.range(from..=to).map(|(_, id)| *id).collect();
        for id in ids {
            self.drop_session(shared, id);
        }
    }

    /// Repeats the accept of sessions that have been idle for long. A client that has dropped the
    /// session, and whose close was lost, answers with a close. A client that has it does nothing.
    /// Returns when there is more to do: by now, if it has not seen all sessions.
    pub(crate) fn check_idle<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) -> u64 {
        let limit = silence_limit_ns(shared);
        if now < self.idle_round.due_at {
            return self.idle_round.due_at;
        }
        if self.idle_round.seen.is_none() {
            // Sessions that are opened behind the one that is seen are idle no sooner.
            self.idle_round.next_at = now + limit;
        }
        for _ in 0..SESSIONS_CHECKED {
            let after = self.idle_round.seen.map_or(Unbounded, Excluded);
            let Some((key, &id)) = self.by_client.range((after, Unbounded)).next() else {
                self.idle_round.seen = None;
                self.idle_round.due_at = self.idle_round.next_at;
                return self.idle_round.due_at;
            };
            self.idle_round.seen = Some(*key);
            let session = self.sessions.get_mut(id).expect("a client has it");
            let mut idle_at = session.active_at.max(session.idle_checked_at) + limit;
            if idle_at <= now {
                session.idle_checked_at = now;
                idle_at = now + limit;
                let accept = self.accept(shared, id, sink);
                self.send_accept(shared, id, accept, sink);
            }
            self.idle_round.next_at = self.idle_round.next_at.min(idle_at);
        }
        now
    }

    /// Drops clients that are silent for longer than they would tolerate themselves. Returns when the next one is
    /// due, if nothing is heard of it before.
    pub(crate) fn drop_silent(&mut self, shared: &mut Shared, now: u64) -> u64 {
        let limit = silence_limit_ns(shared);
        let mut dead = Vec::new();
        let mut next_at = u64::MAX;
        for (id, peer) in shared.peers.iter_mut() {
            if peer.server_sessions == 0 {
                continue;
            }
            match peer.heard_at.saturating_add(limit) {
                at if at <= now => dead.push(id),
                at => next_at = next_at.min(at),
            }
        }
        for peer in dead {
            shared.stats.peers_failed += 1;
            self.drop_peer(shared, peer);
        }
        next_at
    }
}

/// Silence after which a client is suspected to be dead, or to have dropped a session.
fn silence_limit_ns(shared: &Shared) -> u64 {
    2 * shared.config.peer_timeout_ns + shared.config.keepalive_ns
}
