//! Files that take long to close, in every place where a peer can send them. The process has only one
//! test, because it counts the open files.

mod common;

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::hostile_peer::{
    HEAP_BYTES, HostilePeer, connect, heap_seals, hello, memory, sealed_memory, send, slow_to_close,
};
use common::{Device, name, open_files};
use starling_io::PacketIo;
use starling_io_shm::ShmConfig;
use starling_io_testing::PATIENCE;

/// The server looks for peers while one sends files that are slow to close and has no copies of them.
/// Afterwards, no file of the peer is left.
fn check(
    server: Device,
    files: usize,
    what: &str,
    attack: impl FnOnce(&mut Device, TcpStream),
) -> Device {
    let mut server = server;
    // Another thread may still be closing what the one before it sent.
    server.wait_for_files(files);
    let (slow, other) = slow_to_close();
    attack(&mut server, slow);
    let (done, is_done) = mpsc::channel();
    let dispatch_thread = thread::spawn(move || {
        for _ in 0..3 {
            server.wait(Some(Duration::ZERO)).unwrap();
            server.poll();
            server.event();
        }
        let _ = done.send(());
        server
    });
    // Only a failing test waits. The end of `other` then ends the wait of the server, too.
    let result = is_done.recv_timeout(PATIENCE);
    drop(other);
    let mut server = dispatch_thread.join().unwrap();
    assert!(
        result.is_ok(),
        "{what}: the dispatch thread waits for the peer"
    );
    server.wait_for_files(files);
    server
}

/// A device that is dropped with such a message in a socket.
fn check_drop(mut server: Device) {
    let hostile = HostilePeer::connected(&mut server);
    let (slow, other) = slow_to_close();
    send(&hostile.socket, &[1], &[slow.as_fd()]);
    drop(slow);
    let (done, is_done) = mpsc::channel();
    let dropping = thread::spawn(move || {
        drop(server);
        let _ = done.send(());
    });
    let result = is_done.recv_timeout(PATIENCE);
    drop::<(File, TcpStream)>((hostile.socket, other));
    dropping.join().unwrap();
    assert!(result.is_ok(), "a device that ends waits for a peer");
}

#[test]
fn files_that_are_slow_to_close_do_not_stop_the_device() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let address = name("blocking-files");
    let server = Device::bind(&address, &config);
    let files = open_files();
    let check = |server, what: &str, attack: &dyn Fn(&mut Device, TcpStream)| {
        check(server, files, what, attack)
    };
    let server = check(server, "a hello with a wrong file", &|_, slow| {
        send(connect(&address), &hello(), &[slow.as_fd()]);
    });
    let server = check(server, "a hello with a file too many", &|_, slow| {
        let memory = sealed_memory();
        send(connect(&address), &hello(), &[memory.as_fd(), slow.as_fd()]);
    });
    let server = check(
        server,
        "a hello with more files than it has room for",
        &|_, slow| {
            let memory = sealed_memory();
            let mut files = [memory.as_fd(); 200];
            files[199] = slow.as_fd();
            send(connect(&address), &hello(), &files);
        },
    );
    let server = check(server, "no hello, but a file", &|_, slow| {
        send(connect(&address), b"hi", &[slow.as_fd()]);
    });
    let server = check(server, "a file behind the hello", &|_, slow| {
        let (socket, memory) = (connect(&address), sealed_memory());
        send(&socket, &hello(), &[memory.as_fd()]);
        send(&socket, &[1], &[slow.as_fd()]);
    });
    let server = check(server, "a message that needs no file", &|server, slow| {
        let hostile = HostilePeer::connected(server);
        send(&hostile.socket, &[1], &[slow.as_fd()]);
    });
    let server = check(server, "an empty message with a file", &|server, slow| {
        let hostile = HostilePeer::connected(server);
        send(&hostile.socket, &[], &[slow.as_fd()]);
    });
    let server = check(server, "a heap that is none", &|server, slow| {
        let hostile = HostilePeer::connected(server);
        hostile.send_heap(HEAP_BYTES, &[slow.as_fd()]);
    });
    let server = check(server, "a heap and a file too many", &|server, slow| {
        let hostile = HostilePeer::connected(server);
        let heap = memory(HEAP_BYTES, heap_seals());
        hostile.send_heap(HEAP_BYTES, &[heap.as_fd(), slow.as_fd()]);
    });
    let server = check(server, "a file after the heap", &|server, slow| {
        let hostile = HostilePeer::connected(server);
        let heap = memory(HEAP_BYTES, heap_seals());
        hostile.send_heap(HEAP_BYTES, &[heap.as_fd()]);
        send(&hostile.socket, &[1], &[slow.as_fd()]);
    });
    let mut server = server;
    // Still open for others.
    drop(HostilePeer::connected(&mut server));
    check_drop(server);
}
