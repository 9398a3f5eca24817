//! Parts of messages that are sent from where they lie in packet memory ([`crate::memory`]).
//!
//! ```text
//!   slot:  │ headers │ preamble, frames ┆ frames after it │       descriptors: front, the chunks of
//!                                       ▲                         the gathered part, back
//!                       gathered:  a part of a message
//! ```

use starling_io::{PacketTx, PeerId, TxError};

use super::{NONE, Slot, SlotState, XdpTx};
use crate::ring::{CONTINUED, Descriptor};
use crate::umem::SLOT_MARGIN;

/// A part of a message, and its place in a payload.
#[derive(Clone, Copy, Default)]
pub(super) struct Gathered {
    pub(super) address: u32,
    pub(super) len: u32,
    /// Bytes of the slot in front of it.
    pub(super) behind: u32,
    /// Chunks that it touches.
    pub(super) chunks: u8,
}

impl XdpTx {
    /// Appends a frame whose last part, a message's, stays where it is: at `address` in the packet
    /// memory.
    pub(super) fn gather(
        &mut self,
        id: PeerId,
        preamble: &[u8; 8],
        [head, body, tail]: [&[u8]; 3],
        address: usize,
    ) -> Result<(), TxError> {
        let copied = head.len() + body.len();
        let limit = self.max_datagram(id);
        let open = self.peers.get(id.0 as usize).and_then(Option::as_ref);
        let open = open.map_or(NONE, |peer| peer.open);
        let joins = open != NONE && self.has_room(open, copied + tail.len(), limit);
        let (front, is_first) = match joins {
            true => {
                let state = &self.slots[usize::from(open)];
                (state.len as usize, state.gathered.len == 0)
            }
            false => (preamble.len(), true),
        };
        let layout = &self.shared.umem.layout;
        let parts = 2 + layout.chunk_at(address + tail.len() - 1) - layout.chunk_at(address);
        // Another datagram costs more than a copy.
        let is_possible = is_first
            && SLOT_MARGIN + front + copied <= layout.chunk
            && parts <= self.policy.max_parts;
        if !is_possible {
            return self.copy(id, preamble, [head, body, tail]);
        }
        let slot = match joins {
            true => {
                self.push(open, [head, body, &[], &[]]);
                open
            }
            false => {
                let Some(slot) = self.begin(id)? else {
                    return self.udp.append(id, preamble, head, body, tail);
                };
                self.push(slot, [preamble, head, body, &[]]);
                slot
            }
        };
        let chunks = self.messages.lend(address, tail.len());
        self.gathered += chunks;
        let state = &mut self.slots[usize::from(slot)];
        state.gathered = Gathered {
            address: address as u32,
            len: tail.len() as u32,
            behind: state.len,
            chunks: chunks as u8,
        };
        Ok(())
    }

    /// The same as `post`, for a frame with a gathered part.
    pub(super) fn post_gathered(&mut self, slot: Slot) -> bool {
        let SlotState {
            peer,
            len,
            next_hop,
            gathered,
            ..
        } = self.slots[usize::from(slot)];
        let back = len - gathered.behind;
        let own_parts = 1 + u8::from(back > 0);
        let parts = u32::from(own_parts + gathered.chunks);
        if self.tx.room(parts) < parts {
            return false;
        }
        let peer = self.peers[peer as usize].as_mut();
        let peer = peer.expect("slots of closed peers are not in the queue");
        let headers = peer.template.len();
        let begin = self.shared.umem.layout.tx_start()
            + usize::from(slot) * self.shared.umem.layout.slot()
            + SLOT_MARGIN
            - headers;
        let umem = &self.shared.umem;
        // SAFETY: as in `push`.
        let frame = unsafe { umem.bytes_mut(begin, headers + len as usize) };
        // SAFETY: it is lent to this half, and no one writes to it until it is taken back.
        let part = unsafe { umem.bytes(gathered.address as usize, gathered.len as usize) };
        (peer.template).write_around(next_hop, frame, part, back as usize);
        if peer.open == slot {
            peer.open = NONE;
        }
        let front = headers + gathered.behind as usize;
        self.tx.push(Descriptor {
            address: begin as u64,
            len: front as u32,
            options: CONTINUED,
        });
        let chunk = umem.layout.chunk;
        let mut at = gathered.address as usize;
        let end = at + gathered.len as usize;
        while at < end {
            let part_end = end.min((at / chunk + 1) * chunk);
            self.tx.push(Descriptor {
                address: at as u64,
                len: (part_end - at) as u32,
                options: if part_end < end || back > 0 {
                    CONTINUED
                } else {
                    0
                },
            });
            at = part_end;
        }
        if back > 0 {
            self.tx.push(Descriptor {
                address: (begin + front) as u64,
                len: back,
                options: 0,
            });
        }
        self.slots[usize::from(slot)].at_kernel = own_parts;
        self.sent_gathered += 1;
        true
    }
}
