//! Findings: whether the facts about the host allow each device, and how well.

use starling::{BudgetUnit, Budgets};
use starling_io_tcp::TcpConfig;
use starling_io_udp::UdpConfig;
use starling_io_xdp::{
    Interface, KernelVersion, LARGE_FRAMES_KERNEL, Mode, OLDEST_KERNEL, Occupant, XdpConfig,
};

use super::host::Host;
use super::report::{Finding, Findings};

/// The default MTU of an Ethernet interface.
const USUAL_MTU: usize = 1500;

/// Bytes of IPv4's and UDP's headers.
const HEADERS: usize = 28;

pub(super) fn host(host: &Host) -> Findings {
    let mut all = Findings::new("host");
    let memory = host.memory.map_or("unknown".into(), gibibytes);
    all.ok(format!(
        "Linux {}, {} cores, {memory} of memory free",
        host.release, host.cores
    ));
    if host.cores < 2 {
        all.note(
            "one core: client and server of a call take turns on it",
            "let endpoints sleep (Idle::Adaptive or Idle::Block), or give the process more cores",
        );
    }
    if let Some((free, all_pages)) = host.hugepages {
        all.ok(format!("{free} of {all_pages} huge pages of 2 MiB free"));
    }
    all
}

/// What clients can make a server hold, by the settings that it has unless they are changed.
pub(super) fn server(host: &Host, budgets: &Budgets) -> Findings {
    let mut all = Findings::new("server");
    for budget in budgets.iter() {
        let text = |value| match budget.unit {
            BudgetUnit::Bytes => mebibytes(value),
            BudgetUnit::Items => value.to_string(),
        };
        let (most, one) = (text(budget.all_peers), text(budget.one_peer));
        all.ok(format!(
            "{}: {most} at most, {one} by one peer ({})",
            budget.what, budget.setting
        ));
    }
    let together = format!(
        "clients can make each dispatch thread hold {}, one peer {}",
        gibibytes(budgets.all_peers()),
        gibibytes(budgets.one_peer())
    );
    match host.memory {
        Some(free) if free < budgets.all_peers() => all.note(
            format!(
                "{together}: more than the {} that are free",
                gibibytes(free)
            ),
            "where clients are not trusted, lower these settings until they fit",
        ),
        _ => all.ok(together),
    }
    all
}

pub(super) fn udp(host: &Host, interfaces: &[Interface]) -> Findings {
    let mut all = Findings::new("udp");
    if host.is_at_least(KernelVersion(5, 0)) {
        all.ok("GSO and GRO: many datagrams for one system call");
    } else {
        all.note(
            "no GSO and GRO in this kernel: each datagram costs a system call's time",
            "use Linux 5.0 or later",
        );
    }
    let wanted = UdpConfig::default().rx_buffer_bytes as u64;
    match host.rmem_max {
        Some(_) if host.has("CAP_NET_ADMIN") => {
            all.ok(format!("receive buffers of {}", mebibytes(wanted)));
        }
        Some(limit) if limit < wanted => all.note(
            format!(
                "receive buffers of {} at most, {} are wanted: bursts may be lost and sent again",
                mebibytes(limit),
                mebibytes(wanted)
            ),
            format!("sysctl -w net.core.rmem_max={wanted}"),
        ),
        Some(_) => all.ok(format!("receive buffers of {}", mebibytes(wanted))),
        None => {}
    }
    for interface in interfaces.iter().filter(|interface| interface.is_up) {
        all.ok(format!(
            "{}: MTU {}, up to {} bytes in a datagram",
            interface.name,
            interface.mtu,
            interface.mtu.saturating_sub(HEADERS)
        ));
    }
    all
}

pub(super) fn tcp() -> Findings {
    let mut all = Findings::new("tcp");
    let peers = TcpConfig::default().peers_budget();
    all.ok(format!(
        "a server has up to {} clients, {} of one host",
        peers.places, peers.places_of_one
    ));
    all
}

pub(super) fn shm(host: &Host) -> Findings {
    let mut all = Findings::new("shm");
    if host.is_at_least(KernelVersion(4, 16)) {
        all.ok("membarrier: a thread that goes to sleep pays for wake-ups, not the sender");
    } else {
        all.note(
            "no membarrier in this kernel: each send has to check whether the peer sleeps",
            "use Linux 4.16 or later",
        );
    }
    all
}

pub(super) fn xdp(host: &Host, interfaces: &[Interface]) -> Findings {
    let mut all = Findings::new("xdp");
    if !host.is_at_least(OLDEST_KERNEL) {
        all.bad(
            "this kernel lacks features that the XDP program needs",
            format!("use Linux {OLDEST_KERNEL} or later, or udp://"),
        );
    } else if !host.is_at_least(LARGE_FRAMES_KERNEL) {
        all.note(
            "no frames larger than a page in this kernel: MTUs up to about 3,400 bytes",
            format!("use Linux {LARGE_FRAMES_KERNEL} or later for jumbo frames"),
        );
    }
    let may = |name| host.has(name) || host.has("CAP_SYS_ADMIN");
    let missing: Vec<&str> = [
        ("CAP_NET_ADMIN", host.has("CAP_NET_ADMIN")),
        ("CAP_NET_RAW", host.has("CAP_NET_RAW")),
        ("CAP_BPF", may("CAP_BPF")),
        // Without it the kernel's verifier rejects the program.
        ("CAP_PERFMON", may("CAP_PERFMON")),
    ]
    .into_iter()
    .filter_map(|(name, has)| (!has).then_some(name))
    .collect();
    if missing.is_empty() {
        all.ok("capabilities: all that are needed");
    } else {
        let wanted = missing.join(",").to_lowercase();
        all.bad(
            format!("{} missing", missing.join(", ")),
            format!("run as root, or: setcap {wanted}+ep PROGRAM"),
        );
    }
    if !host.has("CAP_SYS_ADMIN") {
        all.note(
            "without CAP_SYS_ADMIN an interface that another process uses cannot be shared",
            "give the processes interfaces of their own, or run them as root",
        );
    }
    let mtus = interfaces.iter().filter(|interface| interface.is_ethernet);
    let mtu = mtus.map(|interface| interface.mtu).max();
    let needed = XdpConfig::default().locked_memory(mtu.unwrap_or(USUAL_MTU)) as u64;
    match host.memlock {
        Some(limit) if limit < needed && !host.has("CAP_IPC_LOCK") => all.bad(
            format!(
                "{} of memory may be locked, each device needs {}",
                mebibytes(limit),
                mebibytes(needed)
            ),
            "raise `ulimit -l` (LimitMEMLOCK= of a systemd unit) to what all devices of the user need \
             together, or run with CAP_IPC_LOCK",
        ),
        _ => all.ok("memory for packets may be locked"),
    }
    // No fault of the host, but nobody should have to find it out.
    all.ok("netfilter is passed by: rules of iptables and nftables do not see what is received and sent");
    let ethernet = interfaces.iter().filter(|interface| interface.is_ethernet);
    if !ethernet.clone().any(|interface| interface.is_up) {
        all.note(
            "there is no Ethernet interface that is up",
            "`ip link set dev IFNAME up`, if there is one; or use udp:// or shm://",
        );
    }
    for interface in ethernet {
        all.add(of_interface(interface, host));
    }
    all
}

fn of_interface(interface: &Interface, host: &Host) -> Finding {
    let name = &interface.name;
    let largest = interface.max_datagram(host.version);
    let in_use = match interface.program {
        Some(Occupant::Starling) => "in use by Starling; ",
        _ => "",
    };
    let about = |what: &str| {
        let queues = match interface.queues {
            1 => "1 queue: one device".into(),
            queues => format!(
                "{queues} queues: a device on each; datagrams of a queue without one take the slow path"
            ),
        };
        format!(
            "{name}: MTU {}, up to {largest} bytes in a datagram, {queues}; {in_use}{what}",
            interface.mtu
        )
    };
    if !interface.is_up {
        return Finding::ok(about("it is down"));
    }
    if let Some(finding) = of_program(interface, about) {
        return finding;
    }
    if interface.vlans > 0 {
        return Finding::note(
            about(&format!(
                "{} VLANs on it, whose datagrams for a device's address and port it may take as well",
                interface.vlans
            )),
            format!("have their tags left where they are: ethtool -K {name} rxvlan off"),
        );
    }
    let in_one_part = (interface.features).is_some_and(|has| has.driver && !has.multi_buffer);
    if in_one_part && largest + HEADERS < interface.mtu {
        return Finding::note(
            about("a larger frame has several parts, which its driver does not give XDP programs"),
            format!(
                "ip link set dev {name} mtu {} or less (some drivers have no XDP before, but for \
                 generic mode), or use a card whose driver has multi-buffer XDP",
                largest + HEADERS
            ),
        );
    }
    match interface.mode() {
        Some(Mode::ZeroCopy) => Finding::ok(about(
            "zero-copy: the card writes into the process's memory",
        )),
        Some(Mode::Driver) => Finding::ok(about("driver mode: one copy of each packet")),
        Some(Mode::Generic) => Finding::note(
            about(
                "generic mode only: little faster than udp://, and no faster for datagrams that may be merged",
            ),
            "use a card whose driver has XDP for more",
        ),
        None => Finding::ok(about("the driver's modes show when a device is opened")),
    }
}

/// The finding about another program's XDP program on the interface. `None`: there is none.
fn of_program(interface: &Interface, about: impl Fn(&str) -> String) -> Option<Finding> {
    let name = &interface.name;
    match interface.program {
        None | Some(Occupant::Starling) => None,
        Some(Occupant::OtherVersion { id }) => Some(Finding::note(
            about(&format!(
                "another version of Starling uses it (program {id}), and two cannot share it"
            )),
            "end the processes of the other version, or run the same one in all of them",
        )),
        Some(Occupant::Other { id }) => Some(Finding::note(
            about(&format!("another XDP program, {id}, is on it")),
            format!("end what put it there or, if that has ended: ip link set dev {name} xdp off"),
        )),
        Some(Occupant::Unknown { id }) => Some(Finding::note(
            about(&format!(
                "an XDP program, {id}, is on it, and its owner cannot be determined: without \
                     CAP_SYS_ADMIN no device can be opened"
            )),
            "run the doctor as root; if the program is Starling's, run the processes that share it as root, too",
        )),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use starling_io_xdp::Features;

    use super::super::report::Level;
    use super::*;

    fn unprivileged() -> Host {
        Host {
            release: "6.18.0".into(),
            version: Some(KernelVersion(6, 18)),
            cores: 4,
            capabilities: 0,
            memlock: Some(64 << 10),
            memory: Some(1 << 30),
            hugepages: Some((0, 0)),
            rmem_max: Some(212_992),
        }
    }

    fn root() -> Host {
        Host {
            capabilities: u64::MAX,
            memlock: None,
            ..unprivileged()
        }
    }

    fn interface() -> Interface {
        Interface {
            name: "eth0".into(),
            is_up: true,
            is_ethernet: true,
            mtu: 1500,
            queues: 2,
            program: None,
            vlans: 0,
            features: Some(Features {
                driver: true,
                zero_copy: false,
                multi_buffer: true,
            }),
        }
    }

    fn of_level(findings: &Findings, level: Level) -> String {
        let all = findings.iter().filter(|finding| finding.level == level);
        all.map(|f| format!("{} => {}\n", f.what, f.advice.as_deref().unwrap_or("")))
            .collect()
    }

    #[test]
    fn a_host_with_less_memory_than_clients_can_take_is_told_so() {
        let budgets = starling::Server::builder().budgets();
        let small = of_level(&server(&root(), &budgets), Level::Note);
        assert!(small.contains("lower these settings"), "{small}");
        let large = Host {
            memory: Some(budgets.all_peers()),
            ..root()
        };
        assert_eq!(of_level(&server(&large, &budgets), Level::Note), "");
        let all = of_level(&server(&large, &budgets), Level::Ok);
        assert_eq!(all.lines().count(), budgets.iter().count() + 1, "{all}");
    }

    #[test]
    fn root_on_a_new_kernel_lacks_nothing() {
        let host = root();
        let interfaces = [interface()];
        for findings in [udp(&host, &interfaces), shm(&host), xdp(&host, &interfaces)] {
            assert_eq!(of_level(&findings, Level::Bad), "");
            assert_eq!(of_level(&findings, Level::Note), "");
        }
        let ok = of_level(&xdp(&host, &interfaces), Level::Ok);
        assert!(ok.contains("iptables and nftables do not see"), "{ok}");
        assert!(
            ok.contains(
                "eth0: MTU 1500, up to 1472 bytes in a datagram, 2 queues: a device on each; datagrams of \
                 a queue without one take the slow path; driver mode"
            ),
            "{ok}"
        );
    }

    #[test]
    fn a_driver_without_multi_buffer_limits_the_mtu() {
        let with = |multi_buffer| {
            let mut jumbo = interface();
            jumbo.mtu = 9000;
            jumbo.features = Some(Features {
                driver: true,
                zero_copy: true,
                multi_buffer,
            });
            let findings = xdp(&root(), &[jumbo]);
            (
                of_level(&findings, Level::Ok),
                of_level(&findings, Level::Note),
            )
        };
        let (ok, note) = with(true);
        assert!(ok.contains("up to 8972 bytes in a datagram"), "{ok}");
        assert_eq!(note, "");
        let (_, note) = with(false);
        assert!(note.contains("up to 3798 bytes in a datagram"), "{note}");
        assert!(note.contains("ip link set dev eth0 mtu 3826"), "{note}");
    }

    #[test]
    fn an_interface_that_starling_uses_is_ok() {
        let mut used = interface();
        used.program = Some(Occupant::Starling);
        let findings = xdp(&root(), &[used]);
        assert_eq!(findings.level(), Level::Ok);
        let ok = of_level(&findings, Level::Ok);
        assert!(ok.contains("in use by Starling; driver mode"), "{ok}");
    }

    #[test]
    fn missing_rights_are_named_with_their_remedy() {
        let host = unprivileged();
        let bad = of_level(&xdp(&host, &[interface()]), Level::Bad);
        assert!(
            bad.contains("CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON missing"),
            "{bad}"
        );
        assert!(
            bad.contains("or: setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon+ep PROGRAM"),
            "{bad}"
        );
        assert!(bad.contains("ulimit -l"), "{bad}");
        let note = of_level(&udp(&host, &[]), Level::Note);
        assert!(note.contains("sysctl -w net.core.rmem_max="), "{note}");
    }

    #[test]
    fn the_memory_to_be_locked_depends_on_the_largest_mtu() {
        let mut host = unprivileged();
        host.memlock = Some(10 << 20);
        let mut jumbo = interface();
        jumbo.mtu = 9000;
        let usual = of_level(&xdp(&host, &[interface()]), Level::Bad);
        assert!(!usual.contains("may be locked"), "{usual}");
        let bad = of_level(&xdp(&host, &[interface(), jumbo]), Level::Bad);
        let wanted = "10.0 MiB of memory may be locked, each device needs 19.0 MiB";
        assert!(bad.contains(wanted), "{bad}");
    }

    #[test]
    fn an_old_kernel_lacks_features_by_version() {
        let host = Host {
            version: Some(KernelVersion(4, 9)),
            ..root()
        };
        let interfaces = [interface()];
        assert!(of_level(&udp(&host, &interfaces), Level::Note).contains("5.0"));
        assert!(of_level(&shm(&host), Level::Note).contains("4.16"));
        let of_kernel = |version| {
            let host = Host {
                version: Some(version),
                ..root()
            };
            let findings = xdp(&host, &interfaces);
            (
                of_level(&findings, Level::Bad),
                of_level(&findings, Level::Note),
            )
        };
        // Links for XDP programs, and sockets that know their namespace, are not enough.
        for old in [(4, 9), (5, 9), (5, 17)] {
            let (bad, _) = of_kernel(KernelVersion(old.0, old.1));
            assert!(bad.contains("use Linux 5.18 or later, or udp://"), "{bad}");
        }
        let (bad, note) = of_kernel(OLDEST_KERNEL);
        assert!(bad.is_empty() && note.contains("6.6"), "{bad}, {note}");
    }

    #[test]
    fn an_interface_that_cannot_be_used_has_a_reason() {
        let without = |change: fn(&mut Interface)| {
            let mut interface = interface();
            change(&mut interface);
            let findings = xdp(&root(), &[interface]);
            of_level(&findings, Level::Note) + &of_level(&findings, Level::Bad)
        };
        for down in [
            without(|i| i.is_up = false),
            without(|i| i.is_ethernet = false),
        ] {
            assert!(down.contains("no Ethernet interface that is up"), "{down}");
        }
        let occupied = without(|i| i.program = Some(Occupant::Other { id: 7 }));
        assert!(occupied.contains("another XDP program, 7"), "{occupied}");
        let version = without(|i| i.program = Some(Occupant::OtherVersion { id: 7 }));
        assert!(version.contains("another version of Starling"), "{version}");
        let unknown = without(|i| i.program = Some(Occupant::Unknown { id: 7 }));
        assert!(
            unknown.contains("its owner cannot be determined"),
            "{unknown}"
        );
        let vlans = without(|i| i.vlans = 2);
        assert!(vlans.contains("2 VLANs on it"), "{vlans}");
        assert!(vlans.contains("rxvlan off"), "{vlans}");
        let generic = without(|i| {
            i.features = Some(Features {
                driver: false,
                zero_copy: false,
                multi_buffer: false,
            });
        });
        assert!(generic.contains("generic mode only"), "{generic}");
    }
}
