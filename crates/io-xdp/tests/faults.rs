//! Faults: interfaces and queues that do not exist, other programs on the interface, interfaces that
//! go down and come back or change, missing capabilities.

mod common;

use std::time::{Duration, Instant};

use common::steps::{
    PATIENCE, acquaint, assert_says, bind, exchange, exchange_until_heard, has_program, va_shows,
    wait_until,
};
use common::{Net, PREAMBLE, receive, receive_burst};
use starling_io::{Fault, PacketIo, PacketRx, PacketTx};
use starling_io_xdp::{Mode, XdpConfig, XdpIo};
use starling_netns::{NamespaceGuard, Shape, inside, run};

#[test]
fn only_queues_that_are_on_count() {
    let Some(net) = Net::new("only_queues_that_are_on_count") else {
        return;
    };
    // By default a veth interface could have a queue for each core, and has one on.
    for line in [
        "ip link add vx type veth peer name vy",
        "ip link add wx numrxqueues 2 numtxqueues 2 type veth peer name wy",
        // As many queues receive as the other end has for sending.
        "ip link add rx numrxqueues 2 numtxqueues 1 type veth peer name ry numtxqueues 2",
    ] {
        run(&net.a, line).expect("root");
    }
    let interfaces = inside(&net.a, starling_io_xdp::interfaces).expect("the kernel tells");
    let on = |name: &str| {
        let found = interfaces.iter().find(|interface| interface.name == name);
        found.expect("it was made").queues
    };
    assert_eq!((on("vx"), on("wx"), on("rx")), (1, 2, 1));
    assert_says(
        bind(&net, "xdp://vx/0.0.0.0:0?queue=1"),
        Fault::Caller,
        &["no queue 1", "vx has 1", "ethtool -L"],
    );
    assert_says(
        bind(&net, "xdp://rx/0.0.0.0:0?queue=1"),
        Fault::Caller,
        &["queue 1 only receives", "rx has 1 to send by", "ethtool -L"],
    );
}

#[test]
fn an_impossible_address_is_an_error_that_says_what_to_do() {
    let Some(net) = Net::new("an_impossible_address_is_an_error_that_says_what_to_do") else {
        return;
    };
    assert_says(
        bind(&net, "xdp://nosuch/0.0.0.0:0"),
        Fault::Caller,
        &["no interface nosuch", "ip link"],
    );
    assert_says(
        bind(&net, "xdp://lo/127.0.0.1:0"),
        Fault::Caller,
        &["no Ethernet", "shm://"],
    );
    assert_says(
        bind(&net, "xdp://va/10.9.9.9:0"),
        Fault::Caller,
        &["10.77.0.1", "fd77::1"],
    );
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:0?queue=1"),
        Fault::Caller,
        &["no queue 1", "va has 1", "ethtool -L va combined N"],
    );
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:0?mode=zero-copy"),
        Fault::Caller,
        &["has no such mode", "leave mode= out"],
    );
    run(&net.b, "ip -4 address flush dev vb").expect("root");
    let config = XdpConfig::default;
    for result in inside(&net.b, || {
        [
            XdpIo::bind("xdp://vb/0.0.0.0:0", config()),
            XdpIo::client("xdp://vb/10.77.0.1:9000", config()),
        ]
    }) {
        assert_says(
            result,
            Fault::Caller,
            &["vb has no IPv4 address", "fd77::2", "ip address add"],
        );
    }
    run(&net.b, "ip address add 10.77.0.2/24 dev vb").expect("root");
    assert!(!has_program(&net), "nothing stays behind");
}

#[test]
fn a_taken_queue_mode_or_port_is_an_error_that_says_what_to_do() {
    let test = "a_taken_queue_mode_or_port_is_an_error_that_says_what_to_do";
    let Some(net) = Net::new(test) else {
        return;
    };
    let mut first = bind(&net, "xdp://va/0.0.0.0:0").expect("the first");
    // Also a device with another address.
    for address in ["xdp://va/0.0.0.0:0", "xdp://va/[::]:0"] {
        assert_says(
            bind(&net, address),
            Fault::Caller,
            &[
                "queue 0 of va",
                "this process has the queue",
                "?queue=N in its address",
                "ethtool -l va",
                "one endpoint",
                "udp://",
            ],
        );
    }
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:0?mode=generic"),
        Fault::Caller,
        &["in driver mode", "leave mode= out"],
    );
    let port = first.local_socket_address().port();
    assert_says(
        bind(&net, &format!("xdp://va/0.0.0.0:{port}")),
        Fault::Host,
        &[
            &format!("bind xdp://va/0.0.0.0:{port}: "),
            &format!("UDP port {port} of 10.77.0.1, which a device takes from the kernel as well"),
            "stop the process that has the port",
        ],
    );

    let mut reach = |address: &str| first.open_peer(address).expect_err(address).to_string();
    assert!(reach("xdp://other/10.77.0.2:1").contains("another interface"));
    assert!(reach("xdp://va/[fd77::2]:1").contains("the other IP version"));
    assert!(reach("xdp://va/10.77.0.1:1").contains("this host itself"));
    assert!(reach("xdp://va/192.0.2.1:1").contains("there is no route"));
    assert!(reach("xdp://va/10.77.0.2:0").contains("nothing can be sent there"));

    drop(first);
    run(&net.a, "ip link set va down").expect("it is there");
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:0"),
        Fault::Host,
        &["va is down", "ip link set dev va up"],
    );
}

#[test]
fn generic_mode_works_and_is_reported() {
    let Some(net) = Net::new("generic_mode_works_and_is_reported") else {
        return;
    };
    let mut a = net.at_a("xdp://va/0.0.0.0:0?mode=generic");
    assert_eq!(a.mode(), Mode::Generic);
    let mut b = net.at_b("xdp://vb/0.0.0.0:0?mode=driver");
    assert_eq!(b.mode(), Mode::Driver);
    assert!(format!("{a:?}").contains("Generic"), "{a:?}");
    let (to_b, _) = acquaint(&mut a, &mut b);
    exchange(&mut a, &mut b, to_b);
}

#[test]
fn another_program_on_the_interface_is_named() {
    let Some(net) = Net::new("another_program_on_the_interface_is_named") else {
        return;
    };
    // Any program serves here. This one, of another test, lets all packets pass.
    let object = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../io-udp/tests/bpf/mark.bpf.o"
    );
    let attach = format!("ip link set dev va xdpdrv object {object} section xdp");
    if let Err(problem) = run(&net.a, &attach) {
        println!(
            "skipped: another_program_on_the_interface_is_named needs an `ip` that loads \
             programs ({problem})"
        );
        return;
    }
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:0"),
        Fault::Host,
        &["mark_xdp", "id ", "ip link set dev va xdp off"],
    );
}

#[test]
fn a_link_that_goes_down_and_comes_back_works_again() {
    let Some(net) = Net::new("a_link_that_goes_down_and_comes_back_works_again") else {
        return;
    };
    let (mut a, mut b) = (
        net.at_a("xdp://va/0.0.0.0:0"),
        net.at_b("xdp://vb/0.0.0.0:0"),
    );
    let (to_b, to_a) = acquaint(&mut a, &mut b);
    for (namespace, name) in [(&net.a, "va"), (&net.b, "vb")] {
        run(namespace, &format!("ip link set {name} down")).expect("it is there");
        for _ in 0..1000 {
            // There are more datagrams than slots. The device refuses or loses those that cannot leave.
            let tx = a.split().1;
            let _ = tx.append(to_b, PREAMBLE, b"lost", b"", b"");
            tx.seal(to_b);
            tx.flush().expect("a healthy device");
        }
        run(namespace, &format!("ip link set {name} up")).expect("it is there");
        exchange_until_heard(&mut a, &mut b, to_b);
        exchange_until_heard(&mut b, &mut a, to_a);
    }
}

/// When an interface is removed, the kernel sends an event for each of its neighbours, and one for
/// the interface last: more events than a socket has room for.
#[test]
fn the_removal_of_an_interface_with_many_neighbours_is_noticed() {
    let test = "the_removal_of_an_interface_with_many_neighbours_is_noticed";
    let Some(net) = Net::new(test) else {
        return;
    };
    let batch = std::env::temp_dir().join(format!("starling-neighbours-{}", std::process::id()));
    let lines: String = (0..20_000)
        .map(|n| {
            let (high, low) = (n / 250, n % 250 + 1);
            format!("neigh add 10.78.{high}.{low} lladdr 2:0:0:0:1:1 nud permanent dev vb\n")
        })
        .collect();
    std::fs::write(&batch, lines).expect("a temporary file");
    let added = run(&net.b, &format!("ip -batch {}", batch.display()));
    std::fs::remove_file(&batch).expect("it was just written");
    added.expect("neighbours");
    let mut device = net.at_b("xdp://vb/0.0.0.0:0");
    let sleeper = std::thread::spawn(move || {
        loop {
            if let Err(error) = device.split().0.rx_burst().and_then(|_| device.wait(None)) {
                return error;
            }
        }
    });
    run(&net.b, "ip link delete vb").expect("it is there");
    let error = sleeper.join().expect("no panic").to_string();
    assert!(error.contains("was removed"), "{error}");
}

#[test]
fn the_removal_of_an_interface_is_an_error_of_sleeping_and_busy_devices() {
    let test = "the_removal_of_an_interface_is_an_error_of_sleeping_and_busy_devices";
    let Some(net) = Net::new(test) else {
        return;
    };
    let (mut a, mut b) = (
        net.at_a("xdp://va/0.0.0.0:0"),
        net.at_b("xdp://vb/0.0.0.0:0"),
    );
    let (to_b, _) = acquaint(&mut a, &mut b);
    let sleeper = std::thread::spawn(move || {
        loop {
            if let Err(error) = b.split().0.rx_burst().and_then(|_| b.wait(Some(PATIENCE))) {
                return error;
            }
        }
    });
    run(&net.a, "ip link delete va").expect("it is there");
    let mut error = None;
    wait_until(|| {
        let (rx, tx) = a.split();
        let _ = tx.append(to_b, PREAMBLE, b"under load", b"", b"");
        error = tx.flush().and_then(|()| rx.rx_burst()).err();
        error.is_some()
    });
    for (error, name) in [
        (error.expect("waited for"), "va"),
        (sleeper.join().expect("no panic"), "vb"),
    ] {
        assert_eq!(error.fault, Fault::Host);
        let text = error.to_string();
        assert!(
            text.contains(name) && text.contains("was removed"),
            "{text}"
        );
    }
    drop(a);
    // Both ends are gone. New ones work.
    net.join(Shape::default()).expect("as before");
    let (mut a, mut b) = (
        net.at_a("xdp://va/0.0.0.0:0"),
        net.at_b("xdp://vb/0.0.0.0:0"),
    );
    acquaint(&mut a, &mut b);
}

#[test]
fn a_change_of_an_interface_is_an_error_of_sleeping_and_busy_devices() {
    let test = "a_change_of_an_interface_is_an_error_of_sleeping_and_busy_devices";
    let Some(net) = Net::new(test) else {
        return;
    };
    for (change, problem) in [
        (
            "address 02:00:00:00:00:77",
            "its hardware address was changed",
        ),
        ("mtu 1400", "its MTU was lowered"),
    ] {
        for sleeps in [true, false] {
            let mut device = net.at_b("xdp://vb/0.0.0.0:0");
            // This changes nothing for the device.
            run(&net.b, "ip link set vb txqueuelen 900").expect("it is there");
            let user = std::thread::spawn(move || {
                let begun = Instant::now();
                loop {
                    let pause = if sleeps { PATIENCE } else { Duration::ZERO };
                    let turn = device.split().0.rx_burst();
                    if let Err(error) = turn.and_then(|_| device.wait(Some(pause))) {
                        return error;
                    }
                    assert!(begun.elapsed() < PATIENCE, "it never notices");
                }
            });
            run(&net.b, &format!("ip link set vb {change}")).expect("it is there");
            let error = user.join().expect("no panic");
            assert_eq!(error.fault, Fault::Host);
            let text = error.to_string();
            assert!(text.contains(problem) && text.contains("vb"), "{text}");
            // A new device takes the interface as it is.
            let (mut a, mut b) = (
                net.at_a("xdp://va/0.0.0.0:0"),
                net.at_b("xdp://vb/0.0.0.0:0"),
            );
            let to_a = b.open_peer(&format!("xdp://vb/{}", a.local_socket_address()));
            exchange_until_heard(&mut b, &mut a, to_a.expect("a route"));
            drop(b);
            for line in ["address 02:00:00:00:00:02", "mtu 1500"] {
                run(&net.b, &format!("ip link set vb {line}")).expect("it is there");
            }
        }
    }
}

#[test]
fn a_neighbour_with_another_hardware_address_is_found_again() {
    let Some(net) = Net::new("a_neighbour_with_another_hardware_address_is_found_again") else {
        return;
    };
    let (mut a, b) = (
        net.at_a("xdp://va/0.0.0.0:0"),
        net.at_b("xdp://vb/0.0.0.0:9000"),
    );
    let to_b = a.open_peer("xdp://va/10.77.0.2:9000").expect("a route");
    let mut b = b;
    exchange(&mut a, &mut b, to_b);
    drop(b);
    // The other host is replaced: same IP address, another card.
    run(&net.b, "ip link set vb down").expect("it is there");
    // Unless the kernel sees that, it keeps its entry of the neighbour for up to 45 s.
    wait_until(|| va_shows(&net, "DOWN mode"));
    run(&net.b, "ip link set vb address 02:00:00:00:00:99").expect("it is there");
    run(&net.b, "ip link set vb up").expect("it is there");
    // A process that another test forks right now may hold the port until its exec.
    let again = || {
        inside(&net.b, || {
            XdpIo::bind("xdp://vb/0.0.0.0:9000", XdpConfig::default())
        })
    };
    let mut bound = None;
    wait_until(|| {
        bound = again().ok();
        bound.is_some()
    });
    let mut b = bound.expect("as before");
    exchange_until_heard(&mut a, &mut b, to_b);
}

#[test]
fn fragments_and_datagrams_of_sockets_arrive_by_the_kernel() {
    let Some(net) = Net::new("fragments_and_datagrams_of_sockets_arrive_by_the_kernel") else {
        return;
    };
    let mut a = net.at_a("xdp://va/0.0.0.0:0");
    let address = a.local_socket_address();
    let socket = inside(&net.b, || std::net::UdpSocket::bind("10.77.0.2:0")).expect("its address");
    let large = vec![7; 4000];
    for round in 0..10 {
        // Larger than the MTU: three fragments, which only the kernel reassembles.
        socket.send_to(&large, address).expect("a route");
        socket.send_to(&[round; 10], address).expect("a route");
        let mut received = Vec::new();
        while received.len() < 2 {
            received.extend(
                receive_burst(&mut a)
                    .into_iter()
                    .map(|datagram| datagram.bytes),
            );
        }
        received.sort_by_key(Vec::len);
        assert!(received == [vec![round; 10], large.clone()]);
    }
    run(&net.a, "ip link set lo up").expect("every namespace has it");
    let itself = inside(&net.a, || std::net::UdpSocket::bind("10.77.0.1:0")).expect("its address");
    itself
        .send_to(b"from this very host", address)
        .expect("a route");
    assert_eq!(receive(&mut a, 1)[0].bytes, b"from this very host");
}

#[test]
fn datagrams_for_other_sockets_reach_them() {
    let Some(net) = Net::new("datagrams_for_other_sockets_reach_them") else {
        return;
    };
    let _device = net.at_a("xdp://va/0.0.0.0:0");
    let bind = |namespace, address| {
        inside(namespace, || std::net::UdpSocket::bind(address)).expect("free")
    };
    let (to, from) = (bind(&net.a, "10.77.0.1:0"), bind(&net.b, "10.77.0.2:0"));
    to.set_read_timeout(Some(PATIENCE)).expect("not zero");
    from.send_to(b"for a socket", to.local_addr().expect("bound"))
        .expect("a route");
    let mut buffer = [0; 100];
    let len = to.recv(&mut buffer).expect("it arrives");
    assert_eq!(&buffer[..len], b"for a socket");
    net.await_carrier().expect("all else goes on");
}

#[test]
fn a_missing_capability_or_limit_is_named() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let Some(net) = Net::new("a_missing_capability_or_limit_is_named") else {
        return;
    };
    let bind_without = |lacking: CapabilitySet, config: XdpConfig| {
        let attempt = || {
            let _guard = NamespaceGuard::in_namespace(&net.a).expect("it is ours");
            let all = capabilities(None).expect("its own");
            let fewer = CapabilitySets {
                effective: all.effective.difference(lacking),
                ..all
            };
            set_capabilities(None, fewer).expect("fewer are always allowed");
            let result = XdpIo::bind("xdp://va/0.0.0.0:0", config);
            // For the way back to the first namespace.
            set_capabilities(None, all).expect("they are permitted");
            result
        };
        std::thread::scope(|scope| scope.spawn(attempt).join().expect("no panic"))
    };
    let without = |lacking| bind_without(lacking, XdpConfig::default());
    // The limit does not bind other tests, because they have the capability.
    let limit = Rlimit {
        current: Some(1 << 20),
        maximum: getrlimit(Resource::Memlock).maximum,
    };
    setrlimit(Resource::Memlock, limit).expect("lower is always allowed");
    let needed = XdpConfig::default().locked_memory(1500).div_ceil(1 << 20);
    let needed = format!("this device locks {needed} MiB, and all devices of the user count");
    let text = [
        "register packet memory",
        &needed,
        "ulimit -l",
        "CAP_IPC_LOCK",
    ];
    assert_says(without(CapabilitySet::IPC_LOCK), Fault::Host, &text);
    // Without memory for messages the device copies them.
    let small = XdpConfig {
        rx_frames: 64,
        tx_frames: 64,
        gather_from: Some(256),
        ..XdpConfig::default()
    };
    for (lacking, expected) in [
        (CapabilitySet::IPC_LOCK, false),
        (CapabilitySet::empty(), true),
    ] {
        let device = bind_without(lacking, small.clone()).expect("it locks 256 KiB");
        assert_eq!(device.memory().is_of_device(), expected);
    }
    let advised = CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_RAW
        | CapabilitySet::BPF
        | CapabilitySet::PERFMON
        | CapabilitySet::IPC_LOCK;
    without(advised.complement()).expect("these are enough");
    let text = ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"];
    assert_says(
        without(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN),
        Fault::Host,
        &text,
    );
    assert_says(without(CapabilitySet::NET_RAW), Fault::Host, &text);
    assert_says(
        without(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN),
        Fault::Host,
        &text,
    );
    assert_says(
        without(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        Fault::Host,
        &text,
    );
}
