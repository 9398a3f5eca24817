//! Where a driver leaves the result of a call, and where the caller waits for it.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use starling_endpoint::CallNumber;

use crate::plane::CallResult;
use crate::streaming::ClientEnd;

enum State {
    /// With the waker of the caller, or of the task that makes the call for a stream.
    Waiting(Option<Waker>),
    Finished(CallResult),
    /// The caller has taken the result, or does not want it.
    Done,
}

/// One call's result. The mutex is not a waker's alone: result, waker and cancellation change in one
/// step, and it is almost never contended.
pub(crate) struct CallCell {
    state: Mutex<State>,
    number: CallNumber,
    /// The key of the call in the driver's table. Only the driver uses it.
    key: AtomicUsize,
    /// The stream that gets the result.
    stream: Option<Arc<ClientEnd>>,
}

/// The call is not in the driver's table.
const NO_KEY: usize = usize::MAX;

impl CallCell {
    pub(crate) fn new(number: CallNumber) -> Self {
        Self {
            number,
            state: Mutex::new(State::Waiting(None)),
            key: AtomicUsize::new(NO_KEY),
            stream: None,
        }
    }

    /// A call of a stream.
    pub(crate) fn of_stream(stream: &Arc<ClientEnd>) -> Self {
        Self {
            stream: Some(Arc::clone(stream)),
            ..Self::new(CallNumber::next())
        }
    }

    pub(crate) fn number(&self) -> CallNumber {
        self.number
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the result, if the caller still waits and there is none yet.
    pub(crate) fn finish(&self, result: CallResult) {
        let mut state = self.lock();
        if matches!(*state, State::Waiting(_))
            && let Some(stream) = &self.stream
        {
            *state = State::Done;
            drop(state);
            return stream.handle_result(self, result);
        }
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Finished(result);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Takes the result.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<CallResult> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Done) {
            State::Finished(result) => Poll::Ready(result),
            State::Done => panic!("a call was polled after it had ended"),
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

    /// The caller does not wait any more. True if the call had no result yet.
    pub(crate) fn abandon(&self) -> bool {
        let before = std::mem::replace(&mut *self.lock(), State::Done);
        match before {
            State::Waiting(None) => true,
            State::Waiting(Some(waker)) => {
                // A caller's own waker is no use any more; the task of a stream's call ends.
                if self.stream.is_some() {
                    waker.wake();
                }
                true
            }
            State::Finished(_) | State::Done => false,
        }
    }

    /// The output of `future`, unless the call is abandoned before.
    pub(crate) async fn unless_abandoned<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            match &mut *self.lock() {
                State::Waiting(waker) => *waker = Some(cx.waker().clone()),
                State::Finished(_) | State::Done => return Poll::Ready(None),
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(*self.lock(), State::Done)
    }

    pub(crate) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_key(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
    }
}
