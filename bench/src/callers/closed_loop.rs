//! Callers as threads and as tasks. A caller's first error ends it, and is the error of the run once
//! the other callers have ended.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::recorder::{Recorder, Run, Shared};
use crate::error::BenchError;

/// A client of the echo service, of which each caller has a clone.
pub trait EchoStub: Clone + Send + 'static {
    /// Makes a call with [`small`](super::small) and checks the answer. This thread sleeps meanwhile.
    fn wait(&mut self, number: u64) -> Result<(), BenchError>;

    /// The same in a task.
    fn call(&mut self, number: u64) -> impl Future<Output = Result<(), BenchError>> + Send;
}

/// The number of a caller's first call. No two calls of a process have the same number, so a late
/// answer is not mistaken for another one's.
fn first_number() -> u64 {
    static CALLERS: AtomicU64 = AtomicU64::new(0);
    CALLERS.fetch_add(1, Ordering::Relaxed) << 32
}

fn make_calls(
    shared: Arc<Shared>,
    mut call: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut number = first_number();
    let mut recorder = Recorder::start(shared);
    loop {
        call(number)?;
        number += 1;
        if !recorder.record() {
            return Ok(());
        }
    }
}

async fn make_calls_in_task<S: EchoStub>(
    shared: Arc<Shared>,
    mut stub: S,
) -> Result<(), BenchError> {
    let mut number = first_number();
    let mut recorder = Recorder::start(shared);
    loop {
        stub.call(number).await?;
        number += 1;
        if !recorder.record() {
            return Ok(());
        }
    }
}

/// One caller in this thread.
pub fn this_thread(
    period: Duration,
    call: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<Run, BenchError> {
    let shared = Shared::begin(period);
    make_calls(Arc::clone(&shared), call)?;
    Ok(shared.end())
}

/// So many callers, each in a new thread.
pub fn threads<S: EchoStub>(count: usize, period: Duration, stub: &S) -> Result<Run, BenchError> {
    let shared = Shared::begin(period);
    thread::scope(|scope| {
        let mut callers = Vec::with_capacity(count);
        for index in 0..count {
            let (mut stub, shared) = (stub.clone(), Arc::clone(&shared));
            let caller = thread::Builder::new()
                .name(format!("caller-{index}"))
                .spawn_scoped(scope, || make_calls(shared, move |n| stub.wait(n)))
                .map_err(BenchError::io("starting a thread"))?;
            callers.push(caller);
        }
        let join = |caller: thread::ScopedJoinHandle<'_, Result<(), BenchError>>| {
            caller.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        callers.into_iter().try_for_each(join)
    })?;
    Ok(shared.end())
}

/// So many callers, each a task of `runtime`. This thread runs the runtime meanwhile.
pub fn tasks<S: EchoStub>(
    runtime: &Runtime,
    count: usize,
    period: Duration,
    stub: &S,
) -> Result<Run, BenchError> {
    let shared = Shared::begin(period);
    runtime.block_on(async {
        let mut callers = JoinSet::new();
        for _ in 0..count {
            callers.spawn(make_calls_in_task(Arc::clone(&shared), stub.clone()));
        }
        let mut ended = Ok(());
        while let Some(joined) = callers.join_next().await {
            // No task is aborted, so one that has no result panicked.
            ended = ended.and(joined.unwrap_or_else(|error| resume_unwind(error.into_panic())));
        }
        ended
    })?;
    Ok(shared.end())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::super::Flavor;
    use super::*;

    /// Keeps the numbers of its calls, and fails calls if it is told so.
    #[derive(Clone, Default)]
    struct Stub {
        numbers: Arc<Mutex<Vec<u64>>>,
        fails: bool,
    }

    impl EchoStub for Stub {
        fn wait(&mut self, number: u64) -> Result<(), BenchError> {
            self.numbers.lock().push(number);
            match self.fails {
                true => Err(BenchError::UnknownRole("stub".into())),
                false => Ok(()),
            }
        }

        async fn call(&mut self, number: u64) -> Result<(), BenchError> {
            tokio::task::yield_now().await;
            self.wait(number)
        }
    }

    fn check(stub: &Stub, callers: usize, run: &Run) {
        let mut numbers = stub.numbers.lock();
        let calls = numbers.len();
        assert!(calls >= callers);
        assert_eq!(run.latencies.count(), calls as u64);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), calls, "a number stands for one call");
    }

    #[test]
    fn threads_make_calls_with_numbers_of_their_own() {
        let stub = Stub::default();
        let run = threads(4, Duration::from_millis(2), &stub).unwrap();
        check(&stub, 4, &run);
    }

    #[test]
    fn tasks_make_calls_with_numbers_of_their_own() {
        for flavor in [Flavor::CurrentThread, Flavor::MultiThread] {
            let stub = Stub::default();
            let runtime = flavor.runtime().unwrap();
            let run = tasks(&runtime, 16, Duration::from_millis(2), &stub).unwrap();
            check(&stub, 16, &run);
        }
    }

    #[test]
    fn even_the_shortest_period_has_a_call_of_each_caller() {
        let stub = Stub::default();
        let run = threads(3, Duration::ZERO, &stub).unwrap();
        assert_eq!(run.latencies.count(), 3);
        let run = this_thread(Duration::ZERO, |_| Ok(())).unwrap();
        assert_eq!(run.latencies.count(), 1);
    }

    #[test]
    fn an_error_of_a_caller_is_that_of_the_run() {
        let stub = Stub {
            fails: true,
            ..Stub::default()
        };
        assert!(threads(2, Duration::ZERO, &stub).is_err());
        let runtime = Flavor::CurrentThread.runtime().unwrap();
        assert!(tasks(&runtime, 2, Duration::ZERO, &stub).is_err());
        assert_eq!(stub.numbers.lock().len(), 4, "each caller made one call");
    }
}
