//! The service is killed (SIGKILL) at random moments while applications call through it and are called through it.
//!
//! ```text
//!  applications ─▶ service (killed, started, killed, ..) ─▶ server, direct
//!  client ───────▶ service ─▶ server, published              └ each counts how often each number has run
//! ```
//!
//! Each call has a number of its own, which its answer has to have. `STARLING_CRASHES=1000` kills that often, and
//! `STARLING_CRASH_SEED=N` at other moments.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::process::Process;
use common::{LONG, wait_until};
use mesh::{direct, name};
use parking_lot::Mutex;
use starling::{CallOptions, Channel, Code, Request, Server, ServerHandle, Status};
use starling_service::{Service, ServiceConfig};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};

/// The name of the service that a process is to run.
const SERVICE: &str = "STARLING_TEST_SERVICE";

/// How often the service is killed, unless the environment says otherwise.
const CRASHES: u64 = 40;

/// Calls that a thread has outstanding.
const AT_ONCE: usize = 4;
/// Threads of an application: the calls of one fail at once while there is no service, those of the other wait.
const THREADS: u64 = 2;

/// Bytes of a call: in one packet, in several, from the message heap.
const SIZES: [usize; 8] = [20, 20, 200, 20, 3_000, 20, 20, 70_000];

/// Between being there and its end, at most, in microseconds.
const LIVES_US: u64 = 40_000;

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn run_a_service_in_this_process() {
    let Ok(name) = std::env::var(SERVICE) else {
        return;
    };
    let config = ServiceConfig {
        name,
        ..ServiceConfig::default()
    };
    let _service = Service::start(config).expect("the name is free");
    println!("\nruns");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

fn begin_service(name: &str) -> Process {
    Process::run("run_a_service_in_this_process", SERVICE, name)
}

fn environment(variable: &str, otherwise: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// How often each number has run at any server.
#[derive(Default)]
struct Runs(Mutex<HashMap<u64, u32>>);

struct Greeter(Arc<Runs>);

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut response: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let name = request.message().name();
        let number = name.parse().expect("a number, with zeros in front");
        *self.0.0.lock().entry(number).or_default() += 1;
        response.set_text(name);
        Ok(())
    }
}

fn serve(runs: &Arc<Runs>, service: Option<&str>) -> ServerHandle {
    let builder = Server::builder().add_service(HelloServer::new(Greeter(Arc::clone(runs))));
    let builder = match service {
        Some(name) => builder.managed_by(name),
        None => builder.direct(),
    };
    let server = builder
        .bind("udp://127.0.0.1:0")
        .expect("an address")
        .build();
    server.expect("it is free").spawn().expect("threads")
}

/// How calls have ended, and what their servers must have seen of them.
#[derive(Default)]
struct Ends {
    answered: Vec<u64>,
    did_not_run: Vec<u64>,
    may_have_run: Vec<u64>,
}

impl Ends {
    fn add(&mut self, mut other: Self) {
        self.answered.append(&mut other.answered);
        self.did_not_run.append(&mut other.did_not_run);
        self.may_have_run.append(&mut other.may_have_run);
    }

    fn check(&self, runs: &HashMap<u64, u32>) {
        let of = |number: &u64| runs.get(number).copied().unwrap_or_default();
        for number in &self.answered {
            assert_eq!(of(number), 1, "{number} was answered");
        }
        for number in &self.did_not_run {
            assert_eq!(
                of(number),
                0,
                "{number} did not run, as its caller was told"
            );
        }
        for number in &self.may_have_run {
            assert!(of(number) <= 1, "{number} ran {} times", of(number));
        }
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [answered, not, maybe] =
            [&self.answered, &self.did_not_run, &self.may_have_run].map(Vec::len);
        write!(
            f,
            "{answered} answered, {not} did not run, {maybe} may have run"
        )
    }
}

/// Who calls, all the time.
struct Caller {
    client: HelloClient<Channel>,
    /// Answers so far.
    answers: AtomicU64,
}

impl Caller {
    fn new(channel: Channel) -> Self {
        Self {
            client: HelloClient::new(channel),
            answers: AtomicU64::new(0),
        }
    }

    /// Makes one call after the other until it is told to stop.
    fn run(&self, next: &AtomicU64, over: &AtomicBool, waits: bool) -> Ends {
        // The others stop, too, if this one finds a wrong answer.
        let _stop = Stop(over);
        let mut ends = Ends::default();
        let options = CallOptions::with_timeout(LONG).wait_for_ready(waits);
        while !over.load(Ordering::Relaxed) {
            let calls = [(); AT_ONCE].map(|()| {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let length = SIZES[number as usize % SIZES.len()];
                let digits = format!("{number:020}");
                let name = "0".repeat(length - digits.len()) + &digits;
                let request = HelloRequest::new().with_name(&name);
                (number, name, self.client.greet_with(&request, &options))
            });
            for (number, name, call) in calls {
                match call.wait() {
                    Ok(response) => {
                        assert!(
                            response.message().text() == name,
                            "{number}: another's answer"
                        );
                        self.answers.fetch_add(1, Ordering::Relaxed);
                        ends.answered.push(number);
                    }
                    Err(status) => {
                        assert_eq!(status.code(), Code::Unavailable, "{number}: {status}");
                        match status.may_have_run() {
                            true => ends.may_have_run.push(number),
                            false => ends.did_not_run.push(number),
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        }
        ends
    }
}

/// Waits until each of these has an answer that it did not have before.
fn recover(callers: &[Caller], over: &AtomicBool) {
    let before: Vec<_> = callers
        .iter()
        .map(|it| it.answers.load(Ordering::Relaxed))
        .collect();
    let goes_on = |(caller, before): (&Caller, &u64)| {
        caller.answers.load(Ordering::Relaxed) > before + 2 * AT_ONCE as u64 * THREADS
    };
    wait_until(|| {
        assert!(!over.load(Ordering::Relaxed), "a caller has failed");
        callers.iter().zip(&before).all(goes_on)
    });
}

/// Pseudorandom (SplitMix64): the same moments, as far as the machine's load allows, for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn sleep(&mut self) {
        std::thread::sleep(Duration::from_micros(self.below(LIVES_US)));
    }
}

/// Kills a service so often. Returns one that runs.
fn crash(
    name: &str,
    mut service: Process,
    random: &mut Random,
    (callers, over): (&[Caller], &AtomicBool),
) -> Process {
    for crash in 0..environment("STARLING_CRASHES", CRASHES) {
        random.sleep();
        // It is killed when it is dropped.
        drop(service);
        service = begin_service(name);
        match crash % 4 {
            // While it starts.
            3 => continue,
            // While others find it.
            2 => drop(service.next("runs")),
            _ => {
                service.next("runs");
                recover(callers, over);
            }
        }
    }
    service
}

#[test]
fn no_call_runs_twice_or_is_answered_wrongly_however_often_the_service_is_killed() {
    let seed = environment("STARLING_CRASH_SEED", 1);
    let name = name();
    let mut service = begin_service(&name);
    service.next("runs");
    let runs = Arc::new(Runs::default());
    let servers = [serve(&runs, None), serve(&runs, Some(&name))];
    let application = |server: &ServerHandle| {
        let builder = Channel::builder(server.address()).managed_by(&name);
        Caller::new(builder.own_endpoint().lazy().expect("an address"))
    };
    let applications = [&servers[0], &servers[1], &servers[0]].map(application);
    // A client that knows no service learns of an end by silence, and calls less often.
    let outside = [Caller::new(direct(servers[1].address()))];
    let (next, over) = (AtomicU64::new(1), AtomicBool::new(false));
    let mut ends = Ends::default();
    let service = std::thread::scope(|scope| {
        let stop = Stop(&over);
        let callers = applications.iter().chain(&outside);
        let threads: Vec<_> = callers
            .flat_map(|caller| (0..THREADS).map(move |thread| (caller, thread)))
            .map(|(caller, thread)| {
                let (next, over) = (&next, &over);
                scope.spawn(move || caller.run(next, over, thread == 0))
            })
            .collect();
        recover(&applications, &over);
        let mut service = crash(&name, service, &mut Random(seed), (&applications, &over));
        drop(service);
        service = begin_service(&name);
        service.next("runs");
        recover(&applications, &over);
        recover(&outside, &over);
        drop(stop);
        for thread in threads {
            match thread.join() {
                Ok(of_thread) => ends.add(of_thread),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        service
    });
    // Whatever was on its way has come, or never will.
    drop((applications, outside, service, servers));
    let runs = runs.0.lock();
    println!("\nseed {seed}: {ends}");
    ends.check(&runs);
    assert!(!ends.may_have_run.is_empty() && !ends.did_not_run.is_empty());
}

/// Stops the callers, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
