//! Servers that shut down: the client makes no new requests there, and says so when it has none outstanding.
//!
//! ```text
//!  server                                            client
//!  begins to shut down ── DRAIN ───────────────────▶ makes no new requests in these sessions
//!  a request that was on its way ── REJECT(draining) ▶ it did not run, and is made elsewhere
//!                      ◀────────────── DRAIN ACK ─── no request is outstanding
//!  all clients have said so: leaves ── RESET(3) ───▶ the sessions end
//! ```

use super::session::State;
use super::{Client, ClientSession};
use crate::shared::Shared;
use crate::sink::push_rare;
use crate::wire::{Frame, Header, Kind, Token};
use crate::{Event, FrameSink, PeerId, SessionId};

/// Peers whose DRAINs one turn answers, at most: for each one, the sessions are searched. A server repeats what
/// is not answered.
const ANSWERED: usize = 16;

impl Client {
    /// A server says that it shuts down. It names itself: the word of a former incarnation may come late, when the
    /// present one has accepted the session that it is about.
    pub(crate) fn handle_drain(&mut self, shared: &mut Shared, peer: PeerId, frame: Frame<'_>) {
        let id = SessionId::from_wire(frame.header.session);
        let sender = Token::from_wire(frame.header.number).map(Token::preamble);
        let is_ours = |session: &&ClientSession| {
            session.peer == peer && session.state == State::Open && sender == Some(session.preamble)
        };
        if self.sessions.get(id).filter(is_ours).is_none() {
            shared.stats.frames_stale += 1;
            return;
        }
        if self.draining.len() < ANSWERED && !self.draining.contains(&peer) {
            self.draining.push(peer);
            self.has_rare_work = true;
        }
        let Some(entry) = shared.peers.get_mut(peer) else {
            return;
        };
        if std::mem::replace(&mut entry.is_draining, true) {
            return;
        }
        for place in 0..self.sessions.places() {
            if let Some(id) = self.sessions.id_at(place)
                && let Some(session) = self.sessions.get_mut(id)
                && session.peer == peer
                && session.state == State::Open
            {
                session.begin_draining(shared);
            }
        }
    }

    /// Answers the DRAINs of this turn, but those of servers at which a request is outstanding.
    pub(super) fn acknowledge_drains<S: FrameSink>(&mut self, sink: &mut S) {
        for peer in std::mem::take(&mut self.draining) {
            let mut named = None;
            let mut is_busy = false;
            for (_, session) in self.sessions.iter().filter(|(_, it)| it.peer == peer) {
                is_busy |= session.busy() != 0 || !session.queue.is_empty();
                if session.state == State::Open {
                    named = Some(session);
                }
            }
            if let (Some(session), false) = (named, is_busy) {
                let head = Header::control(Kind::DrainAck, session.remote()).to_bytes(0);
                let _ = push_rare(sink, peer, &session.preamble, &head, &[], &[]);
            }
        }
    }
}

impl ClientSession {
    /// The server of this open session shuts down.
    pub(super) fn begin_draining(&mut self, shared: &mut Shared) {
        self.draining = true;
        self.ready = false;
        if !self.is_member() {
            let session = self.id;
            shared.events.push_back(Event::SessionDraining { session });
        }
    }
}
