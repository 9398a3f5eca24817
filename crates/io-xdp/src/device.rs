//! The device: what it takes to make one, and everything that is not on the way of a datagram.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use starling_io::{
    Capabilities, DeviceReport, EventfdWaker, Fault, IoError, IoEvent, MatchTable, MessageMemory,
    PacketIo, PacketTx, PeerId, Steered, Wake, WorkerIo,
};
use starling_io_udp::{UdpConfig, UdpControl, UdpIo};

use crate::address::{XdpAddress, is_ring};
use crate::channels;
use crate::drops::{ByKernel, Drops};
use crate::exchange::Exchange;
use crate::inspect;
use crate::kernel;
use crate::neighbour::{Neighbours, check_route};
use crate::netlink::{Link, Netlink};
use crate::program::{MAX_QUEUES, Program};
use crate::rx::XdpRx;
use crate::senders::Senders;
use crate::shared::Shared;
use crate::siblings::Siblings;
use crate::socket::{Mode, Place, Plan, Sizes, Socket};
use crate::steering::{MAX_DEPTH, MAX_WORKERS, XdpSteering};
use crate::taken::Taken;
use crate::tx::{Ways, XdpTx};
use crate::umem::{self, Cut, SLOT_MARGIN, Umem};
use crate::worker::{Parts, XdpWorker};

/// Bytes of Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes of IP and UDP headers.
pub(crate) const IPV4_UDP: usize = 28;
const IPV6_UDP: usize = 48;

/// The most parts of a frame where the kernel copies: its own buffers have no more.
const MAX_PARTS: usize = 17;

/// The largest frame, in bytes: 15 full chunks of the receiver's.
const MAX_FRAME: usize = 15 * 3840;

/// The most memory for messages, in bytes: addresses in all packet memory have 32 bits.
const MAX_MESSAGE_MEMORY: usize = 1 << 30;

/// How long to sleep at most while frames wait for the kernel to have room.
const RETRY: Duration = Duration::from_millis(1);

/// Frames that wait for one worker, and answers of it that wait to be sent: far more than it is
/// given while the counts are right.
const WORKER_FRAMES: u32 = 64;

/// Settings of an [`XdpIo`]. The interface, its queue and the mode are parts of the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Frames that can be received until they are looked at, a power of two, unless the address says
    /// how many. The default is 4096. What memory that takes says [`XdpConfig::locked_memory`].
    pub rx_frames: u32,
    /// Frames that can wait to be sent, a power of two. The default is 256.
    pub tx_frames: u32,
    /// Bytes for messages that are sent from where they were made ([`PacketIo::memory`]), if the
    /// interface has frames that are large enough. The default is 16 MiB.
    pub message_memory: usize,
    /// The least of a message in one frame, in bytes, that is gathered where it lies rather than
    /// copied. Unless set, 1024 in zero-copy mode, and never in the others: there the kernel makes a
    /// page of each part, which takes longer than a copy.
    pub gather_from: Option<usize>,
    /// Runs of large datagrams to one peer go by the kernel's socket. Unless set, in all modes but
    /// zero-copy: there one system call for many is worth more than the way past the kernel.
    pub runs_by_socket: Option<bool>,
    /// Mark sent datagrams as ECN-capable. On by default.
    pub ecn: bool,
    /// Share the port with devices on other queues that also say so, all in this process: who hears
    /// from a peer of another's passes that on. Those of other processes would answer it as if the
    /// peer had never been. Off by default.
    pub reuse_port: bool,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            rx_frames: 4096,
            tx_frames: 256,
            message_memory: 16 << 20,
            gather_from: None,
            runs_by_socket: None,
            ecn: true,
            reuse_port: false,
        }
    }
}

impl XdpConfig {
    /// Bytes of memory that a device on an interface with this MTU locks. In zero-copy mode it is
    /// `message_memory` more, if that is not in it.
    pub fn locked_memory(&self, mtu: usize) -> usize {
        let max_frame = max_frame(mtu);
        let cut = self.cut_for_messages(max_frame, false);
        cut.unwrap_or_else(|| self.cut(max_frame)).bytes()
    }

    fn cut(&self, max_frame: usize) -> Cut {
        Cut::new(max_frame, self.rx_frames as usize, self.tx_frames as usize)
    }

    /// With memory for messages, if a frame can be large enough to be gathered.
    fn cut_for_messages(&self, max_frame: usize, zero_copy: bool) -> Option<Cut> {
        let is_used = max_frame > self.gather_from(zero_copy);
        let cut = self.cut(max_frame).with_messages(self.message_memory);
        (is_used && cut.message_chunks > 0).then_some(cut)
    }

    fn gather_from(&self, zero_copy: bool) -> usize {
        let usual = if zero_copy { 1024 } else { usize::MAX };
        self.gather_from.unwrap_or(usual).max(1)
    }

    /// Packet memory that is cut so, and what goes with it.
    fn plan(&self, cut: Cut) -> io::Result<Plan> {
        Ok(Plan {
            umem: Arc::new(Umem::new(cut)?),
            sizes: Sizes {
                rx: self.rx_frames,
                tx: self.tx_frames * cut.slot_chunks.next_power_of_two() as u32,
                completion: (cut.bytes() / cut.chunk).next_power_of_two() as u32,
            },
        })
    }
}

/// The largest frame of an interface with this MTU, as far as a device takes it, in bytes.
pub(crate) fn max_frame(mtu: usize) -> usize {
    (mtu + ETHERNET).min(MAX_FRAME)
}

/// One queue of an interface as a device for packet I/O.
///
/// Dropped, it gives its port back at once. It gives its queue back when the last worker has ended that
/// it hands requests to ([`PacketIo::steer`]): while a handler runs, another device cannot have the
/// queue.
///
/// It ends with an error that says so when its interface is removed, gets another hardware address,
/// or its MTU is lowered: sessions may be in the middle of messages cut for the old one. A new device
/// takes the interface as it is then. Of a higher MTU it makes no use.
pub struct XdpIo {
    rx: XdpRx,
    tx: XdpTx,
    shared: Arc<Shared>,
    control: UdpControl,
    capabilities: Capabilities,
    address: XdpAddress,
    /// Workers have sockets of their own.
    is_steered: bool,
}

impl XdpIo {
    /// A device at `address`, such as `xdp://eth0/10.0.0.7:9000`. The host is an address of the
    /// interface; `0.0.0.0` and `[::]` stand for its first one of that family. Port 0 is any free
    /// port. The port is taken from the kernel, too.
    ///
    /// # Errors
    /// If the address is malformed or not one of the interface; if the interface, or its queue, is
    /// missing, down or taken; if a capability, memory that may be locked, or a feature of the
    /// kernel is missing. Each says what to do.
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

    /// A device that reaches peers like `address`, whose interface it is on: from the address that
    /// the kernel would send from, or else the interface's first one of that IP version (of any, if
    /// the peer's host is a name, which is not looked up), and any free port.
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
        let config = &XdpConfig {
            rx_frames: address.frames().unwrap_or(config.rx_frames),
            ..config.clone()
        };
        if !is_ring(config.rx_frames) || !is_ring(config.tx_frames) {
            return Err(IoError::new(
                Fault::Caller,
                attempt,
                "rx_frames or tx_frames is no power of two from 64 to 32768",
                "set them so",
            ));
        }
        if config.message_memory > MAX_MESSAGE_MEMORY {
            return Err(IoError::new(
                Fault::Caller,
                attempt,
                "message_memory is more than 1 GiB",
                "set it lower",
            ));
        }
        let host = |error| {
            let remedy = "raise the limits on memory and open files, or use udp://";
            IoError::from_os(Fault::Host, attempt, error, remedy)
        };
        let udp_config = UdpConfig {
            ecn: config.ecn,
            reuse_port: config.reuse_port,
            ..UdpConfig::default()
        };
        let udp = UdpIo::bind(&format!("udp://{local}"), udp_config)
            .map_err(|error| no_port(attempt, local, error))?;
        let local = udp.local_socket_address();
        let (udp_rx, udp_tx, control) = udp.into_parts();
        let namespace = control.namespace().map_err(host)?;
        let neighbours = Neighbours::of_namespace(namespace).map_err(host)?;

        let headers = if local.is_ipv4() { IPV4_UDP } else { IPV6_UDP };
        let max_frame = max_frame(link.mtu);
        let generic = address.mode().map(|mode| mode == Mode::Generic);
        let interface = address.interface();
        let program = Program::attach(interface, &mut netlink, generic)?;
        let place = Place {
            interface,
            namespace,
            index: link.index,
            queue: address.queue().unwrap_or(0),
            mode: address.mode(),
            is_generic: program.is_generic,
            memory: 0,
        };
        // How many parts a frame can have in zero-copy mode, if there is one.
        let by_card = || inspect::zero_copy(link.index);
        let cut = config.cut(max_frame);
        let plan = || {
            config.plan(cut).map_err(|error| {
                let remedy = umem::remedy(cut.bytes());
                IoError::from_os(Fault::Host, attempt, error, remedy)
            })
        };
        let plan_for_messages = |zero_copy: bool| {
            let cut = config.cut_for_messages(max_frame, zero_copy);
            let cut = cut.filter(|_| !zero_copy || by_card().is_some_and(|parts| parts > 1));
            // Without memory for it, there is none.
            cut.and_then(|cut| config.plan(cut).ok())
        };
        let is_large = max_frame > cut.rx_room();
        let (socket, rings, umem) = Socket::open(&place, is_large, plan, plan_for_messages)?;
        let taken = Taken::new(&place);
        let max_frame = match socket.multi_buffer {
            true => max_frame,
            false => max_frame.min(cut.rx_room()),
        };
        let is_zero_copy = socket.mode == Mode::ZeroCopy;
        let max_parts = match is_zero_copy {
            true => MAX_PARTS.min(by_card().unwrap_or(1).max(1) as usize),
            false => MAX_PARTS,
        };
        let max_frame = max_frame.min(max_parts * cut.chunk - SLOT_MARGIN);
        let largest = max_frame - ETHERNET - headers;
        let runs_by_socket = config.runs_by_socket.unwrap_or(!is_zero_copy);
        let gather_from = match socket.multi_buffer {
            true => config.gather_from(is_zero_copy),
            // A frame has one descriptor.
            false => usize::MAX,
        };
        program
            .serve(place.queue, &local, link.mac, max_frame, &socket.fd)
            .map_err(host)?;

        let presence = neighbours.presence(&link, max_frame - ETHERNET, control.waker());
        let shared = Arc::new(Shared {
            socket,
            program,
            umem,
            neighbours,
            presence,
            namespace,
            interface: interface.to_owned(),
            index: link.index,
            queue: place.queue,
            mac: link.mac,
            local,
            largest_frame: max_frame,
            largest,
            ecn: config.ecn,
            _taken: taken,
        });
        let frames = config.rx_frames as usize / max_frame.div_ceil(cut.rx_room());
        let senders = Senders::new(control.directory());
        let mut rx = XdpRx::new(Arc::clone(&shared), udp_rx, senders, rings.rx, rings.fill);
        let chunks = Arc::clone(rx.chunks());
        if config.reuse_port {
            let (directory, waker) = (control.directory(), control.waker());
            rx.share_port(Siblings::join(namespace, local, directory, waker));
        }
        Ok(Self {
            rx,
            tx: XdpTx::new(
                Arc::clone(&shared),
                udp_tx,
                netlink,
                rings.tx,
                rings.completion,
                chunks,
                Ways {
                    gather_from,
                    max_parts,
                    runs_by_socket,
                },
            ),
            capabilities: Capabilities {
                scheme: "xdp",
                reliable: false,
                ecn: config.ecn,
                rx_queue_bytes: frames * largest,
                rx_queue_datagrams: frames,
                max_datagram: largest,
            },
            address: address.at(local),
            is_steered: false,
            shared,
            control,
        })
    }

    /// How packets get to the network card: what was asked for, or the best that works.
    pub fn mode(&self) -> Mode {
        self.shared.socket.mode
    }

    /// The address that the device receives at.
    pub fn local_socket_address(&self) -> SocketAddr {
        self.shared.local
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn halves(&mut self) -> (&mut XdpRx, &mut XdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    /// What was dropped so far.
    pub fn drops(&self) -> Drops {
        self.drops_with(self.by_kernel())
    }

    fn drops_with(&self, by_kernel: ByKernel) -> Drops {
        let mut drops = self.rx.counts.drops();
        by_kernel.add_to(&mut drops, self.mode() == Mode::ZeroCopy);
        drops
    }

    /// What the kernel has counted for all sockets of the device.
    fn by_kernel(&self) -> ByKernel {
        ByKernel::of(&self.shared.socket.fd).and(self.rx.of_workers())
    }
}

impl fmt::Debug for XdpIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpIo")
            .field("address", &self.address.to_string())
            .field("mode", &self.mode())
            .field("max_datagram", &self.shared.largest)
            .field("drops", &self.drops())
            .finish_non_exhaustive()
    }
}

impl PacketIo for XdpIo {
    type Rx = XdpRx;
    type Tx = XdpTx;

    #[inline]
    fn split(&mut self) -> (&mut XdpRx, &mut XdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        self.address.without_options().to_string()
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let parsed = XdpAddress::parse(address)?;
        let attempt = || format!("reach {address} from {}", self.address);
        if parsed.interface() != self.shared.interface {
            return Err(IoError::new(
                Fault::Caller,
                attempt(),
                "it is to be reached by another interface",
                "use an endpoint on that interface",
            ));
        }
        let found = parsed.host().resolve()?;
        let is_v4 = self.shared.local.is_ipv4();
        let choice = found.iter().find(|found| found.is_ipv4() == is_v4);
        let Some(&remote) = choice else {
            return Err(IoError::new(
                Fault::Caller,
                attempt(),
                "it is of the other IP version",
                "use an endpoint of that version: a device has one address",
            ));
        };
        let source = Some(self.shared.local.ip());
        let route = self
            .tx
            .netlink
            .route(remote.ip(), source, self.shared.index);
        check_route(route, self.shared.index).map_err(|problem| no_route(attempt(), problem))?;
        let remote = match remote {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                scoped(remote.ip(), remote.port(), self.shared.index)
            }
            _ => remote,
        };
        let id = self
            .control
            .open_peer(&mut self.tx.udp, &format!("udp://{remote}"))?;
        self.tx.add_peer(id, remote, true);
        Ok(id)
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.tx.remove_peer(peer);
        self.control
            .close_peer(&mut self.rx.udp, &mut self.tx.udp, peer);
    }

    #[inline]
    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(peer)
    }

    fn memory(&self) -> MessageMemory {
        match self.shared.socket.multi_buffer && self.shared.umem.cut.message_chunks > 0 {
            true => MessageMemory::of_device(Arc::new(self.tx.messages().clone())),
            false => MessageMemory::default(),
        }
    }

    #[inline]
    fn poll_event(&mut self) -> Option<IoEvent> {
        self.control.poll_event(&mut self.rx.udp, &mut self.tx.udp)
    }

    /// # Errors
    /// If the interface was removed, or the system is out of memory.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        if self.rx.is_ready() {
            return Ok(());
        }
        let timeout = match self.tx.is_blocked() {
            true => Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY))),
            false => timeout,
        };
        let socket = self.shared.socket.fd.as_fd();
        self.control
            .wait(&mut self.rx.udp, &self.tx.udp, Some(socket), timeout)?;
        self.rx.ask_socket();
        self.shared.check()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.control.waker()
    }

    fn report(&self) -> DeviceReport {
        let by_kernel = self.by_kernel();
        let by_socket = self.control.report(&self.rx.udp, &self.tx.udp);
        let mut counts = vec![
            ("tx_ring", self.tx.sent),
            ("tx_gathered", self.tx.sent_gathered),
        ];
        counts.extend(self.rx.report());
        counts.extend(by_socket.counts);
        counts.extend(self.drops_with(by_kernel).counts());
        counts.push(("rx_invalid_descs", by_kernel.rx_invalid));
        counts.push(("tx_invalid_descs", by_kernel.tx_invalid));
        DeviceReport {
            mode: Some(self.mode().name()),
            counts,
        }
    }

    /// Datagrams that match `table`, and fit a chunk, go to the workers' own sockets on this queue.
    ///
    /// # Errors
    /// If there are no workers or more than 63, or `depth` is not 1 to 8; if sockets cannot be made;
    /// if the device has workers already.
    fn steer(&mut self, workers: usize, depth: u8, table: &MatchTable) -> Result<Steered, IoError> {
        let attempt = format!("have {} place datagrams on workers", self.address);
        let fail = |problem: String, remedy: &str| {
            Err(IoError::new(
                Fault::Caller,
                attempt.as_str(),
                problem,
                remedy,
            ))
        };
        if !(1..=MAX_WORKERS).contains(&workers) {
            return fail(
                format!("{workers} workers are too few or too many"),
                "have 1 to 63, or another dispatch mode",
            );
        }
        if !(1..=MAX_DEPTH).contains(&depth) {
            let problem = format!("{depth} requests are too few or too many for one worker");
            return fail(problem, "let it have 1 to 8");
        }
        if self.is_steered {
            return fail("it does already".to_owned(), "ask for it once");
        }
        let shared = &self.shared;
        let place = Place {
            interface: &shared.interface,
            namespace: shared.namespace,
            index: shared.index,
            queue: shared.queue,
            mode: self.address.mode(),
            is_generic: shared.program.is_generic,
            memory: shared.umem.cut.bytes(),
        };
        let exchange = Arc::new(Exchange::new(
            shared.umem.cut.rx_chunks,
            Arc::clone(self.rx.chunks()),
            workers,
        ));
        let mut parts: Vec<Parts> = Vec::new();
        let host = |error| {
            let remedy = "raise the limits on memory and open files, or use another dispatch mode";
            IoError::from_os(Fault::Host, attempt.as_str(), error, remedy)
        };
        for index in 0..workers {
            let (socket, rings) = shared.socket.open_another(&place, WORKER_FRAMES)?;
            parts.push(Parts {
                shared: Arc::clone(shared),
                exchange: Arc::clone(&exchange),
                index,
                socket: Arc::new(socket),
                rx: rings.rx,
                tx: rings.tx,
                senders: Senders::new(self.control.directory()),
                dispatcher: self.control.waker(),
                waker: Arc::new(EventfdWaker::new().map_err(host)?),
            });
        }
        let sockets = parts.iter().map(|parts| Arc::downgrade(&parts.socket));
        exchange.sockets.set(sockets);
        let sockets = parts.iter().map(|parts| parts.socket.as_fd());
        let steering =
            XdpSteering::start(shared, &exchange, sockets, depth, table).map_err(host)?;
        self.is_steered = true;
        self.rx.share_with_workers(Arc::clone(&exchange));
        self.tx.share_with_workers(exchange);
        let boxed = |parts| Box::new(XdpWorker::new(parts)) as Box<dyn WorkerIo>;
        Ok(Steered {
            steering: Box::new(steering),
            workers: parts.into_iter().map(boxed).collect(),
        })
    }
}

impl Drop for XdpIo {
    /// The port is the kernel's again, although workers whose handlers run keep the queue: their
    /// answers are still to be sent. Nobody else can have the queue before that.
    fn drop(&mut self) {
        // The program forgets the sockets of the queue in any case when they are closed.
        let _ = self.shared.program.leave(self.shared.queue);
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

/// None of the interface's addresses will do. `is_v4`: any of that IP version would.
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

/// A socket address, with the interface where the IP address means nothing without it.
fn scoped(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(v6, port, 0, interface).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}

/// The device's port could not be taken from the kernel.
fn no_port(attempt: &str, local: SocketAddr, error: IoError) -> IoError {
    let port = match local.port() {
        0 => "a UDP port".to_owned(),
        port => format!("UDP port {port}"),
    };
    let problem = format!(
        "{port} of {}, which a device takes from the kernel as well, cannot be had: {}",
        local.ip(),
        error.problem
    );
    IoError {
        attempt: attempt.to_owned(),
        problem,
        ..error
    }
}

fn no_route(attempt: String, problem: String) -> IoError {
    let remedy = "check the address and the routes of this host, or use udp:// (or shm:// within \
                  this host)";
    IoError::new(Fault::Host, attempt, problem, remedy)
}
