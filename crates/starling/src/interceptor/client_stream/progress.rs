//! What the two sides of an intercepted stream share: how far it is, and who waits for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use starling_endpoint::Status;

use crate::streaming::StreamEnd;

/// What the interceptors' side and the user's side of a stream share.
#[derive(Default)]
pub(super) struct Progress {
    /// The stream, once an interceptor has handed it on.
    pub(super) begun: OnceLock<Arc<dyn StreamEnd>>,
    ended: Mutex<Ended>,
}

#[derive(Default)]
struct Ended {
    /// How the stream ended for its reader.
    result: Option<Result<(), Status>>,
    /// The innermost interceptor waits for that.
    waker: Option<Waker>,
}

impl Progress {
    pub(super) fn is_running(&self) -> bool {
        self.begun.get().is_some() && self.ended.lock().result.is_none()
    }

    pub(super) fn end(&self, result: Result<(), Status>) {
        let mut ended = self.ended.lock();
        ended.result.get_or_insert(result);
        let waker = ended.waker.take();
        drop(ended);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<Result<(), Status>> {
        let mut ended = self.ended.lock();
        if let Some(result) = &ended.result {
            return Poll::Ready(result.clone());
        }
        ended.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Has the halves of the stream polled when the interceptors can go on.
#[derive(Default)]
pub(super) struct Wakers {
    pub(super) is_woken: AtomicBool,
    halves: Mutex<[Option<Waker>; 2]>,
}

/// A half of the stream, by its place in [`Wakers`].
#[derive(Clone, Copy)]
pub(super) enum Half {
    Reader = 0,
    Writer = 1,
}

impl Wakers {
    pub(super) fn register(&self, half: Half, cx: &Context<'_>) {
        let kept = &mut self.halves.lock()[half as usize];
        match kept {
            Some(kept) => kept.clone_from(cx.waker()),
            None => *kept = Some(cx.waker().clone()),
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        let halves = std::mem::take(&mut *self.halves.lock());
        halves.into_iter().flatten().for_each(Waker::wake);
    }
}
