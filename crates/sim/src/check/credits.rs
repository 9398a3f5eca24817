//! Credits are neither made nor lost.
//!
//! A server may lower a session's credits while some are in use. So two facts hold at any moment:
//! no more credits are in use than were ever given, and none are in use when no request is open.
//! The checker reads the given credits from the server's frames where they arrive.

use std::collections::HashMap;

use starling_proto::{Protocol, SessionId};

use super::Violation;
use crate::frames::frames;

/// The most credits that each session of a client was ever given.
#[derive(Debug, Default)]
pub struct Grants {
    most: HashMap<u32, u32>,
}

impl Grants {
    /// Records the credits in a datagram that arrived. A broken datagram, or one for another
    /// client, can only make the account too generous.
    #[inline]
    pub fn record(&mut self, datagram: &[u8]) {
        for frame in frames(datagram) {
            if let Some((_, credits)) = frame.credits() {
                let most = self.most.entry(frame.session).or_default();
                *most = credits.max(*most);
            }
        }
    }

    /// The most that a session was given.
    pub fn most(&self, session: SessionId) -> u64 {
        let most = self.most.get(&session.to_wire());
        most.copied().unwrap_or(0).into()
    }
}

/// The credit account of one client session at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// The most that the session was ever given, by the frames that arrived.
    pub given_most: u64,
    /// The credits that the session believes it was given.
    pub granted: u64,
    /// Credits in use: packets sent and not answered.
    pub in_use: u64,
    /// Requests that occupy a slot.
    pub busy_slots: u64,
    /// Busy slots that fetch a response of several packets. Each may have one packet on its way
    /// beyond the credits, so it makes progress when other slots hold all credits (PROTOCOL.md,
    /// 7.1).
    pub fetching: u64,
}

impl Credits {
    /// The account of a session, if there is one.
    pub fn of(protocol: &Protocol, session: SessionId, grants: &Grants) -> Option<Self> {
        let (in_use, granted, busy) = protocol.accounting(session)?;
        Some(Self {
            given_most: grants.most(session),
            granted: granted.into(),
            in_use: in_use.into(),
            busy_slots: busy as u64,
            fetching: protocol.fetching(session) as u64,
        })
    }

    /// Complains if the account does not add up.
    pub fn check(&self) -> Result<(), Violation> {
        if self.in_use > self.given_most + self.fetching {
            return Err(violation(format!(
                "{} credits in use, {} of them for responses of several packets, of at most {} \
                 given",
                self.in_use, self.fetching, self.given_most
            )));
        }
        if self.granted > self.given_most {
            return Err(violation(format!(
                "{} credits taken for given, of at most {}",
                self.granted, self.given_most
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

/// Fails if a server has granted more than `limit` in all, or nothing to some session.
pub fn granted_within(protocol: &Protocol, limit: usize) -> Result<(), Violation> {
    let (granted, (_, sessions)) = (protocol.granted(), protocol.session_counts());
    if (sessions..=limit).contains(&granted) {
        return Ok(());
    }
    Err(violation(format!(
        "{granted} credits are granted to {sessions} sessions, of {limit}"
    )))
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
            given_most: 8,
            granted: 8,
            in_use: 8,
            busy_slots: 4,
            fetching: 0,
        };
        assert_eq!(good.check(), Ok(()));
        let over = Credits { in_use: 9, ..good };
        assert!(over.check().is_err(), "more credits in use than given");
        let fetching = Credits {
            fetching: 1,
            ..over
        };
        assert_eq!(
            fetching.check(),
            Ok(()),
            "one packet of a response may exceed the credits"
        );
        let invented = Credits { granted: 9, ..good };
        assert!(
            invented.check().is_err(),
            "an invented credit counts even if unused"
        );
        let lost = Credits {
            in_use: 1,
            busy_slots: 0,
            ..good
        };
        assert!(lost.check().is_err());
    }

    /// An ACCEPT and a CREDIT, byte by byte.
    #[test]
    fn granted_credits_are_read_from_frames() {
        let frame = |kind: u8, session: u32, payload: &[u8]| {
            let mut bytes = vec![kind, 0];
            bytes.extend((payload.len() as u16).to_le_bytes());
            bytes.extend(session.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
            bytes.extend(payload);
            bytes
        };
        let mut accept = vec![0; 28];
        accept[22..24].copy_from_slice(&5u16.to_le_bytes());
        let mut datagram = vec![7, 6, 5, 4, 9, 9, 9, 9];
        datagram.extend(frame(11, 7, &accept));
        datagram.extend(frame(18, 7, &3u32.to_le_bytes()));
        datagram.extend(frame(18, 8, &40u32.to_le_bytes()));
        // The end of this frame is missing, so it grants nothing.
        datagram.extend(&frame(18, 9, &50u32.to_le_bytes())[..18]);
        let mut grants = Grants::default();
        grants.record(&datagram);
        let most: Vec<_> = [7, 8, 9].map(|name| grants.most.get(&name).copied()).into();
        assert_eq!(most, [Some(5), Some(40), None]);
    }
}
