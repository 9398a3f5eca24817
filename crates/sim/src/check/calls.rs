//! Every call ends, with an answer or an error, once and within its bound.

use std::collections::BTreeMap;

use super::Violation;

/// The caller's word for a call, as the protocol carries it. The harness never uses one twice.
pub type Tag = u64;

/// The calls that have not ended.
#[derive(Debug, Default)]
pub struct Calls {
    open: BTreeMap<Tag, Open>,
}

#[derive(Debug)]
struct Open {
    issued_ns: u64,
    deadline_ns: u64,
}

impl Calls {
    /// A call was handed to the protocol at `now_ns` and has to end by `deadline_ns`.
    ///
    /// # Panics
    /// If the tag is in use, which is a mistake of the harness.
    pub fn issued(&mut self, tag: Tag, now_ns: u64, deadline_ns: u64) {
        let open = Open {
            issued_ns: now_ns,
            deadline_ns,
        };
        let before = self.open.insert(tag, open);
        assert!(before.is_none(), "tag {tag} is in use");
    }

    /// The protocol said that a call is over.
    pub fn ended(&mut self, tag: Tag, now_ns: u64) -> Result<(), Violation> {
        match self.open.remove(&tag) {
            None => Err(violation(format!(
                "call {tag} ended, but it never began or had ended before"
            ))),
            Some(open) if now_ns > open.deadline_ns => Err(late(tag, &open, now_ns)),
            Some(_) => Ok(()),
        }
    }

    /// The caller died: no end of the call is due any more.
    pub fn abandon(&mut self, tag: Tag) {
        self.open.remove(&tag);
    }

    /// Complains about a call whose deadline has passed.
    pub fn check(&self, now_ns: u64) -> Result<(), Violation> {
        let late_one = self.open.iter().find(|(_, open)| now_ns > open.deadline_ns);
        match late_one {
            None => Ok(()),
            Some((&tag, open)) => Err(late(tag, open, now_ns)),
        }
    }

    /// How many calls are open.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// When the last call still open has to end.
    pub fn last_deadline_ns(&self) -> Option<u64> {
        self.open.values().map(|open| open.deadline_ns).max()
    }
}

fn late(tag: Tag, open: &Open, now_ns: u64) -> Violation {
    violation(format!(
        "call {tag}, begun at {} us, had to end by {} us; it is {} us",
        open.issued_ns / 1000,
        open.deadline_ns / 1000,
        now_ns / 1000
    ))
}

fn violation(detail: String) -> Violation {
    Violation::new("every call ends", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_ends_is_found() {
        let mut calls = Calls::default();
        calls.issued(1, 0, 100);
        calls.issued(2, 0, 200);
        assert_eq!(calls.last_deadline_ns(), Some(200));
        assert_eq!(calls.ended(1, 100), Ok(()));
        assert_eq!(calls.check(200), Ok(()));
        assert!(calls.check(201).unwrap_err().detail.contains("call 2"));
    }

    #[test]
    fn a_call_that_ends_late_twice_or_unasked_is_found() {
        let mut calls = Calls::default();
        calls.issued(1, 0, 100);
        assert!(calls.ended(1, 101).is_err(), "late");
        assert!(calls.ended(1, 50).is_err(), "twice");
        assert!(calls.ended(9, 50).is_err(), "unasked");
    }

    #[test]
    fn a_call_of_a_crashed_caller_need_not_end() {
        let mut calls = Calls::default();
        calls.issued(1, 0, 100);
        calls.abandon(1);
        assert_eq!(calls.check(1000), Ok(()));
        assert_eq!(calls.open_count(), 0);
    }
}
