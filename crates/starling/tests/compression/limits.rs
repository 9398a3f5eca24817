//! Sizes of messages: each bound is that of one end, and its status says whose, and which setting it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling::{
    CallOptions, Caller, Channel, Code, Compression, Endpoint, MethodOptions, Response, Server,
    ServerHandle, ServiceConfig, Status, block_on,
};
use starling_test_protos::test::{Payload, TestClient};

use crate::common::{Gate, any_addresses, payload, server};
use crate::{algorithms, text};

/// What a message of so many bytes takes in the native layout, at most.
const LAYOUT: usize = 32;

fn start(address: &str, options: MethodOptions) -> (ServerHandle, Arc<Gate>) {
    let (builder, gate) = server(&[address]);
    gate.open.store(true, Ordering::SeqCst);
    let builder = builder.method_options("test.Test", options).build();
    let server = builder.expect("a server").spawn().expect("threads");
    (server, gate)
}

/// An inline handler, one in a worker, and a nested one.
async fn all_kinds<C: Caller>(
    client: &TestClient<C>,
    len: usize,
) -> [Result<Response<Payload>, Status>; 3] {
    let message = payload(&text(len));
    [
        client.echo(&message).await,
        client.work(&message).await,
        client.wait(&message).await,
    ]
}

/// Fails calls of all kinds by these bounds, with and without compression.
fn fails(at_server: &MethodOptions, at_client: &CallOptions, says: &str, has_run: bool) {
    const LEN: usize = 10_000;
    for address in any_addresses() {
        for compression in [None, Some(Compression::lz4())] {
            let mut at_server = at_server.clone();
            at_server.compression = compression;
            let mut at_client = at_client.clone();
            if let Some(compression) = compression {
                at_client = at_client.compression(compression);
            }
            let (server, gate) = start(&address, at_server);
            let channel = Channel::lazy(server.address()).expect("a channel");
            let client = TestClient::new(channel).with_options(at_client.clone());
            let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
            let local = endpoint.channel(server.address()).expect("a channel");
            let local = TestClient::new(local).with_options(at_client);
            let calls = block_on(all_kinds(&client, LEN));
            let of_local = endpoint.block_on(all_kinds(&local, LEN));
            let of_local = of_local.expect("no device fails");
            for result in calls.into_iter().chain(of_local) {
                let status = result.expect_err(says);
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains(says), "{status}");
                assert!(status.message().contains("has 100"), "{status}");
                assert_eq!(status.may_have_run(), has_run, "{status}");
            }
            assert_eq!(gate.runs.load(Ordering::SeqCst), 2 * u64::from(has_run));
            // Short messages pass.
            for result in block_on(all_kinds(&client, 10)) {
                result.expect("an echo");
            }
        }
    }
}

#[test]
fn each_bound_has_a_status_that_says_whose_it_is() {
    const MOST: usize = 9_000;
    let (server, client) = (MethodOptions::default(), CallOptions::default());
    let says = "CallOptions::max_request_bytes";
    fails(
        &server,
        &client.clone().max_request_bytes(MOST),
        says,
        false,
    );
    let says = "server raise MethodOptions::max_request_bytes";
    fails(
        &server.clone().max_request_bytes(MOST),
        &client,
        says,
        false,
    );
    let says = "server raise MethodOptions::max_response_bytes";
    fails(
        &server.clone().max_response_bytes(MOST),
        &client,
        says,
        true,
    );
    let says = "CallOptions::max_response_bytes";
    fails(&server, &client.max_response_bytes(MOST), says, true);
}

#[test]
fn a_bound_of_a_service_config_is_said_to_be_that_unless_the_callers_is_lower() {
    const LEN: usize = 5_000;
    let (server, _gate) = start("mem://limits-config", MethodOptions::default());
    let status = |of_config: &str, options: CallOptions| {
        let config = format!(r#"{{"methodConfig": [{{"name": [{{}}], {of_config}}}]}}"#);
        let config = ServiceConfig::from_json(&config).expect("a config");
        let channel = Channel::builder(server.address()).service_config(config);
        let client = TestClient::new(channel.lazy().expect("a channel")).with_options(options);
        let echo = client.echo(&payload(&text(LEN))).wait();
        echo.expect_err("it is too long").message().to_owned()
    };
    let (request, response) = (
        r#""maxRequestMessageBytes": 1000"#,
        r#""maxResponseMessageBytes": 1000"#,
    );
    let whose = "this client, by its channel's service config,";
    let higher = CallOptions::default()
        .max_request_bytes(1_000_000)
        .max_response_bytes(1_000_000);
    for options in [
        CallOptions::default(),
        CallOptions::default().compression(Compression::lz4()),
        higher,
    ] {
        let text = status(request, options.clone());
        let remedy = "send less, or raise maxRequestMessageBytes there; the request was not sent";
        let says = format!("{whose} sends 1000 at most: {remedy}");
        assert!(text.ends_with(&says), "{text}");
        let text = status(response, options);
        let remedy = "ask for less, or raise maxResponseMessageBytes there";
        let says = format!("{whose} takes 1000 at most: {remedy}");
        assert!(text.ends_with(&says), "{text}");
    }
    let text = status(request, CallOptions::default().max_request_bytes(900));
    let says = "this client sends 900 at most: send less, or raise CallOptions::max_request_bytes";
    assert!(text.contains(says), "{text}");
    let text = status(response, CallOptions::default().max_response_bytes(900));
    let says =
        "this client takes 900 at most: ask for less, or raise CallOptions::max_response_bytes";
    assert!(text.ends_with(says), "{text}");
}

#[test]
fn a_message_of_just_the_bound_passes() {
    const LEN: usize = 5_000;
    let most = LEN + LAYOUT;
    for compression in [None].into_iter().chain(algorithms().map(Some)) {
        let mut options = MethodOptions::default()
            .max_request_bytes(most)
            .max_response_bytes(most);
        options.compression = compression;
        let (server, _gate) = start("mem://limits-bound", options);
        let channel = Channel::lazy(server.address()).expect("a channel");
        let mut options = CallOptions::default()
            .max_request_bytes(most)
            .max_response_bytes(most);
        if let Some(compression) = compression {
            options = options.compression(compression);
        }
        let client = TestClient::new(channel).with_options(options);
        for result in block_on(all_kinds(&client, LEN)) {
            result.expect("an echo");
        }
        for result in block_on(all_kinds(&client, LEN + LAYOUT + 1)) {
            result.expect_err("it is longer");
        }
    }
}

#[test]
fn a_methods_options_come_first_and_a_client_may_have_others_for_a_call() {
    let (builder, _gate) = server(&["mem://limits-methods"]);
    let bound = |bytes| MethodOptions::default().max_request_bytes(bytes);
    let builder = builder
        .method_options("", bound(100))
        .method_options("test.Test/Echo", bound(1_000))
        .build();
    let server = builder.expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = TestClient::new(channel);
    let message = payload(&text(500));
    client.echo(&message).wait().expect("it has its own bound");
    client.work(&message).wait().expect_err("that of all");
    let options = CallOptions::default().max_request_bytes(200);
    let client = client.with_options(options);
    client.echo(&message).wait().expect_err("the client's");
    let own = CallOptions::default().max_request_bytes(600);
    client.echo_with(&message, &own).wait().expect("the call's");
}

#[test]
fn options_for_something_that_is_not_there_do_not_build() {
    let (builder, _gate) = server(&["mem://limits-unknown"]);
    let builder = builder.method_options("test.Test/Ecco", MethodOptions::default());
    let error = builder.build().expect_err("a typing error").to_string();
    assert!(
        error.contains("test.Test/Ecco") && error.contains("/test.Test/"),
        "{error}"
    );
    let none = Server::builder().bind("mem://limits-none").expect("a name");
    let none = none.method_options("kv.Kv", MethodOptions::default());
    none.build().expect_err("there is no such service");
}
