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
    /// The latency of a call: 32 bytes each way, one call at a time.
    Rtt,
    /// The rate of calls: 32 bytes each way, one client thread and one server thread.
    Rate,
    /// The throughput of large requests: 64 KiB, 1 MiB and 8 MiB with a 32-byte reply, one at a time.
    Large,
    /// The cost of sessions: the rate over 1, 100 and 20,000 of them, with
    /// [`crate::floor::IN_FLIGHT`] calls in flight that rotate over all sessions, and the memory of
    /// an idle session on each side.
    Sessions,
    /// The gain of each common-case optimisation: the rate with all of them on, then with each of
    /// them off in turn, and without congestion control (eRPC, NSDI'19, table 3). The paper's
    /// multi-packet receive queue has no equivalent: it saves descriptors that a network card
    /// reads, and neither a socket nor a ring in shared memory has descriptors.
    Factors,
    /// The time of a small read, stage by stage: see [`crate::breakdown`].
    Breakdown,
    /// The dispatch thread's cost of a request that a worker runs (RPCValet, ASPLOS'19, has
    /// hardware for it).
    Dispatch,
    /// The load that 16 workers sustain with a tail latency of ten service times, end to end, for
    /// each dispatch policy (RPCValet, ASPLOS'19, figures 2 and 9): see the module `slo`.
    Slo,
    /// Whether 1% of long requests delay the short ones: without long requests, with a worker that
    /// runs them, and with the dispatch thread that does (eRPC, NSDI'19, section 7.2).
    Interference,
    /// What users take: the latency, rate and processor time of calls through a channel, with default
    /// settings, from plain threads and from tasks of tokio: see the module `channel`.
    Channel,
    /// What streams of items take through a channel, with default settings, beside the same bytes in
    /// unary calls: see [`crate::streams`].
    Streams,
    /// What metrics and traces cost: the rate of small calls with them, beside the same calls without, in
    /// turns: see the module `observe`.
    Observe,
    /// What it costs that a service makes the calls, beside the same callers without one, and beside tonic, alone
    /// and between two proxies: see [`crate::managed`].
    Managed,
    /// What policies of a service cost the calls that pass them, beside one of Envoy, and what it costs to change them
    /// live: see [`crate::policies`].
    Policies,
}

impl Suite {
    /// Every suite, in the order in which `all` runs them.
    pub const ALL: [Self; 14] = [
        Self::Rtt,
        Self::Rate,
        Self::Large,
        Self::Sessions,
        Self::Factors,
        Self::Breakdown,
        Self::Dispatch,
        Self::Slo,
        Self::Interference,
        Self::Channel,
        Self::Streams,
        Self::Observe,
        Self::Managed,
        Self::Policies,
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
            Self::Channel => "channel",
            Self::Streams => "streams",
            Self::Observe => "observe",
            Self::Managed => "managed",
            Self::Policies => "policies",
        }
    }

    /// What it measures, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Rtt => "latency of one 32-byte call at a time",
            Self::Rate => "32-byte calls per second, one thread on each side",
            Self::Large => "throughput of 64 KiB, 1 MiB and 8 MiB requests",
            Self::Sessions => {
                "rate over 1, 100 and 20000 sessions, and the memory of an idle session"
            }
            Self::Factors => "rate in batches of 3, with each optimisation off in turn",
            Self::Dispatch => "what a worker costs the dispatch thread, for each request",
            Self::Slo => "load of 16 workers with a tail latency of ten service times",
            Self::Interference => "latency of short requests beside 1% that take 50 us",
            Self::Breakdown => "the time of a read of 100 bytes, stage by stage",
            Self::Channel => "32-byte calls as users make them, from threads and tasks",
            Self::Streams => "streams of items each way, and the memory of an idle stream",
            Self::Observe => "the rate of 32-byte calls with metrics or traces, of that without",
            Self::Managed => "32-byte calls through services of their hosts, and through proxies",
            Self::Policies => "reservations through a service, with policies and without",
        }
    }
}

/// The case of a benchmark with messages of `bytes` bytes: `64KiB`, `8MiB`.
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
                format!("no suite has this name; the suites are {names}")
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
                "rtt, rate, large, sessions, factors, breakdown, dispatch, slo, interference, channel, streams, observe"
            ),
            "{error}"
        );
    }

    #[test]
    fn sizes_are_named_in_binary_units() {
        assert_eq!(LARGE_BYTES.map(size_case), ["64KiB", "1MiB", "8MiB"]);
    }
}
