//! The frame sink of a simulated host: its device, and a planted bug that loses frames.

use std::collections::HashSet;

use starling_proto::{PeerId, SinkError};

use crate::io::{FrameHook, FrameParts, SimSink, SimTx};
use crate::rng::mix;

/// Digests of the frames that a planted bug has let pass once.
pub(super) type Sent = HashSet<u64>;

/// Drops each request frame that is sent for the second time, if it has a place to record frames.
pub(super) struct LoseRepeated<'a>(Option<&'a mut Sent>);

pub(super) type Sink<'a> = SimSink<'a, LoseRepeated<'a>>;

impl<'a> Sink<'a> {
    pub(super) fn new(tx: &'a mut SimTx, lose_repeated: Option<&'a mut Sent>) -> Self {
        let hook = LoseRepeated(lose_repeated);
        Self { tx, hook }
    }
}

impl FrameHook for LoseRepeated<'_> {
    fn before(&mut self, peer: PeerId, parts: FrameParts<'_>) -> Option<Result<(), SinkError>> {
        let sent = self.0.as_mut()?;
        let [preamble, head, body, tail] = parts;
        // Without the first byte's flags, which may differ from copy to copy.
        let mut digest = u64::from(head[0] & 0x1f) ^ u64::from(peer.0) << 32;
        for byte in preamble.iter().chain(&head[1..]).chain(body).chain(tail) {
            digest = mix(digest.wrapping_add(u64::from(*byte) + 1));
        }
        (is_request(head) && !sent.insert(digest)).then_some(Ok(()))
    }
}

/// A frame that carries a request or a part of one.
fn is_request(head: &[u8]) -> bool {
    matches!(head[0] & 0x1f, 1 | 3)
}
