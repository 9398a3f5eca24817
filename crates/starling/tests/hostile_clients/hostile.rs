//! The hostile clients, each in a process of its own: they have their shares as another process, or host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::datagrams::{Amplify, Garbage};
use crate::memory::{Begun, Multiply, Unread};
use crate::requests::{Slow, Streams, Waiting};
use crate::sessions::{Credits, Many, NeverReads, Silent};

/// The attack that a process is to make, and the server's address.
pub(crate) const ATTACK: &str = "STARLING_TEST_ATTACK";

/// Between two steps: a hostile client needs no core of its own.
const REST: Duration = Duration::from_millis(1);

/// Peers of most attacks.
pub(crate) const PEERS: u64 = 4;

/// One attack.
pub(crate) trait Hostile {
    /// Goes on, without waiting for anything.
    fn step(&mut self);

    /// What it did so far.
    fn did(&self) -> String;
}

/// Steps of waiting after which requests without an answer count as lost.
const LOST: usize = 500;

/// Keeps the requests without an answer at a bound: an attack leaves a slow machine as much to do as a fast one.
#[derive(Default)]
pub(crate) struct Pace {
    sent: u64,
    waited: usize,
}

impl Pace {
    /// Whether so many requests may be sent in this step: then at most `most` of all are without an answer.
    pub(crate) fn allows(&mut self, requests: u64, most: u64, answered: u64) -> bool {
        let is_allowed = self.sent + requests <= answered + most;
        match is_allowed {
            true => self.waited = 0,
            false => self.waited += 1,
        }
        if self.waited > LOST {
            self.sent = answered;
        }
        is_allowed
    }

    pub(crate) fn sent(&mut self, requests: u64) {
        self.sent += requests;
    }
}

fn new(attack: &str, address: &str) -> Box<dyn Hostile> {
    match attack {
        "begun" => Box::new(Begun::new(address, PEERS)),
        "unread" => Box::new(Unread::new(address, PEERS)),
        "multiply" => Box::new(Multiply::new(address, PEERS)),
        "hundred" => Box::new(Hundred::new(address)),
        "sessions" => Box::new(Many::new(address)),
        "credits" => Box::new(Credits::new(address)),
        "never_reads" => Box::new(NeverReads::new(address)),
        "silent" => Box::new(Silent::new(address)),
        "waiting" => Box::new(Waiting::new(address, PEERS)),
        "streams" => Box::new(Streams::new(address)),
        "slow" => Box::new(Slow::new(address)),
        "amplify" => Box::new(Amplify::new(address)),
        "garbage" => Box::new(Garbage::new(address)),
        _ => panic!("no such attack: {attack}"),
    }
}

/// A hundred peers fill all that they can at once: requests on their way, kept responses, requests that wait, and
/// what these became.
struct Hundred {
    attacks: [Box<dyn Hostile>; 4],
    steps: usize,
}

impl Hundred {
    fn new(address: &str) -> Self {
        Self {
            attacks: [
                Box::new(Begun::new(address, 25)),
                Box::new(Unread::new(address, 25)),
                Box::new(Multiply::new(address, 25)),
                Box::new(Waiting::new(address, 25)),
            ],
            steps: 0,
        }
    }
}

impl Hostile for Hundred {
    fn step(&mut self) {
        self.steps += 1;
        let attack = self.steps % self.attacks.len();
        self.attacks[attack].step();
    }

    fn did(&self) -> String {
        self.attacks
            .iter()
            .map(|it| it.did())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// Attacks until the standard input is closed, if this process was told to. It closes nothing in the end.
pub(crate) fn attack_if_told() {
    let Some(told) = std::env::var_os(ATTACK) else {
        return;
    };
    let told = told.to_str().expect("text");
    let (attack, address) = told.split_once(' ').expect("an attack and an address");
    let mut hostile = new(attack, address);
    let ended = Arc::new(AtomicBool::new(false));
    let its_ended = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        its_ended.store(true, Ordering::SeqCst);
    });
    println!("\nattacking");
    while !ended.load(Ordering::SeqCst) {
        hostile.step();
        std::thread::sleep(REST);
    }
    println!("\ndid {}", hostile.did());
    std::process::exit(0);
}
