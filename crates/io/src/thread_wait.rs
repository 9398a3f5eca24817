//! How long a thread has waited for a processor.

use std::fs::File;
use std::io::Read;

/// How long a thread has waited for a processor, since it began, while it could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadWait {
    /// Which thread.
    pub thread: u32,
    /// In nanoseconds.
    pub waited_ns: u64,
}

impl ThreadWait {
    /// That of the calling thread, which takes some microseconds and no memory. None: the kernel does not say.
    pub fn now() -> Option<Self> {
        // Time on a processor, time of waiting for one, and how often it had one: numbers of 20 digits at most.
        let mut text = [0; 64];
        let mut file = File::open("/proc/thread-self/schedstat").ok()?;
        let bytes = file.read(&mut text).ok()?;
        let text = std::str::from_utf8(&text[..bytes]).ok()?;
        let waited_ns = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(Self {
            thread: rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
            waited_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_does_not_wait_for_a_processor() {
        let Some(begin) = ThreadWait::now() else {
            println!(
                "skipped: a_thread_that_sleeps_does_not_wait_for_a_processor needs /proc/thread-self/schedstat"
            );
            return;
        };
        std::thread::sleep(std::time::Duration::from_secs(1));
        let end = ThreadWait::now().expect("as before");
        assert_eq!(end.thread, begin.thread);
        let waited_ns = end.waited_ns - begin.waited_ns;
        assert!(waited_ns < 900_000_000, "{waited_ns} ns of a second");
        let other = std::thread::spawn(ThreadWait::now).join();
        assert_ne!(
            other.expect("no panic").expect("as before").thread,
            begin.thread
        );
    }
}
