//! Finds hand-overs that were lost, where debug assertions are on. The keeper heals them within
//! milliseconds, so that a test would not see them otherwise.
//!
//! If nobody drives while a thread is listed, somebody is about to: a driver that gives up the role and has
//! not yet looked for the next one, a caller that was offered the role, or a caller that has put itself into
//! the list and has not yet tried to take the role once more. Each of them is *in transit*.

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Who is in transit, and was.
#[derive(Default)]
pub(super) struct Handovers {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// Somebody is in transit, while this lives.
pub(super) struct Transit<'a>(&'a Handovers);

impl Drop for Transit<'_> {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            self.0.ended.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Handovers {
    #[inline]
    pub(super) fn begin(&self) -> Transit<'_> {
        self.offer();
        self.take_offer()
    }

    /// A caller is offered the role: it is in transit from here on.
    #[inline]
    pub(super) fn offer(&self) {
        if cfg!(debug_assertions) {
            self.begun.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The caller has seen the offer.
    #[inline]
    pub(super) fn take_offer(&self) -> Transit<'_> {
        Transit(self)
    }

    /// If nobody is in transit: a number that differs as soon as somebody was.
    #[inline]
    pub(super) fn at_rest(&self) -> Option<usize> {
        if !cfg!(debug_assertions) {
            return None;
        }
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }
}
