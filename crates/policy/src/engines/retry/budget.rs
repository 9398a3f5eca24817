//! How many calls may be made again: a share of all, so that a server that is not well does not get many times the
//! load, and a few a second beside it, so that those of few are made again, too.
//!
//! A token bucket: a call adds a share of a token, and another attempt takes one. Over a while the bucket comes back to
//! what it had at first: unused tokens are forgotten, and used ones are there again.

/// How long the while is.
const MEMORY_S: f64 = 10.0;
const NS_PER_S: f64 = 1e9;
/// More than calls can add.
const MAX_TOKENS: f64 = 1e12;
/// Ten tenths are one token.
const ROUNDING: f64 = 1e-9;

#[derive(Debug)]
pub(super) struct Budget {
    /// What a call adds.
    share: f64,
    /// What the bucket has after a pause.
    rest: f64,
    tokens: f64,
    at_ns: u64,
}

impl Budget {
    /// `share`: attempts for each call. `floor`: attempts a second beside them. `None`: that is no attempt ever.
    pub(super) fn new(share: f64, floor: f64) -> Option<Self> {
        let rest = floor * MEMORY_S;
        (share > 0.0 || rest >= 1.0).then_some(Self {
            share,
            rest,
            tokens: rest,
            at_ns: 0,
        })
    }

    /// A call has come.
    pub(super) fn add_call(&mut self, now_ns: u64) {
        self.settle(now_ns);
        self.tokens += self.share;
    }

    /// Takes another attempt. Returns whether there is one.
    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        self.settle(now_ns);
        let has_one = self.tokens >= 1.0 - ROUNDING;
        if has_one {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        has_one
    }

    fn settle(&mut self, now_ns: u64) {
        // A state may be of another clock.
        let passed_s = now_ns.saturating_sub(self.at_ns) as f64 / NS_PER_S;
        if passed_s > 0.0 {
            let kept = (-passed_s / MEMORY_S).exp();
            self.tokens = self.rest + (self.tokens - self.rest) * kept;
        }
        // Callers' times differ a little; only that of another clock is far ahead.
        self.at_ns = match self.at_ns.saturating_sub(now_ns) as f64 > NS_PER_S {
            true => now_ns,
            false => self.at_ns.max(now_ns),
        };
    }

    /// What a successor goes on with.
    pub(super) fn state(&self) -> (f64, u64) {
        (self.tokens, self.at_ns)
    }

    /// Goes on with the state of a predecessor. False: it cannot be one.
    pub(super) fn restore(&mut self, (tokens, at_ns): (f64, u64)) -> bool {
        let is_state = (0.0..=MAX_TOKENS).contains(&tokens);
        if is_state {
            (self.tokens, self.at_ns) = (tokens, at_ns);
        }
        is_state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn budget(share: f64, floor: f64) -> Budget {
        Budget::new(share, floor).expect("some attempts")
    }

    /// Attempts of so many that there are.
    fn taken(budget: &mut Budget, now_ns: u64, tries: usize) -> usize {
        (0..tries).filter(|_| budget.take(now_ns)).count()
    }

    #[test]
    fn attempts_are_a_share_of_calls() {
        let mut budget = budget(0.1, 0.0);
        assert_eq!(taken(&mut budget, S, 10), 0, "no call has come");
        (0..1000).for_each(|_| budget.add_call(S));
        assert_eq!(taken(&mut budget, S, 1000), 100);
        let each = (0..1000).map(|call| {
            let now_ns = S + call * 1_000_000;
            budget.add_call(now_ns);
            taken(&mut budget, now_ns, 1)
        });
        let taken = each.sum::<usize>();
        assert!((90..=100).contains(&taken), "{taken}");
    }

    #[test]
    fn a_time_that_goes_back_gives_nothing() {
        let mut budget = budget(0.0, 2.0);
        assert_eq!(taken(&mut budget, S, 100), 20);
        for _ in 0..1000 {
            assert_eq!(taken(&mut budget, S + 10_000_000, 1), 0);
            assert_eq!(taken(&mut budget, S, 1), 0);
        }
    }

    #[test]
    fn a_few_a_second_are_there_anyhow() {
        let mut budget = budget(0.0, 2.0);
        assert_eq!(taken(&mut budget, S, 100), 20);
        let each = (0..100).map(|second| taken(&mut budget, (2 + second) * S, 100));
        let in_100_s = each.sum::<usize>();
        assert!((150..=200).contains(&in_100_s), "{in_100_s}");
        assert_eq!(taken(&mut budget, 1000 * S, 100), 20, "and no more later");
    }

    #[test]
    fn calls_of_long_ago_do_not_count() {
        let mut budget = budget(0.5, 1.0);
        (0..10_000).for_each(|_| budget.add_call(S));
        assert_eq!(taken(&mut budget, 200 * S, 100), 10);
    }

    #[test]
    fn a_budget_of_nothing_is_none_and_a_state_is_checked() {
        assert!(Budget::new(0.0, 0.09).is_none());
        let mut budget = budget(0.1, 1.0);
        for tokens in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(!budget.restore((tokens, 0)), "{tokens}");
        }
        assert!(budget.restore((3.0, 100 * S)));
        // It is of a clock that was ahead.
        assert_eq!(taken(&mut budget, S, 100), 3);
        assert!(taken(&mut budget, 2 * S, 100) == 0 && taken(&mut budget, 20 * S, 100) > 0);
    }
}
