//! Shutting down, for all clients or some: they are told until each has said that it makes no new requests here.
//! The picture is in `client/draining.rs`.

use super::slot::Phase;
use super::{Server, stale};
use crate::shared::Shared;
use crate::sink::push_rare;
use crate::wire::{Frame, Header, Kind};
use crate::{FrameSink, PeerId, Rejection, RequestId, SessionId, SinkError};

impl Server {
    /// Tells the clients that have to leave, and have not answered yet, that they make no new requests here. What
    /// finds the device full waits for the next time, which begins with it.
    pub(crate) fn announce_drain<S: FrameSink>(&mut self, shared: &mut Shared, sink: &mut S) {
        let first = std::mem::take(&mut self.drain_announced_to);
        self.drains_some &= first != 0;
        for (peer, entry) in shared.peers.served_from(PeerId(first)) {
            let sessions = (peer, entry.token, 0)..=(peer, entry.token, u32::MAX);
            let Some(((_, token, remote), _)) = self.by_client.range(sessions).next() else {
                continue;
            };
            if entry.has_left || !(self.draining || entry.must_leave) {
                continue;
            }
            self.drains_some |= entry.must_leave;
            let mut header = Header::control(Kind::Drain, *remote);
            header.number = shared.own_token_for(peer, sink).to_wire();
            let head = header.to_bytes(0);
            if push_rare(sink, peer, &token.preamble(), &head, &[], &[]) == Err(SinkError::Full) {
                self.drain_announced_to = peer.0;
                shared.stats.sink_full += 1;
                return;
            }
        }
    }

    /// A client says that it makes no new requests here, and that none is outstanding.
    pub(crate) fn handle_drain_ack(&self, shared: &mut Shared, peer: PeerId, frame: Frame<'_>) {
        let id = SessionId::from_wire(frame.header.session);
        let session = self.sessions.get(id);
        let is_its = session.is_some_and(|session| session.peer == peer);
        match shared.peers.get_mut(peer) {
            Some(entry) if is_its && (self.draining || entry.must_leave) => entry.has_left = true,
            _ => shared.stats.frames_stale += 1,
        }
    }

    /// Whether no client may make a new request here: each has said so, or has no session any more.
    pub(crate) fn is_left(&self, shared: &Shared) -> bool {
        let mut clients = shared.peers.served_from(PeerId(0));
        clients.all(|(_, peer)| peer.has_left)
    }

    /// Refuses a request that was handed over, because this endpoint shuts down. It is never run.
    pub(crate) fn refuse<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        sink: &mut S,
    ) -> bool {
        let index = usize::from(id.slot());
        let Some(session) = self.sessions.get_exact_mut(id) else {
            stale(shared);
            return false;
        };
        let slot = &mut session.slots[index];
        if slot.number != id.number || slot.phase != Phase::Executing {
            stale(shared);
            return false;
        }
        slot.phase = Phase::Refused;
        // A client that does not receive it asks again.
        session.push_reject(index, id.number, Rejection::Draining, sink);
        true
    }
}
