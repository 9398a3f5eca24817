//! The XDP program of an interface: loading, attaching, sharing it with other processes.
//!
//! The first device on an interface loads `bpf/steer.bpf.o` and attaches it by a link, which is an
//! open file: the kernel takes the program off when the last process that has it open ends, in
//! whatever way. A further device, of any process, finds the program by asking the kernel what is
//! on the interface, sees by its tag (a hash of its instructions) that it is the same, and opens
//! the same link and maps. Nothing is kept on disk, and nobody is asked.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya::programs::{ProgramError, Xdp};
use rustix::mm::ProtFlags;
use starling_frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac};
use starling_io::{Fault, IoError};

use crate::bpf;
use crate::kernel::OLDEST_KERNEL;
use crate::netlink::{Link, Netlink};
use crate::ring::Mapping;
use crate::steering::{Counts, SOCKETS};

/// The program's name in its object, and, as it is short enough, in the kernel.
pub(crate) const NAME: &str = "starling_steer";

/// Queues of an interface that can have a device: the length of the program's table.
pub(crate) const MAX_QUEUES: u32 = 64;
/// Counts of passed datagrams: one for each port, and one of those whose port was not seen.
const PASSED: usize = UNSEEN + 1;
const UNSEEN: usize = 1 << 16;

/// Attach in generic mode (`XDP_FLAGS_SKB_MODE`), or in the driver (`XDP_FLAGS_DRV_MODE`).
const GENERIC: u32 = 1 << 1;
const DRIVER: u32 = 1 << 2;

/// How often to look again when others come and go on the interface, and how long after the last
/// time.
const TRIES: usize = 20;
const RETRY: Duration = Duration::from_millis(5);

/// What the device on a queue takes: `struct queue` of the program.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Queue {
    address: [u8; 16],
    max_frame: u32,
    port: [u8; 2],
    family: [u8; 2],
    mac: Mac,
    is_generic: u16,
}

/// The program on an interface, as long as this lives.
pub(crate) struct Program {
    /// Holds it there.
    _link: OwnedFd,
    queues: OwnedFd,
    sockets: OwnedFd,
    passed: Mapping,
    steering: Mapping,
    pub(crate) is_generic: bool,
}

impl Program {
    /// Puts the program on the interface `name`, unless it is there already. `generic`: how it has
    /// to run; in the driver if it can unless said.
    pub(crate) fn attach(
        name: &str,
        netlink: &mut Netlink,
        generic: Option<bool>,
    ) -> Result<Self, IoError> {
        let attempt = format!("put the XDP program on interface {name}");
        let refused = |error| attach_error(&attempt, error);
        let own = Own::load(&attempt)?;
        for attempts in 0..TRIES {
            if attempts > 0 {
                std::thread::sleep(RETRY);
            }
            let link = netlink.link(name).map_err(refused)?;
            if let Some(id) = link.program {
                match Self::join(&link, id, &own, &attempt, generic)? {
                    Some(program) => return Ok(program),
                    // Its last holder has just gone.
                    None => continue,
                }
            }
            let flags: &[u32] = match generic {
                Some(true) => &[GENERIC],
                Some(false) => &[DRIVER],
                None => &[DRIVER, GENERIC],
            };
            let mut result = Err(io::ErrorKind::Unsupported.into());
            for &flags in flags {
                result = bpf::attach(own.program.as_fd(), link.index, flags)
                    .map(|link| (link, flags == GENERIC));
                if !matches!(&result, Err(error) if is_unsupported(error)) {
                    break;
                }
            }
            match result {
                Ok((link, is_generic)) => {
                    return Self::new(link, own.maps, is_generic).map_err(refused);
                }
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Err(refused(io::Error::from_raw_os_error(libc::EBUSY)))
    }

    /// Takes part in the program that is there, if it is this one. None: it has just gone.
    fn join(
        link: &Link,
        id: u32,
        own: &Own,
        attempt: &str,
        generic: Option<bool>,
    ) -> Result<Option<Self>, IoError> {
        let program = match bpf::program(id) {
            Ok(program) => program,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(join_error(attempt, error)),
        };
        let failed = |error| join_error(attempt, error);
        let there = bpf::program_info(program.as_fd()).map_err(failed)?;
        if there.tag != own.tag {
            return Err(IoError::new(
                Fault::Host,
                attempt,
                format!("it has another one, {:?} with id {id}", there.name),
                "take that off (`ip link set dev IFNAME xdp off`, or end the program that put it \
                 there), use another interface, or udp://",
            ));
        }
        if generic.is_some_and(|generic| generic != link.is_generic) {
            let (now, wanted) = match link.is_generic {
                true => ("generic", "driver"),
                false => ("driver", "generic"),
            };
            return Err(IoError::new(
                Fault::Caller,
                attempt,
                format!("it runs there in {now} mode for another device, not in {wanted} mode"),
                "leave mode= away, or end the other device first",
            ));
        }
        let Some(held) = bpf::link_of(id).map_err(failed)? else {
            return Ok(None);
        };
        let mut maps = [None, None, None, None];
        for id in there.maps {
            let (name, fd) = bpf::map(id).map_err(failed)?;
            if let Some(at) = MAPS.iter().position(|known| *known == name) {
                maps[at] = Some(fd);
            }
        }
        let [Some(queues), Some(sockets), Some(passed), Some(steering)] = maps else {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        };
        let maps = [queues, sockets, passed, steering];
        let program = Self::new(held, maps, link.is_generic);
        program.map(Some).map_err(failed)
    }

    fn new(
        link: OwnedFd,
        [queues, sockets, passed, steering]: [OwnedFd; 4],
        is_generic: bool,
    ) -> io::Result<Self> {
        let len = PASSED * size_of::<u64>();
        let passed = Mapping::of_file(passed.as_fd(), 0, len, ProtFlags::READ)?;
        let len = MAX_QUEUES as usize * size_of::<Counts>();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self {
            _link: link,
            queues,
            sockets,
            passed,
            steering: Mapping::of_file(steering.as_fd(), 0, len, both)?,
            is_generic,
        })
    }

    /// From now on the datagrams for `local` that arrive on `queue` at the hardware address `mac`
    /// go to `socket`.
    pub(crate) fn serve(
        &self,
        queue: u32,
        local: &SocketAddr,
        mac: Mac,
        max_frame: usize,
        socket: &OwnedFd,
    ) -> io::Result<()> {
        let mut entry = Queue {
            max_frame: max_frame as u32,
            mac,
            is_generic: self.is_generic.into(),
            port: local.port().to_be_bytes(),
            ..Queue::default()
        };
        match local {
            SocketAddr::V4(local) => {
                entry.address[..4].copy_from_slice(&local.ip().octets());
                entry.family = ETHERTYPE_IPV4;
            }
            SocketAddr::V6(local) => {
                entry.address = local.ip().octets();
                entry.family = ETHERTYPE_IPV6;
            }
        }
        self.counts(queue).clear();
        bpf::update(self.queues.as_fd(), queue, &entry)?;
        self.set_socket(queue * SOCKETS, socket.as_raw_fd())
    }

    /// From now on what arrives on `queue` is the kernel's, as if there were no device.
    pub(crate) fn leave(&self, queue: u32) -> io::Result<()> {
        bpf::update(self.queues.as_fd(), queue, &Queue::default())
    }

    /// The program knows the socket by its place in the table of all queues' sockets.
    pub(crate) fn set_socket(&self, place: u32, socket: RawFd) -> io::Result<()> {
        bpf::update(self.sockets.as_fd(), place, &socket)
    }

    /// What the program goes by when it chooses a worker of a queue.
    pub(crate) fn counts(&self, queue: u32) -> &Counts {
        Counts::of_queue(&self.steering, queue)
    }

    /// How many datagrams for `port`, or for whichever, went on into the kernel. Without a system
    /// call.
    #[inline]
    pub(crate) fn passed(&self, port: u16) -> u64 {
        let count = |of: usize| {
            let word = self.passed.at(of * 8, 8).cast::<AtomicU64>();
            // SAFETY: within the map and aligned; all who write to it do so atomically.
            unsafe { (*word).load(Ordering::Relaxed) }
        };
        count(usize::from(port)).wrapping_add(count(UNSEEN))
    }
}

/// The maps of the program.
const MAPS: [&str; 4] = ["queues", "sockets", "passed", "steering"];

/// The program, loaded but attached to nothing.
struct Own {
    program: OwnedFd,
    tag: [u8; 8],
    maps: [OwnedFd; 4],
}

impl Own {
    fn load(attempt: &str) -> Result<Self, IoError> {
        let object = aya::include_bytes_aligned!("bpf/steer.bpf.o");
        let mut ebpf = Ebpf::load(object).map_err(|error| load_error(attempt, &error))?;
        let program = ebpf.program_mut(NAME).expect("in the object");
        let program: &mut Xdp = program.try_into().expect("its type");
        program.load().map_err(|error| match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => refusal(attempt, io_error, &verifier_log.to_string()),
            error => load_error(attempt, &error),
        })?;
        let failed = |error| attach_error(attempt, error);
        let program = program.fd().expect("it is loaded").as_fd();
        let program = program.try_clone_to_owned().map_err(failed)?;
        let maps = MAPS.map(|name| map_fd(ebpf.map(name).expect("in the object")));
        let [queues, sockets, passed, steering] = maps.map(|map| map.map_err(failed));
        Ok(Self {
            tag: bpf::program_info(program.as_fd()).map_err(failed)?.tag,
            program,
            maps: [queues?, sockets?, passed?, steering?],
        })
    }
}

fn map_fd(map: &Map) -> io::Result<OwnedFd> {
    let (Map::Array(data) | Map::XskMap(data)) = map else {
        unreachable!("the object has maps of these types");
    };
    let data: &MapData = data;
    data.fd().as_fd().try_clone_to_owned()
}

/// Another has been faster, in this mode or in the other one.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// The driver cannot do it, but the kernel can in generic mode.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// The kernel has not taken the program: because of who asks, or of what it is.
fn refusal(attempt: &str, error: io::Error, log: &str) -> IoError {
    if error.raw_os_error() == Some(libc::EPERM) {
        return attach_error(attempt, error);
    }
    let last = log
        .lines()
        .rev()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let reason: Vec<&str> = last.take(4).collect();
    let mut problem = format!("the kernel refuses the program ({error})");
    if !reason.is_empty() {
        let reason = reason.into_iter().rev().collect::<Vec<_>>().join(", ");
        problem += &format!(": {reason}");
    }
    IoError {
        source: Some(error),
        ..IoError::new(Fault::Host, attempt, problem, load_remedy())
    }
}

fn load_remedy() -> String {
    format!(
        "use Linux {OLDEST_KERNEL} or later with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or udp://"
    )
}

fn load_error(attempt: &str, error: &dyn std::error::Error) -> IoError {
    let mut problem = error.to_string();
    let mut source = error.source();
    let mut os = None;
    while let Some(cause) = source {
        problem += &format!(": {cause}");
        os = cause.downcast_ref::<io::Error>().or(os);
        source = cause.source();
    }
    match os.and_then(io::Error::raw_os_error) {
        Some(errno) => attach_error(attempt, io::Error::from_raw_os_error(errno)),
        None => IoError::new(Fault::Host, attempt, problem, load_remedy()),
    }
}

fn attach_error(attempt: &str, error: io::Error) -> IoError {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root has them), or use udp://"
        }
        Some(libc::ENODEV) => "use an interface of this host; `ip link` lists them",
        Some(libc::EBUSY) => {
            "take off the XDP program that is there (`ip link set dev IFNAME xdp off`), or use udp://"
        }
        Some(libc::ENOSYS) => "use a kernel with CONFIG_BPF_SYSCALL, or udp://",
        Some(libc::EOPNOTSUPP) => "leave mode= away so that generic mode is tried, or use udp://",
        Some(libc::ERANGE | libc::EINVAL) => {
            "lower the interface's MTU (its driver may allow 3498 bytes with XDP), try mode=generic, \
             or use udp://"
        }
        _ => return IoError::from_os(Fault::Host, attempt, error, load_remedy()),
    };
    IoError::from_os(Fault::Host, attempt, error, remedy)
}

fn join_error(attempt: &str, error: io::Error) -> IoError {
    let remedy = "to share the interface with another process that uses it, run both with \
                  CAP_SYS_ADMIN; or use another interface, or udp://";
    IoError::from_os(Fault::Host, attempt, error, remedy)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};
    use rustix::net::{sendto, socket_with};
    use starling_io::{PacketIo, PacketRx};
    use starling_netns::{Pair, inside};

    use super::*;
    use crate::{XdpConfig, XdpIo};

    /// Two namespaces, and the program; or a word of why not.
    fn loaded(test: &str) -> Option<(Pair, Own)> {
        let made = Pair::new().and_then(|pair| {
            let own = Own::load("load the program").map_err(|error| error.to_string())?;
            Ok((pair, own))
        });
        if let Err(problem) = &made {
            println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
        }
        made.ok()
    }

    #[test]
    fn a_program_that_came_first_is_known_whatever_its_mode() {
        for first in [GENERIC, DRIVER] {
            // Each on an interface of its own: who looks for links keeps one for a moment longer.
            let Some((pair, own)) = loaded("a_program_that_came_first_is_known_whatever_its_mode")
            else {
                return;
            };
            inside(&pair.a, || {
                let interface = Netlink::new(0).and_then(|mut netlink| netlink.link("va"));
                let interface = interface.expect("it is there").index;
                let attach = |mode| bpf::attach(own.program.as_fd(), interface, mode);
                let _link = attach(first).expect("nothing is there");
                for second in [GENERIC, DRIVER] {
                    let error = attach(second).expect_err("there is one");
                    assert!(is_taken(&error), "{first}, {second}: {error}");
                }
            });
        }
    }

    /// The kernel's list of links has those of everybody, and those that are being made.
    #[test]
    fn links_that_others_make_and_remove_are_in_nobodys_way() {
        let name = "links_that_others_make_and_remove_are_in_nobodys_way";
        let Some((pair, own)) = loaded(name) else {
            return;
        };
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                inside(&pair.a, || {
                    let interface = Netlink::new(0).and_then(|mut netlink| netlink.link("va"));
                    let interface = interface.expect("it is there").index;
                    // Whoever looks at one has it open for a moment longer.
                    let attach = |_| bpf::attach(own.program.as_fd(), interface, GENERIC).is_ok();
                    assert!((0..50).filter(|&round: &u32| attach(round)).count() > 0);
                });
            });
            while !maker.is_finished() {
                // No program has this number.
                let found = bpf::link_of(u32::MAX).expect("the kernel tells");
                assert!(found.is_none());
            }
        });
    }

    /// A socket is asked only when something may be there for it.
    #[test]
    fn only_what_may_be_for_a_port_is_counted_for_it() {
        let name = "only_what_may_be_for_a_port_is_counted_for_it";
        let bind = || XdpIo::bind("xdp://vb/10.77.0.2:0", XdpConfig::default());
        let (pair, mut device) = match Pair::new().and_then(|pair| {
            let device = inside(&pair.b, bind).map_err(|error| error.to_string());
            Ok((pair, device?))
        }) {
            Ok(made) => made,
            Err(problem) => {
                println!("skipped: {name} needs root, `ip` of iproute2 and AF_XDP ({problem})");
                return;
            }
        };
        let send = |family, protocol: u32, packet: &[u8], to: &str| {
            let to: std::net::SocketAddr = to.parse().expect("an address");
            let protocol = Protocol::from_raw(protocol.try_into().expect("not zero"));
            let flags = SocketFlags::CLOEXEC;
            inside(&pair.a, || {
                let socket = socket_with(family, SocketType::RAW, flags, Some(protocol));
                let socket = socket.expect("root");
                sendto(&socket, packet, SendFlags::empty(), &to).expect("a route");
            });
        };
        let shared = std::sync::Arc::clone(device.shared());
        let port = device.local_socket_address().port();
        let udp = |to: u16| {
            let mut packet = [0; 16];
            packet[..2].copy_from_slice(&1000_u16.to_be_bytes());
            packet[2..4].copy_from_slice(&to.to_be_bytes());
            packet[5] = 16;
            packet
        };
        let mut counts = |what: &str, expected: u64, packets: &dyn Fn()| {
            // The kernels say things of their own now and then (MLD has options): not every time.
            let seen = (0..20).map(|_| {
                let before = shared.program.passed(port);
                packets();
                // What is received comes behind what was sent before.
                send(AddressFamily::INET, 17, &udp(port), "10.77.0.2:0");
                while device.split().0.rx_burst().expect("a healthy device") == 0 {
                    std::thread::yield_now();
                }
                shared.program.passed(port) - before
            });
            let seen: Vec<u64> = seen.take_while(|count| *count != expected).collect();
            assert!(seen.len() < 20, "{what}: {seen:?}");
        };
        counts("its own datagram", 0, &|| {});
        counts("one for port 0", 0, &|| {
            send(AddressFamily::INET, 17, &udp(0), "10.77.0.2:0");
        });
        counts("other protocols over IPv6", 0, &|| {
            for protocol in [47, 50, 89, 132] {
                send(AddressFamily::INET6, protocol, &[0; 16], "[fd77::2]:0");
            }
        });
        // A fragment of nothing in particular, and options without meaning.
        counts("what may have UDP behind it", 2, &|| {
            for protocol in [44, 60] {
                let packet = [17, 0, 0, 0, 0, 0, 0, 0];
                send(AddressFamily::INET6, protocol, &packet, "[fd77::2]:0");
            }
        });
    }
}
