//! Hostile clients, each written for one attack, beside an honest one, over `udp`, `shm` and `tcp`.
//!
//! ```text
//!  hostile client ──┐              ┌ sessions, requests, streams, memory, descriptors: as before,
//!  (a process)      ▼              │ some seconds after the attack
//!               server (a process) ┤
//!                   ▲              └ most memory: within what `ServerBuilder::budgets` says
//!  honest client ───┘ every call gets its answer
//! ```
//!
//! Only what comes back has a time, 10 s; the others are printed. `STARLING_HOSTILE_SECONDS=60 cargo test -p
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

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use common::process::Process;
use common::{LONG, far_addresses};
use honest::{Held, Honest, process_memory, quantile};
use hostile::ATTACK;
use service::SERVE;
use starling::BudgetUnit;

/// Calls before an attack, and so many at least during it.
const CALLS: usize = 300;
const CALLS_DURING: usize = 50;

/// All that a hostile client had comes back within this time of its end.
const BACK: Duration = Duration::from_secs(10);

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

/// An attack, what it fills, and what else it may fill: how budgets begin.
fn attack(name: &str, address: &str, fills: &[&str], rows: &[&str]) {
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
    let (mut calls, mut newcomers, mut during) = (0, 0, Vec::new());
    let mut full = Fullness::default();
    while begun.elapsed() < attack_time() || calls < CALLS_DURING || !full.has_filled(fills) {
        during.extend(honest.call());
        calls += 1;
        if calls % CALLS_DURING == 0 {
            // One that was not there before gets its answers, too.
            Honest::new(&address).call();
            newcomers += 1;
            full.look(&honest);
        }
        assert!(
            begun.elapsed() < attack_time() + LONG,
            "it fills {full:?} only"
        );
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
        "\n{name:11} {} | calls {calls} | newcomers {newcomers} | {full} | p50 {} {} | p99 {} {} | \
         most {} MiB, then {} | back after {:.1} s, with calls of {} ms at most | {did}",
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
    let bound = bound(&[fills, rows].concat());
    assert!(most <= bound, "{most} bytes, and not {bound}");
    server.end();
}

/// The most that clients held of each budget, as a share of what they may.
#[derive(Debug, Default)]
struct Fullness(BTreeMap<String, f64>);

impl Fullness {
    fn look(&mut self, honest: &Honest) {
        for (what, share) in honest.shares_held() {
            assert!(share <= 1.0, "{what}: {share} of its bound");
            let most = self.0.entry(what).or_default();
            *most = most.max(share);
        }
    }

    /// Whether most of what one host can have of each of these was held: half of many budgets.
    fn has_filled(&self, budgets: &[&str]) -> bool {
        let is_full = |what: &&str| {
            let mut shares = self.0.iter();
            shares.any(|(budget, share)| budget.starts_with(*what) && *share >= 0.4)
        };
        budgets.iter().all(is_full)
    }
}

impl fmt::Display for Fullness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = self.0.iter().filter(|(_, share)| **share >= 0.01);
        let full = full.map(|(what, share)| format!("{what} {:.0}%", 100.0 * share));
        write!(f, "{}", full.collect::<Vec<_>>().join(", "))
    }
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
            ended.elapsed() < BACK,
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
        let budget = budget.unwrap_or_else(|| panic!("no row: {row}"));
        match budget.unit {
            BudgetUnit::Bytes => budget.all_peers,
            BudgetUnit::Items => 0,
        }
    };
    BASE + rows.iter().map(of_row).sum::<u64>()
}

/// A test for each attack and device: the time of one's attack is that of another's recovery.
macro_rules! attacks {
    ($($name:ident: $fills:expr, $rows:expr;)*) => {
        mod udp {
            $(#[test]
            fn $name() {
                let [udp, ..] = super::far_addresses();
                super::attack(stringify!($name), &udp, &$fills, &$rows);
            })*
        }

        mod shm {
            $(#[test]
            fn $name() {
                let [_, shm, _] = super::far_addresses();
                super::attack(stringify!($name), &shm, &$fills, &$rows);
            })*
        }

        mod tcp {
            $(#[test]
            fn $name() {
                let [.., tcp] = super::far_addresses();
                super::attack(stringify!($name), &tcp, &$fills, &$rows);
            })*
        }
    };
}

// What each fills, and may fill besides: of budgets, how their names begin.
attacks! {
    begun: ["requests on their way"], [];
    unread: ["kept responses"], [];
    multiply: ["requests that wait"], ["what protobuf requests"];
    sessions: ["open sessions"], ["sessions"];
    credits: [], [];
    never_reads: [], [];
    silent: [], [];
    waiting: ["waiting requests"], ["requests that wait"];
    streams: [], ["streams: windows", "streams: what handlers read", "streams: what handlers sent"];
    slow: [], [];
    amplify: [], [];
    garbage: [], [];
    hundred: ["requests on their way", "kept responses"],
        ["requests that wait", "what protobuf requests", "sessions"];
}
