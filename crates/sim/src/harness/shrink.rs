//! Makes a failing scenario smaller: leaves out what is not needed for the same promise to break.
//!
//! Greedy, in the manner of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002): halves of a list first, then quarters, and so on down to single
//! entries, round and round until nothing can go.

use super::{Failure, Sabotage, Scenario, run_sabotaged};

/// The smallest failing scenario found in at most `most_runs` runs, which breaks the same promise.
pub fn shrink(failure: Box<Failure>, sabotage: Option<Sabotage>, most_runs: usize) -> Box<Failure> {
    let mut shrinker = Shrinker {
        best: failure,
        sabotage,
        runs_left: most_runs,
    };
    loop {
        let before = size(&shrinker.best.scenario);
        shrinker.thin(|scenario| &mut scenario.rules);
        shrinker.thin(|scenario| &mut scenario.host_faults);
        shrinker.thin(|scenario| &mut scenario.outages);
        shrinker.thin(|scenario| &mut scenario.strays);
        shrinker.thin(|scenario| &mut scenario.calls);
        if size(&shrinker.best.scenario) == before || shrinker.runs_left == 0 {
            return shrinker.best;
        }
    }
}

struct Shrinker {
    best: Box<Failure>,
    sabotage: Option<Sabotage>,
    runs_left: usize,
}

impl Shrinker {
    /// Leaves out as much as possible of one list.
    fn thin<T>(&mut self, list: impl Fn(&mut Scenario) -> &mut Vec<T>) {
        let mut chunk = list(&mut self.best.scenario).len();
        while chunk > 0 {
            let mut from = 0;
            loop {
                let mut candidate = self.best.scenario.clone();
                let entries = list(&mut candidate);
                if from >= entries.len() {
                    break;
                }
                let to = (from + chunk).min(entries.len());
                entries.drain(from..to);
                if !self.still_fails(&candidate) {
                    from = to;
                }
            }
            chunk /= 2;
        }
    }

    fn still_fails(&mut self, candidate: &Scenario) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        match run_sabotaged(candidate, self.sabotage) {
            Err(failure) if failure.violation.checker == self.best.violation.checker => {
                self.best = failure;
                true
            }
            _ => false,
        }
    }
}

fn size(scenario: &Scenario) -> usize {
    scenario.rules.len()
        + scenario.host_faults.len()
        + scenario.outages.len()
        + scenario.strays.len()
        + scenario.calls.len()
}
