//! What goes wrong: interfaces and queues that are not there, others on the interface, links that
//! go and come, processes that are killed.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use common::{Net, PREAMBLE, by_the_kernel, receive, receive_burst, until_not_needed};
use starling_io::{Datagram, Fault, IoError, PacketIo, PacketRx, PacketTx, PeerId, Source};
use starling_io_xdp::{Mode, XdpConfig, XdpIo};
use starling_netns::{NamespaceGuard, Pair, Shape, inside, run};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(60);

fn bind(net: &Pair, address: &str) -> Result<XdpIo, IoError> {
    inside(&net.a, || XdpIo::bind(address, XdpConfig::default()))
}

#[track_caller]
fn assert_says(result: Result<XdpIo, IoError>, fault: Fault, texts: &[&str]) {
    let error = result.expect_err("it cannot be");
    let text = error.to_string();
    assert_eq!(error.fault, fault, "{text}");
    for expected in texts {
        assert!(text.contains(expected), "{expected:?} is not in: {text}");
    }
}

/// Whether the interface `va` has an XDP program.
fn has_program(net: &Pair) -> bool {
    va_shows(net, "prog/xdp")
}

/// Whether `ip` says this of the interface `va`.
fn va_shows(net: &Pair, text: &str) -> bool {
    let output = inside(&net.a, || {
        Command::new("ip").args(["link", "show", "va"]).output()
    });
    String::from_utf8_lossy(&output.expect("iproute2").stdout).contains(text)
}

#[track_caller]
fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_queues_that_are_on_count() {
    let Some(net) = Net::new("only_queues_that_are_on_count") else {
        return;
    };
    // Without numbers a veth interface could have a queue for each core, and has one on.
    for line in [
        "ip link add vx type veth peer name vy",
        "ip link add wx numrxqueues 2 numtxqueues 2 type veth peer name wy",
        // As many receive as the other end sends by.
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
fn what_cannot_be_says_what_to_do() {
    let Some(net) = Net::new("what_cannot_be_says_what_to_do") else {
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

    let mut first = bind(&net, "xdp://va/0.0.0.0:0").expect("the first");
    // Also what has another address, or none.
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
fn generic_mode_works_and_is_told() {
    let Some(net) = Net::new("generic_mode_works_and_is_told") else {
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
    // Any program will do; that of another test is one that lets everything pass.
    let object = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../io-udp/tests/bpf/mark.bpf.o"
    );
    let attach = format!("ip link set dev va xdpdrv object {object} section xdp");
    if let Err(problem) = run(&net.a, &attach) {
        println!(
            "skipped: another_program_on_the_interface_is_named needs an `ip` that loads programs ({problem})"
        );
        return;
    }
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:0"),
        Fault::Host,
        &["mark_xdp", "id ", "ip link set dev va xdp off"],
    );
}

/// Opens peers of each other, and exchanges datagrams until both go past the kernel.
fn acquaint(a: &mut XdpIo, b: &mut XdpIo) -> (PeerId, PeerId) {
    let address = |of: &XdpIo, name: &str| format!("xdp://{name}/{}", of.local_socket_address());
    let to_b = a.open_peer(&address(b, "va")).expect("a route");
    let to_a = b.open_peer(&address(a, "vb")).expect("a route");
    exchange(a, b, to_b);
    exchange(b, a, to_a);
    (to_b, to_a)
}

fn send(device: &mut XdpIo, to: PeerId, text: &[u8]) {
    let tx = device.split().1;
    tx.append(to, PREAMBLE, text, b"", b"").expect("room");
    tx.seal(to);
    tx.flush().expect("a healthy device");
}

fn exchange(from: &mut XdpIo, to: &mut XdpIo, peer: PeerId) {
    send(from, peer, b"a datagram");
    assert_eq!(receive(to, 1)[0].bytes, b"preamblea datagram");
}

/// Sends until something arrives: for links that lose while they come up.
fn exchange_until_heard(from: &mut XdpIo, to: &mut XdpIo, peer: PeerId) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "nothing gets through");
        send(from, peer, b"again");
        to.wait(Some(Duration::from_millis(20)))
            .expect("a healthy device");
        if to.split().0.rx_burst().expect("a healthy device") > 0 {
            break;
        }
    }
    // What is left of the attempts.
    while to.split().0.rx_burst().expect("a healthy device") > 0 {}
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
            // More than there are slots: what cannot leave is refused or lost, and no harm done.
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

/// With an interface the kernel forgets its neighbours, and says so of each before it says that the
/// interface is gone: more news than a socket has room for.
#[test]
fn an_interface_with_many_neighbours_is_missed_when_it_is_removed() {
    let test = "an_interface_with_many_neighbours_is_missed_when_it_is_removed";
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
fn an_interface_that_is_removed_is_an_error_to_who_sleeps_and_who_does_not() {
    let test = "an_interface_that_is_removed_is_an_error_to_who_sleeps_and_who_does_not";
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
    // Both ends are gone; new ones do.
    net.join(Shape::default()).expect("as before");
    let (mut a, mut b) = (
        net.at_a("xdp://va/0.0.0.0:0"),
        net.at_b("xdp://vb/0.0.0.0:0"),
    );
    acquaint(&mut a, &mut b);
}

#[test]
fn an_interface_that_is_not_what_it_was_is_an_error_to_who_sleeps_and_who_does_not() {
    let test = "an_interface_that_is_not_what_it_was_is_an_error_to_who_sleeps_and_who_does_not";
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
            // What changes nothing for it.
            run(&net.b, "ip link set vb txqueuelen 900").expect("it is there");
            let user = std::thread::spawn(move || {
                let begun = Instant::now();
                loop {
                    let pause = if sleeps { PATIENCE } else { Duration::ZERO };
                    let turn = device.split().0.rx_burst();
                    if let Err(error) = turn.and_then(|_| device.wait(Some(pause))) {
                        return error;
                    }
                    assert!(begun.elapsed() < PATIENCE, "it never hears of it");
                }
            });
            run(&net.b, &format!("ip link set vb {change}")).expect("it is there");
            let error = user.join().expect("no panic");
            assert_eq!(error.fault, Fault::Host);
            let text = error.to_string();
            assert!(text.contains(problem) && text.contains("vb"), "{text}");
            // A new one takes it as it is.
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
fn a_neighbour_with_another_address_is_found_again() {
    let Some(net) = Net::new("a_neighbour_with_another_address_is_found_again") else {
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
    // Unless the kernel sees that, it believes for up to 45 s what it has heard of its neighbour.
    wait_until(|| va_shows(&net, "DOWN mode"));
    run(&net.b, "ip link set vb address 02:00:00:00:00:99").expect("it is there");
    run(&net.b, "ip link set vb up").expect("it is there");
    // A process that another test starts right now may hold the port until it has become itself.
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
fn fragments_and_strangers_come_by_the_kernel() {
    let Some(net) = Net::new("fragments_and_strangers_come_by_the_kernel") else {
        return;
    };
    let mut a = net.at_a("xdp://va/0.0.0.0:0");
    let address = a.local_socket_address();
    let socket = inside(&net.b, || std::net::UdpSocket::bind("10.77.0.2:0")).expect("its address");
    let large = vec![7; 4000];
    for round in 0..10 {
        // Larger than the MTU: three fragments, which only the kernel puts together.
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
fn what_is_for_others_is_left_to_them() {
    let Some(net) = Net::new("what_is_for_others_is_left_to_them") else {
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

/// Tells a process of this test what it has to be: a device at this address.
const DEVICE: &str = "STARLING_XDP_TEST_DEVICE";

/// Not a test but what others run: has a device, with workers, and answers all with what it is
/// sent, until it is killed.
#[test]
fn a_device_in_this_process() {
    let Some(address) = std::env::var_os(DEVICE) else {
        return;
    };
    let address = address.to_str().expect("text");
    let mut device = XdpIo::bind(address, XdpConfig::default()).expect(address);
    let _workers = device
        .steer(3, 2, &common::TABLE)
        .expect("sockets of workers");
    println!("\nbound {}", device.local_address());
    loop {
        device.wait(None).expect("a healthy device");
        let (rx, tx) = device.split();
        for index in 0..rx.rx_burst().expect("a healthy device") {
            let Datagram { source, bytes, .. } = rx.datagram(index);
            let to = match source {
                Source::Peer(peer) => peer,
                Source::Unknown(stranger) => tx.accept_peer(stranger).expect("room"),
            };
            let text = bytes.strip_prefix(PREAMBLE).expect("a test's");
            tx.append(to, PREAMBLE, text, b"", b"").expect("room");
            tx.seal(to);
        }
        tx.flush().expect("a healthy device");
    }
}

/// A process with a device in `a`.
struct Other(std::process::Child);

impl Other {
    fn new(net: &Pair, address: &str) -> Self {
        Self::start(net, address).expect("it says that it is bound")
    }

    /// None: it cannot have the address or the queue.
    fn start(net: &Pair, address: &str) -> Option<Self> {
        let mut command = Command::new(std::env::current_exe().expect("this test has a path"));
        command
            .args(["a_device_in_this_process", "--exact", "--nocapture"])
            .env(DEVICE, address)
            .stdout(Stdio::piped());
        let mut child = inside(&net.a, || command.spawn()).expect("it can be run again");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let bound = output
            .lines()
            .map_while(Result::ok)
            .find(|line| line.starts_with("bound "));
        let other = Self(child);
        bound.map(|_| other)
    }
}

impl Drop for Other {
    /// Killed, with no chance to clean up.
    fn drop(&mut self) {
        self.0
            .kill()
            .and_then(|()| self.0.wait())
            .expect("it is ours");
    }
}

#[test]
fn the_program_goes_with_the_last_process_that_is_killed() {
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let Some(net) = Net::with_shape(
        "the_program_goes_with_the_last_process_that_is_killed",
        shape,
    ) else {
        return;
    };
    assert!(!has_program(&net));
    let first = Other::new(&net, "xdp://va/0.0.0.0:9000");
    assert!(has_program(&net));
    let second = Other::new(&net, "xdp://va/0.0.0.0:9001?queue=1");
    assert_says(
        bind(&net, "xdp://va/0.0.0.0:9002"),
        Fault::Host,
        &["another process has an AF_XDP socket on the queue"],
    );
    drop(first);
    assert!(has_program(&net), "the other process has it, too");
    // The queue is free again, and works for the next.
    wait_until(|| bind(&net, "xdp://va/0.0.0.0:9000").is_ok());
    let mut a = bind(&net, "xdp://va/0.0.0.0:9000").expect("as before");
    let mut b = net.at_b("xdp://vb/0.0.0.0:0");
    acquaint(&mut a, &mut b);
    drop(second);
    assert!(has_program(&net), "this process has it, too");
    drop(a);
    wait_until(|| !has_program(&net));
}

/// A device in `b` that calls a process in `a` by the same queue.
struct Caller {
    device: XdpIo,
    to: PeerId,
    calls: u32,
}

impl Caller {
    fn new(net: &Net, queue: u32, server: &str) -> Self {
        let mut device = net.at_b(&format!("xdp://vb/10.77.0.2:0?queue={queue}"));
        let to = device.open_peer(&format!("xdp://vb/{server}"));
        let to = to.expect("a route");
        Self {
            device,
            to,
            calls: 0,
        }
    }

    /// Sends a few datagrams, and has them back.
    fn call(&mut self) {
        let texts = [0; 4].map(|_| {
            self.calls += 1;
            self.calls.to_string()
        });
        for text in &texts {
            send(&mut self.device, self.to, text.as_bytes());
        }
        let mut answers = receive(&mut self.device, texts.len());
        // Until both know the way, some may overtake others.
        answers.sort_by_key(|answer| (answer.bytes.len(), answer.bytes.clone()));
        for (answer, text) in answers.iter().zip(texts) {
            assert_eq!(answer.source, Source::Peer(self.to));
            assert_eq!(answer.bytes, [&PREAMBLE[..], text.as_bytes()].concat());
        }
    }
}

#[test]
fn two_processes_serve_by_one_interface_and_one_outlives_the_other() {
    let test = "two_processes_serve_by_one_interface_and_one_outlives_the_other";
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let Some(net) = Net::with_shape(test, shape) else {
        return;
    };
    let servers = ["10.77.0.1:9000", "10.77.0.1:9001"];
    let addresses = [0, 1].map(|queue| format!("xdp://va/{}?queue={queue}", servers[queue]));
    let [first, _second] = addresses
        .each_ref()
        .map(|address| Other::new(&net, address));
    let [mut one, mut other] = [0, 1].map(|queue| {
        let mut caller = Caller::new(&net, queue, servers[queue as usize]);
        until_not_needed([&net.a, &net.b], || caller.call());
        caller
    });
    let before = [&net.a, &net.b].map(by_the_kernel);
    let is_over = AtomicBool::new(false);
    let calls = AtomicU32::new(0);
    std::thread::scope(|scope| {
        // However this ends, the other thread does.
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                other.call();
                calls.fetch_add(1, SeqCst);
            }
        });
        (0..200).for_each(|_| one.call());
        drop(first);
        // The other goes on.
        let goal = calls.load(SeqCst) + 200;
        wait_until(|| calls.load(SeqCst) >= goal);
    });
    let after = [&net.a, &net.b].map(by_the_kernel);
    assert_eq!(after, before, "both past the kernel, all the time");
    // The next on the queue is found by who called the last one. Until a process that another test
    // starts right now has become itself, it may hold the queue.
    let mut third = None;
    wait_until(|| {
        third = Other::start(&net, &addresses[0]);
        third.is_some()
    });
    (0..10).for_each(|_| one.call());
    (0..10).for_each(|_| other.call());
}

/// Says so when it goes.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn what_is_missing_is_named() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let Some(net) = Net::new("what_is_missing_is_named") else {
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
            // For the way home.
            set_capabilities(None, all).expect("they are permitted");
            result
        };
        std::thread::scope(|scope| scope.spawn(attempt).join().expect("no panic"))
    };
    let without = |lacking| bind_without(lacking, XdpConfig::default());
    // Other tests are not held to the limit: they have the capability.
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
    // Messages can be copied where there is no memory for them.
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
