//! Backends that fail more than the others (gRPC A50).
//!
//! Once in an interval, a sweep looks at how each backend's calls of that interval ended. It ejects those that
//! meet a criterion, and lets those return whose time is over. A backend that is ejected again stays out for
//! longer.

use std::collections::HashMap;

use crate::policy::{FailurePercentage, OutlierDetection, SuccessRate};
use crate::random::Random;

/// How the calls of a backend ended in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// With OK.
    pub successes: u32,
    /// With any other code.
    pub failures: u32,
}

impl Counts {
    fn total(self) -> u64 {
        u64::from(self.successes) + u64::from(self.failures)
    }

    /// The share of calls that succeeded, 0 to 1.
    fn success_rate(self) -> f64 {
        f64::from(self.successes) / self.total() as f64
    }
}

/// What a sweep has changed, by the ids of backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ejections {
    /// They get no calls from now on.
    pub ejected: Vec<u64>,
    /// They get calls again.
    pub returned: Vec<u64>,
}

#[derive(Debug, Default)]
struct State {
    ejected_at: Option<u64>,
    /// How often it was ejected, less the intervals that it has done well since.
    multiplier: u64,
}

/// Which backends are ejected. Times are nanoseconds.
#[derive(Debug, Default)]
pub struct Outliers {
    states: HashMap<u64, State>,
}

impl Outliers {
    /// Whether this backend is ejected.
    pub fn is_ejected(&self, id: u64) -> bool {
        (self.states.get(&id)).is_some_and(|state| state.ejected_at.is_some())
    }

    /// Looks at the calls of an interval that ends now. Backends that are not in the list are forgotten.
    pub fn sweep(
        &mut self,
        settings: &OutlierDetection,
        now: u64,
        counts: &[(u64, Counts)],
        random: &mut Random,
    ) -> Ejections {
        let before = std::mem::take(&mut self.states);
        let mut before: HashMap<_, _> = before.into_iter().collect();
        for (id, _) in counts {
            let state = before.remove(id).unwrap_or_default();
            self.states.insert(*id, state);
        }
        let mut changes = Ejections::default();
        if let Some(criterion) = &settings.success_rate {
            self.eject_by_success_rate(settings, criterion, now, counts, random, &mut changes);
        }
        if let Some(criterion) = &settings.failure_percentage {
            self.eject_by_failures(settings, criterion, now, counts, random, &mut changes);
        }
        for (id, _) in counts {
            let state = self.states.entry(*id).or_default();
            match state.ejected_at {
                None => state.multiplier = state.multiplier.saturating_sub(1),
                Some(at) if now > at.saturating_add(ejection_ns(settings, state.multiplier)) => {
                    state.ejected_at = None;
                    changes.returned.push(*id);
                }
                Some(_) => {}
            }
        }
        changes
    }

    fn eject_by_success_rate(
        &mut self,
        settings: &OutlierDetection,
        criterion: &SuccessRate,
        now: u64,
        counts: &[(u64, Counts)],
        random: &mut Random,
        changes: &mut Ejections,
    ) {
        let volume = u64::from(criterion.request_volume).max(1);
        let measured = |counts: &Counts| counts.total() >= volume;
        let rates = counts.iter().filter(|(_, counts)| measured(counts));
        let rates: Vec<f64> = rates.map(|(_, counts)| counts.success_rate()).collect();
        if rates.is_empty() || rates.len() < criterion.minimum_hosts as usize {
            return;
        }
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
        let stdev = (variance / rates.len() as f64).sqrt();
        let threshold = mean - stdev * f64::from(criterion.stdev_factor) / 1000.0;
        for (id, counts) in counts {
            if self.is_at_limit(settings) {
                return;
            }
            if measured(counts) && counts.success_rate() < threshold {
                self.eject(*id, now, criterion.enforcement_percentage, random, changes);
            }
        }
    }

    fn eject_by_failures(
        &mut self,
        settings: &OutlierDetection,
        criterion: &FailurePercentage,
        now: u64,
        counts: &[(u64, Counts)],
        random: &mut Random,
        changes: &mut Ejections,
    ) {
        let volume = u64::from(criterion.request_volume).max(1);
        let measured = |counts: &Counts| counts.total() >= volume;
        let enough = counts.iter().filter(|(_, counts)| measured(counts)).count();
        if enough < criterion.minimum_hosts as usize {
            return;
        }
        for (id, counts) in counts {
            if self.is_at_limit(settings) {
                return;
            }
            let fails_often = u64::from(counts.failures) * 100
                > counts.total().saturating_mul(criterion.threshold.into());
            if measured(counts) && fails_often {
                self.eject(*id, now, criterion.enforcement_percentage, random, changes);
            }
        }
    }

    /// Whether no further backend may be ejected.
    fn is_at_limit(&self, settings: &OutlierDetection) -> bool {
        let ejected = self.states.values().filter(|it| it.ejected_at.is_some());
        let percent = ejected.count() * 100 / self.states.len().max(1);
        percent >= settings.max_ejection_percent as usize
    }

    fn eject(
        &mut self,
        id: u64,
        now: u64,
        enforcement_percentage: u32,
        random: &mut Random,
        changes: &mut Ejections,
    ) {
        let state = self.states.entry(id).or_default();
        if state.ejected_at.is_some() || random.below(100) >= enforcement_percentage as usize {
            return;
        }
        state.ejected_at = Some(now);
        state.multiplier += 1;
        changes.ejected.push(id);
    }
}

/// For how long a backend is out that was ejected so often.
fn ejection_ns(settings: &OutlierDetection, multiplier: u64) -> u64 {
    let base = settings.base_ejection_ns;
    let max = settings
        .max_ejection_ns
        .unwrap_or(300_000_000_000)
        .max(base);
    base.saturating_mul(multiplier).min(max)
}

#[cfg(test)]
mod tests;
