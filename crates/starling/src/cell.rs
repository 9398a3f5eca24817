//! Where a background thread leaves the end of a call, and where the caller waits for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use starling_endpoint::{Encoding, OwnedResponse, Status};

/// How a call ended: its response and how that is encoded, or a status.
pub(crate) type End = Result<(OwnedResponse, Encoding), Status>;

enum State {
    Waiting(Option<Waker>),
    Over(End),
    /// The result was taken, or nobody wants it.
    Done,
}

pub(crate) struct CallCell {
    state: Mutex<State>,
    /// For the background thread: where it keeps the call.
    place: AtomicUsize,
}

/// The call is in no place.
pub(crate) const NO_PLACE: usize = usize::MAX;

impl CallCell {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State::Waiting(None)),
            place: AtomicUsize::new(NO_PLACE),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the end of the call, if somebody wants it.
    pub(crate) fn finish(&self, end: End) {
        let mut state = self.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Over(end);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Takes the end of the call.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<End> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Done) {
            State::Over(end) => Poll::Ready(end),
            State::Done => panic!("polled after it was ready"),
            State::Waiting(waker) => {
                let waker = match waker {
                    Some(waker) if waker.will_wake(cx.waker()) => waker,
                    _ => cx.waker().clone(),
                };
                *state = State::Waiting(Some(waker));
                Poll::Pending
            }
        }
    }

    /// Nobody waits any more. True if the call was not over.
    pub(crate) fn abandon(&self) -> bool {
        let before = std::mem::replace(&mut *self.lock(), State::Done);
        matches!(before, State::Waiting(_))
    }

    /// Whether nobody waits any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(*self.lock(), State::Done)
    }

    pub(crate) fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed)
    }

    pub(crate) fn set_place(&self, place: usize) {
        self.place.store(place, Ordering::Relaxed);
    }
}
