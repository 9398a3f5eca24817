//! How long a worker without work stays awake.
//!
//! To wake a sleeping worker, the dispatch thread makes a system call, which takes it some
//! microseconds. A server with frequent requests for workers, beside requests that must not wait,
//! lets its workers stay awake for longer than the usual gap between requests.

use std::time::Instant;

use crossbeam_utils::Backoff;

use crate::config::Idle;

/// The next step of a worker without work.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look for jobs of this worker.
    Retry,
    /// Look for jobs of other workers, too.
    Steal,
    /// There were no jobs for long enough.
    Sleep,
}

/// The idle policy of one worker. One value lives from one job to the next.
#[derive(Debug, Default)]
pub(super) struct IdlePolicy {
    backoff: Backoff,
    ends: Option<Instant>,
}

impl IdlePolicy {
    /// Called when there is no job: waits a little, or returns that it is time to sleep.
    pub(super) fn wait(&mut self, idle: Idle) -> Next {
        match idle {
            Idle::Spin => {
                self.backoff.spin();
                Next::Steal
            }
            Idle::Block => Next::Sleep,
            // A few microseconds, without the clock.
            Idle::Adaptive { .. } if !self.backoff.is_completed() => {
                self.backoff.snooze();
                Next::Retry
            }
            Idle::Adaptive { spin } if spin.is_zero() => Next::Sleep,
            Idle::Adaptive { spin } => {
                let now = Instant::now();
                // A time beyond the range of the clock means for ever.
                let ends = self.ends.or_else(|| now.checked_add(spin));
                self.ends = ends;
                if ends.is_some_and(|ends| ends <= now) {
                    return Next::Sleep;
                }
                std::thread::yield_now();
                Next::Steal
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_idle_setting_ends_as_documented() {
        let waits = |idle, many: usize| -> Vec<Next> {
            let mut policy = IdlePolicy::default();
            (0..many).map(|_| policy.wait(idle)).collect()
        };
        assert_eq!(waits(Idle::Block, 1), [Next::Sleep]);
        let spins = waits(Idle::Spin, 50);
        assert!(spins.iter().all(|next| *next == Next::Steal));
        let short = Idle::Adaptive {
            spin: Duration::ZERO,
        };
        let short = waits(short, 50);
        assert_eq!((&short[0], &short[49]), (&Next::Retry, &Next::Sleep));
        assert!(!short.contains(&Next::Steal));
        for spin in [Duration::from_secs(3600), Duration::MAX] {
            let long = waits(Idle::Adaptive { spin }, 50);
            assert_eq!((&long[0], &long[49]), (&Next::Retry, &Next::Steal));
        }
    }

    #[test]
    fn an_adaptive_worker_sleeps_after_its_spin_time() {
        let spin = Duration::from_micros(200);
        let (mut policy, begun) = (IdlePolicy::default(), Instant::now());
        while policy.wait(Idle::Adaptive { spin }) != Next::Sleep {}
        assert!(begun.elapsed() >= spin);
        assert_eq!(policy.wait(Idle::Adaptive { spin }), Next::Sleep);
    }
}
