//! Two network namespaces joined by a veth pair with an MTU of 1500.
//!
//! The namespaces have no names. They live as long as the files here that refer to them, and the
//! veth pair lives as long as they do: whatever becomes of a test, nothing is left behind.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use starling_io_udp::{UdpConfig, UdpIo};

use super::bind_with;

/// Hardware address of `vb`.
pub(crate) const MAC_B: &str = "02:00:00:00:00:02";

/// Two namespaces: `a` has the interface `va` with 10.77.0.1 and fd77::1, `b` has `vb` with .2.
pub(crate) struct Net {
    pub(crate) a: File,
    pub(crate) b: File,
}

impl Net {
    /// `None`, having said so, where it cannot be made.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let made = Self::try_new();
        if let Err(problem) = &made {
            println!("skipped: {test} needs root, and `ip` and `tc` of iproute2 ({problem})");
        }
        made.ok()
    }

    fn try_new() -> Result<Self, String> {
        let net = Self {
            a: new_namespace()?,
            b: new_namespace()?,
        };
        let here = std::process::id();
        let to_b = format!("/proc/{here}/fd/{}", net.b.as_raw_fd());
        run(&net.a, "tc -Version")?;
        let pair = format!("ip link add va type veth peer name vb address {MAC_B}");
        run(&net.a, &pair)?;
        run(&net.a, &format!("ip link set vb netns {to_b}"))?;
        for (namespace, name, host) in [(&net.a, "va", 1), (&net.b, "vb", 2)] {
            run(
                namespace,
                &format!("ip address add 10.77.0.{host}/24 dev {name}"),
            )?;
            run(
                namespace,
                &format!("ip address add fd77::{host}/64 dev {name} nodad"),
            )?;
            run(namespace, &format!("ip link set {name} up"))?;
        }
        net.await_carrier()?;
        Ok(net)
    }

    /// Waits until a datagram gets through and is answered: for a while after they are up,
    /// interfaces drop what they are given without a word.
    fn await_carrier(&self) -> Result<(), String> {
        let [a, b] = [(&self.a, "10.77.0.1:0"), (&self.b, "10.77.0.2:0")]
            .map(|(namespace, address)| inside(namespace, || UdpSocket::bind(address)));
        let (a, b) = (a.expect("its address"), b.expect("its address"));
        for socket in [&a, &b] {
            let patience = Some(Duration::from_millis(20));
            socket.set_read_timeout(patience).expect("not zero");
        }
        let cross = |from: &UdpSocket, to: &UdpSocket| {
            let address = to.local_addr().expect("bound");
            from.send_to(b"x", address).is_ok() && to.recv(&mut [0]).is_ok()
        };
        let crossed = (0..500).any(|_| cross(&a, &b) && cross(&b, &a));
        crossed
            .then_some(())
            .ok_or_else(|| "the link stays dead".to_owned())
    }

    /// Devices in `a` and `b`, at the addresses of the IP version.
    pub(crate) fn devices(&self, v6: bool, config: &UdpConfig) -> (UdpIo, UdpIo) {
        let hosts = match v6 {
            false => ["10.77.0.1", "10.77.0.2"],
            true => ["[fd77::1]", "[fd77::2]"],
        };
        let [a, b] = [(&self.a, hosts[0]), (&self.b, hosts[1])]
            .map(|(namespace, host)| inside(namespace, || bind_with(host, config.clone())));
        (a, b)
    }

    /// Has `vb` merge what it receives where it can, as network cards do and veth does not unless
    /// told.
    pub(crate) fn merge_at_b(&self) {
        /// `struct ethtool_value`.
        #[repr(C)]
        struct Setting {
            command: u32,
            value: u32,
        }
        const SET_GRO: u32 = 0x2c;
        let mut setting = Setting {
            command: SET_GRO,
            value: 1,
        };
        let socket = inside(&self.b, || UdpSocket::bind("10.77.0.2:0")).expect("its address");
        // SAFETY: all zeros are a request; the kernel reads the name, which ends with a zero, and
        // the setting, which lives longer than the call.
        let result = unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            request.ifr_name[..2].copy_from_slice(&[b'v' as libc::c_char, b'b' as libc::c_char]);
            request.ifr_ifru.ifru_data = (&raw mut setting).cast();
            libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request)
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Packets that `a` has given to the wire.
    pub(crate) fn packets_sent(&self) -> u64 {
        inside(&self.a, || {
            let table = fs::read_to_string("/proc/thread-self/net/dev").expect("procfs");
            let row = table.lines().find(|line| line.contains("va:")).expect("va");
            let field = row.split_whitespace().nth(10).expect("packets sent");
            field.parse().expect("a number")
        })
    }
}

fn new_namespace() -> Result<File, String> {
    let make = || {
        // SAFETY: no memory is involved; the thread ends right after.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
        File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
    };
    thread::scope(|scope| scope.spawn(make).join().expect("no panic"))
}

/// Runs `action` in a thread that lives in `namespace`. Sockets made there belong there for good.
pub(crate) fn inside<T: Send>(namespace: &File, action: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        // SAFETY: no memory is involved; only this short-lived thread moves.
        let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        action()
    };
    thread::scope(|scope| scope.spawn(enter).join().expect("no panic"))
}

/// Runs a command in `namespace`.
pub(crate) fn run(namespace: &File, line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
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
