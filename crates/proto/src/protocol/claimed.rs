//! The dispatcher's side of claims: the work of workers becomes the state of the protocol.

use std::sync::Arc;

use super::Protocol;
use crate::claims::{Claim, Claims};
use crate::{Msgbuf, RespondReason};

impl Protocol {
    /// From now on workers may claim requests. A worker is a thread that receives datagrams, too;
    /// the dispatcher is the thread that has this endpoint. A worker that claims a request runs it
    /// and reports to the dispatcher. The dispatcher claims the requests that it receives in the
    /// same way. Sessions beyond the first `places` belong to the dispatcher alone. To be called
    /// once for an endpoint.
    pub fn share_claims(&mut self, places: usize) -> Arc<Claims> {
        self.server.share_claims(&mut self.shared, places)
    }

    /// A worker ran a request that it had claimed, and sent `message` as the response, with the
    /// head that the claim gave for it. The state becomes what it would be if this endpoint had
    /// done so: the response is kept, and sent again if the client asks again. `message` is
    /// exchanged as in [`Protocol::respond`].
    ///
    /// # Errors
    /// No client waits for the response any more.
    pub fn handle_claimed_response(
        &mut self,
        now: u64,
        claim: &Claim,
        message: &mut Msgbuf,
    ) -> Result<(), RespondReason> {
        self.server
            .handle_claimed_response(&mut self.shared, now, claim, message)
    }

    /// A worker claimed a request, and has not sent the response itself: [`Protocol::respond`] must
    /// follow. False: no client waits for the response any more.
    pub fn handle_claimed_request(&mut self, now: u64, claim: &Claim) -> bool {
        self.server
            .handle_claimed_request(&mut self.shared, now, claim)
    }
}
