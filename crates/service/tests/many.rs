//! Many applications at once, and many that come and go: nothing of them stays.

mod mesh;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mesh::{Mesh, echo_at};
use starling::managed::ListRequest;
use starling::{Channel, Status};
use starling_sample_services::api::bench::{EchoClient, Payload};

/// Longer than any test waits for what it expects.
const LONG: Duration = Duration::from_secs(60);

/// What a process of this test is told.
const SERVICE: &str = "STARLING_TEST_SERVICE";
const SERVER: &str = "STARLING_TEST_SERVER";

/// Descriptors and memory are those of the process: one test has it at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn call(channel: Channel) -> Result<(), Status> {
    let data = [7; 32];
    let response = EchoClient::new(channel).call(&Payload::new().with_data(&data));
    assert_eq!(response.wait()?.message().data(), data);
    Ok(())
}

/// How many datapaths a service has.
fn datapaths(mesh: &Mesh) -> usize {
    let operator = mesh.operator();
    let listing = operator
        .list(&ListRequest::new())
        .wait()
        .expect("a listing");
    listing.message().datapaths().len()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|kib| kib.parse().ok()).expect("a number")
}

/// An application that has a channel of its own makes a call, and goes.
fn come_and_go(mesh: &Mesh, server: &str, times: usize) {
    for _ in 0..times {
        let channel = Channel::builder(server).managed_by(&mesh.name);
        let channel = channel.own_endpoint().lazy().expect("an address");
        call(channel).expect("an echo");
    }
    wait_until("all have gone", || datapaths(mesh) == 0);
}

#[test]
fn what_ten_thousand_connections_used_is_given_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start();
    let server = echo_at("udp://127.0.0.1:0");
    // Until tables have grown to what they need.
    come_and_go(&mesh, server.address(), 1000);
    let (files, memory_kib) = (descriptors(), resident_kib());
    come_and_go(&mesh, server.address(), 9000);
    wait_until("descriptors are closed", || descriptors() <= files);
    let now_kib = resident_kib();
    assert!(
        now_kib < memory_kib + 4096,
        "{memory_kib} KiB have become {now_kib} KiB"
    );
}

/// An application in a process of its own, which is killed when this is dropped.
struct Application(Child);

impl Drop for Application {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_hundred_applications_call_at_once() {
    if let Ok(service) = std::env::var(SERVICE) {
        let server = std::env::var(SERVER).expect("set by the test");
        let channel = Channel::builder(&server).managed_by(&service).lazy();
        let channel = channel.expect("an address");
        for _ in 0..20 {
            call(channel.clone()).expect("an echo");
        }
        // It stays until its input ends.
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("a pipe");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start();
    let server = echo_at("udp://127.0.0.1:0");
    let start = || {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        let command = command
            .args(["--exact", "a_hundred_applications_call_at_once"])
            .env(SERVICE, &mesh.name)
            .env(SERVER, server.address())
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        Application(command.spawn().expect("a process"))
    };
    let mut applications: Vec<Application> = (0..100).map(|_| start()).collect();
    wait_until("all are there", || datapaths(&mesh) == 100);
    for Application(child) in &mut applications {
        drop(child.stdin.take());
        assert!(child.wait().expect("a child").success());
    }
    wait_until("all have gone", || datapaths(&mesh) == 0);
}
