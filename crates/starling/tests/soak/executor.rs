//! An executor made by hand: its thread parks until a waker has a future polled. Wakers take their
//! time, for they run in the thread that drives.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::preemption::{disturb, nap_sometimes};
use crate::random::Random;

struct Queue {
    ready: Mutex<VecDeque<usize>>,
    thread: Thread,
}

struct Task {
    index: usize,
    queue: Arc<Queue>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        nap_sometimes();
        self.queue
            .ready
            .lock()
            .expect("no panic")
            .push_back(self.index);
        nap_sometimes();
        self.queue.thread.unpark();
    }
}

/// Runs all futures to their ends in this thread. Polls only those that were woken: one that nobody
/// wakes is never polled again.
pub(crate) fn run<F: Future<Output = ()>>(futures: Vec<F>, random: &mut Random) {
    let queue = Arc::new(Queue {
        ready: Mutex::new((0..futures.len()).collect()),
        thread: std::thread::current(),
    });
    let mut left = futures.len();
    let mut futures: Vec<Option<Pin<Box<F>>>> = futures
        .into_iter()
        .map(|future| Some(Box::pin(future)))
        .collect();
    while left > 0 {
        let next = queue.ready.lock().expect("no panic").pop_front();
        let Some(index) = next else {
            std::thread::park();
            continue;
        };
        let task = Task {
            index,
            queue: Arc::clone(&queue),
        };
        let waker = Waker::from(Arc::new(task));
        let done = |future: &mut Pin<Box<F>>| {
            let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
            poll == Poll::Ready(())
        };
        if futures[index].take_if(done).is_some() {
            left -= 1;
        }
        disturb(random);
    }
}
