//! An address at which the service listens for an application, as the threads that have to do with it share it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use starling_endpoint::Status;

/// What becomes of a publication.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) id: u64,
    /// The application.
    pub(crate) process: u32,
    /// Its user.
    pub(crate) user: Option<u32>,
    /// Its application wants it no more.
    is_withdrawn: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The address at which the service listens, or why it does not.
    begun: Option<Result<String, Status>>,
    is_over: bool,
    waiters: Vec<Waker>,
}

impl Publication {
    pub(crate) fn new(id: u64, process: u32, user: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            id,
            process,
            user,
            is_withdrawn: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// The service listens at this address, or cannot.
    pub(crate) fn begin(&self, result: Result<String, Status>) {
        self.change(|state| state.begun = Some(result));
    }

    /// Whether anybody else has it: its application may have given up.
    pub(crate) fn is_wanted(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Its application wants it no more: the runtime that has it, or gets it, ends it.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Release);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    /// Waits until it has begun.
    pub(crate) fn begun(self: &Arc<Self>) -> impl Future<Output = Result<String, Status>> + use<> {
        Waiting {
            of: Arc::clone(self),
            ready: |state| state.begun.clone(),
            waker: None,
        }
    }

    /// Waits until it is over.
    pub(crate) fn over(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        Waiting {
            of: Arc::clone(self),
            ready: |state| state.is_over.then_some(()),
            waker: None,
        }
    }
}

struct Waiting<T> {
    of: Arc<Publication>,
    ready: fn(&State) -> Option<T>,
    /// That of its task, among the waiters.
    waker: Option<Waker>,
}

impl<T> Future for Waiting<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let of = Arc::clone(&self.of);
        let mut state = of.state.lock();
        if let Some(value) = (self.ready)(&state) {
            return Poll::Ready(value);
        }
        let waker = cx.waker();
        if !(self.waker.as_ref()).is_some_and(|own| own.will_wake(waker)) {
            state.forget(self.waker.take());
            self.waker = Some(waker.clone());
        }
        if !state.waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            state.waiters.push(waker.clone());
        }
        Poll::Pending
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        let waker = self.waker.take();
        self.of.state.lock().forget(waker);
    }
}

impl State {
    /// One waiter waits no more.
    fn forget(&mut self, waker: Option<Waker>) {
        let place = waker.and_then(|waker| {
            let mut waiters = self.waiters.iter();
            waiters.position(|waiter| waiter.will_wake(&waker))
        });
        if let Some(place) = place {
            self.waiters.swap_remove(place);
        }
    }
}
