//! Datagrams that are open for more frames or wait to be sent.
//!
//! There is a fixed number of slots, each large enough for any datagram. The lowest free slot is
//! used first, and the kernel provides memory page by page, so a sender of small datagrams touches
//! few pages.
//!
//! ```text
//!            begin                       flushed, or dropped
//!   free ──────────▶ queued (its peer may still append) ──────────▶ free
//! ```

use crate::sys::pages::Pages;

/// The most datagrams that wait to be sent, over all peers.
pub(crate) const SLOTS: usize = 64;

/// Room for any UDP payload.
const SLOT_BYTES: usize = 1 << 16;

/// Distance of two slots. `sys::recv` says why it is not a power of two.
const SLOT_STRIDE: usize = SLOT_BYTES + 320;

/// Index of a slot.
pub(crate) type Slot = u16;

/// Slots, and the order in which they were begun.
pub(crate) struct Staging {
    bytes: Pages,
    lens: [u32; SLOTS],
    peers: [u32; SLOTS],
    free: Vec<Slot>,
    queue: Vec<Slot>,
}

impl Staging {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Pages::new(SLOTS * SLOT_STRIDE),
            lens: [0; SLOTS],
            peers: [0; SLOTS],
            free: (0..SLOTS as Slot).rev().collect(),
            queue: Vec::with_capacity(SLOTS),
        }
    }

    /// The slots to send, oldest first.
    #[inline]
    pub(crate) fn queue(&self) -> &[Slot] {
        &self.queue
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Bytes in `slot`.
    #[inline]
    pub(crate) fn len(&self, slot: Slot) -> usize {
        self.lens[usize::from(slot)] as usize
    }

    /// The number of the peer that `slot` is for.
    #[inline]
    pub(crate) fn peer(&self, slot: Slot) -> u32 {
        self.peers[usize::from(slot)]
    }

    /// The datagram in `slot`.
    #[inline]
    pub(crate) fn datagram(&self, slot: Slot) -> &[u8] {
        let start = usize::from(slot) * SLOT_STRIDE;
        &self.bytes[start..start + self.len(slot)]
    }

    /// Puts an empty datagram for `peer` at the end of the queue.
    ///
    /// # Panics
    /// If all slots are in use.
    #[inline]
    pub(crate) fn begin(&mut self, peer: u32) -> Slot {
        let slot = self.free.pop().expect("the caller checked for a free slot");
        self.lens[usize::from(slot)] = 0;
        self.peers[usize::from(slot)] = peer;
        self.queue.push(slot);
        slot
    }

    /// Appends `parts` to the datagram in `slot`.
    ///
    /// # Panics
    /// If it does not fit into the slot.
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot, parts: [&[u8]; 3]) {
        let start = usize::from(slot) * SLOT_STRIDE;
        let room = &mut self.bytes[start..start + SLOT_BYTES];
        let mut len = self.lens[usize::from(slot)] as usize;
        for part in parts {
            if !part.is_empty() {
                room[len..len + part.len()].copy_from_slice(part);
                len += part.len();
            }
        }
        self.lens[usize::from(slot)] = len as u32;
    }

    /// Takes the oldest `count` slots out of the queue; calls `released` with the peer of each.
    #[inline]
    pub(crate) fn release_oldest(&mut self, count: usize, mut released: impl FnMut(u32, Slot)) {
        for &slot in self.queue[..count].iter().rev() {
            released(self.peers[usize::from(slot)], slot);
            self.free.push(slot);
        }
        self.queue.drain(..count);
    }

    /// Takes one slot out of the queue, wherever it is.
    pub(crate) fn release(&mut self, slot: Slot) {
        let position = self.queue.iter().position(|&queued| queued == slot);
        self.queue
            .remove(position.expect("only queued slots are released"));
        self.free.push(slot);
    }

    /// Takes all slots of `peer` out of the queue.
    pub(crate) fn release_all_of(&mut self, peer: u32) {
        let Self {
            peers, free, queue, ..
        } = self;
        queue.retain(|&slot| {
            let keep = peers[usize::from(slot)] != peer;
            if !keep {
                free.push(slot);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_queued_in_the_order_they_were_begun() {
        let mut staging = Staging::new();
        let first = staging.begin(7);
        let second = staging.begin(8);
        staging.push(second, [b"b", b"", b"c"]);
        staging.push(first, [b"a", b"", b""]);
        let queued: Vec<_> = staging
            .queue()
            .iter()
            .map(|&s| staging.datagram(s))
            .collect();
        assert_eq!(queued, [&b"a"[..], b"bc"]);
        let mut released = Vec::new();
        staging.release_oldest(2, |peer, _| released.push(peer));
        assert_eq!(released, [8, 7]);
        assert_eq!(
            staging.begin(9),
            first,
            "the warmest slot is used again first"
        );
    }

    #[test]
    fn slots_of_one_peer_are_released_together() {
        let mut staging = Staging::new();
        while !staging.is_full() {
            let peer = staging.queue().len() as u32 % 2;
            staging.begin(peer);
        }
        staging.release_all_of(1);
        assert_eq!(staging.queue().len(), SLOTS / 2);
        assert!(staging.queue().iter().all(|&slot| staging.peer(slot) == 0));
        let last = *staging.queue().last().expect("half are left");
        staging.release(last);
        assert_eq!(staging.queue().len(), SLOTS / 2 - 1);
    }
}
