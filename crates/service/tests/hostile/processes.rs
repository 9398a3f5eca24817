//! Processes that attack, and are killed or stopped while they do.
//!
//! ```text
//!  application ─ shm://NAME?target=udp://a ─▶ service ─▶ server          (calls)
//!  client ─────── udp://b ──────────────────▶ service ─▶ application     (is called)
//! ```
//!
//! Each attack of `hostile` comes both ways: by an application, and by a client of a published address.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use starling::{ServerBuilder, ServerHandle};
use starling_test_protos::target::{Blob, TargetClient};

use crate::common::process::Process;
use crate::common::wait_until;
use crate::hostile::ATTACK;
use crate::scene::Scene;
use crate::service::builder;

/// How long an attack lasts before it is killed.
const ATTACK_TIME: Duration = Duration::from_millis(700);

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn attack_in_this_process() {
    crate::hostile::attack_if_told();
}

/// Begins an attack on an address.
fn begin(attack: &str, address: &str) -> Process {
    let told = format!("{attack} {address}");
    let mut hostile = Process::run("processes::attack_in_this_process", ATTACK, &told);
    hostile.next("attacking");
    hostile
}

/// A server for hostile applications.
fn serve(builder: ServerBuilder) -> ServerHandle {
    let server = builder.bind("udp://127.0.0.1:0").expect("an address");
    server
        .build()
        .expect("it is free")
        .spawn()
        .expect("threads")
}

/// Makes an attack, both ways, and kills who makes it.
fn attack(name: &str) {
    let scene = Scene::begin();
    let own = serve(builder().direct());
    let published = serve(builder().managed_by(&scene.mesh.name));
    for address in [scene.via(own.address()), published.address().to_owned()] {
        let hostile = scene.during(|| {
            let hostile = begin(name, &address);
            let begun = Instant::now();
            while begun.elapsed() < ATTACK_TIME {
                scene.check();
            }
            hostile.signal(Signal::KILL);
            hostile.id()
        });
        wait_until(|| !scene.has_datapath_of(hostile));
        // Who was attacked serves.
        for server in [&own, &published] {
            let client = TargetClient::new(scene.mesh.channel(server.address()));
            client.echo(&Blob::new()).wait().expect("an echo");
        }
    }
    drop((own, published));
    scene.check_nothing_left();
}

macro_rules! attacks {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            attack(stringify!($name));
        })*
    };
}

attacks! {
    begun unread multiply sessions credits never_reads silent waiting streams slow amplify garbage hundred
}

/// At any moment: also while it connects, or writes.
#[test]
fn applications_that_are_killed_at_any_moment_leave_nothing() {
    let scene = Scene::begin();
    let server = serve(builder().direct());
    let address = scene.via(server.address());
    scene.during(|| {
        for round in 0..12_u64 {
            let attacks = ["streams", "begun", "waiting", "garbage"];
            let attack = attacks[round as usize % attacks.len()];
            let hostile = begin(attack, &address);
            std::thread::sleep(Duration::from_millis(round * 7 % 50));
            hostile.signal(Signal::KILL);
        }
    });
    drop(server);
    scene.check_nothing_left();
}

/// A process that is stopped reads nothing and says nothing, and is alive.
#[test]
fn an_application_that_is_stopped_holds_up_nobody() {
    let scene = Scene::begin();
    let server = serve(builder().direct());
    let hostile = begin("streams", &scene.via(server.address()));
    wait_until(|| scene.has_datapath_of(hostile.id()));
    scene.during(|| {
        hostile.signal(Signal::STOP);
        // Longer than a silent peer is waited for.
        std::thread::sleep(Duration::from_secs(3));
    });
    hostile.signal(Signal::KILL);
    drop((hostile, server));
    scene.check_nothing_left();
}
