//! A channel's permits: each outstanding call has one, and further calls wait for one.
//!
//! Each call takes and returns a permit, so this is on the fast path of a call. The count is one
//! atomic. Waiting is [`event_listener`]'s. Ready-made semaphores either lock on each release or do
//! not say how many permits are out.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use event_listener::{Event, EventListener, IntoNotification};

pub(crate) struct Permits {
    capacity: usize,
    taken: AtomicUsize,
    /// Callers that may be in the queue: a permit that returns looks at the queue only if there are some.
    queued: AtomicUsize,
    returned: Event,
}

impl Permits {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            taken: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            returned: Event::new(),
        })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Permits that are out.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes a permit, if one is free. [`Permits::release`] returns it.
    #[must_use]
    pub(crate) fn try_acquire(&self) -> bool {
        let more = |taken| (taken < self.capacity).then_some(taken + 1);
        (self.taken)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
            .is_ok()
    }

    /// Returns a permit.
    pub(crate) fn release(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.queued.load(Ordering::SeqCst) > 0 {
            // One more listener for each permit, also if earlier ones have not run yet.
            self.returned.notify(1.additional());
        }
    }

    /// Queues for a permit. The listener is notified when a permit may be free; the caller then
    /// tries again. A permit that was returned before this is not notified, so the caller also
    /// tries once after this.
    pub(crate) fn listen(self: &Arc<Self>) -> PermitListener {
        // Before the caller tries once more. So either that sees a returned permit, or whoever returns one
        // sees this.
        self.queued.fetch_add(1, Ordering::SeqCst);
        PermitListener {
            listener: self.returned.listen(),
            permits: Arc::clone(self),
        }
    }
}

/// A caller's place in the queue for a permit.
pub(crate) struct PermitListener {
    listener: EventListener,
    permits: Arc<Permits>,
}

impl Drop for PermitListener {
    fn drop(&mut self) {
        self.permits.queued.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PermitListener {
    /// Ready when a permit may be free.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let waker = Waker::from(Arc::new(QueuedWaker(cx.waker().clone())));
        Pin::new(&mut self.listener).poll(&mut Context::from_waker(&waker))
    }
}

/// The waker of a caller in the queue. A panic ends in it: the caller that returns a permit is amid a call of
/// somebody else, and the queue is amid a change.
struct QueuedWaker(Waker);

impl Wake for QueuedWaker {
    fn wake(self: Arc<Self>) {
        // The panic hook has reported it.
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.wake_by_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_returned_permit_notifies_one_listener_in_order() {
        let permits = Permits::new(2);
        assert!(permits.try_acquire() && permits.try_acquire());
        assert!(!permits.try_acquire());
        let [mut one, mut two, mut three] = [permits.listen(), permits.listen(), permits.listen()];
        let is_notified = |listener: &mut PermitListener| {
            listener
                .poll(&Context::from_waker(Waker::noop()))
                .is_ready()
        };
        permits.release();
        permits.release();
        assert_eq!(permits.taken(), 0);
        assert!(is_notified(&mut two));
        assert!(!is_notified(&mut three));
        // A listener that gives up passes its notification on.
        drop(one);
        assert!(is_notified(&mut three));
        one = permits.listen();
        assert!(!is_notified(&mut one));
    }
}
