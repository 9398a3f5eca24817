//! Which backend gets a call.
//!
//! A picker is made anew when a backend comes, goes, connects or fails. Picks then need no lock: many threads
//! pick at once, and what they share is a counter.

mod ring;
mod weighted;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policy::Policy;
use crate::random::Random;
use ring::Ring;
use weighted::Weighted;

pub use ring::hash;

/// Whether a backend can take calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Not yet: it is being connected.
    Pending,
    /// No: it cannot be reached, or says that it takes none, or is ejected.
    Failed,
}

/// What a picker knows of a backend.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its name for hashing: its address, unless the resolver gave it another one.
    pub key: &'a str,
    /// Whether it can take calls.
    pub readiness: Readiness,
    /// Its weight; 0 if none is known.
    pub weight: f64,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// It goes to the backend with this index.
    Backend(usize),
    /// It waits until a backend is connected.
    Wait,
    /// No backend can take it.
    Fail,
}

#[derive(Debug)]
enum Kind {
    First,
    RoundRobin { next: AtomicUsize },
    LeastRequest { choices: u32 },
    Weighted(Weighted),
    Ring(Ring),
}

/// Picks a backend for each call, among those that were there when it was made.
#[derive(Debug)]
pub struct Picker {
    kind: Kind,
    /// Indices of the backends that are ready, ascending.
    ready: Vec<usize>,
    has_pending: bool,
}

impl Picker {
    /// A picker among these backends.
    pub fn new(policy: &Policy, backends: &[View<'_>], random: &mut Random) -> Self {
        let is = |readiness| move |index: &usize| backends[*index].readiness == readiness;
        let ready: Vec<usize> = (0..backends.len()).filter(is(Readiness::Ready)).collect();
        let kind = match policy {
            Policy::PickFirst { .. } => Kind::First,
            // Clients that start together do not all begin with the same backend.
            Policy::RoundRobin => Kind::RoundRobin {
                next: AtomicUsize::new(random.below(ready.len().max(1))),
            },
            Policy::LeastRequest { choices } => Kind::LeastRequest { choices: *choices },
            Policy::WeightedRoundRobin(_) => {
                let weights = ready.iter().map(|index| backends[*index].weight);
                Kind::Weighted(Weighted::new(&weights.collect::<Vec<_>>(), random))
            }
            Policy::RingHash(settings) => Kind::Ring(Ring::new(settings, backends)),
        };
        Self {
            kind,
            ready,
            has_pending: (0..backends.len()).any(|index| is(Readiness::Pending)(&index)),
        }
    }

    /// Whether calls can be made now, or soon.
    pub fn readiness(&self) -> Readiness {
        match (self.ready.is_empty(), self.has_pending) {
            (false, _) => Readiness::Ready,
            (true, true) => Readiness::Pending,
            (true, false) => Readiness::Failed,
        }
    }

    /// Picks a backend. `hash` says where on a ring the call is; without it, it is anywhere. `is_usable` has
    /// the last word on a backend: what the picker knows may be old, or the call was there already. `load` is
    /// how many calls a backend has outstanding.
    pub fn pick(
        &self,
        hash: Option<u64>,
        random: &mut Random,
        is_usable: impl Fn(usize) -> bool,
        load: impl Fn(usize) -> u64,
    ) -> Pick {
        let found = match &self.kind {
            Kind::Ring(ring) => return ring.pick(hash, random, is_usable),
            Kind::First => self.first_usable(0, is_usable),
            Kind::RoundRobin { next } => {
                self.first_usable(next.fetch_add(1, Ordering::Relaxed), is_usable)
            }
            Kind::Weighted(weighted) => self.first_usable(weighted.next(), is_usable),
            Kind::LeastRequest { choices } => self.least_loaded(*choices, random, is_usable, load),
        };
        match found {
            Some(index) => Pick::Backend(index),
            None if self.has_pending => Pick::Wait,
            None => Pick::Fail,
        }
    }

    /// The first usable one from a place of the list on, and around.
    fn first_usable(&self, from: usize, is_usable: impl Fn(usize) -> bool) -> Option<usize> {
        let from = from.checked_rem(self.ready.len())?;
        let (before, after) = self.ready.split_at(from);
        after
            .iter()
            .chain(before)
            .copied()
            .find(|index| is_usable(*index))
    }

    fn least_loaded(
        &self,
        choices: u32,
        random: &mut Random,
        is_usable: impl Fn(usize) -> bool,
        load: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        if self.ready.is_empty() {
            return None;
        }
        let mut least: Option<(u64, usize)> = None;
        for _ in 0..choices {
            let index = self.ready[random.below(self.ready.len())];
            let load = load(index);
            if least.is_none_or(|(least, _)| load < least) && is_usable(index) {
                least = Some((load, index));
            }
        }
        least
            .map(|(_, index)| index)
            .or_else(|| self.first_usable(random.below(self.ready.len()), is_usable))
    }
}

#[cfg(test)]
mod tests;
