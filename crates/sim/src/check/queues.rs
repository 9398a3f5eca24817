//! Every queue has a bound. The protocol's queues are no longer than the sessions and slots that
//! may wait in them. Credits keep the receive queue of an endpoint that reads its datagrams from
//! filling.

use starling_proto::{Config, Protocol, QueueLengths, SessionId};

use super::Violation;
use crate::fabric::Counters;
use crate::trace::DropCause;

/// The queues of one endpoint, which are checked between its turns.
#[derive(Debug, Default)]
pub struct Queues {
    /// The most sessions that it had at once: as client, and as server.
    most: (usize, usize),
}

impl Queues {
    /// Fails if a queue exceeds its bound. Among the queues that belong to one session, it checks
    /// those of `sessions`.
    pub fn check(
        &mut self,
        protocol: &Protocol,
        config: &Config,
        sessions: impl IntoIterator<Item = SessionId>,
    ) -> Result<(), Violation> {
        let (client, server) = protocol.session_counts();
        self.most = (self.most.0.max(client), self.most.1.max(server));
        within(&protocol.queue_lengths(), self.most, config.slots.into())?;
        for session in sessions {
            let queued = protocol.queued(session);
            if queued > config.max_queued {
                let text = format!(
                    "{queued} requests wait on a session for {}",
                    config.max_queued
                );
                return Err(violation(text));
            }
        }
        Ok(())
    }
}

/// Fails if more entries wait than `most` sessions (as client, as server) of so many slots can
/// have.
fn within(
    lengths: &QueueLengths,
    (client, server): (usize, usize),
    slots: usize,
) -> Result<(), Violation> {
    let queues = [
        (
            "sessions that found the device full",
            lengths.client_blocked,
            client,
        ),
        ("slots that ask", lengths.client_rfrs, client * slots),
        (
            "sessions with answers that found the device full",
            lengths.server_blocked,
            server,
        ),
        (
            "slots that acknowledge",
            lengths.server_credit_returns,
            server * slots,
        ),
    ];
    // Each entry is in its queue once, and an entry that ended since may still be in it.
    let long = queues.iter().find(|(_, held, most)| *held > 2 * most);
    match long {
        None => Ok(()),
        Some((what, held, most)) => Err(violation(format!("{held} {what} wait, of {most} in all"))),
    }
}

/// Fails if a datagram was dropped for lack of room. Only for runs in which no host is away
/// for long.
pub fn no_overflow(counters: &Counters) -> Result<(), Violation> {
    match counters.dropped.get(&DropCause::QueueFull) {
        None => Ok(()),
        Some(count) => Err(violation(format!(
            "{count} datagrams found a receive queue full that credits keep from it"
        ))),
    }
}

fn violation(detail: String) -> Violation {
    Violation::new("queues", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unbounded_queue_is_found() {
        let good = QueueLengths {
            client_blocked: 4,
            client_rfrs: 32,
            server_blocked: 2,
            server_credit_returns: 16,
        };
        assert_eq!(within(&good, (2, 1), 8), Ok(()));
        let lengths = [
            QueueLengths {
                client_blocked: 5,
                ..good
            },
            QueueLengths {
                client_rfrs: 33,
                ..good
            },
            QueueLengths {
                server_blocked: 3,
                ..good
            },
            QueueLengths {
                server_credit_returns: 17,
                ..good
            },
        ];
        for long in lengths {
            assert!(within(&long, (2, 1), 8).is_err(), "{long:?}");
        }
    }

    #[test]
    fn an_overflow_is_found() {
        let mut counters = Counters::default();
        assert_eq!(no_overflow(&counters), Ok(()));
        counters.dropped.insert(DropCause::QueueFull, 1);
        assert!(no_overflow(&counters).is_err());
    }
}
