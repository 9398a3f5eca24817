//! Taking back what the kernel has sent, by the completion ring.

use super::{Slot, XdpTx};

impl XdpTx {
    /// Takes back the slots that the kernel is done with.
    #[inline]
    pub(super) fn reclaim(&mut self) {
        let Some(exchange) = self.exchange.clone() else {
            return self.reclaim_all(|_| false);
        };
        let layout = self.shared.umem.layout;
        self.reclaim_all(|address| {
            let is_of_rx = address < layout.tx_start() as u64;
            if is_of_rx {
                // A worker answered in it. The queue has room for all chunks.
                let pushed = exchange.answered.push(address & !(layout.chunk as u64 - 1));
                debug_assert!(pushed.is_ok(), "a chunk came back twice");
            }
            is_of_rx
        });
    }

    #[inline]
    pub(crate) fn reclaim_all(&mut self, mut is_of_others: impl FnMut(u64) -> bool) {
        let count = self.completion.available();
        if count == 0 {
            return;
        }
        let layout = self.shared.umem.layout;
        for index in 0..count {
            let address = self.completion.get(index);
            if is_of_others(address) {
                self.foreign = self.foreign.wrapping_sub(1);
                continue;
            }
            let address = address as usize;
            let slot = address
                .checked_sub(layout.tx_start())
                .map(|at| layout.slot_at(at));
            let state = slot.and_then(|slot| self.slots.get_mut(slot));
            let (Some(slot), Some(state)) = (slot, state) else {
                let was_out = self.messages.take_back(address);
                debug_assert!(was_out, "the kernel gave back {address}");
                self.gathered -= u32::from(was_out);
                continue;
            };
            debug_assert!(state.at_kernel > 0, "slot {slot} came back twice");
            if state.at_kernel > 0 {
                state.at_kernel -= 1;
                if state.at_kernel == 0 {
                    self.free.push(slot as Slot);
                }
            }
        }
        self.completion.release(count);
    }
}
