//! A server that is killed (SIGKILL) and started again under load, and a policy that makes calls again.
//!
//! ```text
//!  callers ─▶ service, with `retry` ─▶ server (killed, started, killed, ..)
//!                                        └ notes each run in a file
//! ```

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::process::Process;
use common::{LONG, shm_address, wait_until};
use mesh::Mesh;
use starling::managed::{ListRequest, PolicyChange};
use starling::{CallOptions, Code, Request, Server, Status};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};

/// The address of a process that is to serve, and the file of its runs.
const SERVE: &str = "STARLING_TEST_RUNS";
/// How often the server is killed.
const KILLS: u64 = 5;
const CALLERS: usize = 4;

/// Notes the name of each request, and is not fast, so that there are always calls that may have run.
struct Greeter(File);

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut response: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let name = request.message().name();
        (&self.0)
            .write_all(format!("{name}\n").as_bytes())
            .expect("a file");
        std::thread::sleep(Duration::from_micros(500));
        response.set_text(name);
        Ok(())
    }
}

/// Not a test: [`serve`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    let Ok(told) = std::env::var(SERVE) else {
        return;
    };
    let (address, file) = told.split_once(' ').expect("two words");
    let file = OpenOptions::new().append(true).open(file).expect("a file");
    let server = Server::builder().add_service(HelloServer::new(Greeter(file)));
    let server = server.direct().bind(address).expect("an address");
    let _server = server.build().expect("a server").spawn().expect("threads");
    println!("\nserving");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// The runs of all servers of a test.
struct Runs(PathBuf);

impl Runs {
    fn new() -> Self {
        let path = std::env::temp_dir().join(mesh::name());
        File::create(&path).expect("a place for files");
        Self(path)
    }

    fn serve(&self, address: &str) -> Process {
        let told = format!("{address} {}", self.0.display());
        let mut process = Process::run("serve_in_this_process", SERVE, &told);
        process.next("serving");
        process
    }

    /// How often each number has run.
    fn counts(&self) -> HashMap<u64, u32> {
        let text = std::fs::read_to_string(&self.0).expect("a file");
        let mut counts = HashMap::new();
        for line in text.lines() {
            *counts.entry(line.parse().expect("a number")).or_default() += 1;
        }
        counts
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Stops the callers, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What became of calls while their server was killed.
struct Outcome {
    /// How each has ended.
    ends: Vec<(u64, Result<(), Status>)>,
    /// How often each has run.
    runs: HashMap<u64, u32>,
    /// How many were made again.
    again: u64,
}

/// Has callers call with numbers of their own while the server is killed and started, with a policy `retry` of these
/// settings.
fn kill_under_load(settings: &str) -> Outcome {
    let (mesh, runs, address) = (Mesh::start(), Runs::new(), shm_address());
    let scope = r#"{"methods":["hello.Hello/Greet"]}"#;
    let policy = format!(r#"{{"name":"r","kind":"retry","for":{scope},"settings":{settings}}}"#);
    let operator = mesh.operator();
    let change = PolicyChange::new().with_what(&policy);
    operator.attach(&change).wait().expect("settings");
    let mut server = runs.serve(&address);
    let client = HelloClient::new(mesh.channel(&address));
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let answers = [(); CALLERS].map(|()| AtomicU64::new(0));
    let call = |answers: &AtomicU64| {
        // The others stop, too, if this one finds a wrong answer.
        let _stop = Stop(&over);
        let options = CallOptions::with_timeout(LONG).wait_for_ready(true);
        let mut ends = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let name = number.to_string();
            let request = HelloRequest::new().with_name(&name);
            let result = client.greet_with(&request, &options).wait();
            ends.push((
                number,
                result.map(|response| {
                    assert_eq!(response.message().text(), name);
                    answers.fetch_add(1, Ordering::Relaxed);
                }),
            ));
        }
        ends
    };
    let ends = std::thread::scope(|scope| {
        let stop = Stop(&over);
        let threads = answers
            .each_ref()
            .map(|answers| scope.spawn(|| call(answers)));
        for _ in 0..KILLS {
            // No call is there twice when a server is killed: its caller makes it elsewhere once.
            let before = answers.each_ref().map(|it| it.load(Ordering::Relaxed));
            let goes_on = |(answers, before): (&AtomicU64, &u64)| {
                answers.load(Ordering::Relaxed) >= before + 20
            };
            wait_until(|| {
                assert!(!over.load(Ordering::Relaxed), "a caller has failed");
                answers.iter().zip(&before).all(goes_on)
            });
            // It is killed when it is dropped.
            drop(server);
            server = runs.serve(&address);
        }
        drop(stop);
        let ends = threads.map(|thread| thread.join().expect("no wrong answer"));
        ends.into_iter().flatten().collect()
    });
    let listing = operator
        .list(&ListRequest::new())
        .wait()
        .expect("a listing");
    let policy = listing.message().policies().iter().next().expect("one");
    Outcome {
        ends,
        runs: runs.counts(),
        again: policy.delayed(),
    }
}

#[test]
fn where_calls_may_run_more_than_once_none_fails() {
    let settings = r#"{"idempotent":true,"attempts":5,"budget":1,"floor":1000}"#;
    let Outcome { ends, runs, again } = kill_under_load(settings);
    for (number, end) in &ends {
        assert!(end.is_ok(), "{number}: {end:?}");
        assert!(runs.contains_key(number), "{number} was answered");
    }
    assert!(again > 0, "some were on their way");
}

#[test]
fn where_they_may_not_none_runs_twice() {
    let Outcome { ends, runs, .. } = kill_under_load(r#"{"attempts":5,"budget":1,"floor":1000}"#);
    let mut may_have_run = 0;
    for (number, end) in &ends {
        let of = runs.get(number).copied().unwrap_or_default();
        match end {
            Ok(()) => assert_eq!(of, 1, "{number} was answered"),
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{number}: {status}");
                may_have_run += usize::from(status.may_have_run());
                let most = u32::from(status.may_have_run());
                assert!(of <= most, "{number} ran {of} times: {status}");
            }
        }
    }
    assert!(may_have_run > 0, "some were on their way");
}
