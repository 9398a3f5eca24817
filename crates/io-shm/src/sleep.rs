//! How a device that sleeps is woken, with no fence on the fast path of whoever wakes it.
//!
//! Each side of a connection has one word in the shared memory that says whether it sleeps and
//! for what. The other side looks at it after each flush, and rings the connection's socket if it
//! has to:
//!
//! ```text
//!   sender                               sleeper
//!   ------                               -------
//!   header of the record := published    word := sleeping
//!   (light fence)                        (heavy fence)
//!   word says sleeping? ring             a record published? do not sleep
//! ```
//!
//! One of the two must see the other's store, or a datagram lies there while its receiver sleeps
//! (Dekker's pattern). That takes a full fence on both sides; but a flush happens millions of
//! times a second and falling asleep does not, so the sleeper pays for both: `membarrier(2)` with
//! `GLOBAL_EXPEDITED` makes every running thread of every registered process execute a fence, and
//! the sender is left with a fence for the compiler only. If either process has no `membarrier`,
//! the sender uses a real fence.
//!
//! The word holds the number of the sleep as well. A sender rings once for each: a bell that was
//! rung stays in the socket until the sleeper has woken up and taken it.
//!
//! A hostile peer can write anything into its own word. It is a hint: the worst it does is that
//! we send the peer a byte for each flush, without waiting, to a socket that takes a bounded
//! number of them.

/// Bit of a sleep word: the device sleeps and wants to know of datagrams.
pub(crate) const SLEEPING: u64 = 1;

/// Bit of a sleep word: the device also wants to know when its peer returns ring space.
pub(crate) const WANTS_SPACE: u64 = 2;

/// What the number of the sleep grows by.
pub(crate) const EPOCH_STEP: u64 = 4;

/// The two sleep words of a connection, seen from one side. Behind a trait so that loom checks
/// the very code that runs.
pub(crate) trait SleepWords {
    /// What the peer says of itself.
    fn load_peer(&self) -> u64;
    /// Says it of this side.
    fn store_own(&self, word: u64);
    /// The sender's fence, between its store to the ring and the look at the peer's word.
    fn light_fence(&self);
}

/// Decides whether the peer has to be woken.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// The peer's word when it was rung for last.
    rung_for: u64,
}

impl Bell {
    /// Whether to ring, to be asked after a store that the peer may sleep for. `wanted` is the
    /// bit that says so.
    #[inline]
    pub(crate) fn must_ring(&mut self, words: &impl SleepWords, wanted: u64) -> bool {
        words.light_fence();
        let word = words.load_peer();
        if word & wanted == 0 || word == self.rung_for {
            return false;
        }
        self.rung_for = word;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Peer(Cell<u64>);

    impl SleepWords for Peer {
        fn load_peer(&self) -> u64 {
            self.0.get()
        }
        fn store_own(&self, _word: u64) {}
        fn light_fence(&self) {}
    }

    #[test]
    fn a_peer_is_rung_once_for_each_sleep() {
        let peer = Peer(Cell::new(0));
        let mut bell = Bell::default();
        assert!(!bell.must_ring(&peer, SLEEPING));
        peer.0.set(EPOCH_STEP | SLEEPING);
        assert!(!bell.must_ring(&peer, WANTS_SPACE));
        assert!(bell.must_ring(&peer, SLEEPING));
        assert!(!bell.must_ring(&peer, SLEEPING));
        peer.0.set(0);
        assert!(!bell.must_ring(&peer, SLEEPING));
        peer.0.set((2 * EPOCH_STEP) | SLEEPING | WANTS_SPACE);
        assert!(bell.must_ring(&peer, WANTS_SPACE));
    }
}
