use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use starling_io::PacketIo;
use starling_netns::IPV4;

use super::ring_or_socket::SENDS_BEFORE_LOOKUP;
use super::*;
use crate::testing::device;

/// A wait of this length counts as a hang.
const HANG: Duration = Duration::from_secs(60);

/// Runs `test` with a peer whose next hop the thread does not know of.
fn with_unknown_hop(name: &str, test: impl FnOnce(&mut XdpTx, PeerId, &Target)) {
    let Some((_pair, mut device)) = device(name) else {
        return;
    };
    let tx = device.split().1;
    let address = SocketAddr::new(IPV4[0].parse().expect("an address"), 9);
    let id = tx.accept_peer(address).expect("room");
    let target = Target {
        interface: tx.shared.index,
        source: tx.shared.local.ip(),
        destination: address.ip(),
    };
    test(tx, id, &target);
}

/// From now on the thread does not know of the peer's next hop.
fn forget(tx: &mut XdpTx, id: PeerId, target: &Target) -> Arc<NextHop> {
    let hop = Arc::new(NextHop::new(*target));
    let peer = tx.peers[id.0 as usize].as_mut();
    peer.expect("it was admitted").hop = Arc::clone(&hop);
    hop
}

fn send(tx: &mut XdpTx, id: PeerId, count: u8) {
    for _ in 0..count {
        tx.append(id, b"preamble", b"", b"", b"").expect("room");
        tx.flush().expect("a healthy device");
    }
}

/// The thread may have no core: spinning threads may take them all.
#[test]
fn a_sender_looks_up_a_hop_that_the_thread_does_not() {
    let name = "a_sender_looks_up_a_hop_that_the_thread_does_not";
    with_unknown_hop(name, |tx, id, target| {
        let begun = Instant::now();
        loop {
            let hop = forget(tx, id, target);
            send(tx, id, SENDS_BEFORE_LOOKUP - 1);
            assert_eq!(hop.mac(), None);
            send(tx, id, 1);
            if hop.mac().is_some() {
                break;
            }
            // The thread is busy with events.
            assert!(begun.elapsed() < HANG, "there is no lookup");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_sender_does_not_wait_while_the_kernel_does_not_answer() {
    let name = "a_sender_does_not_wait_while_the_kernel_does_not_answer";
    with_unknown_hop(name, |tx, id, target| {
        let hop = forget(tx, id, target);
        let lookups = Arc::clone(&tx.shared.neighbours.lookups);
        lookups.fetch_add(1, Ordering::Relaxed);
        let (asks, is_looking_up) = mpsc::channel();
        let (answers, is_answered) = mpsc::channel::<()>();
        let asked = Arc::clone(&hop);
        let kernel = std::thread::spawn(move || {
            let _asking = asked.next();
            asks.send(()).expect("the test waits");
            let _ = is_answered.recv_timeout(HANG);
        });
        is_looking_up.recv().expect("it asks");
        send(tx, id, 4 * SENDS_BEFORE_LOOKUP);
        assert_eq!(hop.mac(), None);
        assert!(!kernel.is_finished(), "the sender waited for it");
        drop(answers);
        // The thread has the request, and does the lookup as soon as it can.
        let begun = Instant::now();
        while hop.mac().is_none() {
            assert!(begun.elapsed() < HANG, "there is no lookup");
            send(tx, id, SENDS_BEFORE_LOOKUP);
        }
        kernel.join().expect("no panic");
    });
}

#[test]
fn a_run_that_the_socket_refuses_goes_by_the_ring() {
    let name = "a_run_that_the_socket_refuses_goes_by_the_ring";
    with_unknown_hop(name, |tx, id, target| {
        while tx.sent == 0 {
            send(tx, id, 1);
        }
        let send_run = |tx: &mut XdpTx, id| {
            for _ in 0..5 {
                tx.seal(id);
                tx.append(id, b"preamble", b"", &[7; 1400], b"")
                    .expect("room");
            }
            tx.flush().expect("a healthy device");
        };
        let before = tx.sent;
        send_run(tx, id);
        assert_eq!(tx.sent, before, "a run goes by the socket");
        // A peer that the socket does not know. The socket is tried again, but not soon.
        let other = PeerId(id.0 + 1);
        tx.add_peer(other, SocketAddr::new(target.destination, 10), true);
        send_run(tx, other);
        assert_eq!(tx.sent, before + 5);
        let socket_rest = tx.socket_rest;
        assert!(socket_rest > 100);
        send_run(tx, id);
        assert_eq!(tx.sent, before + 10);
        assert_eq!(tx.socket_rest, socket_rest - 5);
        tx.socket_rest = 0;
        send_run(tx, id);
        assert_eq!(tx.sent, before + 10, "it takes runs");
    });
}
