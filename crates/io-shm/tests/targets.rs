//! Peers that want to reach others through a device.

mod common;

use starling_io::{IoEvent, PacketIo, PacketRx, PacketTx, PeerGone, PeerRefusal, Source};
use starling_io_shm::{ShmConfig, ShmIo};

fn name(test: &str) -> String {
    format!("shm://targets-{test}-{}", std::process::id())
}

fn send(device: &mut ShmIo, to: starling_io::PeerId, text: &[u8]) {
    let (_, tx) = device.split();
    tx.append(to, b"preamble", text, b"", b"").unwrap();
    tx.flush().unwrap();
}

#[test]
fn a_peer_for_each_target_says_which() {
    let name = name("each");
    let config = ShmConfig {
        takes_targets: true,
        ..ShmConfig::default()
    };
    let mut service = ShmIo::bind(&name, config).unwrap();
    let mut client = ShmIo::client(ShmConfig::default()).unwrap();
    let targets = [
        Some("udp://10.0.0.7:9000"),
        Some("shm://kv?users=any"),
        None,
    ];
    let address = |target: Option<&str>| match target {
        Some(target) => format!("{name}?target={target}"),
        None => name.clone(),
    };
    for target in targets {
        let peer = client.open_peer(&address(target)).unwrap();
        assert_eq!(
            client.open_peer(&address(target)).unwrap(),
            peer,
            "the same again"
        );
        send(&mut client, peer, target.unwrap_or("none").as_bytes());
    }
    let mut seen = 0;
    while seen < targets.len() {
        service.wait(None).unwrap();
        let (rx, tx) = service.split();
        for index in 0..rx.rx_burst().unwrap() {
            let datagram = rx.datagram(index);
            let Source::Peer(peer) = datagram.source else {
                panic!("the kernel says who it is");
            };
            let info = tx.peer_info(peer);
            let said = info.target.as_deref().unwrap_or("none");
            assert_eq!(&datagram.bytes[8..], said.as_bytes());
            assert_eq!(info.process.unwrap().pid, Some(std::process::id()));
            seen += 1;
        }
    }
}

#[test]
fn a_device_that_serves_itself_refuses_a_target() {
    let name = name("refused");
    let mut server = ShmIo::bind(&name, ShmConfig::default()).unwrap();
    let mut client = ShmIo::client(ShmConfig::default()).unwrap();
    let peer = client
        .open_peer(&format!("{name}?target=udp://10.0.0.7:9000"))
        .unwrap();
    server.wait(None).unwrap();
    let event = loop {
        client.wait(None).unwrap();
        if let Some(event) = client.poll_event() {
            break event;
        }
    };
    let refused = PeerGone::Refused(PeerRefusal::TakesNoTargets);
    assert_eq!(event, IoEvent::PeerGone(peer, refused));
    let (rx, _) = server.split();
    assert_eq!(rx.rx_burst().unwrap(), 0);
}
