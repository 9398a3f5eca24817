//! The state that the client side and the server side of an endpoint share.

use std::collections::VecDeque;

use crate::cookie::CookieKey;
use crate::holdings::Holdings;
use crate::msgbuf_pool::Pool;
use crate::peer::{Peers, preamble};
use crate::sink::push_rare;
use crate::wire::{HEADER_BYTES, Header, PREAMBLE_BYTES};
use crate::{Config, Event, FrameSink, SessionId, Source, Stats};
use starling_msgbuf::Msgbuf;

/// A slot of a server session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotPlace {
    pub(crate) session: SessionId,
    pub(crate) slot: u8,
}

pub(crate) struct Shared {
    pub(crate) config: Config,
    /// This incarnation of the endpoint.
    pub(crate) token: u32,
    /// The first bytes of datagrams for this incarnation.
    pub(crate) preamble: [u8; PREAMBLE_BYTES],
    pub(crate) cookie_key: CookieKey,
    pub(crate) peers: Peers,
    pub(crate) pool: Pool,
    /// The buffer in which requests are built.
    pub(crate) scratch: Msgbuf,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: Stats,
    /// Memory promised to responses that are being reassembled.
    pub(crate) reassembling_responses: usize,
    /// Memory promised to requests that are being reassembled.
    pub(crate) receiving: Holdings<SlotPlace>,
    /// Memory of bulky responses that are kept until they are acknowledged.
    pub(crate) kept: Holdings<SlotPlace>,
    /// The sessions of clients, one each.
    pub(crate) served: Holdings<SessionId>,
    /// Requests of one packet take the fast path: they are handed over in the receive buffer, and
    /// no worker may claim them.
    pub(crate) fast_path: bool,
    /// [`crate::wire::flags::ECHO`] if the datagram that is being read has a congestion mark, else zero.
    pub(crate) mark: u8,
}

impl Shared {
    /// Memory promised to messages that are being reassembled.
    pub(crate) fn reassembling(&self) -> usize {
        self.receiving.total() + self.reassembling_responses
    }

    /// Whether memory can be promised for a message of `total` bytes.
    pub(crate) fn has_room(&self, total: u32) -> bool {
        self.reassembling() + total as usize <= self.config.reassembly_bytes
    }

    /// Sends one frame in a datagram of its own, for the incarnation `token`, best effort. This is
    /// for session management, which the other side asks for again.
    pub(crate) fn send_alone<S: FrameSink>(
        sink: &mut S,
        to: Source,
        token: u32,
        header: Header,
        body: &[u8],
    ) {
        let head = header.to_bytes(body.len());
        match to {
            Source::Peer(peer) => {
                sink.seal(peer);
                // Best effort: the peer asks again.
                let _ = push_rare(sink, peer, &preamble(token), &head, body, &[]);
                sink.seal(peer);
            }
            Source::Unknown(address) => {
                let mut datagram = [0; PREAMBLE_BYTES + HEADER_BYTES + 64];
                let len = PREAMBLE_BYTES + HEADER_BYTES + body.len();
                datagram[..PREAMBLE_BYTES].copy_from_slice(&preamble(token));
                datagram[PREAMBLE_BYTES..][..HEADER_BYTES].copy_from_slice(&head);
                datagram[PREAMBLE_BYTES + HEADER_BYTES..len].copy_from_slice(body);
                sink.reply(address, &datagram[..len]);
            }
        }
    }
}
