//! What a device is, and what it has counted.

/// What a device says of itself when it is asked: [`PacketIo::report`](crate::PacketIo::report).
///
/// Counts begin with the device. A device names all that it counts, whether it is zero or not:
///
/// | name | of | datagrams that |
/// |---|---|---|
/// | `rx_ring` | shm, xdp | were received by the rings that are shared with the peers, or with the kernel; without those that workers claimed |
/// | `rx_socket` | udp, xdp | were received by the kernel's socket: of xdp, the slow path |
/// | `tx_ring` | xdp | were given to the kernel by the ring; without the answers of workers |
/// | `tx_gathered` | xdp | were among these, and had a part that was sent from where it lay in packet memory |
/// | `tx_socket` | udp, xdp | were given to the kernel by its socket: of xdp, the slow path, and runs of large ones |
/// | `tx_lost` | udp, xdp | the kernel's socket did not send, and were given up; but for those to addresses that are no peers |
/// | `rx_socket_dropped` | udp, xdp | the kernel had no room for in the socket's queue, or whose checksum was wrong |
/// | `passed` | xdp | the XDP program left to the kernel, for this port or for whichever: of all devices with the port |
/// | `strays_passed_on` | xdp | were from peers of another device with this port, which has them now |
/// | `strays_received` | xdp | others with this port passed on to this device |
/// | `strays_lost` | xdp | were to be passed on, and the other device had no room |
/// | `dropped_...` | xdp | were dropped, by reason: the fields of `starling_io_xdp::Drops` |
/// | `rx_invalid_descs`, `tx_invalid_descs` | xdp | the kernel found described wrongly: a defect of the device |
/// | `peers_refused` | shm | (peers, not datagrams) were refused, as there were as many as may be |
/// | `peers_cut_off` | shm | (peers) were cut off, as they broke their rings |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// How packets get to the network card, where there are several ways: `zero-copy`, `driver` or
    /// `generic`.
    pub mode: Option<&'static str>,
    /// What it has counted, by name.
    pub counts: Vec<(&'static str, u64)>,
}

impl DeviceReport {
    /// The count of that name, if the device has it.
    pub fn count(&self, name: &str) -> Option<u64> {
        let found = self.counts.iter().find(|(its_name, _)| *its_name == name);
        found.map(|(_, count)| *count)
    }
}
