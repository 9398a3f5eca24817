//! Threads of a simulated process. Each is a thread of the system's, so that code which blocks its thread runs
//! unchanged; one of them runs at a time, and only while the simulation waits for it.
//!
//! ```text
//!  simulation ── resume(answer) ─▶ thread: runs to its next question
//!       ▲                                     │
//!       └─────────────── question ────────────┘
//! ```
//!
//! So a run is the same each time, and a thread that the simulation does not resume is one that the kernel has
//! stopped.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::check::Violation;

/// What a thread does when it stops running.
pub(crate) enum Pause<Q> {
    /// It asks the simulation something, and waits for the answer.
    Asks(Q),
    /// Its code has ended, perhaps by a panic.
    Ended(Option<Violation>),
}

/// A thread, as the simulation has it. Dropped, it dies where it stands: its stack is unwound.
pub(crate) struct Thread<Q, A> {
    /// `None`: it dies.
    answers: Option<Sender<A>>,
    pauses: Receiver<Pause<Q>>,
    handle: Option<JoinHandle<()>>,
}

/// The simulation, as one of its threads has it.
pub(crate) struct Simulation<Q, A>(Mutex<(Sender<Pause<Q>>, Receiver<A>)>);

/// Keeps this thread, and those that it makes meanwhile, on one processor: to go from one thread to another of the
/// same processor takes a fifth of the time.
pub(crate) struct OneProcessor {
    /// Where it may run afterwards.
    before: Option<CpuSet>,
}

impl OneProcessor {
    pub(crate) fn begin() -> Self {
        // Where that is forbidden, all is as it was, but for the time that it takes.
        let before = sched_getaffinity(None).ok();
        if before.is_some() {
            let mut one = CpuSet::new();
            one.set(sched_getcpu());
            let _ = sched_setaffinity(None, &one);
        }
        Self { before }
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// The payload of the unwinding of a thread that dies.
struct Died;

impl<Q: Send + 'static, A: Default + Send + 'static> Thread<Q, A> {
    /// A thread that will run this code when it is first resumed, with any answer.
    pub(crate) fn new(body: impl FnOnce(Simulation<Q, A>) + Send + 'static) -> Self {
        let (answers, receiver) = channel();
        let (sender, pauses) = channel();
        let run = move || {
            if receiver.recv().is_err() {
                return;
            }
            let simulation = Simulation(Mutex::new((sender.clone(), receiver)));
            let end = catch_unwind(AssertUnwindSafe(|| body(simulation)));
            let violation = match end {
                Err(payload) if !payload.is::<Died>() => Some(Violation::of_panic(payload)),
                _ => None,
            };
            // Nobody listens to a thread that has died.
            let _ = sender.send(Pause::Ended(violation));
        };
        let thread = std::thread::Builder::new().name("simulated".to_owned());
        Self {
            answers: Some(answers),
            pauses,
            handle: Some(thread.spawn(run).expect("the system has a thread")),
        }
    }

    /// Has it run until it asks something, or ends.
    pub(crate) fn resume(&mut self, answer: A) -> Pause<Q> {
        let answers = self.answers.as_ref().expect("it lives");
        // One that has ended takes none.
        let _ = answers.send(answer);
        self.pauses.recv().unwrap_or(Pause::Ended(None))
    }
}

impl<Q, A> Drop for Thread<Q, A> {
    fn drop(&mut self) {
        self.answers = None;
        if let Some(handle) = self.handle.take() {
            // It ends before the next one runs. Its panics are caught.
            let _ = handle.join();
        }
    }
}

impl<Q, A: Default> Simulation<Q, A> {
    /// Asks the simulation something, and returns its answer. By the thread that was given this.
    ///
    /// A thread that dies is unwound from here. What it asks meanwhile has the default answer.
    pub(crate) fn ask(&self, question: Q) -> A {
        let link = self.0.lock();
        // If nobody listens any more, nobody answers.
        let _ = link.0.send(Pause::Asks(question));
        match link.1.recv() {
            Ok(answer) => answer,
            Err(_) if std::thread::panicking() => A::default(),
            Err(_) => {
                drop(link);
                resume_unwind(Box::new(Died))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn threads_run_one_at_a_time_where_they_are_resumed() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let thread = |name: u32| {
            let said = Arc::clone(&said);
            Thread::new(move |simulation: Simulation<u32, u32>| {
                for number in 0..3 {
                    said.lock().push((name, number));
                    assert_eq!(simulation.ask(number), number + 1);
                }
            })
        };
        let (mut first, mut second) = (thread(1), thread(2));
        assert!(said.lock().is_empty());
        assert!(matches!(first.resume(0), Pause::Asks(0)));
        assert!(matches!(second.resume(0), Pause::Asks(0)));
        for number in 1..3 {
            assert!(matches!(second.resume(number), Pause::Asks(it) if it == number));
        }
        assert!(matches!(second.resume(3), Pause::Ended(None)));
        assert!(matches!(first.resume(1), Pause::Asks(1)));
        let order = [(1, 0), (2, 0), (2, 1), (2, 2), (1, 1)];
        assert_eq!(*said.lock(), order);
        let Pause::Ended(Some(violation)) = first.resume(7) else {
            panic!("a wrong answer ends it");
        };
        assert!(violation.detail.contains("assertion"), "{violation}");
    }

    #[test]
    fn a_thread_that_dies_drops_what_it_has_and_its_last_questions_have_an_answer() {
        struct Asks<'a>(&'a Simulation<u32, u32>, Arc<Mutex<Vec<u32>>>);
        impl Drop for Asks<'_> {
            fn drop(&mut self) {
                let answer = self.0.ask(5);
                self.1.lock().push(answer);
            }
        }
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let its = Arc::clone(&dropped);
        let mut thread = Thread::new(move |simulation| {
            let _asks = Asks(&simulation, its);
            simulation.ask(1);
            unreachable!("it dies");
        });
        assert!(matches!(thread.resume(0), Pause::Asks(1)));
        drop(thread);
        assert_eq!(*dropped.lock(), [0]);
        // One that never ran has nothing to drop.
        drop(Thread::new(|_: Simulation<u32, u32>| unreachable!()));
    }
}
