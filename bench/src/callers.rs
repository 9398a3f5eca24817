//! Callers in closed loops: threads, or tasks of tokio, that make one call after the other. The suite
//! `channel` measures Starling and tonic with the same callers.
//!
//! ```text
//!  caller 0:  call ─▶ check the answer ─▶ record ─▶ call ...  ─┐
//!  caller 1:  call ─▶ check the answer ─▶ record ─▶ call ...  ─┼─▶ one histogram
//!  ...                                                        ─┘
//! ```
//!
//! A thread inherits the core of the thread that starts it. So callers, the workers of a runtime, and
//! threads that a channel starts share the client's core.
//!
//! The metric `cpu` is processor time of both processes per call. The client's is exact. The server's
//! comes from `/proc/PID/stat` in steps of the kernel's tick (10 ms): a measurement of 0.4 s has an
//! error of up to 10 ms in at most 400, and a very short one may miss the server's part altogether.
//!
//! | module | holds |
//! |---|---|
//! | `closed_loop` | callers as threads and as tasks |
//! | `recorder` | latencies of many callers in one histogram |

mod closed_loop;
mod recorder;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use crate::benchmark::Context;
use crate::error::BenchError;
use crate::floor::SMALL_BYTES;
use crate::metric::{Metric, Sample};
use crate::process::RoleProcess;

pub use closed_loop::{EchoStub, tasks, this_thread, threads};
pub use recorder::Run;

/// Workers of a runtime with several threads.
const WORKERS: usize = 2;

/// A kind of runtime of tokio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// All tasks run in the thread that runs the runtime.
    CurrentThread,
    /// Tasks run in two worker threads.
    MultiThread,
}

impl Flavor {
    /// Its name in a case.
    pub fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current-thread",
            Self::MultiThread => "multi-thread",
        }
    }

    /// A new runtime.
    pub fn runtime(self) -> Result<Runtime, BenchError> {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        if self == Self::MultiThread {
            builder.worker_threads(WORKERS);
        }
        let runtime = builder.enable_all().build();
        runtime.map_err(BenchError::io("starting a tokio runtime"))
    }
}

/// How many callers call, and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// So many plain threads. Each sleeps until its call has ended.
    Threads(usize),
    /// Tasks of one runtime.
    Tasks {
        /// The kind of runtime.
        flavor: Flavor,
        /// How many.
        count: usize,
    },
}

impl Callers {
    /// All that the suite measures.
    pub const ALL: [Self; 11] = [
        Self::Threads(1),
        Self::Threads(2),
        Self::Threads(4),
        Self::Threads(8),
        Self::Threads(16),
        Self::tasks(Flavor::CurrentThread, 1),
        Self::tasks(Flavor::CurrentThread, 16),
        Self::tasks(Flavor::CurrentThread, 128),
        Self::tasks(Flavor::CurrentThread, 1024),
        Self::tasks(Flavor::MultiThread, 1),
        Self::tasks(Flavor::MultiThread, 128),
    ];

    const fn tasks(flavor: Flavor, count: usize) -> Self {
        Self::Tasks { flavor, count }
    }

    /// The case of a benchmark with these callers: `threads=4`, `current-thread tasks=16`.
    pub fn case(self) -> String {
        match self {
            Self::Threads(count) => format!("threads={count}"),
            Self::Tasks { flavor, count } => format!("{} tasks={count}", flavor.name()),
        }
    }
}

/// A small request, which is also its answer: a number, then zeros.
pub fn small(number: u64) -> [u8; SMALL_BYTES] {
    let mut message = [0; SMALL_BYTES];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// Runs callers for a warm-up of a tenth of the measuring time, then for the measuring time, and
/// returns the figures of the latter. `run` runs them for as long as it is told.
pub fn measure(
    context: &Context,
    server: &RoleProcess,
    run: impl FnMut(Duration) -> Result<Run, BenchError>,
) -> Result<Sample, BenchError> {
    measure_with(context, &[server], run)
}

/// The same with more processes than the server: the processor time of all is counted.
pub fn measure_with(
    context: &Context,
    processes: &[&RoleProcess],
    mut run: impl FnMut(Duration) -> Result<Run, BenchError>,
) -> Result<Sample, BenchError> {
    run(Duration::from_secs_f64(context.seconds / 10.0))?;
    let before_ns = cpu_ns(processes);
    let done = run(Duration::from_secs_f64(context.seconds))?;
    let used_ns = cpu_ns(processes).saturating_sub(before_ns);
    let calls = done.latencies.count() as f64;
    Ok(vec![
        (Metric::P50, done.latencies.percentile(50.0) as f64),
        (Metric::P99, done.latencies.percentile(99.0) as f64),
        (Metric::Rate, calls / done.elapsed.as_secs_f64()),
        (Metric::Cpu, used_ns as f64 / calls),
    ])
}

/// Processor time of this process and of others since their starts, in ns.
fn cpu_ns(processes: &[&RoleProcess]) -> u64 {
    let others = processes.iter().map(|process| process.cpu_ns());
    own_cpu_ns() + others.sum::<u64>()
}

/// Processor time of this process since its start, in ns, of all its threads: what `getrusage` counts,
/// without rounding.
pub(crate) fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Such a clock begins at 0.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_names_the_callers() {
        assert_eq!(
            Callers::ALL.map(Callers::case),
            [
                "threads=1",
                "threads=2",
                "threads=4",
                "threads=8",
                "threads=16",
                "current-thread tasks=1",
                "current-thread tasks=16",
                "current-thread tasks=128",
                "current-thread tasks=1024",
                "multi-thread tasks=1",
                "multi-thread tasks=128",
            ]
        );
    }

    #[test]
    fn each_request_begins_with_its_number() {
        assert_eq!(small(0x0102)[..3], [2, 1, 0]);
        assert_ne!(small(1), small(2));
    }

    #[test]
    fn work_costs_processor_time() {
        let before_ns = own_cpu_ns();
        while own_cpu_ns() - before_ns < 2_000_000 {
            std::hint::spin_loop();
        }
        // Other tests' threads are counted too, so there is no upper bound.
        assert!(own_cpu_ns() > before_ns);
    }
}
