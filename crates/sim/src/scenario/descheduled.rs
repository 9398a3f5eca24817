//! A virtual machine's cores are taken away for 1 to 20 ms now and then. A client and a server, a
//! core each: RPCs of 32 B or 1 kB, 60 in flight, or 1 MB requests one after the other; the
//! client's core, the server's, or both are away a tenth of the time. There is also a case of eight
//! clients, which all get late answers when the server's core was away.
//!
//! A core is taken away between two turns of its event loop or in the middle of one, with equal
//! probability. The middle is the hard case. The turn's datagrams leave when the core is back, but
//! with the time that was read before. So every round trip seems to take as long as the absence,
//! and its answers come in many bursts, although no queue built up.
//!
//! Goodput is compared with that of the same run without absences, times the share of the time in
//! which all cores that are needed were there.

use starling_proto::{Config, Congestion, RequestError};

use super::cluster::Cluster;
use super::incast::{cx4, node_config};
use super::machine::{Application, Call};
use super::{Bench, MS};
use crate::fabric::HostId;
use crate::rng::Rng;

pub(super) const NAME: &str = "descheduled";

/// The shortest absence.
const SHORTEST_NS: u64 = MS;

const WARM_UP_NS: u64 = 2 * MS;

/// The measured time, and how often cores are away.
#[derive(Clone, Copy, Debug)]
struct Plan {
    measured_ns: u64,
    longest_ns: u64,
    /// The mean time between two absences, in parts of the mean absence.
    present_parts: u64,
}

const FULL: Plan = Plan {
    measured_ns: 1_000 * MS,
    longest_ns: 20 * MS,
    present_parts: 9,
};

/// Half of the time is away: at a lower share, so short a run may have no absence.
const QUICK: Plan = Plan {
    measured_ns: 12 * MS,
    longest_ns: 4 * MS,
    present_parts: 1,
};

const CONTROLS: [(Congestion, &str); 3] = [
    (Congestion::Off, "no cc"),
    (Congestion::Timely, "timely"),
    (Congestion::Dctcp, "dctcp"),
];

/// The calls of a run.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    clients: u32,
    len: usize,
    /// Requests in flight of each client.
    in_flight: u16,
    /// The hosts whose absence the load is measured with.
    away: &'static [Away],
}

const LOADS: [Load; 5] = [
    Load {
        name: "32 B",
        clients: 1,
        len: 32,
        in_flight: 60,
        away: &[Away::Client, Away::Server, Away::Both],
    },
    Load {
        name: "1 kB",
        clients: 1,
        len: 1000,
        in_flight: 60,
        away: &[Away::Client, Away::Server, Away::Both],
    },
    Load {
        name: "1 MB",
        clients: 1,
        len: 1 << 20,
        in_flight: 1,
        away: &[Away::Client, Away::Server, Away::Both],
    },
    Load {
        name: "32 B from 8",
        clients: 8,
        len: 32,
        in_flight: 60,
        away: &[Away::Server],
    },
    Load {
        name: "1 MB from 8",
        clients: 8,
        len: 1 << 20,
        in_flight: 1,
        away: &[Away::Server],
    },
];

/// The host whose core is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    IdleApplication,
    Client,
    Server,
    Both,
}

impl Away {
    fn name(self) -> &'static str {
        match self {
            Self::IdleApplication => "nobody",
            Self::Client => "client",
            Self::Server => "server",
            Self::Both => "both",
        }
    }

    /// The hosts concerned.
    fn hosts(self, client: HostId, server: HostId) -> Vec<HostId> {
        match self {
            Self::IdleApplication => vec![],
            Self::Client => vec![client],
            Self::Server => vec![server],
            Self::Both => vec![client, server],
        }
    }
}

/// `host`'s core is elsewhere from `begin_ns` to `end_ns`.
#[derive(Clone, Copy, Debug)]
struct Absence {
    host: HostId,
    begin_ns: u64,
    end_ns: u64,
    /// The absence begins in the middle of a turn.
    amid: bool,
}

/// Absences of `hosts`, in the order in which they begin.
fn draw(rng: &mut Rng, hosts: &[HostId], plan: Plan) -> Vec<Absence> {
    let mut absences = Vec::new();
    let mean_ns = (SHORTEST_NS + plan.longest_ns) / 2;
    let until_ns = WARM_UP_NS + plan.measured_ns;
    for &host in hosts {
        let mut now_ns = WARM_UP_NS;
        loop {
            now_ns += rng.range(0, 2 * plan.present_parts * mean_ns);
            if now_ns >= until_ns {
                break;
            }
            let end_ns = now_ns + rng.range(SHORTEST_NS, plan.longest_ns);
            absences.push(Absence {
                host,
                begin_ns: now_ns,
                end_ns,
                amid: rng.below(2) == 0,
            });
            now_ns = end_ns;
        }
    }
    absences.sort_by_key(|absence| absence.begin_ns);
    absences
}

/// The time between `from_ns` and `until_ns` in which no host is away.
fn remaining_ns(absences: &[Absence], from_ns: u64, until_ns: u64) -> u64 {
    let mut free_ns = 0;
    let mut at_ns = from_ns;
    for absence in absences {
        let begin_ns = absence.begin_ns.clamp(at_ns, until_ns);
        free_ns += begin_ns - at_ns;
        at_ns = absence.end_ns.clamp(begin_ns, until_ns);
    }
    free_ns + (until_ns - at_ns)
}

/// Clients that keep their requests outstanding.
struct Callers {
    load: Load,
    issued: u64,
    done: u64,
}

impl Callers {
    fn next(&mut self, calls: &mut Vec<Call>) {
        self.issued += 1;
        calls.push(Call {
            channel: 0,
            tag: self.issued,
            len: self.load.len,
        });
    }
}

impl Application for Callers {
    fn connected(&mut self, _: HostId, _: usize, _: u64, calls: &mut Vec<Call>) {
        for _ in 0..self.load.in_flight {
            self.next(calls);
        }
    }

    fn ended(
        &mut self,
        _: HostId,
        tag: u64,
        result: Result<&[u8], RequestError>,
        _: u64,
        calls: &mut Vec<Call>,
    ) {
        assert!(result.is_ok(), "request {tag} failed: {result:?}");
        self.done += 1;
        self.next(calls);
    }
}

/// The result of a run.
struct Outcome {
    /// Requests a second, millions.
    rate: f64,
    /// Share of the time in which no core that the load needs was away.
    remaining: f64,
    retransmissions: u64,
}

fn measure(
    bench: &mut Bench<'_>,
    load: Load,
    congestion: Congestion,
    away: Away,
    plan: Plan,
) -> Outcome {
    let mut cluster = Cluster::new(cx4(bench.options.seed, load.clients + 1));
    let config = Config {
        slots: load.in_flight.max(8),
        credits: load.in_flight.max(32),
        ..node_config(congestion)
    };
    let server = cluster.add(&config);
    let mut client = server;
    for _ in 0..load.clients {
        client = cluster.add(&config);
        cluster.open(client, server, 0);
    }
    let mut app = Callers {
        load,
        issued: 0,
        done: 0,
    };
    cluster.run(&mut app, WARM_UP_NS);
    let (done, retransmissions) = (app.done, cluster.stats().retransmissions);

    let until_ns = WARM_UP_NS + plan.measured_ns;
    let hosts = away.hosts(client, server);
    let absences = draw(&mut cluster.rng, &hosts, plan);
    for absence in &absences {
        cluster.run(&mut app, absence.begin_ns);
        cluster.take_core(absence.host, absence.end_ns, absence.amid);
    }
    cluster.run(&mut app, until_ns);
    let retransmissions = cluster.stats().retransmissions - retransmissions;
    bench.finish(&mut cluster);
    Outcome {
        rate: (app.done - done) as f64 * 1e3 / plan.measured_ns as f64,
        remaining: remaining_ns(&absences, WARM_UP_NS, until_ns) as f64 / plan.measured_ns as f64,
        retransmissions,
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let plan = if bench.options.quick { QUICK } else { FULL };
    let cases = LOADS.iter().map(|load| 1 + load.away.len()).sum::<usize>();
    let (total, mut at) = (cases * CONTROLS.len(), 0);
    for load in LOADS {
        for (congestion, control) in CONTROLS {
            let mut undisturbed = 0.0;
            for &away in [Away::IdleApplication].iter().chain(load.away) {
                let case = format!("{}, {} away, {control}", load.name, away.name());
                bench.progress(at, total, &case);
                at += 1;
                let outcome = measure(bench, load, congestion, away, plan);
                report(bench, &case, load, away, undisturbed, &outcome);
                if away == Away::IdleApplication {
                    undisturbed = outcome.rate;
                }
            }
        }
    }
}

fn report(
    bench: &mut Bench<'_>,
    case: &str,
    load: Load,
    away: Away,
    undisturbed: f64,
    outcome: &Outcome,
) {
    match load.in_flight {
        1 => {
            let gbps = outcome.rate * (load.len * 8) as f64 / 1e3;
            bench.row(case, "goodput", "Gb/s", gbps, None);
        }
        _ => bench.row(case, "goodput", "M/s", outcome.rate, None),
    }
    let again = outcome.retransmissions as f64;
    bench.row(case, "retransmissions", "", again, None);
    if away != Away::IdleApplication {
        let gone = 100.0 - 100.0 * outcome.remaining;
        bench.row(case, "time away", "%", gone, None);
        let share = 100.0 * outcome.rate / (undisturbed * outcome.remaining);
        bench.row(case, "share of what remains", "%", share, None);
    }
}
