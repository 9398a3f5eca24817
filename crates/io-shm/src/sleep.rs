//! How a sleeping device is woken, without a fence on the sender's fast path.
//!
//! Each side of a connection has one word in the shared memory that says whether it sleeps, and what
//! for. The other side reads the word after each flush, and sends a byte through the connection's
//! socket if necessary (it *rings the doorbell*):
//!
//! ```text
//!   sender                               sleeper
//!   ------                               -------
//!   header of the record := published    word := sleeping
//!   (light fence)                        (heavy fence)
//!   word says sleeping? ring             a record published? do not sleep
//! ```
//!
//! One of the two must see the other's store, or a datagram waits while its receiver sleeps (Dekker's
//! pattern). That takes a full fence on both sides. A device flushes millions of times a second and
//! sleeps far less often, so the sleeper pays for both: `membarrier(2)` with `GLOBAL_EXPEDITED` makes
//! every running thread of every registered process execute a fence. The sender is left with a fence
//! for the compiler only. If either process has no `membarrier`, the sender uses a real fence.
//!
//! The word also holds the number of the sleep. A sender rings once for each sleep: the byte stays in
//! the socket until the sleeper has woken up and received it.
//!
//! A hostile peer can write anything into its own word. The word is only a hint. At worst this end
//! sends the peer a byte for each flush, without waiting, to a socket that holds a bounded number
//! of them.

/// Bit of a sleep word: the device sleeps and wants to be woken for datagrams.
pub(crate) const SLEEPING: u64 = 1;

/// Bit of a sleep word: the device also wants to be woken when its peer returns ring space.
pub(crate) const WANTS_SPACE: u64 = 2;

/// The step between the numbers of two sleeps.
pub(crate) const EPOCH_STEP: u64 = 4;

/// The two sleep words of a connection, seen from one side. It is a trait so that loom checks the
/// code that runs in production.
pub(crate) trait SleepWords {
    /// Loads the peer's word.
    fn load_peer(&self) -> u64;
    /// Stores this side's word.
    fn store_own(&self, word: u64);
    /// The sender's fence, between its store to the ring and the load of the peer's word.
    fn light_fence(&self);
}

/// Decides whether the peer must be woken.
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    /// The peer's word when it was last rung.
    rung_for: u64,
}

impl Doorbell {
    /// Whether to ring. Called after a store that the peer may sleep for; `wanted` is the bit of
    /// the word that says so.
    #[inline]
    pub(crate) fn must_ring(&mut self, words: &impl SleepWords, wanted: u64) -> bool {
        words.light_fence();
        let word = words.load_peer();
        word & wanted != 0 && self.is_first_for(word)
    }

    /// Whether the peer was not rung for this sleep before.
    #[cold]
    fn is_first_for(&mut self, word: u64) -> bool {
        std::mem::replace(&mut self.rung_for, word) != word
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
        let mut doorbell = Doorbell::default();
        assert!(!doorbell.must_ring(&peer, SLEEPING));
        peer.0.set(EPOCH_STEP | SLEEPING);
        assert!(!doorbell.must_ring(&peer, WANTS_SPACE));
        assert!(doorbell.must_ring(&peer, SLEEPING));
        assert!(!doorbell.must_ring(&peer, SLEEPING));
        peer.0.set(0);
        assert!(!doorbell.must_ring(&peer, SLEEPING));
        peer.0.set((2 * EPOCH_STEP) | SLEEPING | WANTS_SPACE);
        assert!(doorbell.must_ring(&peer, WANTS_SPACE));
    }
}
