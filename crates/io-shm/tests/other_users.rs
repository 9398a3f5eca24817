//! Processes of other users. They are this test's binary too, with a role in their environment.

mod common;

use std::env;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use common::hostile_peer::{HostileServer, connect, hello, send, slow_to_close};
use common::{Device, name};
use starling_io::{IoEvent, PacketIo, PeerGone, PeerId, PeerRefusal};
use starling_io_shm::ShmConfig;
use starling_io_testing::PATIENCE;

const ROLE: &str = "STARLING_TEST_ROLE";
const ADDRESS: &str = "STARLING_TEST_ADDRESS";

/// A user who owns nothing here.
const STRANGER: u32 = 23_456;

/// So many connections a stranger makes at once.
const CROWD: u64 = 100;

/// A child process, which is killed when the test ends, also by a panic.
struct Other {
    process: Child,
    output: ChildStdout,
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended or been killed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// This binary in a role, run by `program` if that is not empty.
fn other(program: &[&str], role: &str, address: &str) -> Command {
    let own = env::current_exe().unwrap();
    let mut command = match program {
        [] => Command::new(own),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(own);
            command
        }
    };
    command
        .args(["--exact", "other_process", "--nocapture"])
        .env(ROLE, role)
        .env(ADDRESS, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Starts the other process and waits until it says that it is ready; `None` if it cannot start.
fn start(mut command: Command) -> Option<Other> {
    let mut process = command.spawn().ok()?;
    let output = process.stdout.take().expect("it is piped");
    let mut other = Other { process, output };
    other.says("ready").then_some(other)
}

impl Other {
    /// Waits until the process says this. False if it ends first.
    fn says(&mut self, what: &str) -> bool {
        let mut said = Vec::new();
        while !said.ends_with(format!("{what}\n").as_bytes()) {
            let mut byte = [0];
            if self.output.read(&mut byte).unwrap() == 0 {
                return false;
            }
            said.push(byte[0]);
        }
        true
    }
}

const fn refused(peer: PeerId) -> IoEvent {
    IoEvent::PeerGone(peer, PeerGone::Refused(PeerRefusal::NotPermitted))
}

/// This binary in a role, as another user; `None` if that is not possible.
fn start_stranger(role: &str, address: &str) -> Option<Other> {
    let mut command = other(&[], role, address);
    command.uid(STRANGER);
    start(command)
}

/// What comes of talking to a server that echoes: the event, or none if it answers.
fn talk(client: &mut Device, peer: PeerId) -> Option<IoEvent> {
    client.send(peer, b"let me in");
    loop {
        if client.poll() != 0 {
            return None;
        }
        if let Some(event) = client.event() {
            return Some(event);
        }
        client.wait(None).unwrap();
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
        "serve" => {
            let mut device = Device::bind(&address, &ShmConfig::default());
            println!("ready");
            loop {
                let (from, datagram) = device.receive();
                device.send(from, &datagram);
            }
        }
        "knock" => {
            let mut client = Device::client(&ShmConfig::default());
            for _ in 0..200 {
                let peer = client.open_peer(&address).unwrap();
                assert_eq!(talk(&mut client, peer), Some(refused(peer)));
                client.close_peer(peer);
            }
            println!("ready");
        }
        "slow-file" => {
            let (slow, _other_end) = slow_to_close();
            let socket = connect(&address);
            send(&socket, &hello(), &[slow.as_fd()]);
            drop(slow);
            println!("ready");
            // Until it is killed.
            let _ = std::io::stdin().read(&mut [0]);
        }
        "crowd" => {
            let _sockets: Vec<_> = (0..CROWD).map(|_| connect(&address)).collect();
            println!("ready");
            // Until it is killed.
            let _ = std::io::stdin().read(&mut [0]);
        }
        role => panic!("no such role: {role}"),
    }
}

/// In a user namespace without ids, the server and everybody else are the same number: that of all users
/// who have none there.
#[test]
fn users_without_an_id_in_a_namespace_are_not_the_same_user() {
    let address = name("unmapped");
    let Some(_server) = start(other(&["unshare", "--user"], "serve", &address)) else {
        println!(
            "skipped: users_without_an_id_in_a_namespace_are_not_the_same_user needs user namespaces"
        );
        return;
    };
    let config = ShmConfig {
        allow_other_users: true,
        ..ShmConfig::default()
    };
    let mut client = Device::client(&config);
    let peer = client.open_peer(&address).unwrap();
    assert_eq!(talk(&mut client, peer), Some(refused(peer)));
}

/// A server that refuses a peer as soon as it has connected, often before the peer has sent its hello.
#[test]
fn a_peer_that_is_refused_before_its_hello_learns_why() {
    const ROUNDS: usize = 200;
    let server = HostileServer::bind(&name("refused-early"));
    let address = server.address.clone();
    let refusing = thread::spawn(move || {
        for _ in 0..ROUNDS {
            server.refuse(6);
        }
    });
    let mut client = Device::client(&ShmConfig::default());
    for _ in 0..ROUNDS {
        let peer = client.open_peer(&address).unwrap();
        assert_eq!(talk(&mut client, peer), Some(refused(peer)));
        client.close_peer(peer);
    }
    refusing.join().unwrap();
}

/// The user of this test must be root, so that the stranger takes the server for one that it may talk to.
#[test]
fn another_users_client_always_learns_that_it_is_not_permitted() {
    let address = name("not-permitted");
    let mut server = Device::bind(&address, &ShmConfig::default());
    let (waker, is_over) = (server.waker(), Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    let serving = thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            server.wait(None).unwrap();
        }
        server
    });
    let knocked = start_stranger("knock", &address);
    is_over.store(true, Ordering::SeqCst);
    waker.wake();
    let server = serving.join().unwrap();
    if knocked.is_none() && !rustix::process::geteuid().is_root() {
        println!("skipped: another_users_client_always_learns_that_it_is_not_permitted needs root");
        return;
    }
    assert!(knocked.is_some(), "the client says why");
    assert_eq!(server.report().count("peers_not_permitted"), Some(200));
}

/// The other user's process has no copy of the file, and never reads what is in it.
#[test]
fn a_file_of_another_user_that_is_slow_to_close_does_not_stop_the_device() {
    let address = name("slow-stranger");
    let mut server = Device::bind(&address, &ShmConfig::default());
    let Some(stranger) = start_stranger("slow-file", &address) else {
        println!(
            "skipped: a_file_of_another_user_that_is_slow_to_close_does_not_stop_the_device needs root"
        );
        return;
    };
    let (done, is_done) = mpsc::channel();
    let waiting = thread::spawn(move || {
        server.wait(None).unwrap();
        let _ = done.send(server.report().count("peers_not_permitted"));
    });
    // Only a failing test waits. The end of the stranger then ends the wait of the server, too.
    let refused = is_done.recv_timeout(PATIENCE);
    drop(stranger);
    waiting.join().unwrap();
    assert_eq!(
        refused,
        Ok(Some(1)),
        "the dispatch thread waits for the peer"
    );
}

/// The other connections wait until the device has looked at its rings again.
#[test]
fn a_crowd_of_other_users_is_refused_a_few_at_a_time() {
    let address = name("crowd");
    let mut server = Device::bind(&address, &ShmConfig::default());
    let Some(_stranger) = start_stranger("crowd", &address) else {
        println!("skipped: a_crowd_of_other_users_is_refused_a_few_at_a_time needs root");
        return;
    };
    let mut refused = 0;
    while refused < CROWD {
        server.wait(None).unwrap();
        let so_far = server.report().count("peers_not_permitted").unwrap();
        assert!(
            (1..=4).contains(&(so_far - refused)),
            "{}",
            so_far - refused
        );
        refused = so_far;
    }
}
