//! The control interface: garbage, and applications that name what is another's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use starling::managed::{ControlClient, HoldRequest, PolicyChange, PublishRequest};
use starling::{CallOptions, Channel, Code, Server, Status};
use starling_test_protos::test::TestClient;

use crate::common::process::Process;
use crate::common::{payload, server, shm_address, wait_until};
use crate::mesh::direct;
use crate::scene::Scene;
use crate::shm::hostile_peer::HostileServer;
use crate::sockets::{connect, hello, sealed_memory, send};

/// What a process is to do: one of [`ROLES`], and the service's name.
const ROLE: &str = "STARLING_TEST_ROLE";

/// As many as an application may have, and some.
const MANY: usize = 80;

type Role = fn(&str, &str);

const ROLES: &[(&str, Role)] = &[
    ("serve", serve),
    ("take", take),
    ("many", publish_many),
    ("leave", leave_name),
    ("late", serve_directly),
];

/// Not a test: [`Process::run`] runs it in a process of its own.
#[test]
fn have_a_role_in_this_process() {
    let Some(told) = std::env::var_os(ROLE) else {
        return;
    };
    let told: Vec<&str> = told.to_str().expect("text").split(' ').collect();
    let (_, role) = ROLES
        .iter()
        .find(|(name, _)| *name == told[0])
        .expect("a role");
    role(told[1], told.get(2).copied().unwrap_or_default());
}

fn begin(role: &str, scene: &Scene, more: &str) -> Process {
    let told = format!("{role} {} {more}", scene.mesh.name);
    Process::run(
        "control::have_a_role_in_this_process",
        ROLE,
        told.trim_end(),
    )
}

/// Until the test ends.
fn stay() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

fn control(service: &str) -> ControlClient<Channel> {
    ControlClient::new(direct(&format!("shm://{service}.control")))
}

fn publish(
    control: &ControlClient<Channel>,
    address: &str,
    application: &str,
) -> Result<u64, Status> {
    let request = PublishRequest::new()
        .with_address(address)
        .with_application(application);
    let published = control.publish(&request).wait()?;
    Ok(published.message().id())
}

/// An application that is called through the service.
fn serve(service: &str, _: &str) {
    let (builder, _) = server(&["udp://127.0.0.1:0"]);
    let server = builder.managed_by(service).build().expect("a server");
    let server = server.spawn().expect("threads");
    println!("\nserving {}", server.address());
    stay();
}

/// One that names what others have: publications by their ids, and names.
fn take(service: &str, victim: &str) {
    let control = control(service);
    for id in 0..50 {
        let request = HoldRequest::new().with_id(id);
        let (held, ended) = (control.hold(&request), control.unpublish(&request));
        for status in [held.wait(), ended.wait()].map(Result::unwrap_err) {
            assert_eq!(status.code(), Code::NotFound, "{id}: {status}");
        }
    }
    let denied = [
        format!("shm://{service}"),
        format!("shm://{service}.control"),
        victim.to_owned(),
    ];
    for application in denied {
        let status = publish(&control, "udp://127.0.0.1:0", &application).expect_err(&application);
        assert_eq!(
            status.code(),
            Code::PermissionDenied,
            "{application}: {status}"
        );
    }
    let (own, _own) = own_name();
    for (address, application, code) in [
        (
            "udp://127.0.0.1:0",
            "udp://127.0.0.1:1",
            Code::InvalidArgument,
        ),
        ("udp://127.0.0.1:0", "nonsense", Code::FailedPrecondition),
        ("udp://127.0.0.1:0", "", Code::FailedPrecondition),
        (
            "udp://127.0.0.1:0",
            "shm://nobody-has-this",
            Code::FailedPrecondition,
        ),
        ("udp://192.0.2.1:1", &own, Code::FailedPrecondition),
        ("udp://127.0.0.1:99999", &own, Code::FailedPrecondition),
        ("shm://a b", &own, Code::FailedPrecondition),
        ("", &own, Code::FailedPrecondition),
    ] {
        let status = publish(&control, address, application).expect_err(address);
        assert_eq!(status.code(), code, "{address} {application}: {status}");
    }
    // What the service listens at itself, and what another is called at.
    for address in [
        format!("shm://{service}"),
        format!("shm://{service}.control"),
    ] {
        let status = publish(&control, &address, &own).expect_err(&address);
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    }
    println!("\ntook nothing");
}

/// A server of this process that knows no service.
fn own_name() -> (String, starling::ServerHandle) {
    let builder = Server::builder().direct().bind(&shm_address());
    let server = builder.expect("an address").build().expect("it is free");
    let server = server.spawn().expect("threads");
    (server.address().to_owned(), server)
}

/// One that publishes as much as it may, and more.
fn publish_many(service: &str, _: &str) {
    let control = control(service);
    let (own, _own) = own_name();
    let results: Vec<_> = (0..MANY)
        .map(|_| publish(&control, "udp://127.0.0.1:0", &own))
        .collect();
    let statuses: Vec<_> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    assert!(
        statuses
            .iter()
            .all(|status| status.code() == Code::ResourceExhausted)
    );
    println!("\npublished {}", results.len() - statuses.len());
    stay();
}

/// One that publishes a name, takes the service's connection there without a word, and gives the name up.
fn leave_name(service: &str, name: &str) {
    let name = format!("shm://{name}");
    let listener = HostileServer::bind(&name);
    let request = PublishRequest::new()
        .with_address("udp://127.0.0.1:0")
        .with_application(&name);
    let published = control(service)
        .publish(&request)
        .wait()
        .expect("it is this process");
    let connection = listener.accept();
    drop(listener);
    println!("\npublished {}", published.message().address());
    stay();
    drop(connection);
}

/// Another application, which asked nobody to publish it.
fn serve_directly(_: &str, name: &str) {
    let (builder, gate) = server(&[&format!("shm://{name}")]);
    let server = builder.direct().build().expect("a server");
    let _server = server.spawn().expect("threads");
    println!("\nserving");
    stay();
    println!("\nran {}", gate.runs.load(Ordering::SeqCst));
}

#[test]
fn an_application_gets_nothing_that_is_anothers() {
    let mut scene = Scene::begin();
    let mut victim = begin("serve", &scene, "");
    let address = victim.next("serving ");
    let outside = TestClient::new(direct(&address));
    outside
        .echo(&payload(b"before"))
        .wait()
        .expect("it is called");
    scene.know_with(victim.id());
    scene.during(|| {
        let name = format!("shm://{}.app-{}-0", scene.mesh.name, victim.id());
        let mut thief = begin("take", &scene, &name);
        thief.next("took nothing");
        thief.end();
    });
    outside
        .echo(&payload(b"after"))
        .wait()
        .expect("it is called");
    scene.check_nothing_left();
}

#[test]
fn an_application_that_publishes_all_it_may_leaves_nothing() {
    let scene = Scene::begin();
    let hostile = scene.during(|| {
        let mut hostile = begin("many", &scene, "");
        let published: usize = hostile.next("published ").parse().expect("a number");
        assert!((1..MANY).contains(&published), "{published}");
        hostile
    });
    assert!(scene.has_datapath_of(hostile.id()));
    hostile.signal(Signal::KILL);
    drop(hostile);
    scene.check_nothing_left();
}

/// A name is free again when its process gives it up. Who has it next has not asked to be called.
#[test]
fn a_name_that_changes_hands_is_not_published_any_more() {
    let scene = Scene::begin();
    let name = shm_address().replace("shm://", "");
    let mut first = begin("leave", &scene, &name);
    let address = first.next("published ");
    let mut next = begin("late", &scene, &name);
    next.next("serving");
    let outside = TestClient::new(direct(&address));
    let soon = CallOptions::with_timeout(Duration::from_millis(300));
    scene.during(|| {
        wait_until(|| {
            let call = outside.echo_with(&payload(b"private"), &soon).wait();
            assert!(
                call.is_err(),
                "it was answered by who did not publish itself"
            );
            !scene.has_datapath_of(first.id())
        });
    });
    next.end();
    assert_eq!(next.next("ran "), "0");
    drop((first, next, outside));
    scene.check_nothing_left();
}

#[test]
fn garbage_on_the_control_socket_changes_nothing() {
    let scene = Scene::begin();
    let operator = scene.mesh.operator();
    let ids = [0, 1, u64::MAX];
    let nested = "[".repeat(100_000);
    let long = format!(r#"{{"name":"{}","kind":"null"}}"#, "n".repeat(100_000));
    let whats = [
        "",
        "{",
        "[]",
        "null",
        &nested,
        &long,
        r#"{"name":"a","kind":"\u0000"}"#,
        "\u{0}",
    ];
    scene.during(|| {
        let memory = sealed_memory();
        let garbage: Vec<_> = (0..50)
            .map(|_| {
                let socket = connect(&scene.mesh.control());
                send(&socket, &hello(), &[std::os::fd::AsFd::as_fd(&memory)]);
                send(&socket, &[0xff; 1000], &[]);
                socket
            })
            .collect();
        for what in whats {
            let change = PolicyChange::new().with_what(what);
            let calls = [
                operator.attach(&change),
                operator.configure(&change),
                operator.upgrade(&change),
                operator.detach(&change),
            ];
            for call in calls {
                let status = call.wait().expect_err(what);
                let codes = [Code::InvalidArgument, Code::NotFound];
                assert!(codes.contains(&status.code()), "{what:.20}: {status}");
                assert!(status.message().len() < 2_000, "{}", status.message().len());
            }
        }
        let control = control(&scene.mesh.name);
        let soon = CallOptions::with_timeout(Duration::from_secs(10));
        for id in ids {
            let request = HoldRequest::new().with_id(id);
            let status = control
                .hold_with(&request, &soon)
                .wait()
                .expect_err("no such id");
            assert_eq!(status.code(), Code::NotFound, "{status}");
        }
        drop(garbage);
    });
    drop(operator);
    scene.check_nothing_left();
}
