//! Runs of large datagrams, by the kernel's socket.
//!
//! Where the kernel copies what the ring has, it makes a buffer of each descriptor, and carries each
//! frame through its layers alone. The socket takes a run of datagrams by one system call, and the
//! kernel cuts them at the last moment (GSO), so that what a datagram costs is paid once for many.
//! For what is small, or alone and not very large, the ring is the shorter way. (Measured over veth:
//! `starling bench large`.)

use std::io;

use starling_io::PeerId;
use starling_io_udp::UdpTx;

use super::{NONE, SLOT_MARGIN, Slot, XdpTx};

/// The least that a datagram of a run has, in bytes.
const LEAST: usize = 1024;

/// The least that several datagrams have together, and one alone, to go by the socket, in bytes.
const TOGETHER: usize = 4 << 10;
const ALONE: usize = 16 << 10;

/// Large datagrams that go by the ring when the socket has refused a run, before it is asked again.
const REST: u32 = 256;

/// What became of a run.
pub(super) enum Outcome {
    Sent,
    /// The socket has no room: it waits, with all that is behind it.
    Later,
    /// The socket does not take it.
    ByRing,
}

impl XdpTx {
    /// Bytes of a slot's payload.
    #[inline]
    fn payload_len(&self, slot: Slot) -> usize {
        let state = &self.slots[usize::from(slot)];
        (state.len + state.gathered.len) as usize
    }

    /// Datagrams at this place of the queue that are worth being sent by the socket together; zero,
    /// if the ring is better.
    #[inline]
    pub(super) fn run_at(&mut self, index: usize) -> usize {
        let segment = self.payload_len(self.queue[index]);
        if segment < LEAST || !self.ways.runs_by_socket {
            return 0;
        }
        if self.resting > 0 {
            self.resting -= 1;
            return 0;
        }
        self.run_of(index, segment)
    }

    fn run_of(&self, index: usize, segment: usize) -> usize {
        let peer = self.slots[usize::from(self.queue[index])].peer;
        let (max_count, max_bytes) = UdpTx::MAX_RUN;
        let (mut total, mut count) = (segment, 1);
        for &slot in self.queue[index + 1..].iter().take(max_count - 1) {
            let len = self.payload_len(slot);
            let is_of_run = self.slots[usize::from(slot)].peer == peer && len <= segment;
            if !is_of_run || total + len > max_bytes {
                break;
            }
            total += len;
            count += 1;
            if len < segment {
                break;
            }
        }
        let least = if count > 1 { TOGETHER } else { ALONE };
        if total >= least { count } else { 0 }
    }

    /// Sends a run by the socket.
    pub(super) fn send_run(&mut self, index: usize, count: usize) -> Outcome {
        let Self {
            shared,
            udp,
            slots,
            queue,
            ..
        } = self;
        let run = &queue[index..index + count];
        let peer = slots[usize::from(run[0])].peer;
        let cut = &shared.umem.cut;
        let parts = run.iter().flat_map(|&slot| {
            let state = &slots[usize::from(slot)];
            let start = cut.tx_start() + usize::from(slot) * cut.slot() + SLOT_MARGIN;
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
            // SAFETY: a slot in the queue is ours alone, and what is gathered is lent to this half.
            pieces.map(|(at, len)| unsafe { shared.umem.bytes(at, len as usize) })
        });
        let segment = (count > 1).then(|| {
            let first = &slots[usize::from(run[0])];
            (first.len + first.gathered.len) as u16
        });
        if let Err(error) = udp.send_run(PeerId(peer), parts, count, segment) {
            match error.kind() {
                // Others of this peer's may still be in there.
                io::ErrorKind::WouldBlock => return Outcome::Later,
                // It cuts nothing, ever.
                io::ErrorKind::Unsupported => self.ways.runs_by_socket = false,
                _ => self.resting = REST,
            }
            return Outcome::ByRing;
        }
        for at in index..index + count {
            let slot = self.queue[at];
            self.give_up(slot);
            let peer = self.peers[peer as usize].as_mut();
            if let Some(peer) = peer.filter(|peer| peer.open == slot) {
                peer.open = NONE;
            }
        }
        Outcome::Sent
    }
}
