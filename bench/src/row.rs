//! One figure of a benchmark, and its form for programs.

use serde_json::json;

use crate::breakdown::Stage;

/// What a figure measures. The unit follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Median latency, ns.
    P50,
    /// 99th percentile of latency, ns.
    P99,
    /// 99.9th percentile of latency, ns.
    P999,
    /// Calls per second.
    Rate,
    /// Payload bytes per second, in the direction of the requests.
    Throughput,
    /// Bytes of memory.
    Memory,
    /// The highest load, of capacity, at which the 99th percentile is within ten service times.
    ThroughputUnderSlo,
    /// The same, in percent of the ideal's.
    OfIdeal,
    /// The 99th percentile at a load of so many tenths of capacity, in mean service times.
    Tail {
        /// 1 to 9.
        tenths: u8,
    },
    /// How much longer than they asked for workers held requests, ns.
    HeldLonger,
    /// Processor time of a server, in percent of a core's, where it was most.
    Busy,
    /// Time of a thread that something costs, ns.
    Cost,
    /// What a stage of a call takes, ns.
    Stage(Stage),
    /// All stages of a call together, ns.
    StagesSum,
    /// The same call without stamps, ns.
    RoundTrip,
    /// What the stamps of a call take, ns. In none of the others.
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
            Self::Throughput => "throughput",
            Self::Memory => "memory",
            Self::ThroughputUnderSlo => "throughput_under_slo",
            Self::OfIdeal => "of the ideal",
            Self::Tail { tenths } => TAILS[usize::from(tenths).clamp(1, TAILS.len()) - 1],
            Self::HeldLonger => "held longer",
            Self::Busy => "server busy",
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
            | Self::HeldLonger
            | Self::Cost
            | Self::Stage(_)
            | Self::StagesSum
            | Self::RoundTrip
            | Self::Stamps => "ns",
            Self::ThroughputUnderSlo => "of capacity",
            Self::OfIdeal | Self::Busy => "%",
            Self::Tail { .. } => "mean service times",
            Self::Rate => "per_s",
            Self::Throughput => "bytes_per_s",
            Self::Memory => "bytes",
        }
    }
}

/// One figure: the median of its rounds, and how far the rounds lay apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The suite.
    pub bench: &'static str,
    /// What carried the messages: `udp`, `shm`, `grpc`, `tcp`, `memory`.
    pub plane: &'static str,
    /// Whose program it was: `starling`, `raw`, `tonic`, `tcp`, `memcpy`.
    pub system: &'static str,
    /// What varies within the suite; empty if nothing. On the plane `shm` it ends with the
    /// machine's mode, see [`crate::contest::Mode`].
    pub case: String,
    /// What was measured.
    pub metric: Metric,
    /// Median of the rounds.
    pub value: f64,
    /// Least of the rounds.
    pub low: f64,
    /// Greatest of the rounds.
    pub high: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Row {
    /// The row as one line of JSON. The spread is for people and is left out.
    pub fn to_json(&self) -> String {
        // Finer than any figure here is known: a tenth of a unit, but of a part of one.
        let finest = match self.metric {
            Metric::ThroughputUnderSlo => 1e4,
            _ => 10.0,
        };
        json!({
            "bench": self.bench,
            "plane": self.plane,
            "system": self.system,
            "case": self.case,
            "metric": self.metric.name(),
            "unit": self.metric.unit(),
            "value": (self.value * finest).round() / finest,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_seven_keys_and_no_others() {
        let row = Row {
            bench: "rtt",
            plane: "shm",
            system: "raw",
            case: "near".into(),
            metric: Metric::P999,
            value: 123.456,
            low: 1.0,
            high: 200.0,
            rounds: 3,
        };
        let parsed: serde_json::Value = serde_json::from_str(&row.to_json()).unwrap();
        assert_eq!(
            parsed,
            json!({
                "bench": "rtt", "plane": "shm", "system": "raw", "case": "near",
                "metric": "p99.9", "unit": "ns", "value": 123.5,
            })
        );
    }
}
