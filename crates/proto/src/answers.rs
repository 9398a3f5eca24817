//! Answers of session management: CHALLENGE, REFUSE, PONG, CLOSED, the CLOSE that answers an ACCEPT, and the
//! RESET of a session. Those to one sender leave together when the turn ends.
//!
//! An attacker that forges the sender of a datagram must not make this endpoint send more than that: no answer is
//! larger than the frame that it answers, so answers that leave in one datagram are no more bytes than those
//! that arrived (RFC 9000, section 8.1, allows three times as many). To unknown peers also their number has a
//! bound: the generic cell rate algorithm of ITU-T I.371.

use crate::sink::{datagram_width, push_rare};
use crate::wire::{HEADER_BYTES, Header, PREAMBLE_BYTES, split_frame};
use crate::{FrameSink, Source, Stats};

/// The bytes of frames that one datagram takes to an unknown peer: IPv6's minimum MTU of 1280 bytes, less its
/// header, UDP's and the preamble.
const MAX_UNKNOWN_BYTES: usize = 1280 - 48 - PREAMBLE_BYTES;

/// Datagrams to unknown peers, one for each such time in the long run.
const INTERVAL_NS: u64 = 20_000;
/// Datagrams to unknown peers that may leave at once.
const BURST: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Answers {
    /// Whom they are for, and how its datagrams begin.
    to: Option<(Source, [u8; PREAMBLE_BYTES])>,
    /// Whole frames.
    frames: Vec<u8>,
    /// When the datagrams to unknown peers so far would have left at the rate that is allowed.
    paid_until: u64,
}

impl Answers {
    pub(crate) fn new() -> Self {
        Self {
            to: None,
            frames: Vec::with_capacity(MAX_UNKNOWN_BYTES + PREAMBLE_BYTES),
            paid_until: 0,
        }
    }

    /// Bytes of the frames that were added.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.frames.len()
    }

    /// Adds a frame. One that an unknown peer's datagram has no room for is dropped: the peer asks again.
    pub(crate) fn push<S: FrameSink>(
        &mut self,
        now: u64,
        (to, preamble): (Source, [u8; PREAMBLE_BYTES]),
        header: Header,
        body: &[u8],
        stats: &mut Stats,
        sink: &mut S,
    ) {
        match self.to {
            // One datagram is of one incarnation. If its frames name several, the first is answered.
            Some((other, of)) if other == to && of != preamble => return,
            Some((other, _)) if other != to => self.flush(now, stats, sink),
            Some(_) | None => {}
        }
        let bytes = self.frames.len() + HEADER_BYTES + body.len();
        match to {
            Source::Unknown(_) if bytes > MAX_UNKNOWN_BYTES => return,
            Source::Peer(peer) if bytes + PREAMBLE_BYTES > datagram_width(sink, peer) => {
                self.flush(now, stats, sink);
            }
            Source::Unknown(_) | Source::Peer(_) => {}
        }
        self.to = Some((to, preamble));
        self.frames.extend(header.to_bytes(body.len()));
        self.frames.extend(body);
    }

    /// Sends what was added, best effort: a peer that misses it asks again.
    pub(crate) fn flush<S: FrameSink>(&mut self, now: u64, stats: &mut Stats, sink: &mut S) {
        let Some((to, preamble)) = self.to.take() else {
            return;
        };
        match to {
            Source::Peer(peer) => {
                sink.seal(peer);
                let mut frames = &self.frames[..];
                while let Ok((frame, rest)) = split_frame(frames) {
                    let head = &frames[..HEADER_BYTES];
                    let _ = push_rare(sink, peer, &preamble, head, frame.payload, &[]);
                    frames = rest;
                }
                sink.seal(peer);
            }
            Source::Unknown(address) => {
                if self.may_send_to_unknown(now, stats) {
                    self.frames.splice(0..0, preamble);
                    sink.reply(address, &self.frames);
                }
            }
        }
        self.frames.clear();
    }

    /// Whether one more datagram may go to an unknown peer. It counts as sent.
    pub(crate) fn may_send_to_unknown(&mut self, now: u64, stats: &mut Stats) -> bool {
        let allowed = self.paid_until <= now + BURST * INTERVAL_NS;
        if allowed {
            self.paid_until = self.paid_until.max(now) + INTERVAL_NS;
        } else {
            stats.answers_suppressed += 1;
        }
        allowed
    }
}
