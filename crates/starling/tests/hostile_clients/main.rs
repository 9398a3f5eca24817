//! Hostile clients, each written for one attack, beside an honest one, over `udp` and `shm`.
//!
//! ```text
//!  hostile client ──┐              ┌ sessions, requests, streams, memory, descriptors: as before,
//!  (a process)      ▼              │ some seconds after the attack
//!               server (a process) ┤
//!                   ▲              └ most memory: within what `ServerBuilder::budgets` says
//!  honest client ───┘ every call gets its answer
//! ```
//!
//! Nothing depends on how fast anything is: times are printed. `STARLING_HOSTILE_SECONDS=60 cargo test -p
//! starling --test hostile_clients -- --nocapture --test-threads 1` attacks for a minute each.
//!
//! | module | holds |
//! |---|---|
//! | `service` | the server |
//! | `honest` | the honest client |
//! | `hostile` | the hostile clients' process |
//! | `memory`, `sessions`, `requests`, `datagrams` | the attacks, by what they are on |
//! | `raw`, `wire` | what they are made with |

#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod honest;
mod hostile;
mod memory;
mod raw;
mod requests;
mod service;
mod sessions;
#[path = "../../../io-shm/tests/common/sockets.rs"]
mod sockets;
mod wire;

use std::time::{Duration, Instant};

use common::process::Process;
use common::{LONG, far_addresses};
use honest::{Held, Honest, process_memory, quantile};
use hostile::ATTACK;
use service::SERVE;

/// Calls before an attack, and so many at least during it.
const CALLS: usize = 300;
const CALLS_DURING: usize = 50;

/// What a server takes besides what its budgets are for: the program, its threads, and the messages that its
/// handlers have just then.
const BASE: u64 = 256 << 20;

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    service::serve_if_told();
}

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn attack_in_this_process() {
    hostile::attack_if_told();
}

/// How long an attack lasts.
fn attack_time() -> Duration {
    let seconds = std::env::var("STARLING_HOSTILE_SECONDS").ok();
    let seconds = seconds.map_or(5, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

fn attack(name: &str, address: &str, rows: &[&str]) {
    let mut server = Process::run("serve_in_this_process", SERVE, address);
    let address = server.next("serving ");
    let mut honest = Honest::new(&address);
    let mut before: Vec<_> = (0..CALLS).filter_map(|_| honest.call()).collect();
    let held = honest.held(server.id());

    let mut hostile = Process::run(
        "attack_in_this_process",
        ATTACK,
        &format!("{name} {address}"),
    );
    hostile.next("attacking");
    let begun = Instant::now();
    let (mut calls, mut during) = (0, Vec::new());
    while begun.elapsed() < attack_time() || calls < CALLS_DURING {
        during.extend(honest.call());
        calls += 1;
    }
    hostile.end();
    let did = hostile.next("did ");
    assert!(!did.starts_with("0 "), "no attack: {did}");

    let (took, longest) = recover(&mut honest, &held, server.id());
    let (most, rest) = (
        process_memory(server.id(), "VmHWM"),
        process_memory(server.id(), "VmRSS"),
    );
    println!(
        "\n{name:11} {} | calls {calls} | p50 {} {} | p99 {} {} | most {} MiB, then {} | back after {:.1} s, \
         with calls of {} ms at most | {did}",
        &address[..3],
        quantile(&mut before, 50),
        quantile(&mut during, 50),
        quantile(&mut before, 99),
        quantile(&mut during, 99),
        most >> 20,
        rest >> 20,
        took.as_secs_f64(),
        longest.as_millis(),
    );
    let bound = bound(rows);
    assert!(most <= bound, "{most} bytes, and not {bound}");
    server.end();
}

/// Makes calls until a server holds no more than before. Returns how long that takes, and the longest call.
fn recover(honest: &mut Honest, before: &Held, pid: u32) -> (Duration, Duration) {
    let ended = Instant::now();
    let mut longest = Duration::ZERO;
    loop {
        let calls = (0..CALLS_DURING).filter_map(|_| honest.call());
        longest = calls.fold(longest, Duration::max);
        let now = honest.held(pid);
        if now.is_within(before) {
            return (ended.elapsed(), longest);
        }
        assert!(
            ended.elapsed() < LONG,
            "before: {before:?}, long after: {now:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that a server may take in an attack on these rows of its budgets.
fn bound(rows: &[&str]) -> u64 {
    let budgets = service::builder().budgets();
    let of_row = |row: &&str| {
        let budget = budgets.iter().find(|budget| budget.what.starts_with(*row));
        budget.unwrap_or_else(|| panic!("no row: {row}")).all_peers
    };
    BASE + rows.iter().map(of_row).sum::<u64>()
}

/// A test for each attack and device: the time of one's attack is that of another's recovery.
macro_rules! attacks {
    ($($name:ident: $rows:expr,)*) => {
        mod udp {
            $(#[test]
            fn $name() {
                let [udp, _] = super::far_addresses();
                super::attack(stringify!($name), &udp, &$rows);
            })*
        }

        mod shm {
            $(#[test]
            fn $name() {
                let [_, shm] = super::far_addresses();
                super::attack(stringify!($name), &shm, &$rows);
            })*
        }
    };
}

// What each may fill.
attacks! {
    begun: ["requests on their way"],
    unread: ["kept responses"],
    multiply: ["requests that wait", "what protobuf requests"],
    sessions: ["sessions"],
    credits: [],
    never_reads: [],
    silent: [],
    waiting: ["requests that wait"],
    streams: ["streams: windows", "streams: what handlers read", "streams: what handlers sent"],
    slow: [],
    amplify: [],
    garbage: [],
}
