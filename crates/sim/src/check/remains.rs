//! After the last close nothing is left: no session, no request, no memory, no peer.

use super::Violation;

/// What an endpoint still holds, by its own account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Whose account it is.
    pub host: u32,
    /// What is counted, and how many there are.
    pub counts: Vec<(&'static str, u64)>,
}

impl Remains {
    /// Complains about the first thing that is left.
    pub fn check(&self) -> Result<(), Violation> {
        match self.counts.iter().find(|(_, count)| *count > 0) {
            None => Ok(()),
            Some((what, count)) => Err(Violation::new(
                "nothing remains",
                format!("host {} still has {count} {what}", self.host),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaked_session_is_found() {
        let mut remains = Remains {
            host: 1,
            counts: vec![("sessions", 0), ("peers", 0)],
        };
        assert_eq!(remains.check(), Ok(()));
        remains.counts[1].1 = 2;
        let found = remains.check().unwrap_err();
        assert_eq!(found.detail, "host 1 still has 2 peers");
    }
}
