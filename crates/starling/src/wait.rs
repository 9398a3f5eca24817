//! Waits for futures in plain threads. The thread drives the calls that it waits for.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use starling_share::Waiter;

use crate::driver::Shared;

/// What a thread in [`block_on`] waits for.
#[derive(Default)]
struct Blocked {
    /// How deep in [`block_on`] the thread is: a future may block again while it is polled.
    depth: usize,
    /// The loop that the future's calls wait for. The thread drives one loop; calls by others are
    /// driven in the background.
    drives: Option<Arc<Shared>>,
}

thread_local! {
    static BLOCKED: RefCell<Blocked> = RefCell::default();
    static WAITER: Arc<Waiter> = Waiter::of_this_thread();
}

/// Has this thread drive the loop while it sleeps, if it is in [`block_on`] and drives no other loop.
pub(crate) fn drive_while_blocked(shared: &Arc<Shared>) -> bool {
    BLOCKED.with_borrow_mut(|blocked| {
        if blocked.depth == 0 {
            return false;
        }
        let drives = blocked.drives.get_or_insert_with(|| Arc::clone(shared));
        Arc::ptr_eq(drives, shared)
    })
}

/// Waits for a future. This thread sleeps meanwhile, or does the work of the channels whose calls it
/// waits for. So this is for threads that run no executor.
///
/// Not for futures of a [`LocalChannel`](crate::LocalChannel), whose endpoint would not run. Await them
/// in [`Endpoint::block_on`](crate::Endpoint::block_on).
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waiter = match Blocking::begin() {
        1 => WAITER.with(Arc::clone),
        // The outer wait uses the thread's waiter.
        _ => Waiter::of_this_thread(),
    };
    let _blocking = Blocking;
    let waker = Waker::from(Arc::clone(&waiter));
    let mut cx = Context::from_waker(&waker);
    loop {
        // A wake from here on is seen after the poll.
        waiter.take_notified();
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // Kept for the next poll, which may poll none of the calls that it still waits for.
        match BLOCKED.with_borrow(|blocked| blocked.drives.clone()) {
            Some(shared) => shared.wait(&waiter),
            None => {
                while !waiter.is_notified() {
                    waiter.park();
                }
            }
        }
    }
}

/// The thread is in [`block_on`], while this lives.
struct Blocking;

impl Blocking {
    /// Returns how deep the thread is in it.
    fn begin() -> usize {
        BLOCKED.with_borrow_mut(|blocked| {
            blocked.depth += 1;
            blocked.drives = None;
            blocked.depth
        })
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        BLOCKED.with_borrow_mut(|blocked| blocked.depth -= 1);
    }
}
