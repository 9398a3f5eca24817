//! One figure of a benchmark, and its form for programs.
//!
//! `starling bench --json`, `starling sim run --json` and `starling demo --json` print one JSON
//! object a line, all with the same keys:
//!
//! | key | value | example |
//! |---|---|---|
//! | `suite` | the suite or the scenario; `demo` for the demo | `"rate"`, `"incast"` |
//! | `system` | the program that was measured; in the suite `channel` which of Starling's interfaces: `channel`, `local`, `mutex`, `endpoint` | `"starling"`, `"raw"`, `"tonic"` |
//! | `scheme` | the device or transport below it: `udp`, `shm`, `xdp`, `grpc`, `tcp`; `memory`, `model` and `sim` where there is none | `"udp"` |
//! | `case` | what varies within the suite; `""` if nothing does | `"batch=3"` |
//! | `metric` | what the value measures | `"p99"` |
//! | `unit` | the unit of the three values; `""` for a plain number | `"ns"` |
//! | `value` | the median of the repetitions | `4210.0` |
//! | `min`, `max` | the least and the greatest of the repetitions | `4100.0`, `4900.0` |
//! | `repetitions` | how many there were; 1 for the simulator, whose runs are deterministic | `5` |
//! | `paper` | simulator only: the paper's figure, in rows that have one | `18.0` |
//! | `at_ms` | time lines only: when it was, since the line's beginning; it belongs to the name | `120.0` |
//!
//! `suite`, `system`, `scheme`, `case` and `metric` together name a row: no two rows of a run have
//! all five in common. In rows of the scheme `shm` the case ends with the cores' [`Placement`], so
//! the same benchmark may have rows of several cases.
//!
//! [`Placement`]: crate::placement::Placement

use serde_json::{Value, json};

use crate::metric::Metric;

/// One figure: the median of its repetitions, and their spread.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The suite.
    pub suite: &'static str,
    /// The device or transport: `udp`, `shm`, `xdp`, `grpc`, `tcp`, `memory`, `model`.
    pub scheme: &'static str,
    /// The program that was measured: `starling`, `raw`, `tonic`, `tcp`, `memcpy`, `ideal`; in the
    /// suite `channel` also one of Starling's interfaces: `channel`, `local`, `mutex`, `endpoint`.
    pub system: &'static str,
    /// The parameters that vary within the suite; empty if none does.
    pub case: String,
    /// The measured quantity.
    pub metric: Metric,
    /// Median of the repetitions.
    pub value: f64,
    /// Least of the repetitions.
    pub min: f64,
    /// Greatest of the repetitions.
    pub max: f64,
    /// How many repetitions.
    pub repetitions: usize,
}

impl Row {
    /// The row as an object with the keys that the module's documentation lists.
    pub fn to_json(&self) -> Value {
        let rounded = |value: f64| (value * self.metric.steps()).round() / self.metric.steps();
        json!({
            "suite": self.suite,
            "system": self.system,
            "scheme": self.scheme,
            "case": self.case,
            "metric": self.metric.name(),
            "unit": self.metric.unit(),
            "value": rounded(self.value),
            "min": rounded(self.min),
            "max": rounded(self.max),
            "repetitions": self.repetitions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_documented_keys_and_no_others() {
        let row = Row {
            suite: "rtt",
            scheme: "shm",
            system: "raw",
            case: "near".into(),
            metric: Metric::P999,
            value: 123.456,
            min: 1.0,
            max: 200.04,
            repetitions: 3,
        };
        assert_eq!(
            row.to_json(),
            json!({
                "suite": "rtt", "system": "raw", "scheme": "shm", "case": "near",
                "metric": "p99.9", "unit": "ns", "value": 123.5, "min": 1.0, "max": 200.0,
                "repetitions": 3,
            })
        );
    }
}
