//! The suites: sets of benchmarks that answer one question each.

use std::fmt;
use std::str::FromStr;

/// Sizes of the requests in [`Suite::Large`], in bytes.
pub const LARGE_BYTES: [usize; 3] = [64 << 10, 1 << 20, 8 << 20];

/// Sessions of one client with one server in [`Suite::Sessions`]; 20,000 as in eRPC, section 6.3.
pub const SESSIONS: [usize; 3] = [1, 100, 20_000];

/// A set of measurements that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// How long one call takes: 32 bytes each way, one call at a time.
    Rtt,
    /// How many calls a second: 32 bytes each way, one client thread and one server thread.
    Rate,
    /// How fast large requests go: 64 KiB, 1 MiB and 8 MiB with a 32-byte reply, one at a time.
    Large,
    /// What sessions cost: the rate over 1, 100 and 20,000 of them, [`crate::floor::IN_FLIGHT`]
    /// calls in flight that take turns over all of them, and the memory that an idle one takes on
    /// either side.
    Sessions,
    /// What each of the common-case optimisations is worth: the rate with all of them on, then
    /// with each of them off in turn, and without congestion control (eRPC, NSDI'19, table 3).
    /// The paper's multi-packet receive queue has no equivalent: it saves descriptors that a
    /// network card reads, and neither a socket nor a ring in shared memory has any.
    Factors,
    /// Where the time of a small read goes, on client and server: see [`crate::breakdown`].
    Breakdown,
    /// What it costs the dispatch thread to have a worker run a handler (RPCValet, ASPLOS'19, has
    /// hardware for it).
    Dispatch,
    /// How much 16 workers can take within a tail of ten service times, end to end, by who hands
    /// requests to them (RPCValet, ASPLOS'19, figures 2 and 9): see the module `slo`.
    Slo,
    /// Whether 1% of long requests make the short ones late: without them, with a worker that runs
    /// them, and with the dispatch thread (eRPC, NSDI'19, section 7.2).
    Interference,
}

impl Suite {
    /// Every suite, in the order that they are run in.
    pub const ALL: [Self; 9] = [
        Self::Rtt,
        Self::Rate,
        Self::Large,
        Self::Sessions,
        Self::Factors,
        Self::Breakdown,
        Self::Dispatch,
        Self::Slo,
        Self::Interference,
    ];

    /// Its name on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtt => "rtt",
            Self::Rate => "rate",
            Self::Large => "large",
            Self::Sessions => "sessions",
            Self::Factors => "factors",
            Self::Breakdown => "breakdown",
            Self::Dispatch => "dispatch",
            Self::Slo => "slo",
            Self::Interference => "interference",
        }
    }

    /// What it measures, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Rtt => "latency of one 32-byte call at a time",
            Self::Rate => "32-byte calls per second, one thread on either side",
            Self::Large => "throughput of 64 KiB, 1 MiB and 8 MiB requests",
            Self::Sessions => "rate over 1, 100 and 20000 sessions, and bytes of an idle session",
            Self::Factors => "rate in batches of 3, with each optimisation off in turn",
            Self::Dispatch => "what a worker costs the thread that dispatches, for each request",
            Self::Slo => "how much 16 workers can take within a tail of ten service times",
            Self::Interference => "latency of short requests beside 1% that take 50 us",
            Self::Breakdown => "where the time of a read of 100 bytes goes, stage by stage",
        }
    }
}

/// The case of a benchmark that moves `bytes` at a time: `64KiB`, `8MiB`.
pub fn size_case(bytes: usize) -> String {
    if bytes >= 1 << 20 {
        format!("{}MiB", bytes >> 20)
    } else {
        format!("{}KiB", bytes >> 10)
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|suite| suite.name() == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("there is no such suite; there are {names}")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_is_found_by_its_name() {
        for suite in Suite::ALL {
            assert_eq!(suite.name().parse(), Ok(suite));
        }
        let error = "speed".parse::<Suite>().unwrap_err();
        assert!(
            error.contains(
                "rtt, rate, large, sessions, factors, breakdown, dispatch, slo, interference"
            ),
            "{error}"
        );
    }

    #[test]
    fn sizes_are_named_in_binary_units() {
        assert_eq!(LARGE_BYTES.map(size_case), ["64KiB", "1MiB", "8MiB"]);
    }
}
