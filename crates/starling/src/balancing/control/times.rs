//! What a balanced channel does from time to time: it looks for outliers, at weights, replaces old connections,
//! and becomes idle.

use starling_balance::{Policy, Random, Readiness};

use super::super::balancer::{Balancer, random};
use super::super::settings::Balancing;
use super::Control;

/// When what is next.
pub(super) struct Times {
    sweep_at: Option<u64>,
    sweep_ns: u64,
    weights_at: Option<u64>,
    weights_ns: u64,
    /// The earliest time at which a connection is old.
    replace_at: Option<u64>,
    idle_ns: Option<u64>,
    /// The operations that had begun when that changed last, and when that was.
    used: (u64, u64),
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Times {
    pub(super) fn new(settings: &Balancing) -> Self {
        Self {
            sweep_at: None,
            sweep_ns: settings
                .policy
                .outliers()
                .map_or(u64::MAX, |it| it.interval_ns()),
            weights_at: None,
            weights_ns: match settings.policy.policy() {
                Policy::WeightedRoundRobin(weighting) => weighting.update_ns(),
                _ => u64::MAX,
            },
            replace_at: None,
            idle_ns: settings.idle_timeout.map(nanos),
            used: (0, 0),
        }
    }

    /// The channel is active from now on.
    pub(super) fn begin(&mut self, now: u64, started: u64) {
        let after = |ns: u64| (ns != u64::MAX).then(|| now.saturating_add(ns));
        self.sweep_at = after(self.sweep_ns);
        self.weights_at = after(self.weights_ns);
        self.replace_at = None;
        self.used = (started, now);
    }

    pub(super) fn next(&self) -> Option<u64> {
        let idle_at = self.idle_ns.map(|ns| self.used.1.saturating_add(ns));
        let times = [self.sweep_at, self.weights_at, self.replace_at, idle_at];
        times.into_iter().flatten().min()
    }

    /// Whether weights may have changed since this was asked last.
    pub(super) fn weights_are_due(&mut self, now: u64) -> bool {
        let is_due = self.weights_at.is_some_and(|at| now >= at);
        if is_due {
            self.weights_at = Some(now.saturating_add(self.weights_ns));
        }
        is_due
    }
}

impl Balancer {
    /// Ejects backends that fail more than the others, and lets those return whose time is over.
    pub(super) fn sweep(&self, control: &mut Control, now: u64) {
        let (Some(settings), Some(at)) = (self.settings.policy.outliers(), control.times.sweep_at)
        else {
            return;
        };
        if now < at {
            return;
        }
        control.times.sweep_at = Some(now.saturating_add(control.times.sweep_ns));
        let counts = control.listed.iter();
        let counts: Vec<_> = counts
            .map(|listed| (listed.id, listed.record.take_counts()))
            .collect();
        let changes = control
            .outliers
            .sweep(settings, now, &counts, &mut random());
        for listed in &mut control.listed {
            let is_ejected = control.outliers.is_ejected(listed.id);
            listed.record.set_ejected(is_ejected);
            if changes.ejected.contains(&listed.id) {
                let (name, address) = (&self.settings.name, &listed.resolved.address);
                tracing::warn!(
                    "{name}: too many calls of {address} fail; it gets none for a while"
                );
            }
            listed.update(now);
        }
    }

    /// Replaces connections that are old, each when the new one stands.
    pub(super) fn replace_old(&self, control: &mut Control, now: u64) {
        let Some(max_age) = self.settings.max_age.map(nanos) else {
            return;
        };
        let mut earliest: Option<u64> = None;
        for index in 0..control.listed.len() {
            // A tenth more or less, so that not all clients of a server come back at once.
            let listed = &mut control.listed[index];
            let spread = Random::new(listed.id ^ control.seed).fraction();
            let age = (max_age as f64 * (0.9 + 0.2 * spread)) as u64;
            listed.take_replacement(now, age);
            let Some(old_at) = listed.ready_since.map(|since| since.saturating_add(age)) else {
                continue;
            };
            if now < old_at {
                earliest = Some(earliest.map_or(old_at, |earliest| earliest.min(old_at)));
            } else if listed.readiness == Readiness::Ready
                && listed.replacement.is_none()
                && let Ok(replacement) = self.make_backend(control, index)
                && replacement.connect().is_ok()
            {
                control.listed[index].replacement = Some(replacement);
            }
        }
        control.times.replace_at = earliest;
    }

    /// Whether the channel had no calls for its idle timeout.
    pub(super) fn is_idle(&self, control: &mut Control, now: u64) -> bool {
        let Some(idle_ns) = control.times.idle_ns else {
            return false;
        };
        let started = self.started();
        let mut backends = control.listed.iter().filter_map(|it| it.backend.as_ref());
        let is_used = backends.any(|backend| backend.outstanding() > 0) || !self.queue.is_empty();
        if is_used || started != control.times.used.0 {
            control.times.used = (started, now);
            return false;
        }
        now.saturating_sub(control.times.used.1) >= idle_ns
    }
}
