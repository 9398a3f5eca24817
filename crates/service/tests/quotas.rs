//! Applications beyond their quotas, and others beside them.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::atomic::Ordering;

use common::process::Process;
use common::{payload, wait_until};
use mesh::{Mesh, direct};
use rustix::process::Signal;
use starling::managed::{ListRequest, Listing, QuotaNumbersView};
use starling::{Channel, Code, Response, Status};
use starling_service::{Quota, Quotas, Service, ServiceConfig};
use starling_test_protos::test::TestClient;

/// The service of an application in a process of its own, and the server that it calls.
const CALLS: &str = "STARLING_TEST_CALLS";

/// Not a test: [`application`] runs it in a process of its own. It makes a call for each line of its input: one that is
/// answered at once, or one that is not.
#[test]
fn call_in_this_process() {
    let Some(told) = std::env::var_os(CALLS) else {
        return;
    };
    let (service, address) = told
        .to_str()
        .and_then(|told| told.split_once(' '))
        .expect("two words");
    let channel = Channel::builder(address).managed_by(service).lazy();
    let client = TestClient::new(channel.expect("an address"));
    println!();
    let mut waiting = Vec::new();
    for line in std::io::stdin().lock().lines() {
        match line.expect("text").as_str() {
            "wait" => waiting.push(client.wait(&payload(b""))),
            _ => match client.echo(&payload(b"")).wait() {
                Ok(_) => println!("end OK"),
                Err(status) => println!("end {} {}", status.code().name(), status.message()),
            },
        }
    }
}

/// Another application of the service.
fn application(mesh: &Mesh, address: &str) -> Process {
    let told = format!("{} {address}", mesh.name);
    Process::run("call_in_this_process", CALLS, &told)
}

fn echo_of(application: &mut Process) -> String {
    application.send("echo");
    application.next("end ")
}

fn quota(calls: usize, datapaths: usize, memory: usize) -> Quota {
    Quota {
        calls,
        datapaths,
        memory,
    }
}

const PLENTY: Quota = Quota {
    calls: 1000,
    datapaths: 100,
    memory: 1 << 20,
};

fn start(application: Quota, user: Quota) -> Mesh {
    Mesh::with(ServiceConfig {
        quotas: Quotas { application, user },
        ..ServiceConfig::default()
    })
}

fn listing(mesh: &Mesh) -> Response<Listing> {
    let operator = mesh.operator();
    operator
        .list(&ListRequest::new())
        .wait()
        .expect("a listing")
}

fn numbers(of: QuotaNumbersView<'_>) -> [u64; 3] {
    [of.calls(), of.datapaths(), of.memory()]
}

/// What an application of this process has. `None`: no account.
fn used(mesh: &Mesh, process: u32) -> Option<[u64; 3]> {
    let listing = listing(mesh);
    let mut all = listing.message().quotas().iter();
    let own = all.find(|of| of.process_opt() == Some(process))?;
    Some(numbers(own.used()))
}

/// What was refused in the whole service: calls, datapaths, memory.
fn refused(mesh: &Mesh) -> [u64; 3] {
    numbers(listing(mesh).message().refused())
}

fn client(mesh: &Mesh, address: &str) -> TestClient<Channel> {
    TestClient::new(mesh.channel(address))
}

/// The text of a call that was beyond a quota.
fn beyond(result: Result<(), Status>) -> String {
    let status = result.expect_err("it is beyond the quota");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(!status.may_have_run(), "{status}");
    status.message().to_owned()
}

fn echo(client: &TestClient<Channel>, bytes: &[u8]) -> Result<(), Status> {
    client.echo(&payload(bytes)).wait().map(drop)
}

#[test]
fn calls_beyond_the_quota_are_refused_and_come_back_with_their_ends() {
    let mesh = start(quota(3, 10, 1 << 20), PLENTY);
    let (server, gate) = common::serve("udp://127.0.0.1:0");
    let own = client(&mesh, server.address());
    let waiting: Vec<_> = (0..3).map(|_| own.wait(&payload(b""))).collect();
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 3);
    let text = beyond(echo(&own, b""));
    assert!(
        text.starts_with("quotas.calls: 3 calls for this application"),
        "{text}"
    );
    let mut other = application(&mesh, server.address());
    assert_eq!(echo_of(&mut other), "OK", "another has its own");
    assert_eq!(refused(&mesh), [1, 0, 0]);
    let process = std::process::id();
    assert_eq!(used(&mesh, process).expect("it calls")[..2], [3, 1]);

    gate.open.store(true, Ordering::SeqCst);
    for call in waiting {
        call.wait().expect("the gate is open");
    }
    echo(&own, b"").expect("there is room again");
    assert_eq!(used(&mesh, process), Some([0, 1, 0]));

    let listing = listing(&mesh);
    let mut datapaths = listing.message().datapaths().iter();
    let own = datapaths
        .find(|of| of.process_opt() == Some(process))
        .expect("it calls");
    assert_eq!((own.in_flight(), own.memory()), (0, 0));
    // Four that ended, and what the library itself has called.
    let calls = own.calls();
    assert!((4..10).contains(&calls), "{calls}");
    assert!(own.request_bytes() > 0 && own.response_bytes() > 0);
    let ids: HashSet<u64> = listing
        .message()
        .datapaths()
        .iter()
        .map(|of| of.id())
        .collect();
    assert_eq!(ids.len(), 2);
}

#[test]
fn requests_beyond_the_memory_are_refused() {
    let mesh = start(quota(100, 10, 100_000), PLENTY);
    let (server, gate) = common::serve("udp://127.0.0.1:0");
    let own = client(&mesh, server.address());
    let text = beyond(echo(&own, &[0; 200_000]));
    assert!(
        text.starts_with("quotas.memory: the service holds 0 bytes"),
        "{text}"
    );
    let large = own.wait(&payload(&[0; 60_000]));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    echo(&own, &[0; 30_000]).expect("it fits");
    beyond(echo(&own, &[0; 50_000]));
    let mut other = application(&mesh, server.address());
    assert_eq!(echo_of(&mut other), "OK");
    assert_eq!(refused(&mesh), [0, 0, 2]);
    // One that its caller gives up is over, too.
    drop(large);
    wait_until(|| used(&mesh, std::process::id()) == Some([0, 1, 0]));
    echo(&own, &[0; 60_000]).expect("there is room again");
}

#[test]
fn datapaths_beyond_the_quota_are_refused_until_others_end() {
    let mesh = start(quota(100, 2, 1 << 20), PLENTY);
    let servers = [(); 3].map(|()| common::serve("udp://127.0.0.1:0").0);
    let addresses = servers.each_ref().map(|server| server.address());
    let [one, two] = [0, 1].map(|at| client(&mesh, addresses[at]));
    echo(&one, b"").expect("the first");
    echo(&two, b"").expect("the second");
    let text = beyond(echo(&client(&mesh, addresses[2]), b""));
    assert!(text.starts_with("quotas.datapaths: 2 datapaths"), "{text}");
    assert_eq!(echo_of(&mut application(&mesh, addresses[2])), "OK");
    assert!(refused(&mesh)[1] >= 1);
    drop(two);
    wait_until(|| used(&mesh, std::process::id()).is_some_and(|used| used[1] == 1));
    // A channel that was refused waits before it tries again; a new one does not.
    echo(&client(&mesh, addresses[2]), b"").expect("there is room again");
    echo(&one, b"").expect("it goes on");
}

#[test]
fn an_application_that_dies_gives_all_back() {
    let few = quota(3, 10, 1 << 20);
    let mesh = start(few, few);
    let (server, gate) = common::serve("udp://127.0.0.1:0");
    let own = client(&mesh, server.address());
    echo(&own, b"").expect("nobody else is there");
    let mut other = application(&mesh, server.address());
    assert_eq!(echo_of(&mut other), "OK");
    (0..3).for_each(|_| other.send("wait"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 3);
    let text = beyond(echo(&own, b""));
    assert!(
        text.starts_with("quotas.user.calls: 3 calls for all"),
        "{text}"
    );
    other.signal(Signal::KILL);
    let is_alone = || {
        let listing = listing(&mesh);
        let all = listing.message().quotas();
        all.iter().all(|of| numbers(of.used()) == [0, 1, 0]) && all.len() == 2
    };
    wait_until(is_alone);
    echo(&own, b"").expect("there is room again");
    drop(other);
}

/// Calls that come for an application count for it, and not against the calls that it makes.
#[test]
fn callers_of_an_application_do_not_use_up_what_it_calls_with() {
    let mesh = start(quota(2, 1, 1 << 20), PLENTY);
    let (builder, gate) = common::server(&["udp://127.0.0.1:0"]);
    let server = builder.managed_by(&mesh.name).build().expect("a server");
    let server = server.spawn().expect("threads");
    let outside = TestClient::new(direct(server.address()));
    let waiting: Vec<_> = (0..2).map(|_| outside.wait(&payload(b""))).collect();
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 2);
    let text = beyond(echo(&outside, b""));
    assert!(
        text.starts_with("quotas.calls: 2 calls for the application that is called"),
        "{text}"
    );
    let (elsewhere, _) = common::serve("udp://127.0.0.1:0");
    echo(&client(&mesh, elsewhere.address()), b"").expect("it has its own");
    gate.open.store(true, Ordering::SeqCst);
    for call in waiting {
        call.wait().expect("the gate is open");
    }
    echo(&outside, b"").expect("there is room again");

    let (second, _) = common::server(&["udp://127.0.0.1:0"]);
    let second = second
        .managed_by(&mesh.name)
        .build()
        .and_then(|server| server.spawn());
    let error = second.map(drop).expect_err("a second address").to_string();
    assert!(error.contains("quotas.datapaths: 1 datapaths"), "{error}");
}

#[test]
fn a_quota_of_zero_is_refused_at_the_start() {
    let config = ServiceConfig {
        name: mesh::name(),
        quotas: Quotas {
            application: quota(0, 1, 1),
            ..Quotas::default()
        },
        ..ServiceConfig::default()
    };
    let error = Service::start(config)
        .map(drop)
        .expect_err("nobody could call");
    assert!(error.to_string().starts_with("quotas.calls: 0"), "{error}");
}
