//! Whether anybody still waits for a call, for its handler and for all that the handler has begun.
//!
//! ```text
//!  the plane ── cancel, finish ──▶ State ──▶ is_cancelled    a handler that works asks now and then
//!                                    └─────▶ cancelled       any number of tasks wait for it
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::status::Status;

/// Whether the caller of a call still waits: it has not cancelled the call, it is not gone, its deadline
/// has not passed, and the call has not been answered. Cheap to clone, and for any thread.
#[derive(Clone, Default)]
pub struct Cancellation(Arc<State>);

#[derive(Default)]
struct State {
    /// The call has been answered, or never will be.
    is_finished: AtomicBool,
    /// Why the caller no longer waits.
    why: OnceLock<Box<Status>>,
    /// There is a future among the waiters.
    is_awaited: AtomicBool,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    /// The task that runs the handler.
    handler: Option<Waker>,
    /// Those of the futures, by their keys.
    futures: Vec<Option<Waker>>,
}

impl State {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> Option<Status> {
        if let Some(why) = self.why.get() {
            return Some(Status::clone(why));
        }
        let answered = || Status::cancelled("the call has been answered");
        (self.is_finished.load(Ordering::SeqCst)).then(answered)
    }
}

impl Cancellation {
    /// Whether the caller no longer waits. A handler that works for long asks now and then.
    pub fn is_cancelled(&self) -> bool {
        self.0.why.get().is_some() || self.0.is_finished.load(Ordering::Relaxed)
    }

    /// Why the caller no longer waits: CANCELLED or DEADLINE_EXCEEDED, or what has broken a stream. `None`
    /// while it waits.
    pub fn status(&self) -> Option<Status> {
        self.0.status()
    }

    /// Ready as soon as the caller no longer waits, with the reason. Tasks that a handler has begun can
    /// wait for it: it is ready at the latest when the call has been answered.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled {
            of: self.clone(),
            key: None,
        }
    }

    // ---- for planes ----

    /// The caller no longer waits. Only the first reason counts, and none that comes after the answer.
    pub fn cancel(&self, why: Status) {
        if self.0.is_finished.load(Ordering::Relaxed) || self.0.why.set(Box::new(why)).is_err() {
            return;
        }
        let mut waiters = self.0.waiters();
        let Waiters { handler, futures } = std::mem::take(&mut *waiters);
        drop(waiters);
        let all = handler.into_iter().chain(futures.into_iter().flatten());
        all.for_each(Waker::wake);
    }

    /// The call has been answered, or never will be. False if that was said before.
    pub fn finish(&self) -> bool {
        // Sequentially consistent, as in `Cancelled::poll`: a future that looks in this moment sees the
        // end, or this sees the future.
        if self.0.is_finished.swap(true, Ordering::SeqCst) {
            return false;
        }
        if self.0.is_awaited.load(Ordering::SeqCst) {
            let futures = std::mem::take(&mut self.0.waiters().futures);
            futures.into_iter().flatten().for_each(Waker::wake);
        }
        true
    }

    /// Whether the call has been answered.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished.load(Ordering::Relaxed)
    }

    /// As [`Cancellation::cancelled`], for the one task that runs the handler: wakes the task that polled
    /// last, allocates nothing, and is not ready because of the answer.
    pub fn poll_cancelled(&self, cx: &Context<'_>) -> Poll<Status> {
        let mut waiters = self.0.waiters();
        // Under the lock, so that a later cancellation finds the waker.
        if let Some(why) = self.0.why.get() {
            return Poll::Ready(Status::clone(why));
        }
        match &mut waiters.handler {
            Some(kept) => kept.clone_from(cx.waker()),
            None => waiters.handler = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Makes it that of another call, which is waited for. Uses its memory again if nobody else has it.
    pub fn renew(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(state) => *state = State::default(),
            None => *self = Self::default(),
        }
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancellation").field(&self.status()).finish()
    }
}

/// The future of [`Cancellation::cancelled`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Cancelled {
    of: Cancellation,
    /// Its place among the waiters.
    key: Option<usize>,
}

impl Future for Cancelled {
    type Output = Status;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Status> {
        let state = Arc::clone(&self.of.0);
        let mut waiters = state.waiters();
        state.is_awaited.store(true, Ordering::SeqCst);
        if let Some(why) = state.status() {
            self.key = None;
            return Poll::Ready(why);
        }
        let futures = &mut waiters.futures;
        let key = *self.key.get_or_insert_with(|| {
            let free = futures.iter().position(Option::is_none);
            free.unwrap_or_else(|| {
                futures.push(None);
                futures.len() - 1
            })
        });
        match &mut futures[key] {
            Some(kept) => kept.clone_from(cx.waker()),
            place => *place = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        let waker = self.key.and_then(|key| {
            let mut waiters = self.of.0.waiters();
            waiters.futures.get_mut(key).and_then(Option::take)
        });
        // Without the lock: it may be the last reference to a task.
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::code::Code;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        fn taken(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    fn poll(future: &mut Cancelled, count: &Arc<Count>) -> Option<Status> {
        let waker = Waker::from(Arc::clone(count));
        match Pin::new(future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(status) => Some(status),
            Poll::Pending => None,
        }
    }

    #[test]
    fn all_who_wait_learn_the_first_reason() {
        let call = Cancellation::default();
        let count = Arc::new(Count::default());
        let (mut one, mut other) = (call.cancelled(), call.clone().cancelled());
        assert!(poll(&mut one, &count).is_none() && poll(&mut other, &count).is_none());
        let waker = Waker::from(Arc::clone(&count));
        assert!(
            call.poll_cancelled(&Context::from_waker(&waker))
                .is_pending()
        );
        assert!(!call.is_cancelled() && call.status().is_none());
        call.cancel(Status::deadline_exceeded("late"));
        call.cancel(Status::cancelled("no more"));
        assert_eq!(count.taken(), 3);
        let reasons = [
            poll(&mut one, &count),
            poll(&mut other, &count),
            call.status(),
        ];
        for reason in reasons {
            assert_eq!(
                reason.map(|status| status.code()),
                Some(Code::DeadlineExceeded)
            );
        }
        assert!(call.is_cancelled());
    }

    #[test]
    fn an_answer_ends_the_waiting_of_futures_but_not_of_the_handlers_task() {
        let call = Cancellation::default();
        let count = Arc::new(Count::default());
        let mut waits = call.cancelled();
        assert!(poll(&mut waits, &count).is_none());
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        assert!(call.poll_cancelled(&cx).is_pending());
        assert!(call.finish() && !call.finish());
        assert_eq!(count.taken(), 1);
        assert!(poll(&mut waits, &count).is_some() && call.poll_cancelled(&cx).is_pending());
        call.cancel(Status::deadline_exceeded("too late to say so"));
        let code = call.status().map(|status| status.code());
        assert_eq!(code, Some(Code::Cancelled));
    }

    #[test]
    fn a_future_that_is_dropped_leaves_its_place_to_the_next() {
        let call = Cancellation::default();
        let count = Arc::new(Count::default());
        let mut first = call.cancelled();
        assert!(poll(&mut first, &count).is_none());
        for _ in 0..10 {
            let mut next = call.cancelled();
            assert!(poll(&mut next, &count).is_none());
        }
        assert_eq!(call.0.waiters().futures.len(), 2);
        drop(first);
        call.cancel(Status::cancelled("now"));
        assert_eq!(count.taken(), 0);
    }

    #[test]
    fn what_is_renewed_is_of_another_call_and_a_copy_stays_with_the_first() {
        let mut call = Cancellation::default();
        call.cancel(Status::cancelled("first"));
        let copy = call.clone();
        call.renew();
        assert!(copy.is_cancelled() && !call.is_cancelled());
        call.finish();
        call.renew();
        assert!(!call.is_cancelled());
    }
}
