//! Settings of the device.

/// Settings of a [`UdpIo`](crate::UdpIo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Bytes of payload that the kernel can queue before they are received. The default is 16 MiB:
    /// room for the bursts of thousands of clients. It takes memory only while datagrams are
    /// queued. Without CAP_NET_ADMIN the kernel grants at most `net.core.rmem_max`;
    /// [`Capabilities::rx_queue_bytes`](starling_io::Capabilities::rx_queue_bytes) says how much it granted.
    pub rx_buffer_bytes: usize,
    /// The same for datagrams on their way to the network card. The default is 4 MiB.
    pub tx_buffer_bytes: usize,
    /// Mark sent datagrams as ECN-capable, and read the marks of received ones. On by default.
    pub ecn: bool,
    /// Receive runs of datagrams that the kernel merged (GRO), on paths with an MTU below 64 KiB.
    /// On by default.
    pub gro: bool,
    /// Send runs of datagrams as one message that the kernel or the card segments (GSO), on paths
    /// with an MTU below 64 KiB. On by default; the device turns it off if the kernel refuses.
    pub gso: bool,
    /// The largest datagram, in bytes, even where the path takes more. No limit by default.
    pub max_datagram: Option<usize>,
    /// Share the port with other sockets that also ask for it; the kernel spreads senders over
    /// them. Off by default.
    pub reuse_port: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            rx_buffer_bytes: 16 << 20,
            tx_buffer_bytes: 4 << 20,
            ecn: true,
            gro: true,
            gso: true,
            max_datagram: None,
            reuse_port: false,
        }
    }
}
