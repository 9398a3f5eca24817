//! Who reaches a server without ever becoming its client.

mod common;

use common::{payload, server, shm_address};
use starling::Channel;
use starling_io::{PacketIo, PacketTx};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_test_protos::test::TestClient;

/// A process that writes something into the shared memory and goes, be it hostile or killed at that
/// moment, leaves nothing behind.
#[test]
fn peers_that_go_without_a_session_leave_room_for_others() {
    let (builder, _gate) = server(&[&shm_address()]);
    let server = builder.build().unwrap().spawn().unwrap();
    for _ in 0..ShmConfig::default().max_peers + 100 {
        let mut stranger = ShmIo::client(ShmConfig::default()).unwrap();
        let peer = stranger.open_peer(server.address()).unwrap();
        let (_, tx) = stranger.split();
        tx.append(peer, b"nonsense", b"", b"and more of it", b"")
            .unwrap();
        tx.flush().unwrap();
    }
    let client = TestClient::new(Channel::lazy(server.address()).unwrap());
    let answer = client.echo(&payload(b"room?")).wait();
    assert_eq!(answer.unwrap().message().bytes(), b"room?");
}
