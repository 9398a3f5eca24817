//! Waits for futures in plain threads.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future. This thread sleeps meanwhile, so this is for threads that run no executor.
///
/// Not for futures of a [`LocalChannel`](crate::LocalChannel), whose endpoint would not run. Await them
/// in [`Endpoint::block_on`](crate::Endpoint::block_on).
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // Returns at once if the waker has been woken since the last park.
        std::thread::park();
    }
}
