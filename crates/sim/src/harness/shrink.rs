//! Makes a failing scenario smaller: leaves out what is not needed for the same promise to break.
//!
//! Greedy, in the manner of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002): halves of a list first, then quarters, and so on down to single
//! entries, round and round until nothing can go.

use super::{Failure, Part, Sabotage, Scenario, run_sabotaged};

/// The smallest failing scenario found in at most `most_runs` runs, which breaks the same promise.
pub fn shrink(failure: Box<Failure>, sabotage: Option<Sabotage>, most_runs: usize) -> Box<Failure> {
    let mut shrinker = Shrinker {
        whole: failure.scenario.clone(),
        part: Part::whole(&failure.scenario),
        base: failure.scenario.part.clone(),
        best: failure,
        sabotage,
        runs_left: most_runs,
    };
    loop {
        let before = shrinker.part.len();
        for list in 0..Part::LISTS {
            shrinker.thin(list);
        }
        if shrinker.part.len() == before || shrinker.runs_left == 0 {
            return shrinker.best;
        }
    }
}

struct Shrinker {
    whole: Scenario,
    /// What is left of `whole`.
    part: Part,
    /// What `whole` is a part of a seed's scenario, if not all of it.
    base: Option<Part>,
    best: Box<Failure>,
    sabotage: Option<Sabotage>,
    runs_left: usize,
}

impl Shrinker {
    /// Leaves out as much as possible of one list.
    fn thin(&mut self, list: usize) {
        let mut chunk = self.part.list(list).len();
        while chunk > 0 {
            let mut from = 0;
            loop {
                let mut candidate = self.part.clone();
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

    fn still_fails(&mut self, part: Part) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let mut candidate = part.of(&self.whole);
        candidate.part = Some(match &self.base {
            Some(base) => part.within(base),
            None => part.clone(),
        });
        match run_sabotaged(&candidate, self.sabotage) {
            Err(failure) if failure.violation.checker == self.best.violation.checker => {
                self.best = failure;
                self.part = part;
                true
            }
            _ => false,
        }
    }
}
