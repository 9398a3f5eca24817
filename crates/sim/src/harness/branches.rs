//! How often a run took each branch that a promise depends on: a promise about a branch that no run takes is
//! not tested.

use starling_proto::Stats;

use super::{Attack, Outcomes};

/// A branch that the protocol's counters count.
type Counter = (&'static str, fn(&Stats) -> u64);

const COUNTERS: [Counter; 17] = [
    ("request that came again", |stats| stats.duplicates),
    ("request displaced while executing", |stats| {
        stats.requests_displaced
    }),
    ("request in the turn of its slot's last", |stats| {
        stats.slots_overrun
    }),
    ("cancelled before arrival", |stats| stats.cancels_early),
    ("answer that nobody waits for", |stats| {
        stats.responses_unwanted
    }),
    ("kept response evicted", |stats| stats.responses_evicted),
    ("reset: unknown session", |stats| stats.sessions_unknown),
    ("reset: unknown peer", |stats| stats.sessions_forgotten),
    ("reset: restarted", |stats| stats.sessions_restarted),
    ("reset: shut down", |stats| stats.sessions_shut_down),
    ("place of a session used again", |stats| stats.places_reused),
    ("session gave way to another client", |stats| {
        stats.sessions_evicted
    }),
    ("session refused", |stats| stats.sessions_refused),
    ("session added to a group", |stats| stats.sessions_added),
    ("credits revoked", |stats| stats.credits_revoked),
    ("frame that found the sink full", |stats| stats.sink_full),
    ("peer found dead", |stats| stats.peers_failed),
];

/// Branches that the harness counts.
const OUTCOMES: [&str; 3] = [
    "rejected for lack of memory",
    "evicted and asked again",
    "made again after not sent",
];

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branches {
    counts: [u64; COUNTERS.len() + OUTCOMES.len()],
    attacks: [u64; Attack::ALL.len()],
}

impl Branches {
    pub(super) fn add_stats(&mut self, stats: &Stats) {
        for (count, (_, counter)) in self.counts.iter_mut().zip(COUNTERS) {
            *count += counter(stats);
        }
    }

    pub(super) fn add_outcomes(&mut self, outcomes: &Outcomes) {
        let counts = [
            outcomes.out_of_memory,
            outcomes.expired,
            outcomes.made_again,
        ];
        for (sum, count) in self.counts[COUNTERS.len()..].iter_mut().zip(counts) {
            *sum += count;
        }
    }

    /// Datagrams of an attack were sent.
    pub(super) fn add_attack(&mut self, attack: Attack) {
        let index = Attack::ALL.iter().position(|it| *it == attack);
        self.attacks[index.expect("all are there")] += 1;
    }

    /// Adds the counts of others.
    pub fn add(&mut self, other: &Self) {
        let counts = self.counts.iter_mut().chain(&mut self.attacks);
        for (count, more) in counts.zip(other.counts.iter().chain(&other.attacks)) {
            *count += more;
        }
    }

    /// Each branch with how often it was taken.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = COUNTERS.iter().map(|(name, _)| *name).chain(OUTCOMES);
        let names = names.chain(Attack::ALL.map(Attack::name));
        names.zip(self.counts.into_iter().chain(self.attacks))
    }

    /// The branches that were never taken.
    pub fn untaken(&self) -> Vec<&'static str> {
        let untaken = self.counts().filter(|(_, count)| *count == 0);
        untaken.map(|(name, _)| name).collect()
    }
}
