//! Making a device: its interface, its address, and everything that it takes from the kernel.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use starling_io::{Capabilities, Fault, IoError};
use starling_io_udp::{UdpConfig, UdpIo};

use super::{XdpConfig, XdpIo, scoped};
use crate::address::XdpAddress;
use crate::channels;
use crate::frame_size::{ETHERNET, IPV4_UDP, IPV6_UDP, max_frame};
use crate::inspect;
use crate::kernel;
use crate::neighbour::{Neighbours, check_route};
use crate::netlink::{Link, Netlink};
use crate::peer_cache::PeerCache;
use crate::port_group::PortGroup;
use crate::program::{MAX_QUEUES, Program};
use crate::queue_reservation::{QueueId, QueueReservation};
use crate::rx::XdpRx;
use crate::shared::Shared;
use crate::socket::{Mode, QueueBinding, Rings, Socket};
use crate::tx::{TransmitPolicy, XdpTx};
use crate::umem::{self, SLOT_MARGIN, Umem};

/// The most parts of an Ethernet frame where the kernel copies: its own buffers have no more.
const MAX_PARTS: usize = 17;

impl XdpIo {
    /// A device at `address`, such as `xdp://eth0/10.0.0.7:9000`. The host is an address of the
    /// interface; `0.0.0.0` and `[::]` stand for its first one of that family. Port 0 is any free
    /// port. The device takes the port from the kernel, too.
    ///
    /// # Errors
    /// If the address is malformed or not one of the interface; if the interface or its queue is
    /// missing, down or taken; if a capability, lockable memory, or a feature of the kernel is
    /// missing. Each error says what to do.
    pub fn bind(address: &str, config: XdpConfig) -> Result<Self, IoError> {
        let parsed = XdpAddress::parse(address)?;
        let attempt = format!("bind {address}");
        let mut netlink = open_netlink(&attempt)?;
        let link = find_interface(&attempt, &parsed, &mut netlink)?;
        let wanted = parsed.host().resolve()?;
        let own = own_addresses(&attempt, &mut netlink, &link)?;
        let local = wanted
            .iter()
            .find_map(|wanted| own_address(*wanted, &own, &link));
        let any = wanted.iter().find(|wanted| wanted.ip().is_unspecified());
        let local = local.ok_or_else(|| {
            no_address(
                &attempt,
                parsed.interface(),
                &own,
                any.map(SocketAddr::is_ipv4),
            )
        })?;
        Self::make(&attempt, &parsed, local, link, netlink, &config).map_err(kernel::or_too_old)
    }

    /// A device on the interface of `address` that can reach peers like it. Its port is any free
    /// port. Its address is the one that the kernel would send from, or else the interface's first
    /// one of that IP version. If the peer's host is a name, which is not looked up, the version
    /// may be any.
    ///
    /// # Errors
    /// As of [`XdpIo::bind`].
    pub fn client(address: &str, config: XdpConfig) -> Result<Self, IoError> {
        let parsed = XdpAddress::parse(address)?;
        let attempt = format!("make a device for {address}");
        let mut netlink = open_netlink(&attempt)?;
        let link = find_interface(&attempt, &parsed, &mut netlink)?;
        let host = parsed.host().host();
        let host = host.split('%').next().unwrap_or(host);
        let remote: Option<IpAddr> = host.parse().ok();
        let route =
            remote.map(|remote| check_route(netlink.route(remote, None, link.index), link.index));
        let preferred = route.and_then(|route| route.ok()?.source);
        let own = own_addresses(&attempt, &mut netlink, &link)?;
        let is_like = |own: &&IpAddr| remote.is_none_or(|r| r.is_ipv4() == own.is_ipv4());
        let source = preferred.or_else(|| own.iter().find(is_like).copied());
        let is_v4 = remote.map(|remote| remote.is_ipv4());
        let source = source.ok_or_else(|| no_address(&attempt, parsed.interface(), &own, is_v4))?;
        let local = scoped(source, 0, link.index);
        Self::make(&attempt, &parsed, local, link, netlink, &config).map_err(kernel::or_too_old)
    }

    fn make(
        attempt: &str,
        address: &XdpAddress,
        local: SocketAddr,
        link: Link,
        mut netlink: Netlink,
        config: &XdpConfig,
    ) -> Result<Self, IoError> {
        let config = &config.for_address(attempt, address)?;
        let host = |error| {
            let remedy = "raise the limits on memory and open files, or use udp://";
            IoError::from_os(Fault::Host, attempt, error, remedy)
        };
        let udp = bind_port(attempt, local, config)?;
        let local = udp.local_socket_address();
        let (udp_rx, udp_tx, control) = udp.into_parts();
        let namespace = control.namespace().map_err(host)?;
        let neighbours = Neighbours::of_namespace(namespace).map_err(host)?;
        let generic = address.mode().map(|mode| mode == Mode::Generic);
        let interface = address.interface();
        let program = Program::attach(interface, &mut netlink, generic)?;
        let binding = binding_of(address, namespace, link.index, &program);
        let (socket, rings, umem) = open_socket(attempt, &binding, link.mtu, config)?;
        let reservation = QueueReservation::new(binding.id);
        let limits = Limits::new(&socket, &umem, &link, local, config);
        let Limits { largest_frame, .. } = limits;
        let (queue, fd) = (binding.id.queue, &socket.fd);
        program
            .serve(queue, &local, link.mac, largest_frame, fd)
            .map_err(host)?;

        let waker = control.waker();
        let interface_state = neighbours.interface_state(&link, largest_frame - ETHERNET, waker);
        let capabilities = limits.capabilities(&umem, config);
        let shared = Arc::new(Shared {
            socket,
            program,
            umem,
            neighbours,
            interface_state,
            namespace,
            interface: interface.to_owned(),
            index: link.index,
            queue,
            mac: link.mac,
            local,
            largest_frame,
            largest: limits.largest,
            ecn: config.ecn,
            _reservation: reservation,
        });
        let peers = PeerCache::new(control.directory());
        let mut rx = XdpRx::new(Arc::clone(&shared), udp_rx, peers, rings.rx, rings.fill);
        let chunks = Arc::clone(rx.chunks());
        if config.reuse_port {
            let (directory, waker) = (control.directory(), control.waker());
            rx.share_port(PortGroup::join(namespace, local, directory, waker));
        }
        let tx = XdpTx::new(
            Arc::clone(&shared),
            udp_tx,
            netlink,
            rings.tx,
            rings.completion,
            chunks,
            limits.policy,
        );
        Ok(Self {
            rx,
            tx,
            capabilities,
            address: address.at(local),
            is_steered: false,
            shared,
            control,
        })
    }
}

/// How to bind to the queue of an address.
fn binding_of<'a>(
    address: &'a XdpAddress,
    namespace: u64,
    interface: u32,
    program: &Program,
) -> QueueBinding<'a> {
    QueueBinding {
        interface: address.interface(),
        id: QueueId {
            namespace,
            interface,
            queue: address.queue().unwrap_or(0),
        },
        mode: address.mode(),
        is_generic: program.is_generic,
        memory: 0,
    }
}

/// Takes the device's port from the kernel.
fn bind_port(attempt: &str, local: SocketAddr, config: &XdpConfig) -> Result<UdpIo, IoError> {
    let udp_config = UdpConfig {
        ecn: config.ecn,
        reuse_port: config.reuse_port,
        ..UdpConfig::default()
    };
    UdpIo::bind(&format!("udp://{local}"), udp_config)
        .map_err(|error| no_port(attempt, local, error))
}

/// Opens the AF_XDP socket with its packet memory.
fn open_socket(
    attempt: &str,
    binding: &QueueBinding<'_>,
    mtu: usize,
    config: &XdpConfig,
) -> Result<(Socket, Rings, Arc<Umem>), IoError> {
    let max_frame = max_frame(mtu);
    let layout = config.layout(max_frame);
    let plan = || {
        config.plan(layout).map_err(|error| {
            let remedy = umem::remedy(layout.bytes());
            IoError::from_os(Fault::Host, attempt, error, remedy)
        })
    };
    let plan_for_messages = |zero_copy: bool| {
        let layout = config.layout_with_messages(max_frame, zero_copy);
        let takes_parts = || parts_by_card(binding.id.interface).is_some_and(|parts| parts > 1);
        let layout = layout.filter(|_| !zero_copy || takes_parts());
        // Without memory for messages the device copies them.
        layout.and_then(|layout| config.plan(layout).ok())
    };
    let is_large = max_frame > layout.rx_room();
    Socket::open(binding, is_large, plan, plan_for_messages)
}

/// The most descriptors that the card takes for an Ethernet frame in zero-copy mode, if it has such
/// a mode.
fn parts_by_card(interface: u32) -> Option<u32> {
    inspect::zero_copy(interface)
}

/// The limits of what a socket can send and receive.
struct Limits {
    /// The largest Ethernet frame, in bytes.
    largest_frame: usize,
    /// The largest payload of a datagram, in bytes.
    largest: usize,
    policy: TransmitPolicy,
}

impl Limits {
    fn new(
        socket: &Socket,
        umem: &Umem,
        link: &Link,
        local: SocketAddr,
        config: &XdpConfig,
    ) -> Self {
        let layout = umem.layout;
        let is_zero_copy = socket.mode == Mode::ZeroCopy;
        let max_parts = match is_zero_copy {
            true => {
                let parts = parts_by_card(link.index).unwrap_or(1).max(1);
                MAX_PARTS.min(parts as usize)
            }
            false => MAX_PARTS,
        };
        let largest_frame = match socket.multi_buffer {
            true => max_frame(link.mtu),
            false => max_frame(link.mtu).min(layout.rx_room()),
        };
        let largest_frame = largest_frame.min(max_parts * layout.chunk - SLOT_MARGIN);
        let headers = if local.is_ipv4() { IPV4_UDP } else { IPV6_UDP };
        Self {
            largest_frame,
            largest: largest_frame - ETHERNET - headers,
            policy: TransmitPolicy {
                gather_from: match socket.multi_buffer {
                    true => config.gather_from(is_zero_copy),
                    // A frame has one descriptor.
                    false => usize::MAX,
                },
                max_parts,
                runs_by_socket: config.runs_by_socket.unwrap_or(!is_zero_copy),
            },
        }
    }

    fn capabilities(&self, umem: &Umem, config: &XdpConfig) -> Capabilities {
        let parts = self.largest_frame.div_ceil(umem.layout.rx_room());
        let frames = config.rx_frames as usize / parts;
        Capabilities {
            scheme: "xdp",
            reliable: false,
            ecn: config.ecn,
            rx_queue_bytes: frames * self.largest,
            rx_queue_datagrams: frames,
            max_datagram: self.largest,
        }
    }
}

fn open_netlink(attempt: &str) -> Result<Netlink, IoError> {
    Netlink::new(0).map_err(|error| {
        let remedy = "raise the limit on open files";
        IoError::from_os(Fault::Host, attempt, error, remedy)
    })
}

/// The interface of an address, if a device can be on that queue of it.
fn find_interface(
    attempt: &str,
    address: &XdpAddress,
    netlink: &mut Netlink,
) -> Result<Link, IoError> {
    let name = address.interface();
    let fail =
        |fault, problem: String, remedy: &str| Err(IoError::new(fault, attempt, problem, remedy));
    let link = match netlink.link(name) {
        Ok(link) => link,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            let remedy = "use an interface of this host; `ip link` lists them";
            return fail(
                Fault::Caller,
                format!("there is no interface {name}"),
                remedy,
            );
        }
        Err(error) => {
            let remedy = "check this host's network set-up";
            return Err(IoError::from_os(Fault::Host, attempt, error, remedy));
        }
    };
    let queue = address.queue().unwrap_or(0);
    let on = channels::queues(name).unwrap_or(link.queues);
    let queues = on.rx.min(MAX_QUEUES);
    if !link.is_ethernet {
        let remedy = "use udp://, or shm:// within this host";
        return fail(
            Fault::Caller,
            format!("{name} is no Ethernet interface"),
            remedy,
        );
    }
    let more = format!(
        "choose one of those, or make more: `ethtool -L {name} combined N` (of veth `rx N tx N`)"
    );
    if queue >= queues {
        let problem = format!("there is no queue {queue}: {name} has {queues}, from 0 on");
        return fail(Fault::Caller, problem, &more);
    }
    if queue >= on.tx {
        let problem = format!(
            "queue {queue} only receives: {name} has {} to send by, from 0 on",
            on.tx
        );
        return fail(Fault::Caller, problem, &more);
    }
    if !link.is_up {
        let problem = format!("{name} is down");
        let remedy = format!("bring it up: `ip link set dev {name} up`");
        return fail(Fault::Host, problem, &remedy);
    }
    Ok(link)
}

fn own_addresses(
    attempt: &str,
    netlink: &mut Netlink,
    link: &Link,
) -> Result<Vec<IpAddr>, IoError> {
    netlink.addresses(link.index).map_err(|error| {
        let remedy = "check this host's network set-up";
        IoError::from_os(Fault::Host, attempt, error, remedy)
    })
}

/// The error for an interface without a suitable address. With `is_v4`, any address of that IP
/// version would do.
fn no_address(attempt: &str, interface: &str, own: &[IpAddr], is_v4: Option<bool>) -> IoError {
    let list: Vec<String> = own.iter().map(IpAddr::to_string).collect();
    let all = match list.is_empty() {
        true => "none at all".to_owned(),
        false => list.join(", "),
    };
    let version = is_v4.map(|is_v4| if is_v4 { "IPv4" } else { "IPv6" });
    let (problem, remedy) = match version {
        Some(version) => (
            format!("{interface} has no {version} address (it has {all})"),
            "give it one (`ip address add`), or use another interface or the other version"
                .to_owned(),
        ),
        None if list.is_empty() => (
            format!("{interface} has no address"),
            "give it one (`ip address add`), or use another interface".to_owned(),
        ),
        None => (
            format!("the addresses of {interface} are {all}"),
            "use one of them, or another interface".to_owned(),
        ),
    };
    IoError::new(Fault::Caller, attempt, problem, remedy)
}

/// The address of the interface that `wanted` is or stands for.
fn own_address(wanted: SocketAddr, own: &[IpAddr], link: &Link) -> Option<SocketAddr> {
    let stands_for = |own: &&IpAddr| match wanted.ip() {
        ip if ip.is_unspecified() => own.is_ipv4() == ip.is_ipv4(),
        ip => **own == ip,
    };
    let ip = own.iter().find(stands_for)?;
    Some(scoped(*ip, wanted.port(), link.index))
}

/// The error for a port that the kernel does not give.
fn no_port(attempt: &str, local: SocketAddr, mut error: IoError) -> IoError {
    let port = match local.port() {
        0 => "a UDP port".to_owned(),
        port => format!("UDP port {port}"),
    };
    let problem = format!(
        "{port} of {}, which a device takes from the kernel as well, cannot be had: {}",
        local.ip(),
        error.problem
    );
    error.attempt = attempt.to_owned();
    error.problem = problem;
    error
}
