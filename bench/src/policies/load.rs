//! Callers that call without a break, and are asked what they have done.

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use futures::future::join_all;
use parking_lot::Mutex;
use starling::{Channel, Code};
use starling_sample_services::api::hotel::{ReservationClient, ReservationRequest};

use crate::callers::Flavor;
use crate::device::failed;
use crate::error::BenchError;
use crate::process::{RoleProcess, announce};
use crate::timeline::{Counted, Intervals, now_ns};

/// One request of so many has a customer who is refused.
pub const ONE_OF: u64 = 100;
/// What all of them ask for.
pub const HOTEL: &str = "ritz";
/// Asks a process for its intervals; an empty line asks for its counts.
const INTERVALS: &str = "intervals";

/// What callers have done since they were asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Calls that count.
    pub(super) passed: u64,
    /// The longest time without an answer, ns.
    pub(super) gap_ns: u64,
}

struct Shared {
    /// When the last answer came.
    last_ns: AtomicU64,
    passed: AtomicU64,
    /// The same calls, by when they ended.
    intervals: Intervals,
    gap_ns: AtomicU64,
    is_over: AtomicBool,
    failure: Mutex<Option<BenchError>>,
}

impl Shared {
    fn new() -> Self {
        let now_ns = now_ns();
        Self {
            last_ns: AtomicU64::new(now_ns),
            passed: AtomicU64::new(0),
            intervals: Intervals::since(now_ns),
            gap_ns: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// A call is over.
    fn count(&self, counts: bool) {
        let now_ns = now_ns();
        let last_ns = self.last_ns.swap(now_ns, Ordering::Relaxed);
        self.gap_ns
            .fetch_max(now_ns.saturating_sub(last_ns), Ordering::Relaxed);
        if counts {
            self.passed.fetch_add(1, Ordering::Relaxed);
            self.intervals.count(now_ns);
        }
    }
}

/// Callers in a thread of this process.
pub(super) struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// So many calls at once, until it is stopped. `call` makes one, by its number, and returns whether it counts.
    pub(super) fn start<F>(
        in_flight: usize,
        call: impl Fn(u64) -> F + Clone + Send + 'static,
    ) -> Result<Self, BenchError>
    where
        F: Future<Output = Result<bool, BenchError>> + Send + 'static,
    {
        let shared = Arc::new(Shared::new());
        let own = Arc::clone(&shared);
        let run = move || {
            if let Err(error) = call_on(&call, &own, in_flight) {
                *own.failure.lock() = Some(error);
            }
        };
        let thread = std::thread::Builder::new().name("callers".into());
        let thread = thread
            .spawn(run)
            .map_err(BenchError::io("starting a thread"))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// What was done since this was asked last.
    pub(super) fn take(&self) -> Result<Counts, BenchError> {
        match self.shared.failure.lock().take() {
            Some(error) => Err(error),
            None => Ok(Counts {
                passed: self.shared.passed.swap(0, Ordering::Relaxed),
                gap_ns: self.shared.gap_ns.swap(0, Ordering::Relaxed),
            }),
        }
    }

    pub(super) fn stop(mut self) -> Result<(), BenchError> {
        self.end();
        self.take().map(drop)
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("callers do not panic");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has a process make such calls, and serve a benchmark that asks how they go.
pub(super) fn serve(load: Load, server: &str) -> Result<(), BenchError> {
    announce(server)?;
    for line in stdin().lock().lines() {
        let line = line.map_err(BenchError::io("reading from the benchmark"))?;
        let answer = if line == INTERVALS {
            load.shared.intervals.counted(now_ns()).to_line()
        } else {
            let Counts { passed, gap_ns } = load.take()?;
            format!("{passed} {gap_ns}")
        };
        writeln!(stdout(), "{answer}").map_err(BenchError::io("writing to the benchmark"))?;
    }
    load.stop()
}

/// Asks such a process.
pub(super) fn ask(client: &mut RoleProcess) -> Result<Counts, BenchError> {
    client.write_line("")?;
    let said = client.read_line()?;
    let numbers: Vec<u64> = said.split(' ').filter_map(|it| it.parse().ok()).collect();
    let [passed, gap_ns] = numbers[..] else {
        return Err(client.unexpected(&said));
    };
    Ok(Counts { passed, gap_ns })
}

/// Asks such a process for its calls in all intervals.
pub(super) fn intervals(client: &mut RoleProcess) -> Result<Counted, BenchError> {
    client.write_line(INTERVALS)?;
    let said = client.read_line()?;
    Counted::of_line(&said).ok_or_else(|| client.unexpected(&said))
}

fn call_on<F>(
    call: &(impl Fn(u64) -> F + Clone + Send + 'static),
    shared: &Arc<Shared>,
    in_flight: usize,
) -> Result<(), BenchError>
where
    F: Future<Output = Result<bool, BenchError>> + Send + 'static,
{
    let one = |caller: u64| {
        let (call, shared) = (call.clone(), Arc::clone(shared));
        async move {
            let mut number = caller;
            while !shared.is_over.load(Ordering::Relaxed) {
                number += 1;
                let counts = call(number).await?;
                shared.count(counts);
            }
            Ok::<_, BenchError>(())
        }
    };
    let runtime = Flavor::CurrentThread.runtime()?;
    let tasks: Vec<_> = (0..in_flight as u64)
        .map(|caller| runtime.spawn(one(caller)))
        .collect();
    let ended = runtime.block_on(join_all(tasks));
    ended
        .into_iter()
        .try_for_each(|task| task.expect("no panic"))
}

/// Callers who make reservations.
pub(super) fn guests(service: &str, server: &str, in_flight: usize) -> Result<Load, BenchError> {
    let channel = Channel::builder(server).managed_by(service).lazy();
    let client = ReservationClient::new(channel.map_err(failed)?);
    Load::start(in_flight, move |number| {
        let client = client.clone();
        async move {
            let may = !number.is_multiple_of(ONE_OF);
            reserve(&client, may).await?;
            Ok(may)
        }
    })
}

/// The name of a customer who may make reservations, or of one who may not.
pub fn customer(may: bool) -> &'static str {
    if may { "Alice" } else { "Mallory" }
}

/// Makes a reservation, and checks the answer.
async fn reserve(client: &ReservationClient<Channel>, may: bool) -> Result<(), BenchError> {
    let mut request = ReservationRequest::new()
        .with_customer_name(customer(may))
        .with_in_date("2015-04-09")
        .with_out_date("2015-04-10")
        .with_room_number(1);
    request.hotel_id_mut().push(HOTEL);
    match client.make(&request).await {
        Ok(response) => match response.message().hotel_id().iter().eq([HOTEL]) {
            true => Ok(()),
            false => Err(failed("another hotel was confirmed")),
        },
        Err(status) if !may && status.code() == Code::PermissionDenied => Ok(()),
        Err(status) => Err(failed(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_intervals_have_the_calls_that_count_and_no_others() {
        let shared = Shared::new();
        for counts in [true, false, true, true] {
            shared.count(counts);
        }
        let intervals = shared.intervals.counted(u64::MAX);
        assert_eq!(intervals.calls.iter().sum::<u32>(), 3);
        assert_eq!(shared.passed.load(Ordering::Relaxed), 3);
    }
}
