//! Sockets, files and rings that break the rules of the device, at the service and at its control interface.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::SealFlags;

use crate::common::LONG;
use crate::scene::Scene;
use crate::shm::PREAMBLE;
use crate::shm::hostile_peer::{
    BULK, BULK_RING, HEAP_BYTES, HostileHeap, HostilePeer, LINE_RING, MORE, VALID,
};
use crate::sockets::{connect, heap_seals, hello, hello_for, memory, page, sealed_memory, send};

/// Where nobody listens. No datagram of these tests is a request for it.
const NOBODY: &str = "udp://127.0.0.1:9";

/// Codes of refusals.
const WELCOME: u32 = 0;
const BAD_HELLO: u32 = 1;
const OTHER_VERSION: u32 = 2;
const BAD_RING: u32 = 3;
const BAD_MEMORY: u32 = 4;
const TAKES_NO_TARGETS: u32 = 7;

impl Scene {
    /// The addresses of the service's own devices, and a hello that each accepts.
    fn devices(&self) -> [(String, Vec<u8>); 2] {
        let service = format!("shm://{}", self.mesh.name);
        [
            (service, hello_for(NOBODY.as_bytes())),
            (self.mesh.control(), hello().to_vec()),
        ]
    }
}

/// Whether the service hangs up.
fn was_cut_off(socket: impl AsFd) -> bool {
    let timeout = Timespec {
        tv_sec: LONG.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut look = [PollFd::new(&socket, PollFlags::empty())];
    let ready = poll(&mut look, Some(&timeout)).expect("it can be polled");
    ready == 1 && look[0].revents().contains(PollFlags::HUP)
}

/// A connection that the service has accepted.
fn connected(address: &str, hello: &[u8]) -> HostilePeer {
    let mut peer = HostilePeer::connecting(address, hello);
    assert_eq!(peer.answer(), Some(WELCOME), "{address}");
    peer
}

/// The service refuses a hello, says why, and hangs up.
fn check_refused(address: &str, message: &[u8], files: &[BorrowedFd<'_>], code: u32) {
    let socket = connect(address);
    send(&socket, message, files);
    let mut peer = HostilePeer {
        socket: socket.into(),
        memory: File::open("/dev/null").expect("it is there"),
    };
    assert_eq!(peer.answer(), Some(code), "{address} {message:?}");
    assert!(was_cut_off(&peer.socket));
}

#[test]
fn hellos_and_files_of_the_wrong_kind_are_refused_with_the_reason() {
    let scene = Scene::begin();
    let right = sealed_memory();
    let bytes = right.metadata().expect("a size").len();
    let (file, seals) = (
        right.as_fd(),
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    );
    let (reader, pipe) = std::io::pipe().expect("a pipe");
    let (socket, other) = UnixStream::pair().expect("two sockets");
    let unsealed = memory(bytes, SealFlags::empty());
    let too_short = memory(bytes - 1, seals);
    let can_shrink = memory(bytes, seals - SealFlags::SHRINK);
    let read_only = memory(bytes, seals | SealFlags::WRITE);
    let [zeros, own] = ["/dev/zero", "/proc/self/exe"].map(|path| File::open(path).expect(path));
    let directory = File::open("/").expect("a directory");
    let wrong = [
        pipe.as_fd(),
        socket.as_fd(),
        unsealed.as_fd(),
        too_short.as_fd(),
        can_shrink.as_fd(),
        read_only.as_fd(),
        zeros.as_fd(),
        own.as_fd(),
        directory.as_fd(),
    ];
    scene.during(|| {
        for (address, hello) in scene.devices() {
            for wrong in wrong {
                check_refused(&address, &hello, &[wrong], BAD_MEMORY);
            }
            check_refused(&address, b"GET / HTTP/1.1\r\n\r\n", &[], BAD_HELLO);
            check_refused(&address, &[], &[file], BAD_HELLO);
            check_refused(&address, &hello[..23], &[file], BAD_HELLO);
            check_refused(&address, &hello, &[], BAD_HELLO);
            check_refused(&address, &hello, &[file; 2], BAD_HELLO);
            check_refused(&address, &hello, &[file; 200], BAD_HELLO);
            check_refused(&address, &[7; 100_000], &[file], BAD_HELLO);
            check_refused(&address, &hello_for(&[b'x'; 513]), &[file], BAD_HELLO);
            check_refused(&address, &hello_for(b"udp://\xff\xfe"), &[file], BAD_HELLO);
            let change = |at: usize, to: &[u8], code| {
                let mut hello = hello.clone();
                hello[at..at + to.len()].copy_from_slice(to);
                check_refused(&address, &hello, &[file], code);
            };
            change(8, &[9], OTHER_VERSION);
            change(16, &(1_u64 << 40).to_le_bytes(), BAD_RING);
            change(16, &(2 * BULK_RING).to_le_bytes(), BAD_MEMORY);
            change(12, &u32::MAX.to_le_bytes(), BAD_HELLO);
        }
        // Only the service itself calls on.
        let hello = hello_for(NOBODY.as_bytes());
        check_refused(&scene.mesh.control(), &hello, &[file], TAKES_NO_TARGETS);
    });
    drop((reader, pipe, socket, other, zeros, own, directory));
    drop((right, unsealed, too_short, can_shrink, read_only));
    scene.check_nothing_left();
}

/// More than the service keeps of each kind.
const HALF_OPEN: usize = 200;

#[test]
fn sockets_that_are_half_open_keep_nobody_out_and_leave_nothing() {
    let scene = Scene::begin();
    scene.during(|| {
        for (address, hello) in scene.devices() {
            // Connected, and silent; the first part of a hello is a wrong one, for hellos come whole.
            let silent: Vec<OwnedFd> = (0..HALF_OPEN).map(|_| connect(&address)).collect();
            let part = connect(&address);
            send(&part, &hello[..10], &[]);
            assert!(was_cut_off(&part));
            // Whole, and no datagram after it.
            let idle: Vec<HostilePeer> = (0..HALF_OPEN / 4)
                .map(|_| connected(&address, &hello))
                .collect();
            scene.check();
            drop((silent, part, idle));
            // One end of the socket is shut, in each direction.
            for how in [rustix::net::Shutdown::Read, rustix::net::Shutdown::Write] {
                let peer = connected(&address, &hello);
                peer.publish(0, b"nonsense");
                rustix::net::shutdown(&peer.socket, how).expect("it is open");
                scene.check();
            }
        }
    });
    scene.check_nothing_left();
}

/// Bytes that are the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn rings_with_garbage_cut_their_peer_off_and_no_other() {
    let scene = Scene::begin();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    scene.during(|| {
        for (address, hello) in scene.devices() {
            let too_long = VALID | BULK | (BULK_RING as u32 / 4 + 1);
            for header in [
                1,
                VALID,
                VALID | 0x1ff_ffff,
                VALID | BULK,
                too_long,
                u32::MAX,
            ] {
                let peer = connected(&address, &hello);
                peer.publish(0, b"decent so far");
                peer.write(64, &header.to_ne_bytes());
                wake(&peer);
                assert!(was_cut_off(&peer.socket), "{header:#x}");
            }
            // Whole rings, and all memory, of any bytes: heads and sleep words, too.
            for _ in 0..8 {
                let peer = connected(&address, &hello);
                peer.write(0, &noise.bytes((LINE_RING + BULK_RING) as usize));
                wake(&peer);
                assert!(was_cut_off(&peer.socket), "a header of all is wrong");
                let peer = connected(&address, &hello);
                peer.publish(0, b"decent so far");
                overwrite(&peer, &noise.bytes(page() as usize));
                wake(&peer);
            }
            // As many datagrams as fit, of garbage behind a right preamble and behind none.
            let peer = connected(&address, &hello);
            for line in 0..LINE_RING / 64 {
                let length = noise.next() as usize % 50;
                let body = noise.bytes(length);
                peer.publish(line, &body);
                let length = PREAMBLE.len() + body.len();
                let more = if noise.next().is_multiple_of(2) {
                    MORE
                } else {
                    0
                };
                peer.write(64 * line, &(VALID | more | length as u32).to_ne_bytes());
            }
            wake(&peer);
        }
    });
    scene.check_nothing_left();
}

/// Has the service look at a peer's rings, if it sleeps.
fn wake(peer: &HostilePeer) {
    send(&peer.socket, &[1], &[]);
}

/// Overwrites what stands in front of the rings: heads and sleep words.
fn overwrite(peer: &HostilePeer, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    (peer.memory.write_all_at(bytes, 0)).expect("it is the peer's own");
}

#[test]
fn descriptors_of_nothing_cut_their_peer_off_and_overlapping_ones_are_only_bytes() {
    let scene = Scene::begin();
    let heap = HostileHeap::new();
    let right = memory(HEAP_BYTES, heap_seals());
    let unsealed = memory(HEAP_BYTES, SealFlags::empty());
    let (reader, pipe) = std::io::pipe().expect("a pipe");
    scene.during(|| {
        for (address, hello) in scene.devices() {
            for (bytes, file) in [
                (HEAP_BYTES, pipe.as_fd()),
                (HEAP_BYTES, unsealed.as_fd()),
                (2 * HEAP_BYTES, right.as_fd()),
                (u64::MAX, right.as_fd()),
            ] {
                let peer = connected(&address, &hello);
                peer.send_heap(bytes, &[file]);
                assert!(was_cut_off(&peer.socket), "{bytes}");
            }
            for (at, bytes) in [
                (0, 0),
                (HEAP_BYTES, 1),
                (HEAP_BYTES - 99, 100),
                (u64::MAX - 50, 100),
                (0, u32::MAX),
            ] {
                let peer = connected(&address, &hello);
                peer.send_heap(HEAP_BYTES, &[heap.file.as_fd()]);
                peer.publish_lent(0, at, bytes);
                wake(&peer);
                assert!(was_cut_off(&peer.socket), "{at} {bytes}");
            }
            // The same bytes many times, in each other, while they change.
            let peer = connected(&address, &hello);
            peer.send_heap(HEAP_BYTES, &[heap.file.as_fd()]);
            for line in 0..LINE_RING / 64 {
                peer.publish_lent(line, line % 100, 5_000);
                heap.write(line % 100, &line.to_le_bytes());
            }
            wake(&peer);
            scene.check();
        }
    });
    drop((heap, right, unsealed, reader, pipe));
    scene.check_nothing_left();
}

/// For this long memory changes while the service reads it.
const CHANGING: Duration = Duration::from_millis(300);

#[test]
fn rings_that_change_while_they_are_read_harm_nobody() {
    let scene = Scene::begin();
    scene.during(|| {
        for (address, hello) in scene.devices() {
            let mut noise = Noise(7);
            let begun = std::time::Instant::now();
            let mut cut_off = 0;
            while begun.elapsed() < CHANGING {
                let peer = connected(&address, &hello);
                for line in 0..LINE_RING / 64 {
                    peer.publish(line, b"decent");
                    wake(&peer);
                    // The record that may be read just now: its bytes, then its header.
                    peer.write(64 * line + 4, &noise.bytes(60));
                    peer.write(64 * line, &(VALID | 50).to_ne_bytes());
                }
                peer.write(0, &u32::MAX.to_ne_bytes());
                wake(&peer);
                cut_off += usize::from(was_cut_off(&peer.socket));
            }
            assert!(cut_off > 0);
        }
    });
    scene.check_nothing_left();
}
