//! Policies for applications by their identities.

mod mesh;

use mesh::{Mesh, echo_at};
use starling::managed::{ListRequest, PolicyChange};
use starling::{Channel, Code, Status};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_service::{Identities, Service, ServiceConfig, parse_identities, parse_policies};

/// One that this test has, and one that it has not.
fn identities() -> Identities {
    let exe = std::env::current_exe().expect("this test has a path");
    let exe = exe.display();
    let user = rustix::process::geteuid().as_raw();
    let json = format!(r#"{{"own":{{"exe":"{exe}","user":{user}}},"shell":{{"exe":"/bin/sh"}}}}"#);
    parse_identities(&json).expect("identities")
}

fn fault(name: &str, identity: &str) -> PolicyChange {
    let settings = r#"{"fail":1,"code":"ABORTED"}"#;
    let what = format!(
        r#"{{"name":"{name}","kind":"fault","for":{{"identity":"{identity}"}},"settings":{settings}}}"#
    );
    PolicyChange::new().with_what(&what)
}

fn echo(client: &EchoClient<Channel>) -> Result<(), Status> {
    client.call(&Payload::new()).wait().map(drop)
}

#[test]
fn a_policy_is_for_those_who_have_an_identity() {
    let mesh = Mesh::with(ServiceConfig {
        identities: identities(),
        ..ServiceConfig::default()
    });
    let operator = mesh.operator();
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    operator
        .attach(&fault("shells", "shell"))
        .wait()
        .expect("there is such an identity");
    echo(&client).expect("this test is no shell");
    operator
        .attach(&fault("tests", "own"))
        .wait()
        .expect("there is such an identity");
    assert_eq!(
        echo(&client).map_err(|status| status.code()),
        Err(Code::Aborted)
    );
    let listing = operator
        .list(&ListRequest::new())
        .wait()
        .expect("a listing");
    let datapath = listing
        .message()
        .datapaths()
        .iter()
        .next()
        .expect("it calls");
    assert_eq!(datapath.identities().iter().collect::<Vec<_>>(), ["own"]);

    for dry_run in [true, false] {
        let change = fault("others", "nobody").with_dry_run(dry_run);
        let error = operator
            .attach(&change)
            .wait()
            .expect_err("no such identity");
        assert_eq!(error.code(), Code::InvalidArgument);
        let expected = "others: for.identity: \"nobody\" is not configured in the service's file: there are own, shell";
        assert_eq!(error.message(), expected);
    }
}

#[test]
fn a_service_does_not_begin_with_a_policy_for_nobody() {
    let policies = format!("[{}]", fault("a", "nobody").what());
    let config = ServiceConfig {
        name: mesh::name(),
        policies: parse_policies(&policies).expect("a list"),
        ..ServiceConfig::default()
    };
    let error = Service::start(config)
        .map(drop)
        .expect_err("no such identity");
    assert!(
        error.to_string().contains("a: for.identity: \"nobody\""),
        "{error}"
    );
}
