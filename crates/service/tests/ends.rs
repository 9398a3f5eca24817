//! Ends of servers, applications and the service, and what is left of them.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::process::Process;
use common::{payload, shm_address, wait_until};
use mesh::{Mesh, direct, echo_at, exercise};
use rustix::process::Signal;
use starling::managed::{ControlClient, HoldRequest, PublishRequest};
use starling::{CallOptions, Channel, ChannelState, Code, EndpointConfig, Server};
use starling_test_protos::test::TestClient;

/// The service of a process, and its address.
const MANAGED: &str = "STARLING_TEST_MANAGED";

/// Not a test: [`Process::serve`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    common::process::serve_if_told(EndpointConfig::default());
}

/// Not a test: [`managed_process`] runs it in a process of its own.
#[test]
fn serve_managed_in_this_process() {
    let Some(told) = std::env::var_os(MANAGED) else {
        return;
    };
    let (service, address) = told
        .to_str()
        .and_then(|told| told.split_once(' '))
        .expect("two words");
    let (builder, _) = common::server(&[address]);
    let server = builder.managed_by(service).build().expect("a server");
    let server = server.spawn().expect("threads");
    println!("\nserving {}", server.address());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// A server in a process of its own, that a service listens for.
fn managed_process(mesh: &Mesh, address: &str) -> Process {
    let told = format!("{} {address}", mesh.name);
    let mut process = Process::run("serve_managed_in_this_process", MANAGED, &told);
    process.address = process.next("serving ");
    process
}

#[test]
fn calls_go_on_when_the_server_is_back_and_not_before() {
    let mesh = Mesh::start();
    for (managed, scheme) in [(false, "udp"), (true, "udp"), (false, "tcp"), (true, "tcp")] {
        let serve = |address: &str| match managed {
            true => mesh.echo_at(address),
            false => echo_at(address),
        };
        let server = serve(&format!("{scheme}://127.0.0.1:0"));
        let address = server.address().to_owned();
        let channel = mesh.channel(&address);
        exercise(channel.clone());
        drop(server);
        wait_until(|| channel.state() != ChannelState::Ready);
        let status = starling::block_on(channel.ready()).expect_err("nobody is there");
        assert_eq!(
            (status.code(), status.may_have_run()),
            (Code::Unavailable, false)
        );
        let _server = serve(&address);
        starling::block_on(channel.wait_for_ready()).expect("it is back");
        exercise(channel);
    }
}

#[test]
fn applications_find_a_service_that_is_back_and_are_found() {
    let mut mesh = Mesh::start();
    let managed = mesh.echo_at("udp://127.0.0.1:0");
    let (builder, gate) = common::server(&["udp://127.0.0.1:0"]);
    let server = builder.direct().build().unwrap().spawn().unwrap();
    let channel = mesh.channel(server.address());
    let client = TestClient::new(channel.clone());
    let call = client.wait(&payload(b""));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    mesh.stop();
    let status = call.wait().unwrap_err();
    assert_eq!(
        (status.code(), status.may_have_run()),
        (Code::Unavailable, true)
    );
    // What it began at the server is over, too.
    wait_until(|| gate.dropped.load(Ordering::SeqCst) == 1);
    let status = client.echo(&payload(b"")).wait().unwrap_err();
    assert_eq!(
        (status.code(), status.may_have_run()),
        (Code::Unavailable, false)
    );
    mesh.restart();
    let patient = CallOptions::waiting();
    client
        .echo_with(&payload(b""), &patient)
        .wait()
        .expect("the service is back");
    // It listens again for the application that it listened for.
    let outside = direct(managed.address());
    starling::block_on(outside.wait_for_ready()).expect("it is published again");
    exercise(outside);
}

#[test]
fn an_application_that_is_killed_leaves_its_address() {
    for address in ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        let mesh = Mesh::start();
        let first = managed_process(&mesh, address);
        let address = first.address.clone();
        let client = TestClient::new(direct(&address));
        client.echo(&payload(b"one")).wait().expect("it is called");
        first.signal(Signal::KILL);
        drop(first);
        let _second = managed_process(&mesh, &address);
        let patient = CallOptions::waiting();
        client
            .echo_with(&payload(b"two"), &patient)
            .wait()
            .expect("the next one has the address");
    }
}

#[test]
fn an_application_publishes_itself_and_nobody_else() {
    let mesh = Mesh::start();
    let control = ControlClient::new(direct(&format!("shm://{}.control", mesh.name)));
    let publish = |address: &str, application: &str| {
        let request = PublishRequest::new()
            .with_address(address)
            .with_application(application);
        let published = control.publish(&request).wait();
        published.map(|published| published.message().id())
    };
    let code = |address: &str, application: &str| publish(address, application).unwrap_err().code();
    let other = Process::serve(&shm_address());
    let udp = "udp://127.0.0.1:0";
    assert_eq!(code(udp, &other.address), Code::PermissionDenied);
    assert_eq!(code(udp, &shm_address()), Code::FailedPrecondition);
    assert_eq!(code(udp, "udp://127.0.0.1:1"), Code::InvalidArgument);
    assert_eq!(
        code("rdma://127.0.0.1:1", &other.address),
        Code::FailedPrecondition
    );
    let hold = control.hold(&HoldRequest::new().with_id(77)).wait();
    assert_eq!(hold.unwrap_err().code(), Code::NotFound);
    let own = Server::builder()
        .direct()
        .bind(&shm_address())
        .unwrap()
        .build()
        .unwrap();
    let own = own.spawn().unwrap();
    let id = publish(udp, own.address()).expect("it is this process");
    let unpublished = control.unpublish(&HoldRequest::new().with_id(id)).wait();
    unpublished.expect("it was published");
}

#[test]
fn a_second_service_of_one_name_is_refused() {
    let mesh = Mesh::start();
    let config = starling_service::ServiceConfig {
        name: mesh.name.clone(),
        ..Default::default()
    };
    let error = starling_service::Service::start(config).expect_err("the name is taken");
    assert!(error.to_string().contains("choose another name"), "{error}");
}

#[test]
fn a_caller_without_a_target_is_told_so() {
    let mesh = Mesh::start();
    let client = TestClient::new(direct(&format!("shm://{}", mesh.name)));
    let status = client.echo(&payload(b"")).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("STARLING_SERVICE"), "{status}");
    let channel = Channel::builder("shm://kv").managed_by("no/name");
    assert!(channel.lazy().is_err());
}

/// What fails at the same time leaves nothing behind that ends what others publish.
#[test]
fn publications_that_fail_end_no_other() {
    let mesh = Mesh::start();
    let control = ControlClient::new(direct(&format!("shm://{}.control", mesh.name)));
    let udp = "udp://127.0.0.1:0";
    let nobody = PublishRequest::new()
        .with_address(udp)
        .with_application(&shm_address());
    let server = Server::builder().direct().bind(&shm_address()).unwrap();
    let server = server.build().unwrap().spawn().unwrap();
    let own = PublishRequest::new()
        .with_address(udp)
        .with_application(server.address());
    let soon = CallOptions::with_timeout(Duration::from_millis(20));
    for _ in 0..30 {
        // They arrive together.
        let calls = [&nobody, &nobody, &own].map(|request| control.publish(request));
        let [one, other, own] = calls.map(|call| std::thread::spawn(move || call.wait()));
        for failed in [one, other] {
            assert!(failed.join().unwrap().is_err());
        }
        let published = own.join().unwrap().expect("it is this process");
        let held = HoldRequest::new().with_id(published.message().id());
        let status = control.hold_with(&held, &soon).wait().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        control.unpublish(&held).wait().expect("it was published");
    }
}

/// As without a service: the first one keeps the address.
#[test]
fn two_servers_of_one_process_do_not_get_the_same_address() {
    let mesh = Mesh::start();
    let first = mesh.echo_at("udp://127.0.0.1:0");
    let (builder, _) = common::server(&[first.address()]);
    let error = builder
        .managed_by(&mesh.name)
        .build()
        .expect_err("it is in use");
    assert!(error.to_string().contains("in use"), "{error}");
    exercise(direct(first.address()));
}

#[test]
fn clients_of_a_service_that_stops_hear_of_it() {
    let mut mesh = Mesh::start();
    let server = mesh.echo_at("udp://127.0.0.1:0");
    let outside = direct(server.address());
    exercise(outside.clone());
    mesh.stop();
    wait_until(|| outside.state() != ChannelState::Ready);
}
