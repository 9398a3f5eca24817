//! The device: opening it, and the [`PacketIo`] that joins its halves and its control part.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;
use starling_io::{
    Capabilities, DeviceReport, EventfdWaker, Fault, HostPort, IoError, IoEvent, PacketIo,
    PacketTx, PeerId, ReactorSet, ReactorWait, Wake,
};

use crate::config::UdpConfig;
use crate::control::UdpControl;
use crate::open::{open_socket, queue_capacity};
use crate::path::{Probe, largest_payload};
use crate::rx::UdpRx;
use crate::shared::Shared;
use crate::sys::addr::Family;
use crate::tx::{TxSettings, UdpTx};

/// The most peers of one device.
pub const MAX_PEERS: usize = 1 << 16;

/// One UDP socket as a device for packet I/O.
pub struct UdpIo {
    rx: UdpRx,
    tx: UdpTx,
    control: UdpControl,
}

impl UdpIo {
    /// The smallest allowed [`UdpConfig::max_datagram`], in bytes: any path takes it.
    pub const MIN_MAX_DATAGRAM: usize = 508;

    /// A device at `address`, such as `udp://127.0.0.1:9000`. Port 0 stands for any free port,
    /// `0.0.0.0` and `[::]` for all interfaces; `[::]` also receives IPv4.
    ///
    /// A device on all interfaces answers from the address that the route to the peer picks. A
    /// peer that sent to another address of this host does not recognise such answers. To be
    /// reachable at several addresses of an interface, bind one device to each.
    ///
    /// # Errors
    /// If the address is malformed, its name is unknown, or it is not an address of this host; if
    /// the port is in use or not permitted; if the system is out of sockets.
    pub fn bind(address: &str, config: UdpConfig) -> Result<Self, IoError> {
        if let Some(limit) = config.max_datagram.filter(|&l| l < Self::MIN_MAX_DATAGRAM) {
            return Err(IoError::new(
                Fault::Caller,
                format!("bind {address}"),
                format!("max_datagram is {limit}"),
                format!("set it to {} bytes or more", Self::MIN_MAX_DATAGRAM),
            ));
        }
        // A name may also have addresses of other hosts: the first that can be bound is used.
        let mut result = Err(None);
        for candidate in HostPort::parse("udp", address)?.resolve()? {
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

    /// A device that opens peers, at any free port.
    ///
    /// # Errors
    /// If a setting is invalid, or the system is out of sockets.
    pub fn client(config: UdpConfig) -> Result<Self, IoError> {
        // An IPv6 socket reaches both families where the host has both.
        Self::bind("udp://[::]:0", config.clone())
            .or_else(|_| Self::bind("udp://0.0.0.0:0", config))
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
                reactor: ReactorSet::default(),
                shared,
                waker: Arc::new(EventfdWaker::new()?),
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

    /// The halves and the rest, for a device that combines this one with another path to the
    /// network.
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

    fn descriptor(&mut self) -> Option<OwnedFd> {
        self.control.descriptor()
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        Ok(self.control.begin_wait(&self.rx, &self.tx, None))
    }

    fn end_wait(&mut self) -> Result<(), IoError> {
        self.control.end_wait(&mut self.rx);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.control.waker()
    }

    fn report(&self) -> DeviceReport {
        self.control.report(&self.rx, &self.tx)
    }
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
