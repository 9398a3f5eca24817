//! Requests that workers claim, beside the protocol of their endpoint.

use std::sync::Arc;

use super::Protocol;
use crate::claims::{Claim, Claims};
use crate::{Msgbuf, RespondReason};

impl Protocol {
    /// From now on requests may be claimed by workers: threads that receive datagrams, too. Whoever
    /// claims runs the request and tells the dispatcher, the thread that has this endpoint, which
    /// claims what it is given in the same way. Sessions beyond the first `places` stay the
    /// dispatcher's. Once for an endpoint.
    pub fn share_claims(&mut self, places: usize) -> Arc<Claims> {
        self.server.share_claims(&mut self.shared, places)
    }

    /// A worker ran a request that it had claimed, and sent `message` as the answer, with the head
    /// that the claim gave for it. From here on it is as if this endpoint had done that: the answer
    /// is kept, and sent again if the client asks again. `message` is exchanged as in
    /// [`Protocol::respond`].
    ///
    /// # Errors
    /// Nobody waits for it any more.
    pub fn handle_claimed_response(
        &mut self,
        now: u64,
        claim: &Claim,
        message: &mut Msgbuf,
    ) -> Result<(), RespondReason> {
        self.server
            .handle_claimed_response(&mut self.shared, now, claim, message)
    }

    /// A worker claimed a request, and has not sent the answer itself: [`Protocol::respond`] is to
    /// follow. False: nobody waits for it any more.
    pub fn handle_claimed_request(&mut self, now: u64, claim: &Claim) -> bool {
        self.server
            .handle_claimed_request(&mut self.shared, now, claim)
    }
}
