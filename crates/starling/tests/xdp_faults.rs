//! Servers over AF_XDP that are restarted or killed, and interfaces that are removed under servers,
//! channels and endpoints: every waiting call ends, and new connections work.

mod common;

use std::fs::File;
use std::sync::atomic::Ordering::SeqCst;

use common::process::{self, Process};
use common::xdp::{from_a, pair, serve, serve_in};
use common::{LONG, impatient, payload, wait_until};
use rustix::process::Signal;
use starling::{CallOptions, Channel, ChannelState, Code, Endpoint, EndpointConfig, Error, Status};
use starling_io::Fault;
use starling_netns::{FAR_IPV4, IPV4, IPV6, NamespaceGuard, Pair, Shape, inside, run};
use starling_test_protos::test::TestClient;

/// Two devices of one host can share such an interface.
const TWO_QUEUES: Shape = Shape {
    mtu: 1500,
    queues: 2,
};

/// A channel that notices a dead peer soon.
fn channel(namespace: &File, address: &str) -> Channel {
    let builder = Channel::builder(address).endpoint_config(impatient());
    inside(namespace, || builder.lazy()).expect(address)
}

/// An endpoint that notices a dead peer soon.
fn endpoint(namespace: &File, address: &str) -> Endpoint {
    let _guard = NamespaceGuard::in_namespace(namespace).expect("it is ours");
    let builder = Endpoint::builder().reach(address).config(impatient());
    builder.build().expect(address)
}

/// A call that would hang ends with DEADLINE_EXCEEDED.
fn at_length() -> CallOptions {
    CallOptions::with_timeout(LONG)
}

/// Not a test: [`Process::serve`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    process::serve_if_told(EndpointConfig::default());
}

#[test]
fn channels_and_endpoints_connect_again_to_a_restarted_server() {
    let test = "channels_and_endpoints_connect_again_to_a_restarted_server";
    let Some(pair) = pair(test, TWO_QUEUES) else {
        return;
    };
    for host in [IPV4[1].to_owned(), format!("[{}]", IPV6[1])] {
        let first = serve(&pair, 1, &format!("xdp://vb/{host}:0"));
        let (own, address) = (first.address().to_owned(), from_a(&first));
        let client = TestClient::new(channel(&pair.a, &address));
        let address = format!("{address}?queue=1");
        let mut endpoint = endpoint(&pair.a, &address);
        let local = TestClient::new(endpoint.channel(&address).expect("a channel"));
        client.echo(&payload(b"1")).wait().expect("an echo");
        let echo = endpoint.block_on(local.echo(&payload(b"1")));
        echo.expect("a healthy device").expect("an echo");

        assert!(first.shutdown(LONG).expect("no device fails"));
        let _second = serve(&pair, 1, &own);
        // The first call may be lost with the old session. It is never made twice.
        let options = CallOptions::waiting();
        let lost = |result: Result<_, Status>| match result {
            Ok(_) => {}
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        };
        lost(client.echo_with(&payload(b"2"), &options).wait().map(drop));
        let echo = client.echo_with(&payload(b"3"), &options).wait();
        echo.expect("a new session");
        let calls = async {
            let request = payload(b"2");
            lost(local.echo_with(&request, &options).await.map(drop));
            let echo = local.echo_with(&payload(b"3"), &options).await;
            echo.expect("a new session");
        };
        endpoint.block_on(calls).expect("a healthy device");
    }
}

#[test]
fn calls_to_a_killed_server_are_unavailable_and_a_new_one_is_found() {
    let test = "calls_to_a_killed_server_are_unavailable_and_a_new_one_is_found";
    let Some(pair) = pair(test, Shape::default()) else {
        return;
    };
    let first = inside(&pair.b, || Process::serve("xdp://vb/0.0.0.0:0"));
    let address = first.address.replace("xdp://vb/", "xdp://va/");
    let channel = channel(&pair.a, &address);
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().expect("an echo");
    let outstanding: Vec<_> = (0..3)
        .map(|_| client.wait_with(&payload(b""), &at_length()))
        .collect();
    first.signal(Signal::KILL);
    for call in outstanding {
        let status = call.wait().expect_err("its server is dead");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(&address), "{status}");
    }
    let own = first.address.clone();
    drop(first);
    let _second = inside(&pair.b, || Process::serve(&own));
    let options = CallOptions::waiting();
    let echo = client.echo_with(&payload(b""), &options).wait();
    echo.expect("the new one");
    assert_eq!(channel.state(), ChannelState::Ready);
}

#[test]
fn a_call_that_waits_for_ready_is_made_when_the_server_comes() {
    let test = "a_call_that_waits_for_ready_is_made_when_the_server_comes";
    let Some(pair) = pair(test, Shape::default()) else {
        return;
    };
    let channel = channel(&pair.a, &format!("xdp://va/{}:9000", IPV4[1]));
    let client = TestClient::new(channel.clone());
    let call = client.echo_with(&payload(b"patience"), &CallOptions::waiting());
    wait_until(|| channel.state() == ChannelState::TransientFailure);
    // A call that does not wait fails at once, with advice.
    let status = client.echo(&payload(b"")).wait().expect_err("nobody there");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("start the server"), "{status}");
    let _server = serve(&pair, 1, &format!("xdp://vb/{}:9000", IPV4[1]));
    let response = call.wait().expect("it waited");
    assert_eq!(response.message().bytes(), b"patience");
    assert_eq!(channel.state(), ChannelState::Ready);
}

/// Two ends that do not share an interface: `va`, and `vc` behind a router.
fn far_apart(test: &str) -> Option<(Pair, File)> {
    let pair = pair(test, TWO_QUEUES)?;
    let far = pair.route_to_another().expect("as the pair itself");
    Some((pair, far))
}

#[track_caller]
fn assert_removed(error: &Error) {
    let Error::Device(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.fault, Fault::Host);
    let text = error.to_string();
    let says = text.contains("va") && text.contains("was removed");
    assert!(says && !error.remedy.is_empty(), "{text}");
}

#[test]
fn a_server_whose_interface_is_removed_ends_and_so_do_its_clients_calls() {
    let test = "a_server_whose_interface_is_removed_ends_and_so_do_its_clients_calls";
    let Some((pair, far)) = far_apart(test) else {
        return;
    };
    let (server, gate) = serve_in(&pair.a, 2, &format!("xdp://va/{}:0", IPV4[0]));
    let address = server.address().replace("xdp://va/", "xdp://vc/");
    let client = TestClient::new(channel(&far, &address));
    client.echo(&payload(b"")).wait().expect("an echo");
    let outstanding = client.wait_with(&payload(b""), &at_length());
    wait_until(|| gate.waiting.load(SeqCst) == 1);
    run(&pair.a, "ip link delete va").expect("it is there");
    wait_until(|| !server.is_serving());
    assert_removed(&server.wait().expect_err("it has no device"));
    let status = outstanding.wait().expect_err("its server is gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let later = client.echo_with(&payload(b""), &at_length()).wait();
    let status = later.expect_err("its server is gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[test]
fn channels_and_endpoints_whose_interface_is_removed_fail_with_that_reason() {
    let test = "channels_and_endpoints_whose_interface_is_removed_fail_with_that_reason";
    let Some((pair, far)) = far_apart(test) else {
        return;
    };
    let (server, gate) = serve_in(&far, 1, &format!("xdp://vc/{}:0", FAR_IPV4[1]));
    let address = server.address().replace("xdp://vc/", "xdp://va/");
    let client = TestClient::new(channel(&pair.a, &address));
    client.echo(&payload(b"")).wait().expect("an echo");
    let outstanding = client.wait_with(&payload(b""), &at_length());
    let by_endpoint = format!("{address}?queue=1");
    let mut endpoint = endpoint(&pair.a, &by_endpoint);
    let local = TestClient::new(endpoint.channel(&by_endpoint).expect("a channel"));
    let echo = endpoint.block_on(local.echo(&payload(b"")));
    echo.expect("a healthy device").expect("an echo");
    wait_until(|| gate.waiting.load(SeqCst) == 1);
    run(&pair.a, "ip link delete va").expect("it is there");

    let assert_says = |status: Status| {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let text = status.message();
        let says = text.contains("va") && text.contains("was removed");
        assert!(says && text.contains("make a new channel"), "{text}");
    };
    assert_says(outstanding.wait().expect_err("it cannot be answered"));
    let waiting = CallOptions {
        timeout: Some(LONG),
        ..CallOptions::waiting()
    };
    let later = client.echo_with(&payload(b""), &waiting).wait();
    assert_says(later.expect_err("there is nothing to wait for"));
    let error = endpoint.block_on(local.wait_with(&payload(b""), &at_length()));
    assert_removed(&Error::Device(error.expect_err("it has no device")));

    // The server goes on, and serves a client on a new interface.
    pair.join(TWO_QUEUES).expect("as before");
    let route = format!("ip route add 10.78.0.0/24 via {}", IPV4[1]);
    run(&pair.a, &route).expect("as before");
    gate.open.store(true, SeqCst);
    let client = TestClient::new(channel(&pair.a, &address));
    let echo = client.echo_with(&payload(b""), &CallOptions::waiting());
    echo.wait().expect("an echo");
    assert!(server.shutdown(LONG).expect("a healthy device"));
}
