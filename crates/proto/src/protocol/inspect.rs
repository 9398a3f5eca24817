//! Getters: counters, and the state that checkers compare with what they saw from outside.

use super::Protocol;
use crate::session_report::page;
use crate::{
    ClientSessionReport, PeerId, QueueLengths, ServerSessionReport, SessionId, SessionPage, Stats,
};

impl Protocol {
    /// When the last ping or pong came.
    pub fn keepalive_at(&self) -> u64 {
        self.shared.keepalive_at
    }

    /// Counters since the endpoint started.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Sessions: `(opened by this endpoint, opened by others)`.
    pub fn session_counts(&self) -> (usize, usize) {
        (self.client.sessions.len(), self.server.sessions.len())
    }

    /// Whether a session of either kind refers to the peer. If none does, the device can remove the
    /// peer. Ask before acting on an [`Event::PeerReleased`](crate::Event::PeerReleased) of an
    /// earlier moment, and after a connect that failed at once.
    pub fn refers_to(&self, peer: PeerId) -> bool {
        self.shared.peers.is_referred_to(peer)
    }

    /// The peer that a client session is with. `None`: there is no such session.
    pub fn peer_of(&self, session: SessionId) -> Option<PeerId> {
        self.client
            .sessions
            .get(session)
            .map(|session| session.peer)
    }

    /// Requests of this endpoint that have not ended, queued ones included. Walks all sessions.
    pub fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    /// Requests of others that were handed over and are not answered. Walks all sessions.
    pub fn executing(&self) -> usize {
        self.server.executing()
    }

    /// Memory promised to messages that are being reassembled, in bytes.
    pub fn reassembling(&self) -> usize {
        self.shared.reassembling()
    }

    /// Memory of responses that are kept until they are acknowledged, in bytes, but for those in a slot's
    /// own memory.
    pub fn retained(&self) -> usize {
        self.shared.kept.total()
    }

    /// The accounting of a client session, for checkers: credits in use, credits, busy slots.
    ///
    /// # Panics
    /// The slots and the session disagree about the credits in use.
    pub fn accounting(&self, session: SessionId) -> Option<(u16, u16, usize)> {
        self.client.accounting(session)
    }

    /// Requests of a client session that fetch a response of several packets, with some of them on
    /// their way. For checkers.
    pub fn fetching(&self, session: SessionId) -> usize {
        self.client.fetching(session)
    }

    /// Requests that wait for a slot of a client session, for checkers.
    pub fn queued(&self, session: SessionId) -> usize {
        let session = self.client.sessions.get(session);
        session.map_or(0, |session| session.queue.len())
    }

    /// A client session and those that it has grown to, for checkers.
    pub fn group(&self, session: SessionId) -> impl Iterator<Item = SessionId> {
        self.client.group(session)
    }

    /// How many sessions and slots wait for the next turn, for checkers.
    pub fn queue_lengths(&self) -> QueueLengths {
        let (client_blocked, client_rfrs) = self.client.queue_lengths();
        let (server_blocked, server_credit_returns) = self.server.queue_lengths();
        QueueLengths {
            client_blocked,
            client_rfrs,
            server_blocked,
            server_credit_returns,
        }
    }

    /// Credits that this endpoint has granted to the sessions of others, in all.
    pub fn granted(&self) -> usize {
        self.server.granted()
    }

    /// The largest message of a single packet on a client session, in bytes; zero until open.
    pub fn single_packet_bytes(&self, session: SessionId) -> usize {
        self.client
            .sessions
            .get(session)
            .map_or(0, |session| session.fragment as usize)
    }

    /// Sessions that this endpoint has opened, at most `most`, from the place `from` of their table on.
    pub fn client_sessions(&self, from: usize, most: usize) -> SessionPage<ClientSessionReport> {
        let table = &self.client.sessions;
        page(from, most, table.places(), |place| {
            table
                .get(table.id_at(place)?)
                .map(|session| session.report())
        })
    }

    /// Sessions that clients have opened here, in the same way. `now` is the endpoint's time.
    pub fn server_sessions(
        &self,
        now: u64,
        from: usize,
        most: usize,
    ) -> SessionPage<ServerSessionReport> {
        let table = &self.server.sessions;
        page(from, most, table.places(), |place| {
            table
                .get(table.id_at(place)?)
                .map(|session| session.report(now))
        })
    }
}
