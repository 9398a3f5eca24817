//! Shrinks the plan of a failing run: leaves out entries while the same promise breaks.
//!
//! Greedy, in the manner of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002): halves of a list first, then quarters, and so on down to single
//! entries, round and round until nothing can go.

use super::{Failure, PlantedBug, RunPlan, Subset, run_with_bug};

/// The failure of the smallest plan that breaks the same promise, found in at most `most_runs` runs.
pub fn shrink(
    failure: Box<Failure>,
    planted_bug: Option<PlantedBug>,
    most_runs: usize,
) -> Box<Failure> {
    let mut shrinker = Shrinker {
        whole: failure.plan.clone(),
        subset: Subset::whole(&failure.plan),
        base: failure.plan.subset.clone(),
        best: failure,
        planted_bug,
        runs_left: most_runs,
    };
    loop {
        let before = shrinker.subset.len();
        for list in 0..Subset::LISTS {
            shrinker.thin(list);
        }
        if shrinker.subset.len() == before || shrinker.runs_left == 0 {
            return shrinker.best;
        }
    }
}

struct Shrinker {
    whole: RunPlan,
    /// The entries of `whole` that are left.
    subset: Subset,
    /// The subset of the seed's plan that `whole` is, unless it is all of it.
    base: Option<Subset>,
    best: Box<Failure>,
    planted_bug: Option<PlantedBug>,
    runs_left: usize,
}

impl Shrinker {
    /// Leaves out as much as possible of one list.
    fn thin(&mut self, list: usize) {
        let mut chunk = self.subset.list(list).len();
        while chunk > 0 {
            let mut from = 0;
            loop {
                let mut candidate = self.subset.clone();
                let entries = candidate.list(list);
                if from >= entries.len() {
                    break;
                }
                let to = (from + chunk).min(entries.len());
                entries.drain(from..to);
                if !self.still_fails(candidate) {
                    from = to;
                }
            }
            chunk /= 2;
        }
    }

    fn still_fails(&mut self, subset: Subset) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let mut candidate = subset.of(&self.whole);
        candidate.subset = Some(match &self.base {
            Some(base) => subset.within(base),
            None => subset.clone(),
        });
        match run_with_bug(&candidate, self.planted_bug) {
            Err(failure) if failure.violation.checker == self.best.violation.checker => {
                self.best = failure;
                self.subset = subset;
                true
            }
            _ => false,
        }
    }
}
