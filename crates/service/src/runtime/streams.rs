//! The streams of a route whose first request has passed its policies.
//!
//! A stream is made of unary calls, and is one call to a policy. Whether a method has streams is not known to the
//! service, and callers are not believed: a stream counts once a response has a position in it.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use starling_endpoint::MethodId;

/// A stream, by its method and its id at the server.
pub(super) type StreamKey = (MethodId, u64);

/// Streams of a generation. Those that were not used for a generation are forgotten: their next request passes the
/// policies as a call of its own.
const GENERATION: usize = 16_384;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Streams {
    young: HashSet<StreamKey, RandomState>,
    old: HashSet<StreamKey, RandomState>,
}

impl Streams {
    /// A stream has begun, or goes on.
    pub(super) fn insert(&mut self, key: StreamKey) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key);
    }

    /// Whether a stream has begun. It is in use then.
    pub(super) fn contains(&mut self, key: StreamKey) -> bool {
        if self.young.contains(&key) {
            return true;
        }
        let is_old = self.old.remove(&key);
        if is_old {
            self.insert(key);
        }
        is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_in_use_are_known_and_others_forgotten() {
        let mut streams = Streams::default();
        let key = |id| (MethodId(1), id);
        assert!(!streams.contains(key(0)));
        streams.insert(key(0));
        assert!(streams.contains(key(0)) && !streams.contains((MethodId(2), 0)));
        for id in 1..10 * GENERATION as u64 {
            streams.insert(key(id));
            assert!(id % 1000 != 0 || streams.contains(key(0)), "{id}");
        }
        assert!(!streams.contains(key(1)));
        assert!(streams.young.len() + streams.old.len() <= 2 * GENERATION);
    }
}
