//! Which runtime an application is in: all of its datapaths are in one.
//!
//! ```text
//!  new ─▶ that of its identity, or the first one that has time, or the one that has most
//!  a runtime without time ─▶ one of its applications goes to one that has    (scaled up)
//!  a runtime with little to do ─▶ all go to one before it that has time      (scaled down)
//! ```
//!
//! A runtime without applications sleeps.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Applications without a link that are remembered, at most: before they have one.
const MAX_NEW: usize = 1024;

/// A load that was not shown for so long is none: its runtime sleeps.
const FRESH_NS: u64 = 300_000_000;

/// Loads, in thousandths of a runtime's time: with one as high there is no time for more applications ...
const HIGH: u32 = 500;
/// ... with this one, one of them has to go, if another runtime has time ...
const FULL: u32 = 800;
/// ... and with this one for so many times in a row, a runtime is not needed, if another one stays below high.
const LOW: u32 = 100;
const TIMES_LOW: u32 = 10;

#[derive(Debug, Clone, Copy)]
struct Place {
    runtime: usize,
    /// Its links and datapaths.
    uses: usize,
    /// Its identity says where it is.
    is_dedicated: bool,
}

/// How much of its time a runtime had work, as it showed last.
#[derive(Debug, Default)]
struct Load {
    permille: AtomicU32,
    at_ns: AtomicU64,
    /// How often in a row that was low.
    times_low: AtomicU32,
}

/// Who is to go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shift {
    /// The load of the other one, in thousandths.
    One {
        to: usize,
        load: u32,
    },
    All {
        to: usize,
    },
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Placement {
    /// By runtime.
    loads: Vec<Load>,
    /// Identities whose applications have a runtime to themselves.
    dedicated: Vec<(String, usize)>,
    /// By process.
    applications: Mutex<HashMap<u32, Place>>,
}

impl Placement {
    /// For so many runtimes, some of which are for applications of an identity.
    pub(crate) fn new(runtimes: usize, dedicated: Vec<(String, usize)>) -> Self {
        Self {
            loads: (0..runtimes).map(|_| Load::default()).collect(),
            dedicated,
            applications: Mutex::default(),
        }
    }

    /// Whether there is a choice.
    fn is_several(&self) -> bool {
        self.loads.len() > 1
    }

    /// The runtimes for all applications.
    fn common(&self) -> impl Iterator<Item = usize> {
        let is_common = |runtime: &usize| !self.dedicated.iter().any(|(_, other)| other == runtime);
        (0..self.loads.len()).filter(is_common)
    }

    fn load(&self, runtime: usize, now_ns: u64) -> u32 {
        let load = &self.loads[runtime];
        let is_fresh = now_ns.saturating_sub(load.at_ns.load(Ordering::Relaxed)) < FRESH_NS;
        match is_fresh {
            true => load.permille.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// The runtime of an application. `identities` says which it has, if it is new.
    pub(crate) fn runtime_of(
        &self,
        process: Option<u32>,
        now_ns: u64,
        identities: impl FnOnce() -> Vec<Arc<str>>,
    ) -> usize {
        // Its process is not to be seen.
        let Some(process) = process.filter(|_| self.is_several()) else {
            return 0;
        };
        if let Some(placed) = self.applications.lock().get(&process) {
            return placed.runtime;
        }
        let names = match self.dedicated.is_empty() {
            true => Vec::new(),
            false => identities(),
        };
        let has = |(name, _): &&(String, usize)| names.iter().any(|own| **own == **name);
        let dedicated = self.dedicated.iter().find(has);
        let mut applications = self.applications.lock();
        if applications.len() >= MAX_NEW {
            applications.retain(|_, placed| placed.uses > 0);
        }
        let placed = Place {
            runtime: dedicated.map_or_else(|| self.with_time(now_ns), |(_, runtime)| *runtime),
            uses: 0,
            is_dedicated: dedicated.is_some(),
        };
        applications.entry(process).or_insert(placed).runtime
    }

    /// The first runtime that has time for another application, or the one that has most.
    fn with_time(&self, now_ns: u64) -> usize {
        let has_time = |runtime: &usize| self.load(*runtime, now_ns) < HIGH;
        let most = || {
            self.common()
                .min_by_key(|runtime| self.load(*runtime, now_ns))
        };
        self.common().find(has_time).or_else(most).unwrap_or(0)
    }

    /// Where an application is, if that is known.
    pub(crate) fn placed(&self, process: u32) -> Option<usize> {
        let applications = self.applications.lock();
        applications.get(&process).map(|place| place.runtime)
    }

    /// An application is in this runtime from now on. Returns whether it is known.
    pub(crate) fn set(&self, process: u32, runtime: usize) -> bool {
        let mut applications = self.applications.lock();
        match applications.get_mut(&process) {
            Some(placed) => placed.runtime = runtime,
            // With one runtime nobody is looked up.
            None => return !self.is_several(),
        }
        true
    }

    /// A runtime has one more link or datapath of an application.
    pub(crate) fn begin(&self, process: Option<u32>, runtime: usize) {
        let Some(process) = process.filter(|_| self.is_several()) else {
            return;
        };
        let mut applications = self.applications.lock();
        let placed = applications.entry(process).or_insert(Place {
            runtime,
            uses: 0,
            is_dedicated: false,
        });
        placed.uses += 1;
    }

    /// And one less. Without any it is forgotten.
    pub(crate) fn end(&self, process: Option<u32>) {
        let Some(process) = process.filter(|_| self.is_several()) else {
            return;
        };
        let mut applications = self.applications.lock();
        if let Some(placed) = applications.get_mut(&process) {
            placed.uses = placed.uses.saturating_sub(1);
            if placed.uses == 0 {
                applications.remove(&process);
            }
        }
    }

    /// A runtime shows its load. Returns who is to leave it.
    pub(crate) fn show(&self, own: usize, permille: u32, now_ns: u64) -> Option<Shift> {
        let load = &self.loads[own];
        load.permille.store(permille, Ordering::Relaxed);
        load.at_ns.store(now_ns, Ordering::Relaxed);
        let times_low = match permille < LOW {
            true => load.times_low.load(Ordering::Relaxed) + 1,
            false => 0,
        };
        load.times_low.store(times_low, Ordering::Relaxed);
        if !self.is_several() || !self.common().any(|runtime| runtime == own) {
            return None;
        }
        if permille >= FULL {
            let to = self.with_time(now_ns);
            let load = self.load(to, now_ns);
            return (to != own && load < HIGH).then_some(Shift::One { to, load });
        }
        if times_low < TIMES_LOW {
            return None;
        }
        let takes_all = |to: &usize| *to < own && self.load(*to, now_ns) + permille < HIGH;
        let to = self.common().find(takes_all)?;
        load.times_low.store(0, Ordering::Relaxed);
        Some(Shift::All { to })
    }

    /// Those of some applications that may be moved to where there is time.
    pub(crate) fn movable(&self, processes: &[u32]) -> Vec<u32> {
        let applications = self.applications.lock();
        let is_movable = |process: &&u32| {
            let placed = applications.get(process);
            placed.is_some_and(|placed| !placed.is_dedicated)
        };
        processes.iter().filter(is_movable).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(placement: &Placement, process: u32, now_ns: u64) -> usize {
        placement.runtime_of(Some(process), now_ns, Vec::new)
    }

    #[test]
    fn applications_go_where_there_is_time_and_stay() {
        let placement = Placement::new(2, Vec::new());
        assert_eq!(of(&placement, 1, 0), 0);
        assert_eq!(of(&placement, 2, 0), 0, "it has time");
        assert_eq!(placement.show(0, HIGH, 1), None);
        assert_eq!(of(&placement, 3, 2), 1);
        assert_eq!(placement.show(1, HIGH + 1, 3), None);
        assert_eq!(of(&placement, 4, 4), 0, "it has more time");
        assert_eq!(of(&placement, 3, FRESH_NS + 9), 1);
        assert!(placement.set(1, 1) && !placement.set(9, 1));
        assert_eq!(of(&placement, 1, 0), 1);
        assert_eq!(placement.runtime_of(None, 0, Vec::new), 0);
    }

    #[test]
    fn an_identity_has_a_runtime_to_itself() {
        let placement = Placement::new(3, vec![("bulk".to_owned(), 0)]);
        let bulk = || vec!["other".into(), "bulk".into()];
        assert_eq!(placement.runtime_of(Some(1), 0, bulk), 0);
        assert_eq!(of(&placement, 2, 0), 1);
        assert_eq!(placement.movable(&[1, 2, 3]), [2]);
        assert_eq!(placement.show(0, 1000, 0), None, "nobody leaves it");
        assert_eq!(
            placement.show(1, 1000, 0),
            Some(Shift::One { to: 2, load: 0 })
        );
    }

    #[test]
    fn runtimes_are_scaled_with_the_load() {
        let placement = Placement::new(3, Vec::new());
        assert_eq!(
            placement.show(0, FULL, 0),
            Some(Shift::One { to: 1, load: 0 })
        );
        placement.show(1, FULL - 1, 0);
        placement.show(2, HIGH, 0);
        assert_eq!(placement.show(0, FULL, 0), None, "no other has time");
        placement.show(0, LOW, 0);
        for _ in 1..TIMES_LOW {
            assert_eq!(placement.show(1, LOW - 1, 0), None);
        }
        assert_eq!(placement.show(1, LOW - 1, 0), Some(Shift::All { to: 0 }));
        for _ in 0..2 * TIMES_LOW {
            assert_eq!(placement.show(0, 0, 0), None, "it is the first");
        }
    }

    #[test]
    fn those_that_are_gone_or_never_call_are_forgotten() {
        let placement = Placement::new(2, Vec::new());
        placement.begin(Some(7), 1);
        placement.begin(Some(7), 1);
        placement.end(Some(7));
        assert_eq!(of(&placement, 7, 0), 1);
        placement.end(Some(7));
        assert_eq!(of(&placement, 7, 0), 0);
        for process in 0..3 * MAX_NEW as u32 {
            of(&placement, process, 0);
        }
        assert!(placement.applications.lock().len() <= MAX_NEW);
    }
}
