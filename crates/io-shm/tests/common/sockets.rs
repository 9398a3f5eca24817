//! Sockets and memory of a peer that is not a device: it uses a device's socket directly, as the crate
//! documents it.

// Each test binary uses some of these.
#![allow(dead_code, unreachable_pub)]

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

pub const LINE_RING: u64 = 32 << 10;
pub const BULK_RING: u64 = 64 << 10;

pub fn page() -> u64 {
    rustix::param::page_size() as u64
}

pub fn memory(bytes: u64, seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// The seals of a message heap.
pub fn heap_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE
}

/// Memory of a size that is final.
pub fn sealed(bytes: u64) -> File {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    memory(bytes, seals)
}

pub fn sealed_memory() -> File {
    sealed(page() + 2 * (LINE_RING + BULK_RING))
}

pub fn hello() -> [u8; 24] {
    let mut hello = [0; 24];
    hello[..8].copy_from_slice(b"STRLshm\0");
    hello[8..10].copy_from_slice(&1u16.to_le_bytes());
    hello[12..16].copy_from_slice(&(BULK_RING as u32 / 4).to_le_bytes());
    hello[16..].copy_from_slice(&BULK_RING.to_le_bytes());
    hello
}

pub fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A hello that asks to reach another through the device.
pub fn hello_for(target: &[u8]) -> Vec<u8> {
    [&hello()[..], target].concat()
}

pub fn socket_address(address: &str) -> SocketAddrUnix {
    let bare = address.split_once('?').map_or(address, |(bare, _)| bare);
    let name = bare.replace("shm://", "starling-shm/");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

pub fn connect(address: &str) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, &socket_address(address)).unwrap();
    socket
}

pub fn send(socket: impl AsFd, message: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // The device may already have hung up.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags);
}

/// Far longer than a test waits.
const LINGER: Duration = Duration::from_secs(3600);

/// A TCP socket whose last `close` waits until the other end has read everything, or is gone.
pub fn slow_to_close() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    slow.set_nonblocking(true).unwrap();
    while slow.write(&[0; 64 << 10]).is_ok() {}
    slow.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&slow, Some(LINGER)).unwrap();
    (slow, other)
}
