//! How long a worker without work stays awake.
//!
//! To wake one that sleeps takes the dispatch thread a system call, some microseconds in which it
//! does nothing else. Whoever has requests for workers often, beside others that must not wait,
//! lets workers stay awake for longer than there is usually nothing.

use std::time::Instant;

use crossbeam_utils::Backoff;

use crate::config::Idle;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look for what was given to this worker.
    Look,
    /// Look for what was given to others, too.
    LookAround,
    /// There has been nothing for long enough.
    Sleep,
}

/// The time since there was work.
#[derive(Debug, Default)]
pub(super) struct IdlePolicy {
    backoff: Backoff,
    ends: Option<Instant>,
}

impl IdlePolicy {
    /// There was nothing again: waits a little, or says that it is time to sleep.
    pub(super) fn wait(&mut self, idle: Idle) -> Next {
        match idle {
            Idle::Spin => {
                self.backoff.spin();
                Next::LookAround
            }
            Idle::Block => Next::Sleep,
            // A few microseconds, without the clock.
            Idle::Adaptive { .. } if !self.backoff.is_completed() => {
                self.backoff.snooze();
                Next::Look
            }
            Idle::Adaptive { spin } if spin.is_zero() => Next::Sleep,
            Idle::Adaptive { spin } => {
                let now = Instant::now();
                // Longer than there is time for is as good as for ever.
                let ends = self.ends.or_else(|| now.checked_add(spin));
                self.ends = ends;
                if ends.is_some_and(|ends| ends <= now) {
                    return Next::Sleep;
                }
                std::thread::yield_now();
                Next::LookAround
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_kind_of_idling_ends_as_it_says() {
        let waits = |idle, many: usize| -> Vec<Next> {
            let mut idle_policy = IdlePolicy::default();
            (0..many).map(|_| idle_policy.wait(idle)).collect()
        };
        assert_eq!(waits(Idle::Block, 1), [Next::Sleep]);
        let spins = waits(Idle::Spin, 50);
        assert!(spins.iter().all(|next| *next == Next::LookAround));
        let short = Idle::Adaptive {
            spin: Duration::ZERO,
        };
        let short = waits(short, 50);
        assert_eq!((&short[0], &short[49]), (&Next::Look, &Next::Sleep));
        assert!(!short.contains(&Next::LookAround));
        for spin in [Duration::from_secs(3600), Duration::MAX] {
            let long = waits(Idle::Adaptive { spin }, 50);
            assert_eq!((&long[0], &long[49]), (&Next::Look, &Next::LookAround));
        }
    }

    #[test]
    fn it_ends_after_the_time_that_was_asked_for() {
        let spin = Duration::from_micros(200);
        let (mut idle_policy, begun) = (IdlePolicy::default(), Instant::now());
        while idle_policy.wait(Idle::Adaptive { spin }) != Next::Sleep {}
        assert!(begun.elapsed() >= spin);
        assert_eq!(idle_policy.wait(Idle::Adaptive { spin }), Next::Sleep);
    }
}
