//! An AF_XDP socket with its rings and packet memory, bound to one queue of an interface.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::ProtFlags;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags, XdpRingOffset,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::net::{bind, recv, send, socket_with};
use starling_io::{Fault, IoError};

use crate::kernel::CAPABILITIES;
use crate::queue_reservation::{self, QueueId};
use crate::ring::{Consumer, Descriptor, Entry, Layout, Mapping, Producer};
use crate::umem::{self, Umem};

/// How long to wait for a queue or locked memory: the kernel frees them in the background, some
/// time after their socket was closed.
const RELEASED_WITHIN: Duration = Duration::from_secs(1);
/// The same for a queue of a device of this process, which has it until it is dropped. A thread may
/// be dropping it: to close the sessions of its endpoint takes up to 100 ms.
const DROPPED_WITHIN: Duration = Duration::from_millis(200);
/// How long to wait before the next try.
const RETRY: Duration = Duration::from_millis(5);

/// How packets get from the network card to the packet memory and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The card itself reads and writes the packet memory.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies each packet once.
    Driver,
    /// The program runs where the kernel's own stack begins. Works with every interface.
    Generic,
}

impl Mode {
    /// The name of the mode in addresses.
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Driver => "driver",
            Self::Generic => "generic",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where and how to bind a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueBinding<'a> {
    pub(crate) interface: &'a str,
    pub(crate) id: QueueId,
    /// The only acceptable mode, if there is one.
    pub(crate) mode: Option<Mode>,
    /// The program is attached in generic mode.
    pub(crate) is_generic: bool,
    /// Bytes of packet memory.
    pub(crate) memory: usize,
}

/// A socket.
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) mode: Mode,
    /// Frames of several chunks are sent and received.
    pub(crate) multi_buffer: bool,
}

/// The rings of a socket, for the halves of a device.
pub(crate) struct Rings {
    pub(crate) rx: Consumer<Descriptor>,
    pub(crate) fill: Producer<u64>,
    pub(crate) tx: Producer<Descriptor>,
    pub(crate) completion: Consumer<u64>,
}

/// The rings of a further socket on a queue that already has a fill and a completion ring.
pub(crate) struct WorkerRings {
    pub(crate) rx: Consumer<Descriptor>,
    pub(crate) tx: Producer<Descriptor>,
}

/// Numbers of entries of the rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Of the rx ring. The fill ring has twice as many: the kernel shows a frame before it shows
    /// that it has taken the chunk out of the fill ring, and by then the chunk may be given back.
    pub(crate) rx: u32,
    /// Of the tx ring.
    pub(crate) tx: u32,
    /// Of the completion ring: as many as there are chunks, because workers send from all of them.
    pub(crate) completion: u32,
}

/// The packet memory and ring sizes of a socket.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) umem: Arc<Umem>,
    pub(crate) sizes: Sizes,
}

impl Socket {
    /// The best socket that the interface allows: zero-copy before copies, memory for messages
    /// before none, and frames of several chunks if some are `large`. `plan_for_messages` is told
    /// whether the plan is for zero-copy, and returns `None` if memory for messages would be of no
    /// use.
    pub(crate) fn open(
        binding: &QueueBinding<'_>,
        large: bool,
        plan: impl Fn() -> Result<Plan, IoError>,
        plan_for_messages: impl Fn(bool) -> Option<Plan>,
    ) -> Result<(Self, Rings, Arc<Umem>), IoError> {
        type Flags = SocketAddrXdpFlags;
        let zero_copy = (
            Flags::XDP_ZEROCOPY,
            binding.mode.is_none_or(|m| m == Mode::ZeroCopy),
        );
        let copy = (Flags::XDP_COPY, binding.mode != Some(Mode::ZeroCopy));
        let mut last = None;
        let mut usual = None;
        for (flags, wanted) in [zero_copy, copy] {
            let possible = flags == Flags::XDP_COPY || !binding.is_generic;
            if !wanted || !possible {
                continue;
            }
            let sg = Flags::XDP_USE_SG;
            for (messages, multi) in [(true, sg), (false, sg), (false, Flags::empty())] {
                if multi == sg && !messages && !large {
                    continue;
                }
                let zero_copy = flags == Flags::XDP_ZEROCOPY;
                let plan = match (messages, &usual) {
                    (true, _) => plan_for_messages(zero_copy),
                    (false, Some(usual)) => Some(Plan::clone(usual)),
                    (false, None) => Some(usual.insert(plan()?).clone()),
                };
                let Some(Plan { umem, sizes }) = plan else {
                    continue;
                };
                let binding = &QueueBinding {
                    memory: umem.layout.bytes(),
                    ..*binding
                };
                // Without memory for messages there may be enough.
                let is_spare = |error: &io::Error| {
                    let memory = [Some(libc::ENOBUFS), Some(libc::ENOMEM)];
                    messages && memory.contains(&error.raw_os_error())
                };
                let flags = flags | multi | Flags::XDP_USE_NEED_WAKEUP;
                let begun = Instant::now();
                let result = loop {
                    let result = Self::try_open(binding, &umem, sizes, flags);
                    let passes = matches!(&result, Err((_, e)) if may_pass(e) && !is_spare(e));
                    if !passes || begun.elapsed() >= patience(binding) {
                        break result;
                    }
                    std::thread::sleep(RETRY);
                };
                match result {
                    Ok((socket, rings)) => return Ok((socket, rings, umem)),
                    Err((step, error)) if is_final(&error) && !is_spare(&error) => {
                        return Err(open_error(binding, step, error));
                    }
                    Err(failed) => last = Some(failed),
                }
            }
        }
        let (step, error) = last.unwrap_or_else(|| ("bind", unsupported()));
        Err(open_error(binding, step, error))
    }

    fn try_open(
        binding: &QueueBinding<'_>,
        umem: &Arc<Umem>,
        sizes: Sizes,
        flags: SocketAddrXdpFlags,
    ) -> Result<(Self, Rings), (&'static str, io::Error)> {
        let at = |step| move |error: rustix::io::Errno| (step, io::Error::from(error));
        let family = AddressFamily::XDP;
        let fd = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(at("make a socket"))?;
        let registration = XdpUmemReg {
            addr: umem.start(),
            len: umem.len(),
            chunk_size: umem.layout.chunk as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, registration).map_err(at("register packet memory"))?;
        let sized = sockopt::set_xdp_umem_fill_ring_size(&fd, 2 * sizes.rx)
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&fd, sizes.rx))
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&fd, sizes.completion))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(&fd, sizes.tx));
        sized.map_err(at("make rings"))?;
        let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(at("find the rings"))?;
        let mapped = |error| ("map the rings", error);
        let map = |page, ring, size, entry| map(&fd, page, ring, size, entry);
        let descriptor = size_of::<Descriptor>();
        let rings = Rings {
            rx: consumer(map(RX_PAGE, &offsets.rx, sizes.rx, descriptor).map_err(mapped)?),
            tx: producer(map(TX_PAGE, &offsets.tx, sizes.tx, descriptor).map_err(mapped)?),
            fill: producer(
                map(libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, 2 * sizes.rx, 8)
                    .map_err(mapped)?,
            ),
            completion: consumer(
                map(
                    libc::XDP_UMEM_PGOFF_COMPLETION_RING,
                    &offsets.cr,
                    sizes.completion,
                    8,
                )
                .map_err(mapped)?,
            ),
        };
        let address = SocketAddrXdp::new(flags, binding.id.interface, binding.id.queue);
        bind(&fd, &address).map_err(at("bind"))?;
        let options = sockopt::xdp_options(&fd).map_err(at("bind"))?;
        let mode = if options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY) {
            Mode::ZeroCopy
        } else if binding.is_generic {
            Mode::Generic
        } else {
            Mode::Driver
        };
        let socket = Self {
            fd,
            mode,
            multi_buffer: flags.contains(SocketAddrXdpFlags::XDP_USE_SG),
        };
        Ok((socket, rings))
    }

    /// A further socket on the queue of this one. It shares the packet memory, the fill ring and
    /// the completion ring, and has `entries` entries in each other ring.
    pub(crate) fn open_another(
        &self,
        binding: &QueueBinding<'_>,
        entries: u32,
    ) -> Result<(OwnedFd, WorkerRings), IoError> {
        let open = || {
            let at = |step| move |error: rustix::io::Errno| (step, io::Error::from(error));
            let family = AddressFamily::XDP;
            let fd = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)
                .map_err(at("make a socket"))?;
            sockopt::set_xdp_rx_ring_size(&fd, entries)
                .and_then(|()| sockopt::set_xdp_tx_ring_size(&fd, entries))
                .map_err(at("make rings"))?;
            let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(at("find the rings"))?;
            let mapped = |error| ("map the rings", error);
            let entry = size_of::<Descriptor>();
            let rx = map(&fd, RX_PAGE, &offsets.rx, entries, entry).map_err(mapped)?;
            let tx = map(&fd, TX_PAGE, &offsets.tx, entries, entry).map_err(mapped)?;
            let rings = WorkerRings {
                rx: consumer(rx),
                tx: producer(tx),
            };
            let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
            let address = SocketAddrXdpWithSharedUmem {
                addr: SocketAddrXdp::new(flags, binding.id.interface, binding.id.queue),
                shared_umem_fd: self.fd.as_fd(),
            };
            bind(&fd, &address).map_err(at("bind a worker's socket"))?;
            Ok((fd, rings))
        };
        open().map_err(|(step, error)| open_error(binding, step, error))
    }

    /// Wakes the driver to read the fill ring.
    pub(crate) fn kick_rx(&self) {
        // The driver wakes even if the call fails.
        let _ = recv(&self.fd, &mut [0; 0], RecvFlags::DONTWAIT);
    }
}

const RX_PAGE: u64 = libc::XDP_PGOFF_RX_RING as u64;
const TX_PAGE: u64 = libc::XDP_PGOFF_TX_RING as u64;

/// The most system calls to send what is in one ring: each takes 32 descriptors at least.
const KICKS: usize = 64;

/// The socket is not bound any more.
#[derive(Debug)]
pub(crate) struct Unbound;

/// Makes the kernel send what is in a tx ring, until it has taken everything or has no room.
#[inline]
pub(crate) fn kick(socket: &OwnedFd, tx: &Producer<Descriptor>) -> Result<(), Unbound> {
    kick_by(tx, || send(socket, &[], SendFlags::DONTWAIT))
}

#[inline]
fn kick_by(
    tx: &Producer<Descriptor>,
    mut send: impl FnMut() -> rustix::io::Result<usize>,
) -> Result<(), Unbound> {
    let mut waiting = tx.waiting();
    for _ in 0..KICKS {
        if waiting == 0 || !tx.needs_wakeup() {
            return Ok(());
        }
        let before = waiting;
        let sent = send();
        waiting = tx.waiting();
        match sent {
            // In copy mode that was the share of one call, and there is more. Without progress,
            // earlier frames have not left the kernel yet, and another call would find the same.
            Err(Errno::AGAIN) if waiting < before => {}
            Err(Errno::INTR) => {}
            Err(Errno::NXIO) => return Err(Unbound),
            // No room, or the interface is down: the next flush tries again.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Maps a ring of a socket.
fn map(
    fd: &OwnedFd,
    page: u64,
    ring: &XdpRingOffset,
    size: u32,
    entry: usize,
) -> io::Result<(Mapping, Layout, u32)> {
    let layout = layout(ring);
    let len = layout.entries + size as usize * entry;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    Mapping::of_file(fd.as_fd(), page, len, protection).map(|map| (map, layout, size))
}

/// How long to wait for an error to pass.
fn patience(binding: &QueueBinding<'_>) -> Duration {
    match queue_reservation::is_reserved_here(binding.id) {
        true => DROPPED_WITHIN,
        false => RELEASED_WITHIN,
    }
}

/// Whether an error may pass: a socket has the queue or the lockable memory, or had it a moment
/// ago.
fn may_pass(error: &io::Error) -> bool {
    let momentary = [Some(libc::EBUSY), Some(libc::ENOBUFS)];
    momentary.contains(&error.raw_os_error())
}

fn layout(ring: &XdpRingOffset) -> Layout {
    Layout {
        producer: ring.producer as usize,
        consumer: ring.consumer as usize,
        flags: ring.flags.unwrap_or(ring.producer) as usize,
        entries: ring.desc as usize,
    }
}

fn producer<E: Entry>((mapping, layout, size): (Mapping, Layout, u32)) -> Producer<E> {
    Producer::new(mapping, layout, size)
}

fn consumer<E: Entry>((mapping, layout, size): (Mapping, Layout, u32)) -> Consumer<E> {
    Consumer::new(mapping, layout, size)
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// Whether another way to bind would meet the same error.
fn is_final(error: &io::Error) -> bool {
    let final_ones = [
        libc::EPERM,
        libc::EBUSY,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::ENETDOWN,
        libc::ENODEV,
        libc::EAFNOSUPPORT,
    ];
    error
        .raw_os_error()
        .is_some_and(|errno| final_ones.contains(&errno))
}

fn open_error(binding: &QueueBinding<'_>, step: &str, error: io::Error) -> IoError {
    let QueueBinding {
        interface,
        id: QueueId { queue, .. },
        memory,
        ..
    } = binding;
    let errno = error.raw_os_error();
    let is_own = errno == Some(libc::EBUSY) && queue_reservation::is_reserved_here(binding.id);
    let is_unsupported = matches!(errno, Some(libc::EOPNOTSUPP | libc::EINVAL));
    let has_no_mode = binding.mode.is_some() && is_unsupported;
    let fault = match is_own || has_no_mode {
        true => Fault::Caller,
        false => Fault::Host,
    };
    let remedy = match errno {
        Some(libc::EPERM) => {
            format!("run with {CAPABILITIES}, or use udp://")
        }
        Some(libc::EBUSY) if is_own => format!(
            "this process has the queue for another of its devices: give one of them another \
             queue (?queue=N in its address; `ethtool -l {interface}` tells how many there are), \
             serve and call by one endpoint, or use udp://"
        ),
        Some(libc::EBUSY) => format!(
            "another process has an AF_XDP socket on the queue: end it, choose another queue \
             (?queue=N; `ethtool -l {interface}` tells how many there are), or use udp://"
        ),
        Some(libc::ENOBUFS) => format!(
            "this device locks {}, and all devices of the user count together: raise the limit on \
             locked memory (`ulimit -l`, LimitMEMLOCK= of systemd) to what they need, run with \
             CAP_IPC_LOCK, have it lock less (?frames=1024), or use udp://",
            umem::mebibytes(*memory)
        ),
        Some(libc::ENOMEM) => umem::remedy(*memory),
        Some(libc::ENETDOWN) => format!("bring it up: `ip link set dev {interface} up`"),
        Some(libc::ENODEV) => "use an interface of this host; `ip link` lists them".into(),
        Some(libc::EAFNOSUPPORT) => "use a kernel with CONFIG_XDP_SOCKETS, or udp://".into(),
        _ if has_no_mode => {
            "the interface has no such mode: leave mode= out to get the best that it has".into()
        }
        _ => "use an interface with AF_XDP, or udp://".into(),
    };
    let attempt = format!("open AF_XDP on queue {queue} of {interface}: {step}");
    IoError::from_os(fault, attempt, error, remedy)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const LAYOUT: Layout = Layout {
        producer: 0,
        consumer: 64,
        flags: 128,
        entries: 192,
    };

    /// In copy mode a call takes a share of the ring, and no more once the socket's buffer is full.
    #[test]
    fn a_kernel_that_makes_no_progress_is_called_once_more() {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&fd, 4096).expect("room");
        let map = || {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            Mapping::of_file(fd.as_fd(), 0, 4096, protection).expect("a mapping")
        };
        let mapping = map();
        // SAFETY: within the mapping, aligned.
        let word = |offset| unsafe { &*mapping.at(offset, 4).cast::<AtomicU32>() };
        word(LAYOUT.flags).store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        let mut tx = Producer::<Descriptor>::new(map(), LAYOUT, 64);
        (0..64).for_each(|_| tx.push(Descriptor::default()));
        tx.publish();
        let mut calls = 0;
        kick_by(&tx, || {
            calls += 1;
            // Each of the first calls takes some.
            word(LAYOUT.consumer).store(16 * calls.min(3), Ordering::Release);
            Err(Errno::AGAIN)
        })
        .expect("it is bound");
        assert_eq!(calls, 4);
        calls = 0;
        kick_by(&tx, || {
            calls += 1;
            word(LAYOUT.consumer).store(64, Ordering::Release);
            Ok(0)
        })
        .expect("it is bound");
        assert_eq!(calls, 1);
        let nothing = kick_by(&tx, || panic!("there is nothing to send"));
        nothing.expect("it is bound");
    }
}
