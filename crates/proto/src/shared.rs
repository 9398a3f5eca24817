//! The state that the client side and the server side of an endpoint share.

use std::collections::VecDeque;

use crate::absences::Absences;
use crate::answers::Answers;
use crate::cookie::CookieKey;
use crate::high_water::HighWater;
use crate::holdings::Holdings;
use crate::msgbuf_pool::Pool;
use crate::peer::Peers;
use crate::sink::push_rare;
use crate::wire::{Header, PREAMBLE_BYTES, Reset, Token, TokenKey};
use crate::{Config, Event, FrameSink, PeerId, SessionId, Source, Stats};
use starling_msgbuf::Msgbuf;

/// What a session of a client takes, roughly: those of its slots that were used hold more.
const SESSION_BYTES: usize = 1024;

/// A slot of a server session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotPlace {
    pub(crate) session: SessionId,
    pub(crate) slot: u8,
}

pub(crate) struct Shared {
    pub(crate) config: Config,
    /// What this incarnation of the endpoint is called by its peers.
    pub(crate) token_key: TokenKey,
    pub(crate) cookie_key: CookieKey,
    pub(crate) peers: Peers,
    pub(crate) pool: Pool,
    /// The buffer in which requests are built.
    pub(crate) scratch: Msgbuf,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: Stats,
    /// Answers of this turn to session management.
    pub(crate) answers: Answers,
    /// The peer that was last sent a reset of a session without a token, and when: one a turn.
    pub(crate) reset_at: Option<(PeerId, u64)>,
    /// When the last keepalive came.
    pub(crate) keepalive_at: u64,
    /// Memory promised to responses that are being reassembled.
    pub(crate) reassembling_responses: usize,
    /// Memory promised to requests that are being reassembled.
    pub(crate) receiving: Holdings<SlotPlace>,
    /// Memory of bulky responses that are kept until they are acknowledged.
    pub(crate) kept: Holdings<SlotPlace>,
    /// The sessions of clients, one each.
    pub(crate) served: Holdings<SessionId>,
    /// The most memory that all of these, and the pool, had.
    pub(crate) held_most: HighWater,
    /// A flush before this time has nothing to do; see [`Shared::ask_flush`].
    pub(crate) flush_at: u64,
    /// When the thread was away.
    pub(crate) absences: Absences,
    /// When the last turn was, and the last one that took requests.
    pub(crate) last_turn: u64,
    pub(crate) requests_at: u64,
    /// Requests received until then.
    pub(crate) requests_until: u64,
    /// Requests of one packet take the fast path: they are handed over in the receive buffer, no worker may
    /// claim them, and the endpoint is not shutting down.
    pub(crate) fast_path: bool,
    /// [`crate::wire::flags::ECHO`] if the datagram that is being read has a congestion mark, else zero.
    pub(crate) mark: u8,
    /// The sender of the datagram that is being read, unless the datagram is from a peer for this
    /// incarnation.
    pub(crate) other_sender: Option<Source>,
    /// There are, or were, so many sessions that prefetching them helps.
    pub(crate) is_crowded: bool,
}

impl Shared {
    /// The next flush looks for all that may have to be done. To be called by whatever may have put
    /// something into a queue or on a wheel: by all but the paths of small messages that nothing holds
    /// back. So turns with nothing else need not look.
    #[inline]
    pub(crate) fn ask_flush(&mut self) {
        self.flush_at = 0;
    }

    /// Memory that messages and sessions hold, and the pool.
    pub(crate) fn held(&self) -> usize {
        let sessions = self.served.total() * SESSION_BYTES;
        self.reassembling() + self.kept.total() + sessions + self.pool.large.bytes()
    }

    /// One of the amounts has become more that [`Shared::held`] adds up.
    pub(crate) fn note_held(&mut self) {
        self.held_most.note(self.held());
    }

    /// Memory promised to messages that are being reassembled.
    pub(crate) fn reassembling(&self) -> usize {
        self.receiving.total() + self.reassembling_responses
    }

    /// Whether memory can be promised for a message of `total` bytes.
    pub(crate) fn has_room(&self, total: u32) -> bool {
        self.reassembling() + total as usize <= self.config.reassembly_bytes
    }

    /// The token of this endpoint for the sender of a datagram.
    pub(crate) fn own_token<S: FrameSink>(&self, source: Source, sink: &S) -> Token {
        match source {
            Source::Unknown(address) => self.token_key.for_address(address),
            Source::Peer(peer) => self.own_token_for(peer, sink),
        }
    }

    /// The token of this endpoint for a peer.
    pub(crate) fn own_token_for<S: FrameSink>(&self, peer: PeerId, sink: &S) -> Token {
        match sink.address(peer) {
            Some(address) => self.token_key.for_address(address),
            None => self.token_key.for_peer(peer),
        }
    }

    /// Answers a frame of session management at the end of the turn; see [`Answers`].
    pub(crate) fn answer<S: FrameSink>(
        &mut self,
        now: u64,
        to: (Source, [u8; PREAMBLE_BYTES]),
        header: Header,
        body: &[u8],
        sink: &mut S,
    ) {
        self.ask_flush();
        let Self { answers, stats, .. } = self;
        answers.push(now, to, header, body, stats, sink);
    }

    pub(crate) fn flush_answers<S: FrameSink>(&mut self, now: u64, sink: &mut S) {
        self.answers.flush(now, &mut self.stats, sink);
    }

    /// A ping or a pong has come: each is a datagram of its own, but for those that are answered in one turn.
    pub(crate) fn note_keepalive(&mut self, now: u64) {
        self.stats.keepalives += 1;
        self.keepalive_at = now;
    }

    /// Sends a frame to a peer in a datagram of its own, best effort: the peer asks again.
    pub(crate) fn send_alone<S: FrameSink>(
        sink: &mut S,
        peer: PeerId,
        token: Token,
        header: Header,
        body: &[u8],
    ) {
        let head = header.to_bytes(body.len());
        sink.seal(peer);
        let _ = push_rare(sink, peer, &token.preamble(), &head, body, &[]);
        sink.seal(peer);
    }

    /// As [`Self::send_reset`] to a peer, once a turn: it is a datagram for each of the frames that may share
    /// one.
    pub(crate) fn send_reset_once<S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        reset: Reset,
        session: u32,
        sink: &mut S,
    ) {
        if self.reset_at.replace((peer, now)) != Some((peer, now)) {
            self.send_reset(now, Source::Peer(peer), reset, session, sink);
        }
    }

    /// Sends a reset, alone in a datagram without a token, best effort.
    pub(crate) fn send_reset<S: FrameSink>(
        &mut self,
        now: u64,
        to: Source,
        reset: Reset,
        session: u32,
        sink: &mut S,
    ) {
        let header = reset.to_header(session);
        match to {
            Source::Peer(peer) => Self::send_alone(sink, peer, Token::NONE, header, &[]),
            Source::Unknown(address) => {
                if self.answers.may_send_to_unknown(now, &mut self.stats) {
                    let datagram = [&Token::NONE.preamble()[..], &header.to_bytes(0)].concat();
                    sink.reply(address, &datagram);
                }
            }
        }
    }
}
