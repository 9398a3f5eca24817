//! A handler runs at most once for each request.
//!
//! The count is global: it survives the crash of a server, because a request must not run again at
//! the next incarnation either. It counts by content, not by the protocol's identifiers, so it also
//! detects a protocol that confuses two requests.

use std::collections::HashMap;

use super::Violation;

/// Requests sent and handlers run, by the request's key (see [`content`](super::content)).
///
/// Requests that are too short to be told apart share a key. As many of them may run as were sent.
#[derive(Debug, Default)]
pub struct AtMostOnce {
    counts: HashMap<u64, Count>,
    /// The slots that requests were sent for, with their numbers, by key.
    in_slots: HashMap<u64, (u64, u64)>,
    /// The number that ran last in each of these slots.
    last: HashMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Count {
    issued: u32,
    executed: u32,
}

impl AtMostOnce {
    /// A request with this key was handed to the protocol.
    pub fn issued(&mut self, key: u64) {
        self.counts.entry(key).or_default().issued += 1;
    }

    /// The same, for request `number` of a slot: none of that slot may run after one with a higher number.
    pub fn issued_in_slot(&mut self, key: u64, slot: u64, number: u64) {
        self.issued(key);
        self.in_slots.insert(key, (slot, number));
    }

    /// A handler is run for a request with this key.
    pub fn executed(&mut self, key: u64) -> Result<(), Violation> {
        let Some(count) = self.counts.get_mut(&key) else {
            return Err(violation(format!(
                "request {key:#x} ran but was never sent"
            )));
        };
        count.executed += 1;
        if count.executed > count.issued {
            return Err(violation(format!(
                "request {key:#x} ran {} times and was sent {} times",
                count.executed, count.issued
            )));
        }
        let Some(&(slot, number)) = self.in_slots.get(&key) else {
            return Ok(());
        };
        let last = self.last.entry(slot).or_default();
        if number <= *last {
            return Err(violation(format!(
                "request {key:#x} with number {number} ran after number {last} of its slot"
            )));
        }
        *last = number;
        Ok(())
    }

    /// A caller was promised that this request did not run. Nor may it later: it counts as not sent.
    pub fn promised_not_to_run(&mut self, key: u64) -> Result<(), Violation> {
        match self.counts.get_mut(&key) {
            Some(count) if count.executed == count.issued => Err(violation(format!(
                "request {key:#x} ran although its caller was told that it did not"
            ))),
            Some(count) => {
                count.issued -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A response came back for a request with this key: it must have run.
    pub fn must_have_run(&self, key: u64) -> Result<(), Violation> {
        match self.counts.get(&key) {
            Some(count) if count.executed > 0 => Ok(()),
            _ => Err(violation(format!(
                "request {key:#x} was answered but never ran"
            ))),
        }
    }
}

fn violation(detail: String) -> Violation {
    Violation::new("at most once", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_run_twice_is_found() {
        let mut log = AtMostOnce::default();
        log.issued(7);
        assert_eq!(log.executed(7), Ok(()));
        let found = log.executed(7).unwrap_err();
        assert_eq!(found.detail, "request 0x7 ran 2 times and was sent 1 times");
    }

    #[test]
    fn requests_that_share_a_key_may_all_run() {
        let mut log = AtMostOnce::default();
        log.issued(0);
        log.issued(0);
        assert_eq!(log.executed(0), Ok(()));
        assert_eq!(log.executed(0), Ok(()));
        assert!(log.executed(0).is_err());
    }

    #[test]
    fn a_request_that_runs_after_a_later_one_of_its_slot_is_found() {
        let mut log = AtMostOnce::default();
        for (key, slot, number) in [(1, 7, 1), (2, 7, 2), (3, 8, 1), (4, 7, u64::MAX), (5, 7, 3)] {
            log.issued_in_slot(key, slot, number);
        }
        for key in [2, 3, 4] {
            assert_eq!(log.executed(key), Ok(()));
        }
        assert!(log.executed(1).is_err());
        assert!(log.executed(5).is_err());
    }

    #[test]
    fn a_request_that_was_never_issued_is_found() {
        assert!(AtMostOnce::default().executed(1).is_err());
    }

    #[test]
    fn false_promises_are_found() {
        let mut log = AtMostOnce::default();
        log.issued(3);
        assert!(log.must_have_run(3).is_err());
        log.executed(3).unwrap();
        assert!(log.promised_not_to_run(3).is_err());
        assert_eq!(log.must_have_run(3), Ok(()));
        log.issued(4);
        assert_eq!(log.promised_not_to_run(4), Ok(()));
        assert!(log.executed(4).is_err(), "the promise holds later, too");
    }
}
