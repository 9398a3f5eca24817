//! Several runtimes: where applications are, and how they move with calls in flight.

mod mesh;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mesh::{LONG, Mesh, direct, echo_at, exercise};
use starling::managed::{ListRequest, MoveRequest, PolicyChange};
use starling::{Channel, Code, Status};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_service::{IdentitySpec, Service, ServiceConfig};

/// What a process of this test is told.
const SERVICE: &str = "STARLING_TEST_SERVICE";
const SERVER: &str = "STARLING_TEST_SERVER";

fn with_runtimes(runtimes: usize) -> Mesh {
    Mesh::with(ServiceConfig {
        runtimes,
        ..ServiceConfig::default()
    })
}

fn call(channel: Channel) -> Result<(), Status> {
    let data = [7; 32];
    let response = EchoClient::new(channel).call(&Payload::new().with_data(&data));
    assert_eq!(response.wait()?.message().data(), data);
    Ok(())
}

fn move_to(mesh: &Mesh, process: u32, runtime: u32) -> Result<u32, Status> {
    let request = MoveRequest::new()
        .with_process(process)
        .with_runtime(runtime);
    let moved = mesh.operator().move_application(&request).wait()?;
    Ok(moved.message().datapaths())
}

fn attach(mesh: &Mesh, policy: &str) {
    let change = PolicyChange::new().with_what(policy);
    mesh.operator().attach(&change).wait().expect("a policy");
}

/// The runtimes of a process's datapaths, in order.
fn runtimes_of(mesh: &Mesh, process: u32) -> Vec<u32> {
    let operator = mesh.operator();
    let listing = operator.list(&ListRequest::new()).wait();
    let listing = listing.expect("a listing");
    let datapaths = listing.message().datapaths().into_iter();
    let own = datapaths.filter(|datapath| datapath.process() == process);
    let mut runtimes: Vec<u32> = own.map(|datapath| datapath.runtime()).collect();
    runtimes.sort_unstable();
    runtimes
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Another application, which calls when it is told to. It is killed when this is dropped.
struct Application(Child);

impl Application {
    /// Of the test with this name, which has to begin with [`Application::run`].
    fn start(test: &str, mesh: &Mesh, server: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        let command = command
            .args(["--exact", test, "--nocapture"])
            .env(SERVICE, &mesh.name)
            .env(SERVER, server)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        Self(command.spawn().expect("a process"))
    }

    /// In such a process: has a channel, and makes a call for each line that it reads. False in the test itself.
    fn run(by: impl Fn(Channel)) -> bool {
        let Ok(service) = std::env::var(SERVICE) else {
            return false;
        };
        let server = std::env::var(SERVER).expect("set by the test");
        let channel = Channel::builder(&server).managed_by(&service).lazy();
        let channel = channel.expect("an address");
        by(channel.clone());
        // It stays until its input ends.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a pipe");
        true
    }

    fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_application_moves_under_load_and_no_call_fails() {
    let mesh = with_runtimes(2);
    let own = std::process::id();
    let outside = echo_at("udp://127.0.0.1:0");
    let called = mesh.echo_at("udp://127.0.0.1:0");
    // Some wait in the service, wherever they are.
    attach(
        &mesh,
        r#"{"name":"limit","kind":"rate-limit","settings":{"rate":3000,"queue":1000},"for":{"side":"server"}}"#,
    );
    let channels = [
        mesh.channel(outside.address()),
        mesh.channel(called.address()),
        direct(called.address()),
    ];
    let (ends, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for channel in &channels {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        call(channel.clone()).expect("an echo");
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    exercise(channel.clone());
                }
            });
        }
        wait_until("all call", || runtimes_of(&mesh, own).len() >= 3);
        for turn in 1..=40 {
            let to = turn % 2;
            let before = calls.load(Ordering::Relaxed);
            move_to(&mesh, own, to).expect("it is known");
            wait_until("all are there", || {
                let runtimes = runtimes_of(&mesh, own);
                runtimes.len() >= 3 && runtimes.iter().all(|runtime| *runtime == to)
            });
            wait_until("calls go on", || {
                calls.load(Ordering::Relaxed) > before + 10
            });
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(mesh.is_running());
}

#[test]
fn a_limit_is_one_for_all_runtimes() {
    if Application::run(|channel| call(channel).expect("the first")) {
        return;
    }
    let mesh = with_runtimes(3);
    let server = echo_at("udp://127.0.0.1:0");
    attach(
        &mesh,
        r#"{"name":"limit","kind":"rate-limit","settings":{"rate":0.001,"burst":5,"queue":0}}"#,
    );
    let test = "a_limit_is_one_for_all_runtimes";
    let other = Application::start(test, &mesh, server.address());
    wait_until("it has called", || {
        runtimes_of(&mesh, other.process()) == [0]
    });
    assert_eq!(move_to(&mesh, other.process(), 2).expect("it is there"), 1);
    let own = mesh.channel(server.address());
    call(own.clone()).expect("the second");
    assert_eq!(
        move_to(&mesh, std::process::id(), 1).expect("it is there"),
        1
    );
    let passed = (0..9).filter(|_| call(own.clone()).is_ok());
    assert_eq!(passed.count(), 3, "five in all");
    assert_eq!(runtimes_of(&mesh, std::process::id()), [1]);
}

#[test]
fn applications_of_an_identity_have_a_runtime_to_themselves() {
    let own = IdentitySpec {
        user: Some(rustix::process::geteuid().as_raw()),
        ..IdentitySpec::default()
    };
    let mesh = Mesh::with(ServiceConfig {
        runtimes: 2,
        identities: [("own".to_owned(), own)].into(),
        dedicated: vec![("own".to_owned(), 1)],
        cores: vec![0],
        ..ServiceConfig::default()
    });
    let called = mesh.echo_at("udp://127.0.0.1:0");
    let channel = mesh.channel(called.address());
    call(channel.clone()).expect("an echo");
    assert_eq!(runtimes_of(&mesh, std::process::id()), [1, 1]);
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let mesh = with_runtimes(2);
    let server = echo_at("udp://127.0.0.1:0");
    let own = std::process::id();
    let error = move_to(&mesh, own, 1).expect_err("it has not called");
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let channel = mesh.channel(server.address());
    call(channel.clone()).expect("an echo");
    let error = move_to(&mesh, own, 2).expect_err("no such runtime");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("there are 2"), "{error}");
    assert_eq!(move_to(&mesh, own, 0).expect("it is there"), 0);
}

#[test]
fn runtimes_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut ServiceConfig)| {
        let mut config = ServiceConfig {
            name: mesh::name(),
            ..ServiceConfig::default()
        };
        change(&mut config);
        let error = Service::start(config).expect_err("it cannot be");
        error.to_string()
    };
    for (change, said) in [
        (
            (|config| config.runtimes = 0) as fn(&mut ServiceConfig),
            "runtimes: 0",
        ),
        (|config| config.runtimes = 65, "runtimes: 65"),
        (|config| config.cores = vec![0, 4000], "cores: 4000"),
        (|config| config.cores = vec![usize::MAX], "cores: 1844"),
        (
            |config| config.dedicated = vec![("bulk".to_owned(), 0)],
            "no such identity",
        ),
        (
            |config| {
                config.identities = [("bulk".to_owned(), IdentitySpec::default())].into();
                config.dedicated = vec![("bulk".to_owned(), 1)];
            },
            "there are 1 runtimes",
        ),
        (
            |config| {
                config.identities = [("bulk".to_owned(), IdentitySpec::default())].into();
                config.dedicated = vec![("bulk".to_owned(), 0)];
            },
            "write 1 at least",
        ),
    ] {
        let error = refused(change);
        assert!(error.contains(said), "{error}");
    }
}
