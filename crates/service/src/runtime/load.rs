//! How much of its time a runtime has work, and who leaves it for another one.

use std::collections::HashMap;

use starling_io::Clock;

use super::{Application, Runtime};
use crate::placement::Shift;

/// A load is shown so often, while there is work.
const WINDOW_NS: u64 = 100_000_000;
/// An application that has gone has to have an effect before the next one does.
const PAUSE_NS: u64 = 10 * WINDOW_NS;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// So far.
    busy_ns: u64,
    /// There is work since then.
    since_ns: Option<u64>,
    /// A round began then: the last one, or one without work before it.
    round_ns: u64,
    /// When the load was shown last, and how much of the time there was work until then.
    shown_ns: u64,
    shown_busy_ns: u64,
    /// Nobody has to leave before.
    pause_until_ns: u64,
    /// Calls of applications, when the load was shown last. Known while it is high.
    calls: HashMap<u32, usize>,
}

impl Load {
    /// The loop looks for work from now on.
    pub(super) fn begin_round(&mut self, now_ns: u64) {
        self.round_ns = now_ns;
    }

    /// Notes whether the round has found work. The clock is read only when there is none any more.
    #[inline]
    pub(super) fn note(&mut self, has_work: bool, clock: &impl Clock) {
        match (has_work, self.since_ns) {
            (true, None) => self.since_ns = Some(self.round_ns),
            (false, Some(_)) => {
                let now_ns = clock.now_ns();
                self.count(now_ns);
                (self.since_ns, self.round_ns) = (None, now_ns);
            }
            _ => {}
        }
    }

    /// Until now.
    fn count(&mut self, now_ns: u64) {
        if let Some(since_ns) = &mut self.since_ns {
            self.busy_ns += now_ns.saturating_sub(*since_ns);
            *since_ns = now_ns;
        }
    }

    /// The load since the last time, in thousandths, if it is time to show it.
    fn due(&mut self, now_ns: u64) -> Option<u32> {
        let passed_ns = now_ns.saturating_sub(self.shown_ns);
        if passed_ns < WINDOW_NS {
            return None;
        }
        self.count(now_ns);
        let busy_ns = self.busy_ns - self.shown_busy_ns;
        (self.shown_ns, self.shown_busy_ns) = (now_ns, self.busy_ns);
        Some((busy_ns.saturating_mul(1000) / passed_ns) as u32)
    }

    /// How long there was work so far.
    pub(super) fn busy_ns(&mut self, now_ns: u64) -> u64 {
        self.count(now_ns);
        self.busy_ns
    }
}

impl Runtime {
    /// Shows how much of its time the runtime has work, now and then, and has applications leave if it is too much, or
    /// so little that another runtime can do it.
    pub(super) fn show_load(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.load.since_ns.is_none() {
            self.load.begin_round(now_ns);
        }
        let Some(permille) = self.load.due(now_ns) else {
            return;
        };
        let placement = &self.shared.placement;
        match placement.show(self.own, permille, now_ns) {
            Some(Shift::One { to, load }) => {
                if let Some((process, share)) = self.who_leaves(now_ns)
                    // Else the two would only change roles.
                    && f64::from(load) + share * f64::from(permille) < f64::from(permille)
                {
                    self.shift(&[process], to);
                    self.load.pause_until_ns = now_ns + PAUSE_NS;
                }
            }
            Some(Shift::All { to }) => {
                let all = self.processes();
                self.shift(&placement.movable(&all), to);
            }
            None => self.load.calls.clear(),
        }
    }

    pub(super) fn processes(&self) -> Vec<u32> {
        let of = self
            .routes
            .iter()
            .filter_map(|route| match route.application {
                Application::Process(process) => Some(process),
                Application::Peer(..) => None,
            });
        let mut processes: Vec<u32> = of.collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// The application that leaves a runtime without time, with its share of the calls: the one whose share is nearest
    /// to a half. None if there is one only, or too little is known yet.
    fn who_leaves(&mut self, now_ns: u64) -> Option<(u32, f64)> {
        let mut calls: HashMap<u32, usize> = HashMap::new();
        for route in self.routes.iter() {
            if let Application::Process(process) = route.application {
                *calls.entry(process).or_default() += route.share.counts().calls;
            }
        }
        let before = std::mem::replace(&mut self.load.calls, calls);
        if before.is_empty() || now_ns < self.load.pause_until_ns {
            return None;
        }
        let since = |(process, calls): (&u32, &usize)| {
            let earlier = before.get(process).copied().unwrap_or(0);
            (*process, calls.saturating_sub(earlier))
        };
        let busy: Vec<_> = self.load.calls.iter().map(since).collect();
        let busy: Vec<_> = busy.into_iter().filter(|(_, calls)| *calls > 0).collect();
        let sum: usize = busy.iter().map(|(_, calls)| calls).sum();
        let processes: Vec<u32> = busy.iter().map(|(process, _)| *process).collect();
        let movable = self.shared.placement.movable(&processes);
        let is_movable = |(process, _): &&(u32, usize)| {
            movable.contains(process) && !self.shares_frontend(*process)
        };
        let movable = busy.iter().filter(is_movable);
        let nearest = movable.min_by_key(|(_, calls)| (2 * calls).abs_diff(sum));
        let (process, calls) = nearest.filter(|_| busy.len() > 1)?;
        Some((*process, *calls as f64 / sum as f64))
    }

    /// Has applications go on in another runtime, unless policies are just changing.
    fn shift(&mut self, processes: &[u32], to: usize) {
        let shared = std::sync::Arc::clone(&self.shared);
        let Some(_unchanged) = shared.changing.try_lock() else {
            return;
        };
        for process in processes {
            if shared.placement.set(*process, to) {
                self.move_application(*process, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_io::ManualTime;

    use super::*;

    #[test]
    fn the_load_is_the_share_of_the_time_with_work() {
        let time = ManualTime::new();
        let clock = time.clock();
        let mut load = Load::default();
        let pass = |ns: u64| time.advance(std::time::Duration::from_nanos(ns));
        load.note(true, &clock);
        pass(30_000_000);
        load.note(true, &clock);
        load.note(false, &clock);
        pass(50_000_000);
        assert_eq!(load.due(clock.now_ns()), None, "not yet");
        load.begin_round(clock.now_ns());
        pass(20_000_000);
        load.note(true, &clock);
        assert_eq!(load.due(clock.now_ns()), Some(500));
        pass(100_000_000);
        assert_eq!(load.due(clock.now_ns()), Some(1000), "without a change");
        load.note(false, &clock);
        pass(1_000_000_000);
        assert_eq!(load.due(clock.now_ns()), Some(0));
        assert_eq!(load.busy_ns(clock.now_ns()), 150_000_000);
    }
}
