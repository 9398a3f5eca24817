//! Several processes with devices on one interface, and processes that are killed.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use common::steps::{acquaint, assert_says, bind, has_program, send, wait_until};
use common::{Net, PREAMBLE, by_the_kernel, receive, until_not_needed};
use starling_io::{Datagram, Fault, PacketIo, PacketRx, PacketTx, PeerId, Source};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Pair, Shape, inside};

/// The variable that tells a process of this test to have a device at an address.
const DEVICE: &str = "STARLING_XDP_TEST_DEVICE";

/// Not a test, but the process that other tests start: it has a device with workers, and sends
/// everything back until it is killed.
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
                Source::Unknown(address) => tx.accept_peer(address).expect("room"),
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

    /// None if it cannot have the address or the queue.
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
    /// Kills the process, which has no chance to clean up.
    fn drop(&mut self) {
        self.0
            .kill()
            .and_then(|()| self.0.wait())
            .expect("it is ours");
    }
}

#[test]
fn the_program_is_detached_with_the_last_process() {
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let Some(net) = Net::with_shape("the_program_is_detached_with_the_last_process", shape) else {
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

/// A device in `b` that exchanges datagrams with a process in `a` by the same queue.
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

    /// Sends a few datagrams, and receives them back.
    fn call(&mut self) {
        let texts = [0; 4].map(|_| {
            self.calls += 1;
            self.calls.to_string()
        });
        for text in &texts {
            send(&mut self.device, self.to, text.as_bytes());
        }
        let mut answers = receive(&mut self.device, texts.len());
        // Until both know the next hop, some may overtake others.
        answers.sort_by_key(|answer| (answer.bytes.len(), answer.bytes.clone()));
        for (answer, text) in answers.iter().zip(texts) {
            assert_eq!(answer.source, Source::Peer(self.to));
            assert_eq!(answer.bytes, [&PREAMBLE[..], text.as_bytes()].concat());
        }
    }
}

#[test]
fn two_processes_share_an_interface_and_one_outlives_the_other() {
    let test = "two_processes_share_an_interface_and_one_outlives_the_other";
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
        // Ends the other thread, however this one ends.
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                other.call();
                calls.fetch_add(1, SeqCst);
            }
        });
        (0..200).for_each(|_| one.call());
        drop(first);
        // The other process goes on.
        let goal = calls.load(SeqCst) + 200;
        wait_until(|| calls.load(SeqCst) >= goal);
    });
    let after = [&net.a, &net.b].map(by_the_kernel);
    assert_eq!(after, before, "both past the kernel, all the time");
    // The caller finds the next process on the queue. A process that another test forks right now
    // may hold the queue until its exec.
    let mut third = None;
    wait_until(|| {
        third = Other::start(&net, &addresses[0]);
        third.is_some()
    });
    (0..10).for_each(|_| one.call());
    (0..10).for_each(|_| other.call());
}

/// Sets the flag when it is dropped.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
