//! A channel in its event loop.

use std::sync::Arc;

use starling_endpoint::{Encoding, SessionId};

use crate::connection::Connection;
use crate::plane::OutgoingCall;

/// A channel, and the methods that its session takes in the native layout.
pub(super) struct OpenChannel {
    pub(super) connection: Arc<Connection>,
    /// The connection's version when these were looked up.
    version: u64,
    /// A method, and the session that takes it. At the place that its id says.
    bound: [Option<(u32, SessionId)>; BOUND_METHODS],
}

/// Methods of a channel that are found without a lock.
const BOUND_METHODS: usize = 8;

impl OpenChannel {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            version: 0,
            bound: [None; BOUND_METHODS],
        }
    }

    /// The session that takes this call of this method now, in the native layout.
    #[inline]
    pub(super) fn session(&mut self, method: u32, call: &OutgoingCall) -> Option<SessionId> {
        // Before the look-up: what changes meanwhile is looked up again.
        let version = self.connection.version();
        let place = method as usize % BOUND_METHODS;
        if version != self.version {
            self.version = version;
            self.bound = [None; BOUND_METHODS];
        }
        match self.bound[place] {
            Some((bound, session)) if bound == method => Some(session),
            _ => self.find_session(method, call),
        }
    }

    fn find_session(&mut self, method: u32, call: &OutgoingCall) -> Option<SessionId> {
        if let Some((session, encoding)) = self.connection.ready(method, false) {
            let session = (encoding == Encoding::Native).then_some(session)?;
            self.bound[method as usize % BOUND_METHODS] = Some((method, session));
            return Some(session);
        }
        // A session that drains takes what belongs to its streams.
        let continues = (call.message.stream).is_some_and(|position| position.number != 0);
        let (session, encoding) = self.connection.ready(method, true).filter(|_| continues)?;
        (encoding == Encoding::Native).then_some(session)
    }
}
