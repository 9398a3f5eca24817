//! Devices in two network namespaces joined by a veth pair with an MTU of 1500.

use std::fs;
use std::net::UdpSocket;
use std::ops::Deref;
use std::os::fd::AsRawFd;

use starling_io_udp::{UdpConfig, UdpIo};
use starling_netns::{Pair, inside, run};

use super::bind_with;

/// Two namespaces: `a` has the interface `va` with 10.77.0.1 and fd77::1, `b` has `vb` with .2.
pub(crate) struct Net(Pair);

impl Deref for Net {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl Net {
    /// `None` if it cannot be made; prints that the test is skipped.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let made = Pair::new().and_then(|pair| run(&pair.a, "tc -Version").map(|()| Self(pair)));
        if let Err(problem) = &made {
            println!("skipped: {test} needs root, and `ip` and `tc` of iproute2 ({problem})");
        }
        made.ok()
    }

    /// Devices in `a` and `b`, at their IPv6 or IPv4 addresses.
    pub(crate) fn devices(&self, v6: bool, config: &UdpConfig) -> (UdpIo, UdpIo) {
        let hosts = match v6 {
            false => ["10.77.0.1", "10.77.0.2"],
            true => ["[fd77::1]", "[fd77::2]"],
        };
        let [a, b] = [(&self.a, hosts[0]), (&self.b, hosts[1])]
            .map(|(namespace, host)| inside(namespace, || bind_with(host, config.clone())));
        (a, b)
    }

    /// Turns GRO on at `vb`. Network cards have it on; veth has it off by default.
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

    /// Packets that `a` has sent on `va`.
    pub(crate) fn packets_sent(&self) -> u64 {
        inside(&self.a, || {
            let table = fs::read_to_string("/proc/thread-self/net/dev").expect("procfs");
            let row = table.lines().find(|line| line.contains("va:")).expect("va");
            let field = row.split_whitespace().nth(10).expect("packets sent");
            field.parse().expect("a number")
        })
    }
}
