//! The quantities that benchmarks measure.

use crate::breakdown::stage::Stage;

/// The figures of one repetition of a benchmark.
pub type Sample = Vec<(Metric, f64)>;

/// The quantity that a figure measures; it determines the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Median latency, ns.
    P50,
    /// 99th percentile of latency, ns.
    P99,
    /// 99.9th percentile of latency, ns.
    P999,
    /// Calls, or items of streams, per second.
    Rate,
    /// Processor time of client and server per call, ns; less is better.
    Cpu,
    /// Payload bytes per second, in the direction of the requests; of a server's stream, of its items.
    Throughput,
    /// Bytes of memory.
    Memory,
    /// The highest load, of capacity, at which the 99th percentile is within ten service times.
    ThroughputUnderSlo,
    /// [`Metric::ThroughputUnderSlo`], in percent of the ideal's.
    OfIdeal,
    /// The 99th percentile at a load of some tenths of capacity, in mean service times.
    Tail {
        /// 1 to 9.
        tenths: u8,
    },
    /// The time by which workers held requests longer than asked for, ns.
    HeldLonger,
    /// Processor time of a server, in percent of one core, in the run that used most.
    Busy,
    /// The 99th percentile of latency, of that of the same calls without others beside them.
    OfAlone,
    /// The rate of calls that are observed, of that of calls that are not.
    OfUnobserved,
    /// The rate of calls with something in their way, of that of the same calls without.
    OfPlain,
    /// The 99th percentile of latency with something in place, of that without.
    TailOfPlain,
    /// The longest time without an answer, ns.
    Gap,
    /// By how much that is longer than without what is measured, ns.
    LongerGap,
    /// How long a change took, ns.
    Took,
    /// From the first of many calls at once to the end of the last one, ns.
    Slowest,
    /// Processor time of a process, in percent of one core.
    OfCore,
    /// Time of the dispatch thread for each request, ns.
    Cost,
    /// The time of a stage of a call, ns.
    Stage(Stage),
    /// The sum of all stages of a call, ns.
    StagesSum,
    /// The round trip of a call without stamps, ns.
    RoundTrip,
    /// The time of the stamps of a call, ns. No other figure includes it.
    Stamps,
}

/// Names of [`Metric::Tail`].
const TAILS: [&str; 9] = [
    "p99 at 10%",
    "p99 at 20%",
    "p99 at 30%",
    "p99 at 40%",
    "p99 at 50%",
    "p99 at 60%",
    "p99 at 70%",
    "p99 at 80%",
    "p99 at 90%",
];

impl Metric {
    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Rate => "rate",
            Self::Cpu => "cpu",
            Self::Throughput => "throughput",
            Self::Memory => "memory",
            Self::ThroughputUnderSlo => "throughput_under_slo",
            Self::OfIdeal => "of the ideal",
            Self::Tail { tenths } => TAILS[usize::from(tenths).clamp(1, TAILS.len()) - 1],
            Self::HeldLonger => "held longer",
            Self::Busy => "server busy",
            Self::OfAlone => "p99 of alone",
            Self::OfUnobserved => "of unobserved",
            Self::OfPlain => "of plain",
            Self::TailOfPlain => "p99 of plain",
            Self::Gap => "gap",
            Self::LongerGap => "longer gap",
            Self::Took => "took",
            Self::Slowest => "slowest",
            Self::OfCore => "of a core",
            Self::Cost => "cost",
            Self::Stage(stage) => stage.name(),
            Self::StagesSum => "sum of stages",
            Self::RoundTrip => "round trip",
            Self::Stamps => "stamps",
        }
    }

    /// The unit of its values.
    pub fn unit(self) -> &'static str {
        match self {
            Self::P50
            | Self::P99
            | Self::P999
            | Self::Cpu
            | Self::HeldLonger
            | Self::Cost
            | Self::Slowest
            | Self::Gap
            | Self::LongerGap
            | Self::Took
            | Self::Stage(_)
            | Self::StagesSum
            | Self::RoundTrip
            | Self::Stamps => "ns",
            Self::ThroughputUnderSlo => "of capacity",
            Self::OfIdeal | Self::Busy | Self::OfCore | Self::OfUnobserved | Self::OfPlain => "%",
            Self::OfAlone | Self::TailOfPlain => "",
            Self::Tail { .. } => "mean service times",
            Self::Rate => "per_s",
            Self::Throughput => "bytes_per_s",
            Self::Memory => "bytes",
        }
    }

    /// Figures are rounded to this part of a unit, which is finer than their precision.
    pub fn steps(self) -> f64 {
        match self {
            Self::ThroughputUnderSlo | Self::OfAlone | Self::TailOfPlain | Self::OfCore => 1e4,
            _ => 10.0,
        }
    }
}
