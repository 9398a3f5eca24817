//! Models of callers, driver tasks and the keeper. The code under test is the code that ships, over the
//! locks, atomics and threads of a checker: loom tries all interleavings of few threads, shuttle random
//! ones of many.
//!
//! A caller or a driver that nobody wakes is a deadlock, which both report. Time does not pass, so no timer
//! hides a wake-up that was lost.

#[cfg(loom)]
mod interleavings;
#[cfg(shuttle)]
mod schedules;

use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};
use crate::{Reactor, Waiter};

/// Has the thread of a waiter poll its driver task.
struct PollTask(Arc<Waiter>);

impl std::task::Wake for PollTask {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.offer();
    }
}

/// A device's descriptor. Each reactor that watches it sees each change, as with edge-triggered epoll.
#[derive(Default)]
struct Descriptor(Mutex<Vec<Arc<Mutex<Watched>>>>);

/// What one reactor knows of it.
#[derive(Default)]
struct Watched {
    is_readable: bool,
    waker: Option<Waker>,
}

impl Descriptor {
    fn set_readable(&self) {
        let reactors = lock(&self.0).clone();
        for reactor in reactors {
            let mut watched = lock(&reactor);
            watched.is_readable = true;
            let waker = watched.waker.take();
            drop(watched);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn reactor(&self) -> Box<dyn Reactor> {
        let watched = Arc::new(Mutex::new(Watched::default()));
        lock(&self.0).push(Arc::clone(&watched));
        Box::new(ModelReactor(watched))
    }
}

struct ModelReactor(Arc<Mutex<Watched>>);

impl Reactor for ModelReactor {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut watched = lock(&self.0);
        if std::mem::take(&mut watched.is_readable) {
            return Poll::Ready(());
        }
        watched.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
