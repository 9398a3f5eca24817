//! A load generator as a process. It gets requests for runs, and prints progress and figures as
//! lines.
//!
//! ```text
//!   LoadProcess (parent)                 drive (child, on the client's core)
//!        │ ◀──── ready ADDRESS ───────────── connected
//!        │ ───── run A 1.5 ───────────────▶
//!        │ ◀──── at 12345 ────────────────── calls so far, ten times a second
//!        │ ◀──── done {"calls": ...} ─────── or: wrong MESSAGE, and the process ends
//!        ⋮
//!      drop: closes standard input ───────▶ ends
//! ```
//!
//! A generator lives through all workloads, because its model has the state of all earlier writes.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::channel::mpsc;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::load::Load;
use super::workload::Workload;
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::process::{Launcher, RoleProcess, announce};

/// Progress reports of a run per second.
const REPORTS_PER_SECOND: f64 = 10.0;

/// Makes calls on one system.
pub trait KvClient {
    /// Makes the calls of `load` until it has no more, and waits for all answers. The load is
    /// shared with tasks during the run only.
    fn drive(&mut self, load: &Arc<Mutex<Load>>, run: &mut Run<'_>) -> Result<(), BenchError>;

    /// Waits for `future` between runs, and keeps the connection alive.
    fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, BenchError>;
}

/// Measures the time since its start.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    begin: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            begin: Instant::now(),
        }
    }

    /// Time since the start, in ns.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

/// The clock of one run. A client reads it before each [`Load::poll`] and each `handle_*`, and
/// calls [`Run::handle_time`] now and then.
pub struct Run<'a> {
    stopwatch: Stopwatch,
    seconds: f64,
    next_report: f64,
    report: &'a mut dyn FnMut(u64),
}

impl<'a> Run<'a> {
    /// A run that begins now.
    pub fn new(seconds: f64, report: &'a mut dyn FnMut(u64)) -> Self {
        Self {
            stopwatch: Stopwatch::start(),
            seconds,
            next_report: 0.0,
            report,
        }
    }

    /// A copy of its clock, for tasks.
    pub fn stopwatch(&self) -> Stopwatch {
        self.stopwatch
    }

    /// Time since the run began, in ns.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.stopwatch.now_ns()
    }

    /// Stops the load when its time is over, and reports progress when that is due, both at
    /// `now_ns`.
    #[inline]
    pub fn handle_time(&mut self, now_ns: u64, load: &mut Load) {
        let now = now_ns as f64 / 1e9;
        if now >= self.seconds {
            load.stop();
        }
        if now >= self.next_report {
            self.next_report = now + 1.0 / REPORTS_PER_SECOND;
            (self.report)(load.calls());
        }
    }
}

/// The figures of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFigures {
    /// Calls with a correct answer.
    pub calls: u64,
    /// From the first call to the last answer, in ns.
    pub elapsed_ns: u64,
    /// Processor time of the load generator, in ns.
    pub client_cpu_ns: u64,
    /// Latencies in ns at [`PERCENTILES`].
    pub latencies_ns: Vec<u64>,
}

/// The percentiles that a run reports: the whole distribution, finer towards its tail.
pub const PERCENTILES: [f64; 16] = [
    0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999,
    100.0,
];

impl RunFigures {
    fn new(latencies: &Latencies, elapsed_ns: u64, client_cpu_ns: u64) -> Self {
        Self {
            calls: latencies.count(),
            elapsed_ns,
            client_cpu_ns,
            latencies_ns: PERCENTILES.map(|p| latencies.percentile(p)).to_vec(),
        }
    }

    /// Calls per second.
    pub fn rate(&self) -> f64 {
        self.calls as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Latency at one of [`PERCENTILES`], in ns.
    ///
    /// # Panics
    /// If `percentile` is not one of them.
    pub fn latency_ns(&self, percentile: f64) -> u64 {
        let index = PERCENTILES.iter().position(|&p| p == percentile);
        self.latencies_ns[index.expect("one of the reported percentiles")]
    }

    fn to_json(&self) -> String {
        json!({
            "calls": self.calls,
            "elapsed_ns": self.elapsed_ns,
            "client_cpu_ns": self.client_cpu_ns,
            "latencies_ns": self.latencies_ns,
        })
        .to_string()
    }

    fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name)?.as_u64();
        let latencies = value.get("latencies_ns")?.as_array()?;
        let latencies_ns: Vec<u64> = latencies.iter().map(Value::as_u64).collect::<Option<_>>()?;
        (latencies_ns.len() == PERCENTILES.len()).then_some(())?;
        Some(Self {
            calls: number("calls")?,
            elapsed_ns: number("elapsed_ns")?,
            client_cpu_ns: number("client_cpu_ns")?,
            latencies_ns,
        })
    }
}

/// Settings of a load generator, as its process gets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Records that the store holds at the start.
    pub records: u64,
    /// The seed of the operations.
    pub seed: u64,
    /// Operations in flight.
    pub in_flight: u32,
}

impl Settings {
    /// As arguments of a process.
    pub fn to_arguments(&self) -> [String; 3] {
        [
            self.records.to_string(),
            self.seed.to_string(),
            self.in_flight.to_string(),
        ]
    }

    /// The inverse of [`Settings::to_arguments`].
    pub fn from_arguments(role: &str, arguments: &[String]) -> Result<Self, BenchError> {
        let parsed: Option<Vec<u64>> = arguments.iter().map(|text| text.parse().ok()).collect();
        match parsed.as_deref() {
            Some(&[records, seed, in_flight @ 1..=65536]) if records >= 2 => Ok(Self {
                records,
                seed,
                in_flight: in_flight as u32,
            }),
            _ => Err(BenchError::BadRoleArguments {
                role: role.into(),
                why: "expected a number of records, a seed, and a number of operations".into(),
            }),
        }
    }
}

/// The main function of a load generator's process: announces `address`, then makes the runs that
/// standard input asks for until it ends.
pub fn drive(
    client: &mut impl KvClient,
    address: &str,
    settings: &Settings,
) -> Result<(), BenchError> {
    let load = Load::new(
        settings.records,
        Workload::C,
        settings.seed,
        settings.in_flight,
    );
    let load = Arc::new(Mutex::new(load));
    let mut lines = lines_of_stdin()?;
    announce(address)?;
    while let Some(line) = client.block_on(lines.next())? {
        let line = line.map_err(BenchError::io("reading what to run"))?;
        let (workload, seconds) = parse_run(&line).ok_or_else(|| BenchError::BadRoleArguments {
            role: "load generator".into(),
            why: format!("expected `run WORKLOAD SECONDS`, got `{line}`"),
        })?;
        match run(client, &load, workload, seconds) {
            Ok(figures) => println!("done {}", figures.to_json()),
            Err(error) => {
                println!("wrong {}", error.to_string().replace('\n', " "));
                return Err(error);
            }
        }
    }
    Ok(())
}

/// A thread reads standard input, so that this one can keep its connection alive.
fn lines_of_stdin() -> Result<mpsc::UnboundedReceiver<io::Result<String>>, BenchError> {
    let (sender, receiver) = mpsc::unbounded();
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            // Ends with the input, or with the receiver.
            let _ = io::stdin()
                .lock()
                .lines()
                .try_for_each(|line| sender.unbounded_send(line));
        })
        .map_err(BenchError::io("starting a thread"))?;
    Ok(receiver)
}

fn parse_run(line: &str) -> Option<(Workload, f64)> {
    let mut words = line.split(' ');
    let (Some("run"), Some(workload), Some(seconds), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return None;
    };
    let seconds: f64 = seconds.parse().ok()?;
    ((0.0..=3600.0).contains(&seconds)).then_some(())?;
    Some((workload.parse().ok()?, seconds))
}

fn run(
    client: &mut impl KvClient,
    load: &Arc<Mutex<Load>>,
    workload: Workload,
    seconds: f64,
) -> Result<RunFigures, BenchError> {
    // The warm-up of caches and connections does not count.
    load.lock().switch_to(workload);
    client.drive(load, &mut Run::new(seconds / 10.0, &mut |_| ()))?;
    load.lock().take_latencies();
    load.lock().switch_to(workload);
    let cpu_before_ns = own_cpu_ns();
    let mut report = |calls| println!("at {calls}");
    let mut run = Run::new(seconds, &mut report);
    client.drive(load, &mut run)?;
    let elapsed_ns = run.now_ns();
    let cpu_ns = own_cpu_ns() - cpu_before_ns;
    let latencies = load.lock().take_latencies();
    Ok(RunFigures::new(&latencies, elapsed_ns, cpu_ns))
}

/// Processor time of this process since its start, in ns.
fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A load generator's process, from its parent's side.
#[derive(Debug)]
pub struct LoadProcess {
    process: RoleProcess,
}

impl LoadProcess {
    /// Starts the load generator of `role`, which connects to `address`.
    pub fn start(
        launcher: &Launcher,
        role: &str,
        address: &str,
        settings: &Settings,
    ) -> Result<Self, BenchError> {
        let [records, seed, in_flight] = settings.to_arguments();
        let arguments = [address, &records, &seed, &in_flight];
        let process = launcher.start_client(role, &arguments)?;
        Ok(Self { process })
    }

    /// One run: a warm-up, then `seconds` of calls. `progress` gets the number of calls so far. A
    /// wrong answer is [`BenchError::Process`] with the model's error.
    pub fn run(
        &mut self,
        workload: Workload,
        seconds: f64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<RunFigures, BenchError> {
        self.process
            .write_line(&format!("run {workload} {seconds}"))?;
        loop {
            let line = self.process.read_line()?;
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "at" => progress(rest.parse().unwrap_or(0)),
                "done" => {
                    return RunFigures::from_json(rest)
                        .ok_or_else(|| self.process.unexpected(&line));
                }
                _ => return Err(self.process.unexpected(rest)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::Op;
    use starling_sample_services::kv::Store;

    use super::*;

    /// Calls the store without any network.
    struct Local {
        store: Store,
        corrupt: bool,
    }

    impl KvClient for Local {
        fn drive(&mut self, load: &Arc<Mutex<Load>>, run: &mut Run<'_>) -> Result<(), BenchError> {
            let load = &mut *load.lock();
            // A bound of its own: the run is longer than any test.
            for _ in 0..100 {
                let now = run.now_ns();
                let Some((ticket, op)) = load.poll(now) else {
                    break;
                };
                match op {
                    Op::Get { key } => self.store.get(&key, |value| {
                        let value = value.filter(|_| !self.corrupt);
                        load.handle_get(ticket, now, value)
                    }),
                    Op::Put { key, value } => self
                        .store
                        .put(&key, &value)
                        .map(|()| load.handle_put(ticket, now)),
                    other => panic!("not in workload A: {other:?}"),
                }
                .expect("the load stays within the store's bounds")?;
                run.handle_time(now, load);
            }
            load.stop();
            Ok(())
        }

        fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, BenchError> {
            Ok(futures::executor::block_on(future))
        }
    }

    #[test]
    fn a_run_counts_the_calls_after_its_warm_up() {
        let mut client = Local {
            store: Store::with_initial(10),
            corrupt: false,
        };
        let load = Arc::new(Mutex::new(Load::new(10, Workload::C, 1, 1)));
        let figures = run(&mut client, &load, Workload::A, 3600.0).unwrap();
        assert_eq!(figures.calls, 100);
        assert!(figures.rate() > 0.0);
        assert_eq!(
            RunFigures::from_json(&figures.to_json()).as_ref(),
            Some(&figures)
        );
        assert!(figures.latency_ns(50.0) <= figures.latency_ns(99.9));
    }

    #[test]
    fn a_wrong_answer_ends_the_run() {
        let mut client = Local {
            store: Store::with_initial(10),
            corrupt: true,
        };
        let load = Arc::new(Mutex::new(Load::new(10, Workload::C, 1, 1)));
        let error = run(&mut client, &load, Workload::C, 3600.0).unwrap_err();
        assert!(matches!(error, BenchError::WrongAnswer(_)));
    }

    #[test]
    fn requests_for_runs_are_parsed_or_refused() {
        assert_eq!(parse_run("run A 1.5"), Some((Workload::A, 1.5)));
        for line in [
            "",
            "run",
            "run A",
            "run Z 1",
            "run A x",
            "run A -1",
            "run A 1 2",
        ] {
            assert_eq!(parse_run(line), None, "{line}");
        }
    }

    #[test]
    fn settings_survive_the_way_through_arguments() {
        let settings = Settings {
            records: 1000,
            seed: 7,
            in_flight: 64,
        };
        let parsed = Settings::from_arguments("role", &settings.to_arguments()).unwrap();
        assert_eq!(parsed, settings);
        assert!(Settings::from_arguments("role", &["1".into()]).is_err());
        let none = ["1000", "7", "0"].map(String::from);
        assert!(Settings::from_arguments("role", &none).is_err());
    }

    #[test]
    fn text_that_is_not_figures_is_refused() {
        assert_eq!(RunFigures::from_json("nonsense"), None);
        assert_eq!(RunFigures::from_json("{}"), None);
    }
}
