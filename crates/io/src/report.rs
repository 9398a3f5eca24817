//! The report of a device: its mode and its counters.

/// The answer of [`PacketIo::report`](crate::PacketIo::report).
///
/// Counts begin with the device. A device names all that it counts, zero or not:
///
/// | name | device | counts datagrams that |
/// |---|---|---|
/// | `rx_ring` | shm, xdp | arrived by the rings that it shares with peers, or with the kernel; without those that workers claimed |
/// | `rx_queue`, `tx_queue` | mem | arrived in its queue; it put into others' queues |
/// | `rx_socket` | tcp, udp, xdp | arrived by the kernel's socket: the slow path of xdp |
/// | `tx_ring` | xdp | it gave to the kernel by the ring; without the answers of workers |
/// | `tx_gathered` | shm, xdp | had a part that was sent from where it lay in the device's own memory; on xdp they are among `tx_ring` |
/// | `tx_socket` | tcp, udp, xdp | it gave to the kernel by its socket: the slow path of xdp, and runs of large datagrams |
/// | `tx_lost` | udp, xdp | the kernel's socket did not send and the device gave up; without those to unknown addresses |
/// | `rx_socket_dropped` | udp, xdp | the kernel had no room for in the socket's queue, or whose checksum was wrong |
/// | `passed` | xdp | the XDP program left to the kernel, for this port or for an unseen one: all devices with the port together |
/// | `misrouted_forwarded` | xdp | came from a peer of another device with this port, and were forwarded to that device |
/// | `misrouted_received` | xdp | other devices with this port forwarded to this one |
/// | `misrouted_lost` | xdp | were to be forwarded, but the other device had no room |
/// | `dropped_...` | xdp | it dropped, by reason: the fields of `starling_io_xdp::Drops` |
/// | `rx_invalid_descs`, `tx_invalid_descs` | xdp | had a descriptor that the kernel found invalid: a defect of the device |
/// | `peers_refused` | shm, tcp | (peers, not datagrams) it refused because it had as many as it may, in all or of one process, user or host |
/// | `peers_refused_files` | shm | (peers) it refused because the process had no file descriptors left |
/// | `peers_not_permitted` | shm | (peers) it refused because of their user |
/// | `peers_evicted` | shm, tcp | (peers) it disconnected to make room: they had been silent for longest |
/// | `peers_timed_out` | tcp | (peers) it disconnected because they were silent for too long |
/// | `peers_cut_off` | shm, tcp | (peers) it cut off because they broke their rings, sent files where none belong, or what is no datagram |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// How packets get to the network card, if the device has several ways: `zero-copy`, `driver`
    /// or `generic`.
    pub mode: Option<&'static str>,
    /// Its counters, by name.
    pub counts: Vec<(&'static str, u64)>,
}

impl DeviceReport {
    /// The count of that name, if the device has it.
    pub fn count(&self, name: &str) -> Option<u64> {
        let found = self.counts.iter().find(|(its_name, _)| *its_name == name);
        found.map(|(_, count)| *count)
    }
}
