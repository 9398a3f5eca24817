//! Replies that wait together, as those of a stream: thousands of them may, so each takes little memory.

use std::fmt;
use std::sync::Arc;

use starling_call::Cancellation;
use starling_proto::{Msgbuf, RequestId};

use super::{Abandoned, AbandonedReply, Answer, DeferredReply};
use crate::timers::NEVER;

/// A reply that is held until there is something to say, see [`Reply::hold`](super::Reply::hold). It takes little
/// memory. Dropping it answers INTERNAL.
pub struct HeldReply {
    pub(super) id: RequestId,
    /// None once it is to be answered.
    pub(super) abandoned: Option<Arc<Abandoned>>,
}

impl HeldReply {
    /// The reply, to answer it now. `cancellation` is that which it was held with.
    pub fn into_reply(mut self, cancellation: &Cancellation) -> DeferredReply {
        DeferredReply {
            id: self.id,
            deadline_ns: NEVER,
            answer: Answer::default(),
            cancellation: cancellation.clone(),
            abandoned: self.abandoned.take().expect("it is taken here only"),
            is_held: true,
            is_answered: false,
            is_refused: false,
            prefix: None,
        }
    }
}

impl fmt::Debug for HeldReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldReply")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            abandoned.push(AbandonedReply {
                id: self.id,
                message: Msgbuf::new(),
                panicked: std::thread::panicking(),
            });
        }
    }
}
