//! A thread that closes what came from peers, because that can take as long as a peer likes.
//!
//! The last `close` of a file may wait: a TCP socket with `SO_LINGER` waits for its other end. A peer can
//! send such a file through the Unix socket, as a file of its own or as one that it sends with any
//! message. Files that no one has received are closed with the socket. So the thread that uses the
//! device closes neither a peer's socket nor a peer's file that it has not recognised as memory.
//!
//! ```text
//!   device ── give ──▶ waiting ──▶ closer thread: close, which may wait
//!          ◀── is_behind: accept no one
//! ```
//!
//! A thread is started when there is something to close, and sleeps after that until the device ends.
//! Another one is started for each [`WAITING_PER_THREAD`] files that wait, up to [`MAX_THREADS`].

use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use starling_io::forks;

use crate::sys;

/// So many files wait before there is another thread.
const WAITING_PER_THREAD: usize = 16;

/// The most threads of one device.
const MAX_THREADS: usize = 4;

/// With more files that wait, the device accepts no one.
const MAX_WAITING: usize = 256;

/// Closes files of peers. Cheap to clone; the threads end with the last clone.
#[derive(Clone)]
pub(crate) struct Closer(Arc<Giver>);

/// The device's end.
struct Giver {
    shared: Arc<Shared>,
    /// Where in the order of forks it was made.
    forks: u32,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// The device is gone.
    ended: bool,
}

impl Closer {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Giver {
            shared: Arc::default(),
            forks: forks(),
        }))
    }

    /// Has a file closed by another thread. If there can be no thread, the file stays open until there
    /// is one.
    pub(crate) fn give(&self, file: OwnedFd) {
        if self.0.forks != forks() {
            // The child of a fork has no such thread, and its parent still has the file.
            return;
        }
        let shared = &self.0.shared;
        let mut queue = shared.queue();
        queue.waiting.push_back(file);
        if queue.threads < MAX_THREADS && queue.waiting.len() > WAITING_PER_THREAD * queue.threads {
            let of_thread = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("starling-shm-close".into());
            if thread.spawn(move || of_thread.run()).is_ok() {
                queue.threads += 1;
            }
        }
        drop(queue);
        shared.changed.notify_one();
    }

    /// Whether so many files wait that there should not be more of them.
    pub(crate) fn is_behind(&self) -> bool {
        self.0.shared.queue().waiting.len() > MAX_WAITING
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        if self.forks == forks() {
            self.shared.queue().ended = true;
            self.shared.changed.notify_all();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes files until the device is gone and none is left.
    fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(file) = queue.waiting.pop_front() {
                drop(queue);
                drop(file);
                queue = self.queue();
            } else if queue.ended {
                return;
            } else {
                let woken = self.changed.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// A socket whose other end is a peer. Dropped, it hangs up at once and is closed by the closer.
pub(crate) struct PeerSocket {
    /// `None` only in `drop`.
    socket: Option<OwnedFd>,
    closer: Closer,
}

impl PeerSocket {
    pub(crate) fn new(socket: OwnedFd, closer: &Closer) -> Self {
        Self {
            socket: Some(socket),
            closer: closer.clone(),
        }
    }
}

impl Deref for PeerSocket {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        self.socket.as_ref().expect("it is not dropped yet")
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        if self.closer.0.forks == forks() {
            // The closer may come to it late, and the peer is to know now.
            sys::hang_up(&socket);
        }
        self.closer.give(socket);
    }
}

#[cfg(test)]
impl Closer {
    /// One whose threads all wait, with as many files behind them as may be.
    pub(crate) fn stuck() -> Self {
        let closer = Self::new();
        closer.0.shared.queue().threads = MAX_THREADS;
        for _ in 0..=MAX_WAITING {
            let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
            closer.give(file.expect("a file"));
        }
        closer
    }

    /// Its threads go on.
    pub(crate) fn release(&self) {
        self.0.shared.queue().waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_closes_what_it_is_given_and_ends_with_the_device() {
        let closer = Closer::new();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        closer.give(ours.into());
        let shared = Arc::downgrade(&closer.0.shared);
        // It ends only with its other end, so this waits until the thread has closed that.
        assert_eq!(std::io::Read::read(&mut &theirs, &mut [0]).unwrap(), 0);
        assert!(!closer.is_behind());
        drop(closer);
        while shared.strong_count() > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn threads_are_few_and_a_device_knows_when_files_wait() {
        let closer = Closer::stuck();
        assert!(closer.is_behind());
        assert_eq!(closer.0.shared.queue().threads, MAX_THREADS);
        drop(closer.0.shared.queue().waiting.pop_front());
        assert!(!closer.is_behind());
    }
}
