//! The slots of clients that get fewer sessions than their streams need.
//!
//! Each stream has a request at the server all the time, which takes a slot. A client whose requests have all of its
//! slots opens a further session. If the server refuses that and all requests are of streams, nothing more of the
//! client's would arrive. So for a while after a refusal the server answers the oldest requests in full sessions of
//! such clients. Their streams ask again, behind all that waits for a slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use starling_endpoint::{LocalHandle, RequestId, SessionId};

use super::server::ServerEnd;
use super::table::Streams;

/// How often full sessions are looked for.
const LOOK: Duration = Duration::from_millis(10);
/// Looks after a refusal. Clients that wait ask for a session again within half of that time.
const LOOKS: u32 = 300;
/// A look answers a request in one of so many slots of a session.
const SLOTS_FOR_ONE: usize = 4;

/// For how long a client is remembered that was refused a session.
pub(crate) const SHARED_FOR: Duration = LOOK.saturating_mul(LOOKS);

/// When slots are shared.
#[derive(Debug, Default)]
pub(crate) struct SlotSharing {
    /// Looks that are left. With none there is no timer.
    looks: AtomicU32,
    is_due: AtomicBool,
}

impl SlotSharing {
    /// Whether [`Streams::share_slots`] is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// One more look, if one is left.
    fn ask_for_look(&self) -> bool {
        let left = |looks: u32| looks.checked_sub(1);
        let before = self
            .looks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        let goes_on = before.is_ok_and(|before| before > 1);
        self.is_due.store(goes_on, Ordering::Relaxed);
        goes_on
    }
}

impl Streams {
    /// A client was refused a session. Only the thread of the endpoint calls this.
    #[cold]
    pub(crate) fn begin_slot_sharing(self: &Arc<Self>, local: &LocalHandle) {
        if self.is_empty() || self.slot_sharing.looks.swap(LOOKS, Ordering::Relaxed) > 0 {
            return;
        }
        let (streams, timer) = (Arc::downgrade(self), local.clone());
        local.spawn(async move {
            loop {
                timer.sleep(LOOK).await;
                match streams.upgrade() {
                    Some(streams) if streams.slot_sharing.ask_for_look() => {}
                    _ => return,
                }
            }
        });
    }

    /// Answers the oldest requests of streams in these sessions, each of which is full with so many.
    #[cold]
    pub(crate) fn share_slots(&self, full: &HashMap<SessionId, usize>) {
        self.slot_sharing.is_due.store(false, Ordering::Relaxed);
        if full.is_empty() {
            return;
        }
        let mut held: HashMap<SessionId, Vec<(RequestId, Arc<ServerEnd>)>> = HashMap::new();
        self.for_each(|end| {
            if let Some(request) = end.oldest_request()
                && full.contains_key(&request.session())
            {
                let of_session = held.entry(request.session()).or_default();
                of_session.push((request, Arc::clone(end)));
            }
        });
        for (session, mut of_session) in held {
            of_session.sort_by_key(|(request, _)| request.number());
            let most = full[&session].div_ceil(SLOTS_FOR_ONE);
            for (_, end) in of_session.into_iter().take(most) {
                end.answer_oldest();
            }
        }
    }
}
