//! The client sessions: their states, and their addresses for error texts.

use std::collections::{HashMap, VecDeque};

use starling_proto::{SessionError, SessionId};

/// Ended sessions that are kept, so that their owners can read the reason.
const ENDED_KEPT: usize = 1024;

/// The state of a client session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Not open yet. Calls on it wait.
    Connecting,
    /// Open.
    Connected,
    /// Open, and its server shuts down: it takes what continues a stream, and no new calls.
    Draining,
    /// Over, with the reason.
    Ended(SessionError),
}

#[derive(Debug)]
struct Record {
    address: Box<str>,
    state: SessionState,
}

/// The client sessions of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    records: HashMap<SessionId, Record>,
    ended: VecDeque<SessionId>,
}

impl Sessions {
    pub(crate) fn insert(&mut self, session: SessionId, address: &str) {
        let record = Record {
            address: address.into(),
            state: SessionState::Connecting,
        };
        self.records.insert(session, record);
    }

    pub(crate) fn set_connected(&mut self, session: SessionId) {
        if let Some(record) = self.records.get_mut(&session) {
            record.state = SessionState::Connected;
        }
    }

    pub(crate) fn set_draining(&mut self, session: SessionId) {
        if let Some(record) = self.records.get_mut(&session) {
            record.state = SessionState::Draining;
        }
    }

    pub(crate) fn set_ended(&mut self, session: SessionId, error: SessionError) {
        let Some(record) = self.records.get_mut(&session) else {
            return;
        };
        record.state = SessionState::Ended(error);
        self.ended.push_back(session);
        if self.ended.len() > ENDED_KEPT
            && let Some(oldest) = self.ended.pop_front()
            // Its name may be that of a new session by now.
            && matches!(self.state(oldest), Some(SessionState::Ended(_)))
        {
            self.records.remove(&oldest);
        }
    }

    pub(crate) fn state(&self, session: SessionId) -> Option<SessionState> {
        self.records.get(&session).map(|record| record.state)
    }

    pub(crate) fn address(&self, session: SessionId) -> &str {
        self.records
            .get(&session)
            .map_or("a session that is over", |record| &record.address)
    }

    /// Sessions that are not over.
    pub(crate) fn alive(&self) -> Vec<SessionId> {
        self.records
            .iter()
            .filter(|(_, record)| !matches!(record.state, SessionState::Ended(_)))
            .map(|(session, _)| *session)
            .collect()
    }
}
