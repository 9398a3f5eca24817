//! The XDP program of an interface: loading, attaching, sharing it with other processes.
//!
//! The first device on an interface loads `bpf/steer.bpf.o` and attaches it by a link. A link is an
//! open file: the kernel detaches the program when the last process that has the link open ends in
//! any way. A further device, of any process, asks the kernel which program is on the
//! interface. It sees by the tag (a hash of the instructions) that the program is the same, and
//! opens the same link and maps. Nothing is kept on disk, and no other process takes part.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya::programs::{ProgramError, Xdp};
use rustix::mm::ProtFlags;
use starling_ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac};
use starling_io::{Fault, IoError};

use crate::bpf;
use crate::netlink::{Link, Netlink};
use crate::ring::Mapping;
use crate::steering_map::{SOCKETS, SteeringEntry};

mod errors;
mod occupant;

pub use occupant::Occupant;
pub(crate) use occupant::occupant;
use occupant::whose;

use errors::{
    attach_error, join_error, load_error, occupied, other_version, refusal, system_error,
};

/// The program's name in its object, and, as it is short enough, in the kernel.
const NAME: &str = "starling_steer";

/// Queues of an interface that can have a device: the length of the program's map.
pub(crate) const MAX_QUEUES: u32 = 64;
/// Counts of passed datagrams: one for each port, and one for datagrams with an unseen port.
const PASSED: usize = UNSEEN + 1;
const UNSEEN: usize = 1 << 16;

/// Attach in generic mode (`XDP_FLAGS_SKB_MODE`), or in the driver (`XDP_FLAGS_DRV_MODE`).
const GENERIC: u32 = 1 << 1;
const DRIVER: u32 = 1 << 2;

/// How often to try again when other processes attach and detach programs, and the pause between.
const TRIES: usize = 20;
const RETRY: Duration = Duration::from_millis(5);

/// Which datagrams the device on a queue receives: the program's `struct queue`.
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
    /// Keeps the program on the interface.
    _link: OwnedFd,
    queues: OwnedFd,
    sockets: OwnedFd,
    passed: Mapping,
    steering: Mapping,
    pub(crate) is_generic: bool,
}

impl Program {
    /// Puts the program on the interface `name`, unless it is there already. `generic` says whether
    /// it runs in generic mode; by default it runs in the driver if it can.
    pub(crate) fn attach(
        name: &str,
        netlink: &mut Netlink,
        generic: Option<bool>,
    ) -> Result<Self, IoError> {
        let attempt = format!("put the XDP program on interface {name}");
        let refused = |error| attach_error(&attempt, name, error);
        let own = LoadedProgram::load(&attempt)?;
        for attempts in 0..TRIES {
            if attempts > 0 {
                std::thread::sleep(RETRY);
            }
            let link = netlink.link(name).map_err(refused)?;
            if let Some(id) = link.program {
                match Self::join(name, &link, id, &own, &attempt, generic)? {
                    Some(program) => return Ok(program),
                    // The last process that held it has just ended.
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

    /// Shares the program on the interface, if it is this one. None: it has just gone.
    fn join(
        interface: &str,
        link: &Link,
        id: u32,
        own: &LoadedProgram,
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
        match whose(id, &there, || Some(own.tag)) {
            Occupant::Starling => {}
            Occupant::OtherVersion { .. } => return Err(other_version(attempt, interface, id)),
            _ => return Err(occupied(attempt, interface, id, &there.name)),
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
                "leave mode= out, or end the other device first",
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
        let len = MAX_QUEUES as usize * size_of::<SteeringEntry>();
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
        self.steering_entry(queue).clear();
        bpf::update(self.queues.as_fd(), queue, &entry)?;
        self.set_socket(queue * SOCKETS, socket.as_raw_fd())
    }

    /// From now on all datagrams of `queue` go to the kernel, as if the queue had no device.
    pub(crate) fn leave(&self, queue: u32) -> io::Result<()> {
        bpf::update(self.queues.as_fd(), queue, &Queue::default())
    }

    /// Enters a socket into the program's map, at its place among the sockets of all queues.
    pub(crate) fn set_socket(&self, place: u32, socket: RawFd) -> io::Result<()> {
        bpf::update(self.sockets.as_fd(), place, &socket)
    }

    /// The entry by which the program chooses a worker of a queue.
    pub(crate) fn steering_entry(&self, queue: u32) -> &SteeringEntry {
        SteeringEntry::of_queue(&self.steering, queue)
    }

    /// How many datagrams for `port`, or for an unseen port, the program passed on to the kernel.
    /// Makes no system call.
    #[inline]
    pub(crate) fn passed(&self, port: u16) -> u64 {
        let count = |of: usize| {
            let word = self.passed.at(of * 8, 8).cast::<AtomicU64>();
            // SAFETY: within the map and aligned; all writers write atomically.
            unsafe { (*word).load(Ordering::Relaxed) }
        };
        count(usize::from(port)).wrapping_add(count(UNSEEN))
    }
}

/// The object to load.
static OBJECT: &[u8] = aya::include_bytes_aligned!("bpf/steer.bpf.o");

/// The maps of the program.
const MAPS: [&str; 4] = ["queues", "sockets", "passed", "steering"];

/// The kernel's hash of a program's instructions.
type Tag = [u8; 8];

/// The program, loaded but attached to nothing.
struct LoadedProgram {
    program: OwnedFd,
    tag: Tag,
    maps: [OwnedFd; 4],
}

impl LoadedProgram {
    fn load(attempt: &str) -> Result<Self, IoError> {
        Self::of_object(OBJECT, attempt)
    }

    fn of_object(object: &[u8], attempt: &str) -> Result<Self, IoError> {
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
        let failed = |error| system_error(attempt, error);
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

/// Whether another process has attached a program first, in this mode or in the other one.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Whether the driver cannot run the program, so that generic mode is worth a try.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

#[cfg(test)]
mod tests;
