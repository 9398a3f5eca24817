//! The streams of a session whose first request has passed the policies of its route.
//!
//! A stream is made of unary calls, and is one call to a policy; all of them go by one session. Whether a method has
//! streams is not known to the service, and callers are not believed: a stream counts once a response has a position
//! in it.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use starling_endpoint::MethodId;

/// A stream, by its method and its id at the server.
pub(super) type StreamKey = (MethodId, u64);

/// Streams of a generation. Those that were not used for a generation are forgotten: their next request passes the
/// policies as a call of its own.
const GENERATION: usize = 16_384;

/// Whether a stream is over. One that is stays known: its client may not have heard of it.
type Generation = HashMap<StreamKey, bool, RandomState>;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Streams {
    young: Generation,
    old: Generation,
    /// Those that are not over.
    running: usize,
    has_forgotten: bool,
}

impl Streams {
    /// A stream has begun, or goes on.
    pub(super) fn insert(&mut self, key: StreamKey) {
        if !self.contains(key) {
            self.running += 1;
            self.put(key, false);
        }
    }

    /// A stream is over, if it is known.
    pub(super) fn end(&mut self, key: StreamKey) {
        let is_over = self.young.get_mut(&key).or(self.old.get_mut(&key));
        if is_over.is_some_and(|is_over| !std::mem::replace(is_over, true)) {
            self.running -= 1;
        }
    }

    /// Whether a stream has begun. It is in use then.
    pub(super) fn contains(&mut self, key: StreamKey) -> bool {
        if self.young.contains_key(&key) {
            return true;
        }
        let is_over = self.old.remove(&key);
        if let Some(is_over) = is_over {
            self.put(key, is_over);
        }
        is_over.is_some()
    }

    fn put(&mut self, key: StreamKey, is_over: bool) {
        if self.young.len() >= GENERATION {
            let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            let running = forgotten.values().filter(|is_over| !**is_over).count();
            self.running -= running;
            self.has_forgotten |= running > 0;
        }
        self.young.insert(key, is_over);
    }

    /// Whether some may go on.
    pub(super) fn any_runs(&self) -> bool {
        self.running > 0
    }

    /// Whether some may go on that are not known any more.
    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u64) -> StreamKey {
        (MethodId(1), id)
    }

    #[test]
    fn streams_in_use_are_known_and_others_forgotten() {
        let mut streams = Streams::default();
        assert!(!streams.contains(key(0)));
        streams.insert(key(0));
        assert!(streams.contains(key(0)) && !streams.contains((MethodId(2), 0)));
        for id in 1..10 * GENERATION as u64 {
            streams.insert(key(id));
            assert!(id % 1000 != 0 || streams.contains(key(0)), "{id}");
        }
        assert!(!streams.contains(key(1)) && streams.has_forgotten());
        assert!(streams.young.len() + streams.old.len() <= 2 * GENERATION);
        let known = streams.young.len() + streams.old.len();
        assert_eq!(streams.running, known);
    }

    #[test]
    fn streams_that_are_over_are_known_and_run_no_more() {
        let mut streams = Streams::default();
        streams.insert(key(0));
        streams.end(key(0));
        streams.end(key(1));
        // An answer that was overtaken by the last one.
        streams.insert(key(0));
        assert!(streams.contains(key(0)) && !streams.any_runs());
        for id in 1..10 * GENERATION as u64 {
            streams.insert(key(id));
            streams.end(key(id));
        }
        assert!(!streams.any_runs() && !streams.has_forgotten());
        streams.insert(key(7));
        assert!(streams.any_runs());
    }
}
