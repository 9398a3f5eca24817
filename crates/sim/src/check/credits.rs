//! Credits are neither made nor lost.
//!
//! A server may lower a session's credits while some are in use, so what can be said at any moment
//! is that no more are in use than were ever granted, and none when no request is open.

use super::Violation;

/// The credit account of one client session at one moment, as the protocol reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// The most that the session was ever granted.
    pub granted_most: u64,
    /// In use: packets sent and not answered.
    pub in_use: u64,
    /// Requests that occupy a slot.
    pub busy_slots: u64,
}

impl Credits {
    /// Complains if the account does not add up.
    pub fn check(&self) -> Result<(), Violation> {
        if self.in_use > self.granted_most {
            return Err(violation(format!(
                "{} credits in use of at most {} granted",
                self.in_use, self.granted_most
            )));
        }
        if self.in_use > 0 && self.busy_slots == 0 {
            return Err(violation(format!(
                "{} credits in use by no request",
                self.in_use
            )));
        }
        Ok(())
    }
}

fn violation(detail: String) -> Violation {
    Violation::new("credits", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_too_many_and_a_credit_lost_are_found() {
        let good = Credits {
            granted_most: 8,
            in_use: 8,
            busy_slots: 1,
        };
        assert_eq!(good.check(), Ok(()));
        assert!(Credits { in_use: 9, ..good }.check().is_err());
        let lost = Credits {
            in_use: 1,
            busy_slots: 0,
            ..good
        };
        assert!(lost.check().is_err());
    }
}
