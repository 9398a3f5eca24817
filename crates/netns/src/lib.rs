//! Two network namespaces joined by a veth pair: the smallest network that is not loopback, for
//! tests, benchmarks and `starling doctor`. A third namespace can be joined behind a router.
//!
//! This crate must not be linked into applications.
//!
//! The namespaces have no names. They live while a file here refers to them or a process runs inside,
//! and the veth pair lives as long as they do. So nothing is left behind, however the process ends.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A link that lets no datagram cross for so long counts as dead. Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hardware address of `vb`.
pub const MAC_B: &str = "02:00:00:00:00:02";

/// IPv4 addresses of `va` and `vb`, in a network of 24 bits.
pub const IPV4: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// IPv6 addresses of `va` and `vb`, in a network of 64 bits.
pub const IPV6: [&str; 2] = ["fd77::1", "fd77::2"];

/// IPv4 addresses of `vr` and `vc`, in a network of 24 bits: see [`Pair::route_to_another`].
pub const FAR_IPV4: [&str; 2] = ["10.78.0.1", "10.78.0.2"];

/// IPv6 addresses of `vr` and `vc`, in a network of 64 bits.
pub const FAR_IPV6: [&str; 2] = ["fd78::1", "fd78::2"];

/// Two namespaces: `a` has the interface `va`, `b` has `vb`.
#[derive(Debug)]
pub struct Pair {
    /// The namespace with `va`.
    pub a: File,
    /// The namespace with `vb`.
    pub b: File,
}

/// Settings of a pair's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Queues of each interface, in each direction.
    pub queues: u32,
}

impl Default for Shape {
    /// 1500 bytes, one queue.
    fn default() -> Self {
        Self {
            mtu: 1500,
            queues: 1,
        }
    }
}

impl Pair {
    /// A pair with the default shape, up and with its addresses.
    ///
    /// # Errors
    /// Without root or `ip` of iproute2. The text says what failed.
    pub fn new() -> Result<Self, String> {
        Self::with_shape(Shape::default())
    }

    /// A pair, up and with its addresses.
    ///
    /// # Errors
    /// Without root or `ip` of iproute2. The text says what failed.
    pub fn with_shape(shape: Shape) -> Result<Self, String> {
        let pair = Self {
            a: new_namespace().map_err(|error| format!("make a network namespace: {error}"))?,
            b: new_namespace().map_err(|error| format!("make a network namespace: {error}"))?,
        };
        pair.join(shape)?;
        Ok(pair)
    }

    /// Joins the namespaces by a veth pair; there must be none yet.
    ///
    /// # Errors
    /// The text says what failed.
    pub fn join(&self, shape: Shape) -> Result<(), String> {
        let to_b = path(&self.b);
        let Shape { mtu, queues } = shape;
        let like = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
        let add = format!("ip link add va {like} type veth peer name vb address {MAC_B} {like}");
        run(&self.a, &add)?;
        run(&self.a, &format!("ip link set vb netns {to_b}"))?;
        set_up(&self.a, "va", IPV4[0], IPV6[0])?;
        set_up(&self.b, "vb", IPV4[1], IPV6[1])?;
        self.await_carrier()
    }

    /// Makes a third namespace, whose only interface `vc` is joined to `vr` in `b`. `b` becomes the
    /// router between it and `a`.
    ///
    /// # Errors
    /// The text says what failed.
    pub fn route_to_another(&self) -> Result<File, String> {
        let far = new_namespace().map_err(|error| format!("make a network namespace: {error}"))?;
        run(&self.b, "ip link add vr type veth peer name vc")?;
        run(&self.b, &format!("ip link set vc netns {}", path(&far)))?;
        set_up(&self.b, "vr", FAR_IPV4[0], FAR_IPV6[0])?;
        set_up(&far, "vc", FAR_IPV4[1], FAR_IPV6[1])?;
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            set_kernel(&self.b, key, "1")?;
        }
        for (namespace, network, router) in [
            (&self.a, "10.78.0.0/24", IPV4[1]),
            (&self.a, "fd78::/64", IPV6[1]),
            (&far, "10.77.0.0/24", FAR_IPV4[0]),
            (&far, "fd77::/64", FAR_IPV6[0]),
        ] {
            run(namespace, &format!("ip route add {network} via {router}"))?;
        }
        await_crossing((&self.a, IPV4[0]), (&far, FAR_IPV4[1]))?;
        Ok(far)
    }

    /// Waits until a datagram arrives and is answered: for a while after they are up, interfaces
    /// drop packets silently.
    ///
    /// # Errors
    /// If that takes more than a minute.
    pub fn await_carrier(&self) -> Result<(), String> {
        await_crossing((&self.a, IPV4[0]), (&self.b, IPV4[1]))
    }
}

/// Waits until a datagram goes from one address to the other and back.
fn await_crossing(one: (&File, &str), other: (&File, &str)) -> Result<(), String> {
    let bind = |(namespace, address)| inside(namespace, || UdpSocket::bind((address, 0)));
    let sockets = bind(one).and_then(|one| Ok((one, bind(other)?)));
    let (one, other) = sockets.map_err(|error| format!("use an address: {error}"))?;
    for socket in [&one, &other] {
        let retry_after = Some(Duration::from_millis(20));
        socket.set_read_timeout(retry_after).expect("not zero");
    }
    let cross = |from: &UdpSocket, to: &UdpSocket| {
        let address = to.local_addr().expect("bound");
        from.send_to(b"x", address).is_ok() && to.recv(&mut [0]).is_ok()
    };
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if cross(&one, &other) && cross(&other, &one) {
            return Ok(());
        }
    }
    Err("no datagram crosses the link".to_owned())
}

/// Gives an interface its addresses, and sets it up.
fn set_up(namespace: &File, name: &str, v4: &str, v6: &str) -> Result<(), String> {
    run(namespace, &format!("ip address add {v4}/24 dev {name}"))?;
    run(
        namespace,
        &format!("ip address add {v6}/64 dev {name} nodad"),
    )?;
    run(namespace, &format!("ip link set {name} up"))
}

/// The path by which other processes find a namespace.
fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// An empty network namespace, which lives as long as the file or a process inside.
fn new_namespace() -> io::Result<File> {
    let make = || {
        // SAFETY: it unshares no descriptors, and the thread ends right after.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        File::open("/proc/thread-self/ns/net")
    };
    thread::scope(|scope| scope.spawn(make).join().expect("no panic"))
}

/// Runs `action` in a thread inside `namespace`. Sockets and processes made there stay there.
///
/// # Panics
/// If this process may not enter the namespace, although it made it; if `action` panics.
pub fn inside<T: Send>(namespace: &File, action: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("the process made the namespace");
        action()
    };
    let result = thread::scope(|scope| scope.spawn(enter).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Keeps the thread in a namespace; dropping it returns the thread to the previous one.
#[derive(Debug)]
pub struct NamespaceGuard {
    previous: File,
    /// It belongs to one thread.
    thread: PhantomData<*const ()>,
}

impl NamespaceGuard {
    /// Moves the calling thread into `namespace`.
    ///
    /// # Errors
    /// If the thread may not enter it.
    pub fn in_namespace(namespace: &File) -> io::Result<Self> {
        let previous = File::open("/proc/thread-self/ns/net")?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Self {
            previous,
            thread: PhantomData,
        })
    }
}

impl Drop for NamespaceGuard {
    fn drop(&mut self) {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(self.previous.as_fd(), kind).expect("the thread came from there");
    }
}

/// Runs a command in `namespace`; its words are separated by single spaces.
///
/// # Errors
/// If it fails: the command, and its error output.
pub fn run(namespace: &File, line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    let output = inside(namespace, || command.output());
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(())
}

/// Sets a parameter of the kernel (sysctl(8)) in `namespace`: `net/ipv4/ip_forward`.
///
/// # Errors
/// If there is no such parameter, or this process may not set it.
pub fn set_kernel(namespace: &File, name: &str, value: &str) -> Result<(), String> {
    let write = || std::fs::write(format!("/proc/sys/{name}"), value);
    inside(namespace, write).map_err(|error| format!("set {name} to {value}: {error}"))
}
