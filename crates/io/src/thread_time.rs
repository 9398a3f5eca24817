//! What the kernel has given the calling thread.

/// How long a thread has run, and how often it was stopped to let others run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Which thread.
    pub thread: u64,
    /// Time on a processor, in nanoseconds. The kernel counts microseconds.
    pub ran_ns: u64,
    /// How often it was stopped although it could go on.
    pub preemptions: u64,
}

impl ThreadTime {
    /// That of the calling thread. A system call. None: the kernel does not say.
    #[allow(unsafe_code, reason = "a system call that rustix does not have")]
    pub fn now() -> Option<Self> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes one `rusage` there, which any bytes are.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return None;
            }
            usage.assume_init()
        };
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Some(Self {
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u64,
            ran_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
            preemptions: usage.ru_nivcsw as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn a_thread_that_computes_runs_and_one_that_sleeps_does_not() {
        let begin = ThreadTime::now().expect("Linux says so");
        let mut now = begin;
        for round in 0..u64::MAX {
            black_box(round);
            if round % 100_000 == 0 {
                now = ThreadTime::now().expect("Linux says so");
                if now.ran_ns >= begin.ran_ns + 20_000_000 {
                    break;
                }
            }
        }
        assert_eq!(now.thread, begin.thread);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = ThreadTime::now().expect("Linux says so").ran_ns - now.ran_ns;
        assert!(slept < 40_000_000, "{slept} ns of 50 ms");
        let other = std::thread::spawn(ThreadTime::now)
            .join()
            .expect("no panic");
        assert_ne!(other.expect("Linux says so").thread, begin.thread);
    }
}
