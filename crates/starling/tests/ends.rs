//! Whether a call that failed may have run, for each way in which a call fails: retries stand on it.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{LONG, any_addresses, client, impatient, payload, serve, shm_address, wait_until};
use starling::{
    CallOptions, Channel, Code, Endpoint, EndpointConfig, NestedContext, Request, Server, Status,
    StreamReceiver, StreamSender,
};
use starling_test_protos::test::{Failure, RelayRequest, TestClient};
use starling_test_protos::{v1, v3};

type Client = TestClient<Channel>;

const RAN: bool = true;
const DID_NOT_RUN: bool = false;

fn within(millis: u64) -> CallOptions {
    CallOptions::with_timeout(Duration::from_millis(millis))
}

/// The end of an echo that fails.
fn echo(client: &Client, options: &CallOptions) -> Status {
    let call = client.echo_with(&payload(b"x"), options);
    call.wait().expect_err("it cannot succeed")
}

fn check(end: &str, status: &Status, code: Code, may_have_run: bool) {
    assert_eq!(status.code(), code, "{end}: {status}");
    assert_eq!(status.may_have_run(), may_have_run, "{end}: {status}");
    let says_not = ["did not run", "not made"].map(|text| status.message().contains(text));
    assert!(!may_have_run || says_not == [false; 2], "{end}: {status}");
}

#[test]
fn a_call_that_reached_no_server_did_not_run() {
    let nobody = client(&shm_address());
    let status = echo(&nobody, &CallOptions::default());
    check(
        "nothing at the name",
        &status,
        Code::Unavailable,
        DID_NOT_RUN,
    );

    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addresses = [
        format!("udp://{}", udp.local_addr().expect("bound")),
        format!("tcp://{}", tcp.local_addr().expect("bound")),
    ];
    drop((udp, tcp));
    for address in addresses {
        let status = echo(&client(&address), &CallOptions::default());
        check(
            "nothing at the port",
            &status,
            Code::Unavailable,
            DID_NOT_RUN,
        );
    }

    let status = echo(
        &client("udp://no-such-host.invalid:1"),
        &CallOptions::default(),
    );
    check("no such host", &status, Code::Unavailable, DID_NOT_RUN);

    let waiting = within(20).wait_for_ready(true);
    let status = echo(&nobody, &waiting);
    check(
        "waited for nobody",
        &status,
        Code::DeadlineExceeded,
        DID_NOT_RUN,
    );

    let connect = starling::block_on(Channel::connect(&shm_address()));
    let status = Status::from(connect.expect_err("nobody is there"));
    check("connect", &status, Code::Unavailable, DID_NOT_RUN);
}

#[test]
fn a_call_that_waits_in_its_channel_did_not_run() {
    let (server, gate) = serve(&shm_address());
    let one_at_a_time = Channel::builder(server.address()).capacity(1);
    let patient = TestClient::new(one_at_a_time.clone().lazy().expect("a channel"));
    let hasty = TestClient::new(one_at_a_time.fail_when_full().lazy().expect("a channel"));
    let open = [patient.wait(&payload(b"")), hasty.wait(&payload(b""))];
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 2);
    let status = echo(&patient, &within(20));
    check(
        "waits for a permit",
        &status,
        Code::DeadlineExceeded,
        DID_NOT_RUN,
    );
    let status = echo(&hasty, &CallOptions::default());
    check("no permit", &status, Code::ResourceExhausted, DID_NOT_RUN);
    drop(open);

    let long = CallOptions::default()
        .metadata("k", vec![0; 5000])
        .expect("short");
    let talkative = patient.with_options(long.clone());
    let status = echo(&talkative, &long);
    check(
        "too much metadata",
        &status,
        Code::InvalidArgument,
        DID_NOT_RUN,
    );
}

#[test]
fn a_call_without_a_free_slot_did_not_run() {
    let (server, gate) = serve(&shm_address());
    let mut config = EndpointConfig::default();
    config.protocol.group_sessions = 1;
    let builder = Endpoint::builder().reach(server.address());
    let mut endpoint = builder.config(config).build().expect("an endpoint");
    let client = TestClient::new(endpoint.channel(server.address()).expect("a channel"));
    let slots = usize::from(starling::ProtocolConfig::default().slots);
    let status = endpoint.block_on(async {
        // The channel then knows both methods, and makes their calls at once.
        client.echo(&payload(b"")).await.expect("an echo");
        let panic = client.wait(&payload(b"panic")).await;
        panic.expect_err("as asked");
        let open: Vec<_> = (0..slots).map(|_| client.wait(&payload(b""))).collect();
        let status = client.echo_with(&payload(b""), &within(20)).await;
        drop(open);
        status.expect_err("no slot becomes free")
    });
    let status = status.expect("no device fails");
    check("no slot", &status, Code::DeadlineExceeded, DID_NOT_RUN);
    assert!(gate.runs.load(Ordering::SeqCst) <= 1);
}

#[test]
fn a_call_that_the_server_refuses_did_not_run() {
    let (server, _gate) = serve(&shm_address());
    let channel = Channel::lazy(server.address()).expect("a channel");
    let other = v1::StoreClient::new(channel.clone());
    let status = other.size(&v1::SizeRequest::new()).wait();
    let status = status.expect_err("another service");
    check("no such method", &status, Code::Unimplemented, DID_NOT_RUN);

    let store = Server::builder().bind(&shm_address()).expect("a name");
    let store = store.add_service(v1::StoreServer::new(Store)).build();
    let store = store.expect("a server").spawn().expect("threads");
    let incompatible = v3::StoreClient::new(Channel::lazy(store.address()).expect("a channel"));
    let status = incompatible.put(&v3::PutRequest::new()).wait();
    let status = status.expect_err("another schema");
    check(
        "another schema",
        &status,
        Code::FailedPrecondition,
        DID_NOT_RUN,
    );
}

#[test]
fn a_call_whose_handler_began_may_have_run() {
    let (server, gate) = serve(&shm_address());
    let client = client(server.address());
    let mut failure = Failure::new();
    failure.set_code(Code::NotFound as u32);
    let status = client.fail(&failure).wait().expect_err("as asked");
    check("the handler failed", &status, Code::NotFound, RAN);
    let status = client.panic(&payload(b"")).wait().expect_err("as asked");
    check("an inline handler panicked", &status, Code::Internal, RAN);
    let inline = status.message().to_owned();
    let status = client
        .wait(&payload(b"panic"))
        .wait()
        .expect_err("as asked");
    check("a nested handler panicked", &status, Code::Internal, RAN);
    assert_eq!(status.message(), inline, "a panic reads as another one");

    let status = client.wait_with(&payload(b""), &within(20)).wait();
    let status = status.expect_err("the gate is shut");
    check("no answer in time", &status, Code::DeadlineExceeded, RAN);

    let mut request = RelayRequest::new();
    request.set_address(&shm_address());
    let status = client.relay(&request).wait().expect_err("nobody is there");
    check("its own call did not run", &status, Code::Unavailable, RAN);
    gate.open.store(true, Ordering::SeqCst);
}

#[test]
fn a_call_whose_server_ends_may_have_run_if_it_was_sent() {
    let (server, gate) = serve(&shm_address());
    let channel = Channel::builder(server.address()).endpoint_config(impatient());
    let client = TestClient::new(channel.lazy().expect("a channel"));
    let open = client.wait(&payload(b""));
    let waiting = std::thread::spawn(move || open.wait());
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    server.shutdown(Duration::ZERO).expect("no device fails");
    let status = waiting
        .join()
        .expect("no panic")
        .expect_err("it was cut off");
    check("the server ended", &status, Code::Unavailable, RAN);
    let status = echo(&client, &CallOptions::default());
    check(
        "the server is gone",
        &status,
        Code::Unavailable,
        DID_NOT_RUN,
    );
}

#[test]
fn a_call_to_a_server_that_shuts_down_did_not_run_or_waits_for_the_next_server() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let address = server.address().to_owned();
        let channel = Channel::lazy(&address).expect("a channel");
        let client = TestClient::new(channel.clone());
        let open = client.wait(&payload(b"open"));
        let waiting = std::thread::spawn(move || open.wait());
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
        let ending = std::thread::spawn(move || server.shutdown(LONG));
        // It refuses new calls from now on, or the channel does, and finishes those it has.
        let mut refused = None;
        wait_until(|| {
            refused = client.echo(&payload(b"")).wait().err();
            refused.is_some()
        });
        let refused = refused.expect("just waited for");
        check("it drains", &refused, Code::Unavailable, DID_NOT_RUN);
        assert!(refused.message().contains("shut"), "{refused}");
        let patient = client.clone().with_options(CallOptions::waiting());
        let later = patient.echo(&payload(b"later"));
        gate.open.store(true, Ordering::SeqCst);
        waiting.join().expect("no panic").expect("an answer");
        let finished = ending.join().expect("no panic").expect("no device fails");
        assert!(finished, "{address}");
        let (next, _gate) = serve(&address);
        later.wait().expect("the next server");
        drop(next);
    }
}

struct Store;

impl v1::Store for Store {
    fn put(&self, _: Request<'_, v1::PutRequest>, _: v1::PutResponseMut<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn size(
        &self,
        _: Request<'_, v1::SizeRequest>,
        _: v1::SizeResponseMut<'_>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn put_all(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<v1::PutRequest>,
        _: StreamSender<v1::PutResponse>,
    ) -> Result<(), Status> {
        Ok(())
    }
}
