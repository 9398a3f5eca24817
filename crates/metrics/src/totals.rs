//! Sums of what recorders have counted.

use std::collections::BTreeMap;

use starling_call::Code;

use crate::histogram::HistogramTotals;

/// The counts of the calls of one method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// How long calls took, in nanoseconds, by the number of their code.
    pub(crate) durations: BTreeMap<u8, HistogramTotals>,
    /// Bytes of requests.
    pub requests: HistogramTotals,
    /// Bytes of responses.
    pub responses: HistogramTotals,
    /// How long calls waited before anything was done for them, in nanoseconds: at a server for a worker,
    /// at a client for room in a full channel. Calls that did not wait are not in it.
    pub queued: HistogramTotals,
    pub(crate) in_flight: i64,
    /// Messages of streams that this end has read.
    pub messages_received: u64,
    /// Messages of streams that this end has sent.
    pub messages_sent: u64,
    /// How often a client has made a call once more, by a policy for retries or for hedging. A call that is made at
    /// another server because it did not run does not count.
    pub retries: u64,
}

impl CallTotals {
    /// How long the calls took that ended with this code, in nanoseconds.
    pub fn duration(&self, code: Code) -> HistogramTotals {
        self.durations
            .get(&(code as u8))
            .cloned()
            .unwrap_or_default()
    }

    /// The same for each code that occurred.
    pub fn durations(&self) -> impl Iterator<Item = (Code, &HistogramTotals)> {
        let codes = self.durations.iter();
        codes.filter_map(|(code, durations)| Some((Code::from_u8(*code)?, durations)))
    }

    /// Calls that have ended.
    pub fn calls(&self) -> u64 {
        self.durations.values().map(HistogramTotals::count).sum()
    }

    /// Those among them that did not end with OK.
    pub fn errors(&self) -> u64 {
        let failed = self.durations().filter(|(code, _)| *code != Code::Ok);
        failed.map(|(_, durations)| durations.count()).sum()
    }

    /// Calls that have begun and not ended. Those that are answered at once do not count.
    pub fn in_flight(&self) -> u64 {
        u64::try_from(self.in_flight).unwrap_or(0)
    }

    /// Adds the counts of another recorder.
    pub(crate) fn add(&mut self, other: &Self) {
        for (code, durations) in &other.durations {
            self.durations.entry(*code).or_default().add(durations);
        }
        self.requests.add(&other.requests);
        self.responses.add(&other.responses);
        self.queued.add(&other.queued);
        self.in_flight += other.in_flight;
        self.messages_received += other.messages_received;
        self.messages_sent += other.messages_sent;
        self.retries += other.retries;
    }
}
