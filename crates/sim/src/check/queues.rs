//! A receive queue never holds more than it may, and a fabric without faults never has to drop
//! for lack of room: that is what credits are for.

use super::Violation;
use crate::fabric::{Counters, ReceiveLimits};
use crate::trace::DropCause;

/// Complains if a queue of `held` (datagrams, bytes) is over its limits.
pub fn queue_within(limits: ReceiveLimits, held: (usize, usize)) -> Result<(), Violation> {
    let (datagrams, bytes) = held;
    if datagrams <= limits.datagrams && bytes <= limits.bytes {
        return Ok(());
    }
    Err(violation(format!(
        "{datagrams} datagrams of {bytes} bytes in a queue for {} of {}",
        limits.datagrams, limits.bytes
    )))
}

/// Complains if anything was dropped for lack of room. To be asked of runs without faults.
pub fn no_overflow(counters: &Counters) -> Result<(), Violation> {
    match counters.dropped.get(&DropCause::QueueFull) {
        None => Ok(()),
        Some(count) => Err(violation(format!(
            "{count} datagrams found a receive queue full in a run without faults"
        ))),
    }
}

fn violation(detail: String) -> Violation {
    Violation::new("receive queues", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_over_its_limits_is_found() {
        let limits = ReceiveLimits {
            datagrams: 2,
            bytes: 100,
        };
        assert_eq!(queue_within(limits, (2, 100)), Ok(()));
        assert!(queue_within(limits, (3, 10)).is_err());
        assert!(queue_within(limits, (1, 101)).is_err());
    }

    #[test]
    fn an_overflow_is_found() {
        let mut counters = Counters::default();
        assert_eq!(no_overflow(&counters), Ok(()));
        counters.dropped.insert(DropCause::QueueFull, 1);
        assert!(no_overflow(&counters).is_err());
    }
}
