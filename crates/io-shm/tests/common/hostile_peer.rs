//! A peer that is not a device: it uses the device's socket and memory directly, as the crate documents
//! them.

use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr;

use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use starling_io::PacketIo;

pub use super::sockets::*;
use super::{Device, PREAMBLE};

pub const VALID: u32 = 1 << 31;
pub const MORE: u32 = 1 << 30;
pub const BULK: u32 = 1 << 29;
pub const HEAP: u32 = 1 << 28;
pub const HEAP_BYTES: u64 = 128 << 10;

/// A connection that the test makes without a device.
pub struct HostilePeer {
    pub socket: File,
    pub memory: File,
}

impl HostilePeer {
    /// Connects as an honest peer does, with this hello.
    pub fn connecting(address: &str, hello: &[u8]) -> Self {
        let memory = sealed_memory();
        let socket = connect(address);
        send(&socket, hello, &[memory.as_fd()]);
        Self {
            socket: socket.into(),
            memory,
        }
    }

    /// Connects as an honest peer does, and checks that the device accepts.
    pub fn connected(server: &mut Device) -> Self {
        let mut hostile = Self::connecting(&server.local_address(), &hello());
        server.wait(None).unwrap();
        assert_eq!(hostile.answer(), Some(0));
        hostile
    }

    /// The code of the answer; `None` if the device hung up without one.
    pub fn answer(&mut self) -> Option<u32> {
        let mut answer = [0; 16];
        // The kernel may first report once that the device has not received everything.
        let length = self
            .socket
            .read(&mut answer)
            .or_else(|_| self.socket.read(&mut answer));
        match length.unwrap_or(0) {
            16 => Some(u32::from_le_bytes(answer[12..].try_into().unwrap())),
            _ => None,
        }
    }

    /// Writes into the line ring that the device reads.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, page() + at).unwrap();
    }

    /// Publishes a datagram in one line.
    pub fn publish(&self, line: u64, body: &[u8]) {
        let record = [&PREAMBLE[..], body].concat();
        self.write(64 * line + 4, &record);
        let header = VALID | record.len() as u32;
        self.write(64 * line, &header.to_ne_bytes());
    }

    /// Publishes a datagram in one line, whose tail is in the hostile's heap.
    pub fn publish_lent(&self, line: u64, at: u64, bytes: u32) {
        let descriptor = [&at.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
        let record = [&PREAMBLE[..], &descriptor].concat();
        self.write(64 * line + 4, &record);
        let header = VALID | HEAP | record.len() as u32;
        self.write(64 * line, &header.to_ne_bytes());
    }

    pub fn send_heap(&self, bytes: u64, files: &[BorrowedFd<'_>]) {
        let message = [&b"STRLheap"[..], &bytes.to_le_bytes()].concat();
        send(&self.socket, &message, files);
    }

    /// Whether the device hangs up, after it has had a reason.
    pub fn was_cut_off(&mut self) -> bool {
        let mut message = [0; 16];
        // Doorbell messages may come before the end.
        (0..100_000).any(|_| self.socket.read(&mut message).unwrap_or(0) == 0)
    }
}

/// A message heap that its maker writes to while others read it. It stays mapped: a test has few.
pub struct HostileHeap {
    pub file: File,
    memory: *mut u8,
}

impl HostileHeap {
    #[allow(unsafe_code, reason = "a mapping from before the seals")]
    pub fn new() -> Self {
        let file = memory(HEAP_BYTES, SealFlags::empty());
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping replaces nothing.
        let memory = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                HEAP_BYTES as usize,
                access,
                flags,
                &file,
                0,
            )
        };
        rustix::fs::fcntl_add_seals(&file, heap_seals()).unwrap();
        Self {
            file,
            memory: memory.unwrap().cast(),
        }
    }

    #[allow(unsafe_code, reason = "as above")]
    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= HEAP_BYTES);
        // SAFETY: inside the mapping, which stays; the device reads it as memory that may change.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(at as usize), bytes.len());
        }
    }

    /// Bytes of memory that it takes.
    pub fn taken(&self) -> u64 {
        self.file.metadata().unwrap().blocks() * 512
    }
}

/// A name that is not a device's.
pub struct HostileServer {
    pub address: String,
    listener: OwnedFd,
}

impl HostileServer {
    pub fn bind(address: &str) -> Self {
        let listener = socket();
        rustix::net::bind(&listener, &socket_address(address)).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        Self {
            address: address.to_owned(),
            listener,
        }
    }

    /// Refuses the next peer with this code, perhaps before it has sent its hello.
    pub fn refuse(&self, code: u32) {
        let socket = rustix::net::accept(&self.listener).unwrap();
        let mut answer = [0; 16];
        answer[..10].copy_from_slice(b"STRLshm\0\x01\0");
        answer[12..].copy_from_slice(&code.to_le_bytes());
        send(&socket, &answer, &[]);
    }

    /// Accepts a peer that has sent its hello, and returns its memory.
    pub fn accept(&self) -> (OwnedFd, File) {
        let socket = rustix::net::accept(&self.listener).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (mut hello, flags) = ([0; 24], RecvFlags::CMSG_CLOEXEC);
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut hello)],
            &mut control,
            flags,
        )
        .unwrap();
        let mut files = control.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let memory = files.next().expect("the memory of the rings").into();
        drop(files);
        (socket, memory)
    }
}
