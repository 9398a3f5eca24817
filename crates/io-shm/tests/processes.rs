//! Devices in two processes, one of which is killed or stopped.
//!
//! The other process runs this test binary too, with a role in its environment.

mod common;

use std::env;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use common::{Device, PREAMBLE, name};
use rustix::process::{
    Pid, Resource, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid,
};
use starling_io::{Fault, IoEvent, PacketIo, PacketTx, PeerGone, PeerId, PeerRefusal, TxError};
use starling_io_shm::{ShmConfig, ShmIo};

const ROLE: &str = "STARLING_TEST_ROLE";
/// So many peers a server refuses before it ends.
const REFUSED: u64 = 5_000;

const ADDRESS: &str = "STARLING_TEST_ADDRESS";

/// A child has a copy of all sockets until it runs its program: who starts one, and who needs a socket to be closed,
/// hold this.
static STARTING: Mutex<()> = Mutex::new(());

/// A child process, which is killed when the test ends, also by a panic.
struct Other(Child);

impl Other {
    fn start(role: &str, address: &str) -> Self {
        let _starting = STARTING.lock();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "other_process", "--nocapture"])
            .env(ROLE, role)
            .env(ADDRESS, address)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            // It runs on for a moment; this returns when it has stopped.
            let status = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
            assert!(status.is_some_and(|(_, status)| status.stopped()));
        }
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended or been killed already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process. Without a role it is a test that does nothing.
#[test]
fn other_process() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    let address = env::var(ADDRESS).unwrap();
    match role.as_str() {
        "echo" => {
            let mut device = Device::bind(&address, &ShmConfig::default());
            loop {
                let (from, datagram) = device.receive();
                device.send(from, &datagram);
            }
        }
        "one-more-file" => {
            let mut device = Device::bind(&address, &ShmConfig::default());
            // From now on, the lowest free number is the only one allowed.
            let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
            let mut limit = getrlimit(Resource::Nofile);
            limit.current = Some(free as u64 + 1);
            setrlimit(Resource::Nofile, limit).unwrap();
            loop {
                device.wait(None).unwrap();
            }
        }
        "no-more-files" => refuse_without_files(&address),
        "few-files" => serve_with_few_files(&address),
        "stream" => {
            let mut device = Device::client(&ShmConfig::default());
            let peer = device.open_peer(&address).unwrap();
            for number in 0u64.. {
                device.send(peer, &numbered(number));
            }
        }
        "messages" => {
            let mut device = Device::client(&ShmConfig {
                heap_bytes: 1 << 20,
                ..ShmConfig::default()
            });
            let peer = device.open_peer(&address).unwrap();
            let memory = device.memory();
            for number in 0u64.. {
                let message = memory.copy(&message(number));
                device.send_tail(peer, &message);
                device.event();
            }
        }
        "three-words" => {
            let mut device = Device::client(&ShmConfig::default());
            let peer = device.open_peer(&address).unwrap();
            for word in [b"one", b"two", b"six"] {
                device.send(peer, word);
            }
            // A part of a datagram, which the device must not deliver.
            let (_, tx) = device.split();
            tx.append(peer, PREAMBLE, b"never", b"flushed", b"")
                .unwrap();
            loop {
                device.wait(None).unwrap();
            }
        }
        role => panic!("no such role: {role}"),
    }
}

/// Ends when it has refused [`REFUSED`] peers.
fn refuse_without_files(address: &str) {
    let mut device = Device::bind(address, &ShmConfig::default());
    // From now on, no free number is allowed.
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(free as u64);
    setrlimit(Resource::Nofile, limit).unwrap();
    while device.report().count("peers_refused_files") != Some(REFUSED) {
        device.wait(None).unwrap();
    }
}

fn serve_with_few_files(address: &str) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(128);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut device = Device::bind(address, &ShmConfig::default());
    loop {
        let (from, datagram) = device.receive();
        // There are files left for others.
        let others: Vec<_> = (0..8).map(|_| std::fs::File::open("/dev/null")).collect();
        assert!(others.iter().all(Result::is_ok));
        device.send(from, &datagram);
    }
}

/// A datagram whose length and bytes follow from its number.
fn numbered(number: u64) -> Vec<u8> {
    let length = 8 + (number * 7919) as usize % 3000;
    let mut body = vec![number as u8; length];
    body[..8].copy_from_slice(&number.to_ne_bytes());
    body
}

/// A large message, whose bytes follow from its number.
fn message(number: u64) -> Vec<u8> {
    let mut message = numbered(number);
    message.resize(30_000 + number as usize % 30_000, number as u8);
    message
}

/// Opens the other process's device as soon as it exists.
fn open(client: &mut Device, address: &str) -> PeerId {
    loop {
        match client.open_peer(address) {
            Ok(peer) => return peer,
            Err(error) => assert_eq!(error.fault, Fault::Peer, "{error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

const fn gone(peer: PeerId) -> IoEvent {
    IoEvent::PeerGone(peer, PeerGone::Certain)
}

#[test]
fn a_killed_server_is_reported_and_can_be_replaced() {
    let address = name("killed-server");
    let mut client = Device::client(&ShmConfig::default());
    for _ in 0..3 {
        let mut server = Other::start("echo", &address);
        let peer = open(&mut client, &address);
        client.send(peer, b"are you there");
        assert_eq!(client.receive(), (peer, b"are you there".to_vec()));
        // The name is taken while the process lives, and free afterwards.
        assert!(ShmIo::bind(&address, ShmConfig::default()).is_err());
        server.kill();
        assert_eq!(client.wait_for_event(), gone(peer));
        let (_, tx) = client.split();
        assert_eq!(tx.append(peer, PREAMBLE, b"", b"", b""), Err(TxError::Gone));
        client.close_peer(peer);
        let _nobody_starts = STARTING.lock();
        drop(Device::bind(&address, &ShmConfig::default()));
        assert_eq!(client.open_peer(&address).unwrap_err().fault, Fault::Peer);
    }
}

/// The server could accept the connection, but not the file that comes with the hello.
#[test]
fn a_server_at_its_limit_of_files_refuses_as_full() {
    let address = name("one-more-file");
    let _server = Other::start("one-more-file", &address);
    let mut client = Device::client(&ShmConfig::default());
    let peer = open(&mut client, &address);
    let refused = PeerGone::Refused(PeerRefusal::Full);
    assert_eq!(client.wait_for_event(), IoEvent::PeerGone(peer, refused));
}

/// The server cannot even accept the connections, but for the files that it keeps for that.
#[test]
fn a_server_without_files_refuses_everybody_as_full_and_counts_them() {
    let address = name("no-more-files");
    let mut server = Other::start("no-more-files", &address);
    let mut client = Device::client(&ShmConfig::default());
    for _ in 0..REFUSED {
        let peer = open(&mut client, &address);
        let refused = PeerGone::Refused(PeerRefusal::Full);
        assert_eq!(client.wait_for_event(), IoEvent::PeerGone(peer, refused));
        client.close_peer(peer);
    }
    assert!(server.0.wait().unwrap().success());
}

/// Whether the server answers, or refuses the client as one too many.
fn is_served(client: &mut Device, peer: PeerId) -> bool {
    client.send(peer, b"hello");
    loop {
        if client.poll() != 0 {
            assert_eq!(client.take_received(), Some((peer, b"hello".to_vec())));
            return true;
        }
        if let Some(event) = client.event() {
            let refused = PeerGone::Refused(PeerRefusal::Full);
            assert_eq!(event, IoEvent::PeerGone(peer, refused));
            return false;
        }
        client.wait(None).unwrap();
    }
}

/// With a limit of 128 files, there are 80 places, and 16 heaps, of which one process may have 8. The
/// messages of the others arrive as well.
#[test]
fn peers_leave_a_quarter_of_the_files_to_others() {
    let address = name("few-files");
    let _server = Other::start("few-files", &address);
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let mut clients: Vec<Device> = (0..100).map(|_| Device::client(&config)).collect();
    let (mut served, mut gathered) = (0, 0);
    for client in &mut clients {
        let peer = open(client, &address);
        if !is_served(client, peer) {
            continue;
        }
        served += 1;
        // The welcome is in the socket.
        client.wait(Some(std::time::Duration::ZERO)).unwrap();
        let message = client.memory().copy(&[served; 5000]);
        client.send_tail(peer, &message);
        assert!(client.receive().1 == message);
        gathered += client.gathered();
    }
    assert_eq!((served, gathered), (80, 8));
}

#[test]
fn a_process_has_no_more_places_than_one_process_may_have() {
    let address = name("one-process");
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        max_peers_of_one: 2,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&address, &config);
    let mut clients = [0, 1, 2].map(|_| Device::client(&config));
    let [peer, _, third] = clients.each_mut().map(|client| {
        let peer = client.open_peer(&address).unwrap();
        client.send(peer, b"hello");
        peer
    });
    for _ in 0..2 {
        assert_eq!(server.receive().1, b"hello");
    }
    let refused = PeerGone::Refused(PeerRefusal::Full);
    let event = IoEvent::PeerGone(third, refused);
    assert_eq!(clients[2].wait_for_event(), event);
    let _other = Other::start("three-words", &address);
    assert_eq!(server.receive().1, b"one");
    assert_eq!(server.report().count("peers_refused"), Some(1));
    // A place that the process gives back is its own again.
    clients[0].close_peer(peer);
    let IoEvent::PeerGone(left, PeerGone::Certain) = server.wait_for_event() else {
        panic!("another event");
    };
    server.close_peer(left);
    clients[2].close_peer(third);
    let again = clients[2].open_peer(&address).unwrap();
    clients[2].send(again, b"again");
    while server.receive().1 != b"again" {}
}

#[test]
fn a_busy_device_also_notices_a_killed_peer() {
    let address = name("killed-busy");
    let mut client = Device::client(&ShmConfig::default());
    let mut server = Other::start("echo", &address);
    let peer = open(&mut client, &address);
    client.send(peer, b"x");
    client.receive();
    server.kill();
    loop {
        assert_eq!(client.poll(), 0);
        if let Some(event) = client.poll_event() {
            assert_eq!(event, gone(peer));
            break;
        }
    }
}

#[test]
fn datagrams_published_before_a_peers_death_are_delivered_first() {
    let address = name("last-words");
    let mut server = Device::bind(&address, &ShmConfig::default());
    let mut client = Other::start("three-words", &address);
    let (from, first) = server.receive();
    assert_eq!(first, b"one");
    // The other two datagrams are published or will be. Then the process dies abruptly.
    assert_eq!(server.receive().1, b"two");
    assert_eq!(server.receive().1, b"six");
    client.kill();
    assert_eq!(server.wait_for_event(), gone(from));
    assert_eq!(server.poll(), 0);
}

#[test]
fn a_client_killed_in_the_middle_of_a_stream_leaves_whole_datagrams() {
    let address = name("killed-stream");
    let mut server = Device::bind(&address, &ShmConfig::default());
    for round in 0..8u64 {
        let mut client = Other::start("stream", &address);
        let mut next = 0;
        while next < 100 + round * 97 {
            let (_, datagram) = server.receive();
            assert_eq!(datagram, numbered(next));
            next += 1;
        }
        client.kill();
        // Published datagrams are whole and in order. Then comes the event, once.
        let IoEvent::PeerGone(peer, PeerGone::Certain) = server.wait_for_event() else {
            panic!("another event");
        };
        while let Some((from, datagram)) = server.take_received() {
            assert_eq!((from, datagram), (peer, numbered(next)));
            next += 1;
        }
        assert_eq!(server.event(), None);
        server.close_peer(peer);
    }
}

/// The client's heap is small: it uses memory again all the time.
#[test]
fn what_a_killed_client_has_in_its_heap_is_delivered_whole() {
    let address = name("killed-messages");
    let mut server = Device::bind(&address, &ShmConfig::default());
    for round in 0..4u64 {
        let mut client = Other::start("messages", &address);
        let mut next = 0;
        while next < 200 + round * 97 {
            let (_, datagram) = server.receive();
            assert!(datagram == message(next), "{next}");
            next += 1;
        }
        client.kill();
        let IoEvent::PeerGone(peer, PeerGone::Certain) = server.wait_for_event() else {
            panic!("another event");
        };
        while let Some((from, datagram)) = server.take_received() {
            assert!(from == peer && datagram == message(next), "{next}");
            next += 1;
        }
        server.close_peer(peer);
    }
}

#[test]
fn a_stopped_peer_fills_its_ring_and_affects_no_other_peer() {
    let address = name("stopped");
    let other_address = name("not-stopped");
    let stopped = Other::start("echo", &address);
    let _running = Other::start("echo", &other_address);
    let mut client = Device::client(&ShmConfig::default());
    let peer = open(&mut client, &address);
    let running = open(&mut client, &other_address);
    client.send(peer, b"awake");
    assert_eq!(client.receive().1, b"awake");
    stopped.signal(Signal::STOP);
    let body = vec![5; 10_000];
    let mut sent = 0;
    loop {
        let (_, tx) = client.split();
        match tx.append(peer, PREAMBLE, &[], &body, &[]) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, TxError::Full);
                break;
            }
        }
        tx.flush().unwrap();
    }
    for round in 0..100u8 {
        client.send(running, &[round]);
        let (from, datagram) = client.receive();
        assert_eq!((from, datagram), (running, vec![round]));
    }
    assert_eq!(client.event(), None);
    stopped.signal(Signal::CONT);
    for _ in 0..sent {
        let (from, datagram) = client.receive();
        assert!(from == peer && datagram == body);
    }
}
