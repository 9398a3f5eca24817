//! Processes of other users. They are this test's binary too, with a role in their environment.

mod common;

use std::env;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Device, name};
use starling_io::{Fault, IoEvent, PacketIo, PeerGone, PeerId, PeerRefusal};
use starling_io_shm::ShmConfig;

const ROLE: &str = "STARLING_TEST_ROLE";
const ADDRESS: &str = "STARLING_TEST_ADDRESS";

/// A user who owns nothing here.
const STRANGER: u32 = 23_456;

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
    let refused = PeerGone::Refused(PeerRefusal::NotPermitted);
    assert_eq!(
        talk(&mut client, peer),
        Some(IoEvent::PeerGone(peer, refused))
    );
}
