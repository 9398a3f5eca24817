//! An address at which the service listens for an application, as the threads that have to do with it share it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use starling_endpoint::Status;

/// What becomes of a publication.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) id: u64,
    /// The application.
    pub(crate) process: u32,
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
    pub(crate) fn new(id: u64, process: u32) -> Arc<Self> {
        Arc::new(Self {
            id,
            process,
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

    pub(crate) fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    /// Waits until it has begun.
    pub(crate) fn begun(self: &Arc<Self>) -> impl Future<Output = Result<String, Status>> + use<> {
        Waiting {
            of: Arc::clone(self),
            ready: |state| state.begun.clone(),
        }
    }

    /// Waits until it is over.
    pub(crate) fn over(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        Waiting {
            of: Arc::clone(self),
            ready: |state| state.is_over.then_some(()),
        }
    }
}

struct Waiting<T> {
    of: Arc<Publication>,
    ready: fn(&State) -> Option<T>,
}

impl<T> Future for Waiting<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.of.state.lock();
        if let Some(value) = (self.ready)(&state) {
            return Poll::Ready(value);
        }
        if !state
            .waiters
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            state.waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
