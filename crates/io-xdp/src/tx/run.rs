//! Sending runs of large datagrams by the kernel's socket.
//!
//! In modes where the kernel copies, it makes a buffer of each descriptor in the ring, and each
//! frame passes its layers alone. The socket takes a run of datagrams by one system call, and the
//! kernel splits them last (GSO): many datagrams have the costs of one. For small datagrams, and
//! for one that is alone and not very large, the ring is faster. (Measured over veth: `starling
//! bench large`.)

use std::io;

use starling_io::PeerId;

use super::{NONE, SLOT_MARGIN, XdpTx};

/// After the socket has refused a run, so many large datagrams go by the ring before the device
/// tries the socket again.
const REST: u32 = 256;

/// The fate of a run.
pub(super) enum RunOutcome {
    Sent,
    /// The socket has no room. The run waits, and all that is after it.
    Later,
    /// The socket does not take it.
    ByRing,
}

impl XdpTx {
    /// Sends a run by the socket.
    pub(super) fn send_run(&mut self, index: usize, count: usize) -> RunOutcome {
        let Self {
            shared,
            udp,
            slots,
            queue,
            ..
        } = self;
        let run = &queue[index..index + count];
        let peer = slots[usize::from(run[0])].peer;
        let layout = &shared.umem.layout;
        let parts = run.iter().flat_map(|&slot| {
            let state = &slots[usize::from(slot)];
            let start = layout.tx_start() + usize::from(slot) * layout.slot() + SLOT_MARGIN;
            let gathered = &state.gathered;
            let (front, back) = match gathered.len {
                0 => (state.len, 0),
                _ => (gathered.behind, state.len - gathered.behind),
            };
            let pieces = [
                (start, front),
                (gathered.address as usize, gathered.len),
                (start + front as usize, back),
            ];
            let pieces = pieces.into_iter().filter(|(_, len)| *len > 0);
            // SAFETY: a slot in the queue is this half's alone, and the gathered part is lent to
            // it.
            pieces.map(|(at, len)| unsafe { shared.umem.bytes(at, len as usize) })
        });
        let segment = (count > 1).then(|| {
            let first = &slots[usize::from(run[0])];
            (first.len + first.gathered.len) as u16
        });
        if let Err(error) = udp.send_run(PeerId(peer), parts, count, segment) {
            match error.kind() {
                // Other datagrams to this peer may still be in the socket.
                io::ErrorKind::WouldBlock => return RunOutcome::Later,
                // The kernel has no GSO for this socket.
                io::ErrorKind::Unsupported => self.policy.runs_by_socket = false,
                _ => self.socket_rest = REST,
            }
            return RunOutcome::ByRing;
        }
        for at in index..index + count {
            let slot = self.queue[at];
            self.give_up(slot);
            let peer = self.peers[peer as usize].as_mut();
            if let Some(peer) = peer.filter(|peer| peer.open == slot) {
                peer.open = NONE;
            }
        }
        RunOutcome::Sent
    }
}
