//! Waits for futures in plain threads. The thread drives the calls that it waits for.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use starling_io::forks;
use starling_share::Waiter;

use crate::driver::Shared;
use crate::executor::Executor;

/// What a thread in [`block_on`] waits for.
#[derive(Default)]
struct Blocked {
    /// How deep in [`block_on`] the thread is: a future may block again while it is polled.
    depth: usize,
    /// The loop that the future's calls wait for. The thread drives one loop; calls by others are
    /// driven in the background.
    drives: Option<Arc<Shared>>,
    /// The process that `drives` is of; see [`forks`].
    process: u32,
}

impl Blocked {
    /// The loop that this thread drives. What a fork has inherited is its parent's.
    fn drives(&mut self) -> &mut Option<Arc<Shared>> {
        let process = forks();
        if std::mem::replace(&mut self.process, process) != process {
            std::mem::forget(self.drives.take());
        }
        &mut self.drives
    }
}

thread_local! {
    static BLOCKED: RefCell<Blocked> = RefCell::default();
    static WAITER: Arc<Waiter> = Waiter::of_this_thread();
    /// The endpoint that takes a turn in this thread, by the address of its executor.
    static IN_TURN: Cell<usize> = const { Cell::new(0) };
    /// The endpoint that this thread runs until a future is ready.
    static RUNS: Cell<usize> = const { Cell::new(0) };
}

/// This thread takes a turn of an endpoint, while this lives. What runs meanwhile must not block.
pub(crate) struct InTurn {
    was: usize,
}

impl InTurn {
    #[inline]
    pub(crate) fn begin(executor: &Arc<Executor>) -> Self {
        Self {
            was: IN_TURN.replace(Arc::as_ptr(executor).addr()),
        }
    }
}

impl Drop for InTurn {
    #[inline]
    fn drop(&mut self) {
        IN_TURN.set(self.was);
    }
}

/// Whether this thread takes a turn of an endpoint.
pub(crate) fn is_in_turn() -> bool {
    IN_TURN.get() != 0
}

/// This thread runs an endpoint until a future is ready, while this lives.
pub(crate) struct Runs {
    was: usize,
}

impl Runs {
    pub(crate) fn begin(executor: &Arc<Executor>) -> Self {
        Self {
            was: RUNS.replace(Arc::as_ptr(executor).addr()),
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        RUNS.set(self.was);
    }
}

/// Whether this thread runs the endpoint with this executor.
pub(crate) fn runs_endpoint(executor: &Arc<Executor>) -> bool {
    let endpoint = Arc::as_ptr(executor).addr();
    IN_TURN.get() == endpoint || RUNS.get() == endpoint
}

/// Has this thread drive the loop while it sleeps, if it is in [`block_on`] and drives no other loop.
pub(crate) fn drive_while_blocked(shared: &Arc<Shared>) -> bool {
    BLOCKED.with_borrow_mut(|blocked| {
        if blocked.depth == 0 {
            return false;
        }
        let drives = blocked.drives().get_or_insert_with(|| Arc::clone(shared));
        Arc::ptr_eq(drives, shared)
    })
}

/// Waits for a future. This thread sleeps meanwhile, or does the work of the channels whose calls it
/// waits for. So this is for threads that run no executor.
///
/// Not for futures of a [`LocalChannel`](crate::LocalChannel), whose endpoint would not run. Await them
/// in [`Endpoint::block_on`](crate::Endpoint::block_on).
///
/// # Panics
/// In a dispatch thread: in an inline or nested handler, or a task of an endpoint. All other calls of the
/// thread would wait, perhaps for ever.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        !is_in_turn(),
        "`wait` or `block_on` in a dispatch thread, which would serve nobody meanwhile: make the \
         method NESTED and `.await` the call, or make it WORKER"
    );
    let mut future = pin!(future);
    let _blocking = Blocking::begin();
    let waiter = if Blocking::is_nested() {
        // The outer wait uses the thread's waiter.
        Waiter::of_this_thread()
    } else {
        WAITER.with(Arc::clone)
    };
    let waker = Waker::from(Arc::clone(&waiter));
    let mut cx = Context::from_waker(&waker);
    loop {
        // A wake from here on is seen after the poll.
        waiter.take_notified();
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // Kept for the next poll, which may poll none of the calls that it still waits for.
        match BLOCKED.with_borrow_mut(|blocked| blocked.drives().clone()) {
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
struct Blocking {
    /// The loop of the outer wait, if there is one.
    outer: Option<Arc<Shared>>,
}

impl Blocking {
    fn begin() -> Self {
        BLOCKED.with_borrow_mut(|blocked| {
            blocked.depth += 1;
            Self {
                outer: blocked.drives().take(),
            }
        })
    }

    /// Whether the thread waits within another wait.
    fn is_nested() -> bool {
        BLOCKED.with_borrow(|blocked| blocked.depth > 1)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        let driven = BLOCKED.with_borrow_mut(|blocked| {
            blocked.depth -= 1;
            std::mem::replace(&mut blocked.drives, self.outer.take())
        });
        // Without the borrow: it may be the last reference.
        drop(driven);
    }
}
