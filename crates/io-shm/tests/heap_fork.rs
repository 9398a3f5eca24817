//! A process forks while messages are in its device's heap. The process has only one test, because
//! the child of a fork has one thread.

mod common;

use common::{Device, name};
use starling_io::PacketIo;
use starling_io_shm::ShmConfig;

/// Runs `child` in a fork of this process. Returns whether that returned true.
#[allow(unsafe_code, reason = "the C library's fork and exit")]
fn in_a_fork(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses what its only thread may use, and ends without the test harness.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            let is_fine = result.unwrap_or(false);
            // SAFETY: it ends this process.
            unsafe { libc::_exit(i32::from(!is_fine)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the status is a local variable.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

#[test]
fn the_child_of_a_fork_leaves_its_parents_heap_alone() {
    let config = ShmConfig {
        heap_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&name("fork"), &config);
    let mut client = Device::client(&config);
    let peer = client.open_peer(&server.local_address()).unwrap();
    client.send(peer, b"hello");
    server.receive();
    client.wait(None).unwrap();
    let memory = client.memory();
    let message = memory.copy(&[1; 40_000]);
    client.send_tail(peer, &message);
    assert_eq!(client.gathered(), 1);
    let inherited = message.clone();
    assert!(in_a_fork(|| {
        let can_read = inherited.iter().all(|&byte| byte == 1);
        // It gives back nothing that is the parent's ...
        drop(inherited);
        // ... and what it makes there is in memory of its own.
        let made: Vec<_> = (0..4).map(|_| memory.copy(&[2; 40_000])).collect();
        can_read && made.iter().all(|made| made.iter().all(|&byte| byte == 2))
    }));
    assert_eq!(server.receive().1, [1; 40_000]);
    assert_eq!(message, [1; 40_000][..]);
    client.send_tail(peer, &message);
    assert_eq!(server.receive().1, [1; 40_000]);
    assert_eq!(client.gathered(), 2);
}
