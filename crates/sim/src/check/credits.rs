//! Credits are neither made nor lost: what a session holds and what its outstanding packets use
//! add up to what the server granted, after every turn.

use super::Violation;

/// The credit account of one client session at one moment, as the protocol reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Granted when the session opened.
    pub granted: u64,
    /// Held: packets that may be sent now.
    pub available: u64,
    /// In use: packets sent and not answered, counted from the requests themselves.
    pub outstanding: u64,
}

impl Credits {
    /// Complains if the account does not add up.
    pub fn check(&self) -> Result<(), Violation> {
        if self.available + self.outstanding == self.granted {
            return Ok(());
        }
        Err(Violation::new(
            "credits",
            format!(
                "{} held + {} in use are not the {} granted",
                self.available, self.outstanding, self.granted
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_credit_too_many_or_too_few_is_found() {
        let good = Credits {
            granted: 8,
            available: 5,
            outstanding: 3,
        };
        assert_eq!(good.check(), Ok(()));
        for available in [4, 6] {
            assert!(Credits { available, ..good }.check().is_err());
        }
        let overspent = Credits {
            granted: 8,
            available: 0,
            outstanding: 9,
        };
        assert!(overspent.check().is_err());
    }
}
