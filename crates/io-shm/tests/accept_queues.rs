//! Devices that get connections from the one that listens.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Device, name};
use starling_io::{IoEvent, PacketIo, PeerGone, PeerId, PeerRefusal};
use starling_io_shm::{AcceptQueue, ShmConfig, ShmIo};

/// Where the next connection goes.
type Chosen = Arc<Mutex<Option<AcceptQueue>>>;

/// A device that listens, one with an accept queue, and the choice between them.
struct Scene {
    address: String,
    listening: Device,
    behind: Device,
    queue: AcceptQueue,
    chosen: Chosen,
}

fn scene(test: &str, config: &ShmConfig) -> Scene {
    let address = name(test);
    let mut listening = ShmIo::bind(&address, config.clone()).unwrap();
    let chosen = Chosen::default();
    let choice = Arc::clone(&chosen);
    listening.assign_by(move |process| {
        assert_eq!(process.and_then(|it| it.pid), Some(std::process::id()));
        let mut choice = choice.lock().unwrap();
        choice.take_if(|queue| queue.is_closed());
        choice.clone()
    });
    let (behind, queue) = listening.accept_queues().open().unwrap();
    Scene {
        address,
        listening: listening.into(),
        behind: behind.into(),
        queue,
        chosen,
    }
}

impl Scene {
    fn choose(&self, queue: Option<&AcceptQueue>) {
        *self.chosen.lock().unwrap() = queue.cloned();
    }

    /// Has the device that listens accept what has come.
    fn accept(&mut self) {
        self.listening.wait(Some(Duration::ZERO)).unwrap();
    }

    /// A client that has sent this.
    fn client(&self, body: &[u8]) -> (Device, PeerId) {
        let mut client = Device::client(&ShmConfig::default());
        let peer = client.open_peer(&self.address).unwrap();
        client.send(peer, body);
        (client, peer)
    }
}

#[test]
fn each_connection_gets_the_device_that_is_chosen() {
    let mut scene = scene("chosen", &ShmConfig::default());
    let queue = scene.queue.clone();
    for (queue, body) in [(Some(&queue), b"one"), (None, b"two")] {
        scene.choose(queue);
        let (mut client, peer) = scene.client(body);
        scene.accept();
        let device = match queue {
            Some(_) => &mut scene.behind,
            None => &mut scene.listening,
        };
        let (from, received) = device.receive();
        assert_eq!(received, body);
        device.send(from, b"answer");
        assert_eq!(client.receive(), (peer, b"answer".to_vec()));
        assert_eq!(device.local_address(), scene.address);
    }
}

#[test]
fn a_sleeping_device_wakes_for_a_connection() {
    let mut scene = scene("wakes", &ShmConfig::default());
    scene.choose(Some(&scene.queue.clone()));
    let Scene { mut behind, .. } = std::thread::scope(|scope| {
        let mut behind =
            std::mem::replace(&mut scene.behind, Device::client(&ShmConfig::default()));
        let receiving = scope.spawn(move || {
            assert_eq!(behind.receive().1, b"one");
            behind
        });
        let _client = scene.client(b"one");
        scene.accept();
        scene.behind = receiving.join().unwrap();
        scene
    });
    assert_eq!(behind.poll(), 0);
}

#[test]
fn a_door_is_closed_when_nobody_is_behind_it() {
    let mut scene = scene("closed", &ShmConfig::default());
    let queue = scene.queue.clone();
    // The device's thread may look before the connection comes for which it was made.
    assert!(!queue.close_if_deserted(), "nobody has come yet");
    scene.choose(Some(&queue));
    let (client, _) = scene.client(b"one");
    assert!(!scene.queue.is_closed());
    scene.accept();
    assert!(!queue.close_if_deserted(), "a connection waits");
    let (peer, _) = scene.behind.receive();
    assert!(!queue.close_if_deserted(), "it is a peer");
    drop(client);
    let gone = IoEvent::PeerGone(peer, PeerGone::Certain);
    assert_eq!(scene.behind.wait_for_event(), gone);
    scene.behind.close_peer(peer);
    assert!(queue.close_if_deserted() && queue.is_closed());
    // The next one is not lost.
    let (_client, _) = scene.client(b"two");
    scene.accept();
    assert_eq!(scene.listening.receive().1, b"two");
}

#[test]
fn a_silent_peer_that_leaves_is_no_peer() {
    let mut scene = scene("silent", &ShmConfig::default());
    let queue = scene.queue.clone();
    scene.choose(Some(&queue));
    let mut client = Device::client(&ShmConfig::default());
    client.open_peer(&scene.address).unwrap();
    scene.accept();
    scene.behind.wait(Some(Duration::ZERO)).unwrap();
    assert!(!queue.close_if_deserted());
    drop(client);
    while !queue.close_if_deserted() {
        scene.behind.wait(Some(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn connections_end_with_the_device_behind_the_door() {
    let mut scene = scene("gone", &ShmConfig::default());
    let queue = scene.queue.clone();
    scene.choose(Some(&queue));
    let (mut client, peer) = scene.client(b"one");
    scene.accept();
    scene.behind = Device::client(&ShmConfig::default());
    assert!(queue.is_closed());
    let IoEvent::PeerGone(gone, _) = client.wait_for_event();
    assert_eq!(gone, peer);
}

#[test]
fn all_devices_together_have_as_many_peers_as_one() {
    let config = ShmConfig {
        max_peers: 3,
        ..ShmConfig::default()
    };
    let mut scene = scene("full", &config);
    scene.choose(Some(&scene.queue.clone()));
    let clients: Vec<_> = (0..3).map(|_| scene.client(b"one")).collect();
    scene.accept();
    let peers: Vec<PeerId> = (0..3).map(|_| scene.behind.receive().0).collect();
    let (mut fourth, peer) = scene.client(b"four");
    scene.accept();
    let full = PeerGone::Refused(PeerRefusal::Full);
    assert_eq!(fourth.wait_for_event(), IoEvent::PeerGone(peer, full));
    drop(clients);
    for _ in &peers {
        let IoEvent::PeerGone(gone, _) = scene.behind.wait_for_event();
        scene.behind.close_peer(gone);
    }
    let (_fifth, _) = scene.client(b"five");
    scene.accept();
    assert_eq!(scene.behind.receive().1, b"five");
}

/// A device that fails is dropped with its peers.
#[test]
fn the_places_of_a_device_that_is_gone_are_free() {
    let config = ShmConfig {
        max_peers: 2,
        ..ShmConfig::default()
    };
    let mut scene = scene("dropped", &config);
    let mut listening = ShmIo::bind(&name("dropped-again"), config).unwrap();
    let queues = listening.accept_queues();
    for _ in 0..3 {
        let (behind, queue) = queues.open().unwrap();
        scene.behind = behind.into();
        scene.choose(Some(&queue));
        let clients: Vec<_> = (0..2).map(|_| scene.client(b"one")).collect();
        scene.accept();
        for _ in &clients {
            scene.behind.receive();
        }
    }
}
