//! Datagrams that reached another device of the port group than the one whose peer sent them.

use starling_ethernet::Received;
use starling_io::{Datagram, MAX_BURST, PacketRx, Source};

use super::{Memory, XdpRx};
use crate::port_group::{ForwardOutcome, MisroutedDatagram, PortGroup};

/// Counts of misrouted datagrams.
#[derive(Default)]
pub(super) struct MisroutedCounts {
    pub(super) forwarded: u64,
    pub(super) lost: u64,
    pub(super) received: u64,
}

impl XdpRx {
    /// Forwards the datagrams of the burst that come from other devices' peers, and adds those that
    /// other devices have forwarded to this one.
    pub(super) fn exchange_misrouted(&mut self) {
        let mut kept = 0;
        for index in 0..self.burst_len {
            self.order[index] = index as u8;
            let Datagram { source, ecn, bytes } = self.datagram(index);
            let outcome = match (&self.port_group, source) {
                (Some(port_group), Source::Unknown(from)) => port_group.forward(from, ecn, bytes),
                _ => ForwardOutcome::NoOwner,
            };
            match outcome {
                ForwardOutcome::NoOwner => {
                    self.order[kept] = index as u8;
                    self.burst[kept] = self.burst[index];
                    kept += 1;
                }
                ForwardOutcome::Forwarded => self.misrouted.forwarded += 1,
                ForwardOutcome::Lost => self.misrouted.lost += 1,
            }
        }
        self.burst_len = kept;
        if self.is_from_socket && kept > 0 {
            // The next burst does not come from the socket.
            return;
        }
        self.is_from_socket = false;
        while self.burst_len < MAX_BURST {
            let datagram = self.port_group.as_ref().and_then(PortGroup::receive);
            let Some(MisroutedDatagram { source, ecn, bytes }) = datagram else {
                break;
            };
            self.misrouted.received += 1;
            let received = Received {
                source,
                ecn,
                start: 0,
                len: bytes.len(),
            };
            self.push(received, Memory::Assembled, self.assembled.len());
            self.assembled.extend_from_slice(&bytes);
        }
    }
}
