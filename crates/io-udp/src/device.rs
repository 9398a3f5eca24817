//! The device: making the socket, and everything that is not on the way of a datagram.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use starling_io::{
    Capabilities, DeviceReport, Fault, IoError, IoEvent, PacketIo, PacketTx, PeerId, Wake,
};

use crate::address::UdpAddress;
use crate::control::UdpControl;
use crate::path::{Probe, largest_payload};
use crate::rx::UdpRx;
use crate::shared::Shared;
use crate::sys::addr::Family;
use crate::sys::socket;
use crate::tx::{TxSettings, UdpTx};
use crate::wake::Waker;

/// The most peers of one device.
pub const MAX_PEERS: usize = 1 << 16;

/// What one small datagram takes of the receive buffer, in bytes: see [`queue_capacity`].
const SMALL_DATAGRAM_COST: usize = 2304;

/// Settings of a [`UdpIo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Bytes of payload that the kernel should be able to queue until they are received. The
    /// default is 16 MiB: room for the bursts of thousands of clients; it takes memory only while
    /// datagrams are queued. The kernel grants at most `net.core.rmem_max` to a process without
    /// CAP_NET_ADMIN: [`Capabilities::rx_queue_bytes`] tells what it was.
    pub rx_buffer_bytes: usize,
    /// The same for what is on its way to the network card. The default is 4 MiB.
    pub tx_buffer_bytes: usize,
    /// Mark sent datagrams as ECN-capable, and read the marks of received ones. On by default.
    pub ecn: bool,
    /// Let the kernel hand over runs of datagrams that it merged (GRO), on paths with an MTU
    /// below 64 KiB. On by default.
    pub gro: bool,
    /// Send runs of datagrams as one that is taken apart below (GSO), on paths with an MTU below
    /// 64 KiB. On by default; it turns itself off if the kernel refuses.
    pub gso: bool,
    /// No datagram is larger than this, in bytes, whatever the path takes. No limit by default.
    pub max_datagram: Option<usize>,
    /// Share the port with other sockets that also say so; the kernel spreads senders over them.
    /// Off by default.
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

/// One UDP socket as a device for packet I/O.
pub struct UdpIo {
    rx: UdpRx,
    tx: UdpTx,
    control: UdpControl,
}

impl UdpIo {
    /// The smallest allowed [`UdpConfig::max_datagram`], in bytes: any path takes it.
    pub const MIN_MAX_DATAGRAM: usize = 508;

    /// A device at `address`, such as `udp://127.0.0.1:9000`; port 0 is any free port,
    /// `0.0.0.0` and `[::]` are all interfaces, and `[::]` is reached by IPv4 as well.
    ///
    /// A device on all interfaces is reached at the address that this host sends to the peer from,
    /// which the route picks: answers always come from there, and a peer that asked at another
    /// address does not take them for answers. To be reached at several addresses of an interface,
    /// bind a device to each instead.
    ///
    /// # Errors
    /// If the address is malformed or its name unknown; if it is not one of this host, in use, or
    /// not allowed; if the system is out of sockets.
    pub fn bind(address: &str, config: UdpConfig) -> Result<Self, IoError> {
        if let Some(limit) = config.max_datagram.filter(|&l| l < Self::MIN_MAX_DATAGRAM) {
            return Err(IoError::new(
                Fault::Caller,
                format!("bind {address}"),
                format!("max_datagram is {limit}"),
                format!("set it to {} bytes or more", Self::MIN_MAX_DATAGRAM),
            ));
        }
        // A name may have addresses that are not of this host: the first that works is taken.
        let mut result = Err(None);
        for candidate in UdpAddress::parse(address)?.resolve()? {
            result = open_socket(candidate, &config).map_err(Some);
            if result.is_ok() {
                break;
            }
        }
        result
            .and_then(|socket| Self::with_socket(socket, &config).map_err(Some))
            .map_err(|error| {
                let error = error.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
                bind_error(address, error)
            })
    }

    fn with_socket(socket: Socket, config: &UdpConfig) -> io::Result<Self> {
        let local = socket
            .local_addr()?
            .as_socket()
            .expect("an IP socket has an IP address");
        let family = Family::of(&local);
        let largest = largest_payload(family).min(config.max_datagram.unwrap_or(usize::MAX));
        let (rx_queue_bytes, rx_queue_datagrams) = queue_capacity(&socket)?;
        let shared = Arc::new(Shared::new(socket, family));
        let settings = TxSettings {
            max_peers: MAX_PEERS,
            largest,
            interface: match local {
                SocketAddr::V4(_) => 0,
                SocketAddr::V6(local) => local.scope_id(),
            },
            gso: config.gso,
            gro: config.gro,
            ecn: config.ecn,
        };
        Ok(Self {
            rx: UdpRx::new(Arc::clone(&shared), config.ecn),
            tx: UdpTx::new(Arc::clone(&shared), Probe::new(local)?, &settings),
            control: UdpControl {
                shared,
                waker: Arc::new(Waker::new()?),
                capabilities: Capabilities {
                    scheme: "udp",
                    reliable: false,
                    ecn: config.ecn,
                    rx_queue_bytes,
                    rx_queue_datagrams,
                    max_datagram: largest,
                },
                local,
                config: config.clone(),
            },
        })
    }

    /// The halves and the rest, for a device that uses this one beside another way to the network.
    pub fn into_parts(self) -> (UdpRx, UdpTx, UdpControl) {
        (self.rx, self.tx, self.control)
    }

    /// The address that the socket is bound to.
    pub fn local_socket_address(&self) -> SocketAddr {
        self.control.local
    }
}

impl AsFd for UdpIo {
    /// The socket, for use with options that this crate does not know.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.shared.fd()
    }
}

impl PacketIo for UdpIo {
    type Rx = UdpRx;
    type Tx = UdpTx;

    #[inline]
    fn split(&mut self) -> (&mut UdpRx, &mut UdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.control.capabilities
    }

    fn local_address(&self) -> String {
        self.control.local_address()
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        self.control.open_peer(&mut self.tx, address)
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.control.close_peer(&mut self.rx, &mut self.tx, peer);
    }

    #[inline]
    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(peer)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<IoEvent> {
        self.control.poll_event(&mut self.rx, &mut self.tx)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        self.control.wait(&mut self.rx, &self.tx, None, timeout)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.control.waker()
    }

    fn report(&self) -> DeviceReport {
        self.control.report(&self.rx, &self.tx)
    }
}

/// A bound socket with all options set.
fn open_socket(address: SocketAddr, config: &UdpConfig) -> io::Result<Socket> {
    let socket = new_socket(address, config)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// A socket for `address` with all options set, not bound yet.
pub(crate) fn new_socket(address: SocketAddr, config: &UdpConfig) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    if config.reuse_port {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    let fd = socket.as_fd();
    let set = |level, name, value| socket::set_int(fd, level, name, value);
    // Options of IPv4 matter to IPv6 sockets, too, for peers at ::ffff:a.b.c.d.
    set(
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_DO,
    )?;
    set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
    if config.ecn {
        set(libc::IPPROTO_IP, libc::IP_TOS, ECN_CAPABLE)?;
        set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    }
    if address.is_ipv6() {
        let discover = libc::IPV6_MTU_DISCOVER;
        set(libc::IPPROTO_IPV6, discover, libc::IPV6_PMTUDISC_DO)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        if config.ecn {
            set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECN_CAPABLE)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        }
    }
    // The forced form needs CAP_NET_ADMIN and knows no limit; the other never fails, it caps.
    let buffer = |force, plain, bytes: usize| {
        // The kernel doubles the value, so half the range is left.
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
        set(libc::SOL_SOCKET, force, bytes).or_else(|_| set(libc::SOL_SOCKET, plain, bytes))
    };
    buffer(
        libc::SO_RCVBUFFORCE,
        libc::SO_RCVBUF,
        config.rx_buffer_bytes,
    )?;
    buffer(
        libc::SO_SNDBUFFORCE,
        libc::SO_SNDBUF,
        config.tx_buffer_bytes,
    )?;
    Ok(socket)
}

/// ECT(0) in the two low bits of a TOS byte or traffic class (RFC 3168, section 5).
const ECN_CAPABLE: i32 = 0b10;

/// Bytes and datagrams that the socket's receive queue holds, whatever their sizes are.
///
/// The kernel charges a datagram's *true size* to the buffer: its `sk_buff` (256 bytes) and all
/// memory around the payload. `SO_RCVBUF` is granted doubled to make up for that, so:
/// - bytes: half of what was granted. Payload is at least half of the true size from some 1200
///   bytes on: 1472 bytes in a 2 KiB buffer, 9000 bytes in three pages, 64 KiB in seventeen.
/// - datagrams: a small one is charged 768 bytes if the driver copies it, as loopback does, and
///   256 + 2048 if it stays in the buffer that the card wrote; the larger counts.
fn queue_capacity(socket: &Socket) -> io::Result<(usize, usize)> {
    let granted = socket.recv_buffer_size()?;
    Ok((granted / 2, granted / SMALL_DATAGRAM_COST))
}

fn bind_error(address: &str, error: io::Error) -> IoError {
    let (fault, remedy) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            Fault::Host,
            "stop the process that has the port, or use another; `ss -ulpn` shows who has it",
        ),
        io::ErrorKind::PermissionDenied => (
            Fault::Host,
            "use a port above 1023, or run with CAP_NET_BIND_SERVICE",
        ),
        io::ErrorKind::AddrNotAvailable => (
            Fault::Caller,
            "use an address of this host; `ip address` lists them",
        ),
        _ => (
            Fault::Host,
            "check this host's network set-up and its limit on open files",
        ),
    };
    IoError::from_os(fault, format!("bind {address}"), error, remedy)
}
