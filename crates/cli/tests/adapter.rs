//! `starling ctl adapter` from outside: an operator replaces the devices by which an application calls.

mod common;

use common::Serve;
use common::managed::Service;
use serde_json::{Value, json};
use starling::Channel;
use starling_sample_services::api::bench::{EchoClient, Payload};

#[test]
fn an_operator_replaces_the_device_of_an_application_that_calls() {
    let service = Service::start("adapter", &[]);
    assert_eq!(service.done(&["adapter", "list"]), "no adapters\n");
    let server = Serve::start("echo", &["udp://127.0.0.1:0"], &[]);
    let channel = Channel::builder(&server.addresses[0]).managed_by(&service.name);
    let client = EchoClient::new(channel.lazy().unwrap());
    let call = || {
        let response = client.call(&Payload::new().with_data(b"echo")).wait();
        assert_eq!(response.unwrap().message().data(), b"echo");
    };
    call();
    let list = || -> Value {
        serde_json::from_str(&service.done(&["adapter", "list", "--json"])).unwrap()
    };
    let own = std::process::id().to_string();
    let before = list();
    assert_eq!(
        (&before[0]["kind"], &before[1]),
        (&json!("udp"), &Value::Null)
    );
    let upgrade = ["adapter", "upgrade", "udp"];
    let with = |more: &[&str]| service.done(&[&upgrade[..], more].concat());
    let one = "upgraded one adapter, with one datapath\n";
    assert_eq!(with(&["gso=false", "congestion=timely"]), one);
    call();
    assert_eq!(with(&["congestion=null", "--process", &own]), one);
    call();
    let after = list();
    assert_eq!(after[0]["settings"], json!({"gso": false}));
    assert_ne!(
        after[0]["address"], before[0]["address"],
        "it is another one"
    );
    let text = service.done(&["adapter", "list"]);
    let line = text.lines().nth(1).unwrap();
    assert!(
        line.starts_with("udp ") && line.ends_with("in use  {\"gso\":false}"),
        "{text}"
    );

    let (code, _, error) = service.ctl(&[&upgrade[..], &["mtu=1400"]].concat());
    assert_eq!(code, 64 + 3, "{error}");
    assert!(error.contains("udp has none named \"mtu\""), "{error}");
    let (code, _, error) = service.ctl(&["adapter", "upgrade", "tcp", "--process", &own]);
    assert_eq!(code, 64 + 5, "{error}");
    // Nobody answers there any more: the datapath stays, until its session ends, too.
    server.signal("STOP");
    let (code, said, error) = service.ctl(&upgrade);
    assert_eq!(
        (code, &*said),
        (1, "upgraded no adapters, with no datapaths\n"),
        "{error}"
    );
    let why = format!("process {own} to {}: ", server.addresses[0]);
    assert!(
        error.contains("stay as they are") && error.contains(&why),
        "{error}"
    );
}
