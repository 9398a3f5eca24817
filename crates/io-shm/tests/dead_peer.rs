//! A peer that dies with more in its rings than a device puts there.

mod common;

use common::hostile_peer::{BULK, BULK_RING, HostilePeer, VALID};
use common::{Device, name};
use starling_io::{IoEvent, PacketIo, PeerGone};
use starling_io_shm::ShmConfig;

/// The header word of each line says that a datagram of the largest size is in the bulk ring, which
/// has room for four. The device copies no more of them than the ring can hold, and one that it had
/// begun with.
#[test]
fn a_dead_peer_costs_no_more_than_what_its_rings_can_hold() {
    let config = ShmConfig {
        ring_bytes: 64 << 10,
        ..ShmConfig::default()
    };
    let mut server = Device::bind(&name("dead-peer"), &config);
    let hostile = HostilePeer::connected(&mut server);
    hostile.publish(0, b"known");
    let (peer, _) = server.receive();
    let largest = BULK_RING as u32 / 4;
    for line in 1..512 {
        hostile.write(64 * line, &(VALID | BULK | largest).to_ne_bytes());
    }
    drop(hostile);
    // The device learns of the end first, as when it had slept.
    server.wait(None).unwrap();
    // These have no preamble, so the test does not look at them.
    let mut received = 0;
    let gone = loop {
        received += server.count_burst();
        if let Some(event) = server.event() {
            break event;
        }
    };
    assert_eq!(gone, IoEvent::PeerGone(peer, PeerGone::Certain));
    assert!(
        (1..=5).contains(&received),
        "{received} datagrams of a ring for four"
    );
    server.close_peer(peer);
}
