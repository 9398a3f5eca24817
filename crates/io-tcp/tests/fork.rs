//! A process forks while it has devices: the child has their files, and not their connections.

mod common;

use std::io::{PipeWriter, Read};

use common::{client, connect, event, receive_one, send, server};
use rustix::process::{Pid, WaitOptions, waitpid};
use starling_io::{IoEvent, PacketIo, PeerGone};
use starling_io_tcp::TcpConfig;

/// A child of this process, which ends when this is dropped.
struct Child {
    process: Pid,
    /// The child waits until it is closed.
    ending: Option<PipeWriter>,
}

impl Child {
    /// Runs `act` in a fork of this process, and waits until it has.
    #[allow(unsafe_code, reason = "the C library's fork and exit")]
    fn fork(act: impl FnOnce()) -> Self {
        let (mut end, ending) = std::io::pipe().expect("descriptors");
        let (mut acts, acted) = std::io::pipe().expect("descriptors");
        // SAFETY: the child leaves by `_exit`; nothing of the parent's is unwound in it.
        let process = match unsafe { libc::fork() } {
            0 => {
                drop((ending, acts));
                let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
                drop(acted);
                let _ = end.read(&mut [0]);
                // SAFETY: it ends this process.
                unsafe { libc::_exit(i32::from(good.is_err())) }
            }
            process => Pid::from_raw(process).expect("a process"),
        };
        drop(acted);
        let read = acts.read(&mut [0]).expect("a pipe");
        assert_eq!(read, 0, "the child says nothing");
        Self {
            process,
            ending: Some(ending),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.ending.take());
        let ended = waitpid(Some(self.process), WaitOptions::empty());
        let (_, status) = ended.expect("a child").expect("it has ended");
        assert_eq!(status.exit_status(), Some(0));
    }
}

#[test]
fn a_child_ends_no_connection_of_its_parent_and_keeps_none_open() {
    let (server, client) = (server(&TcpConfig::default()), client());
    let (mut server, mut client) = (Some(server), Some(client));
    let to_server = connect(client.as_mut().unwrap(), server.as_ref().unwrap());
    send(client.as_mut().unwrap(), to_server, b"before");
    let (to_client, _) = receive_one(server.as_mut().unwrap());

    drop(Child::fork(|| drop((server.take(), client.take()))));
    let (mut server, mut client) = (server.expect("ours"), client.expect("ours"));
    send(&mut client, to_server, b"after");
    let received = receive_one(&mut server);
    assert_eq!(received, (to_client, b"after".to_vec()));
    send(&mut server, to_client, b"still there");
    assert_eq!(receive_one(&mut client).1, b"still there");

    let child = Child::fork(|| ());
    let address = server.local_address();
    drop(client);
    let gone = PeerGone::Certain;
    assert_eq!(event(&mut server), IoEvent::PeerGone(to_client, gone));
    drop(server);
    // Nobody listens there any more, although the child has the socket.
    let mut other = common::client();
    if let Ok(peer) = other.open_peer(&address) {
        assert_eq!(event(&mut other), IoEvent::PeerGone(peer, gone));
    }
    drop(child);
}
