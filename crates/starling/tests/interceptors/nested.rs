//! Interceptors around the calls that handlers make, and around inline handlers that need not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use parking_lot::Mutex;
use starling::{
    Endpoint, Idle, InterceptedCall, InterceptedResponse, Interceptor, Next, Request, Status,
};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};
use starling_test_protos::test::{RelayRequest, TestClient, TestServer};

use crate::common::{self, any_addresses, payload, server, shm_address};
use crate::kinds::{TOKEN, Token, TokenCheck, logged};
use crate::start;

#[test]
fn calls_of_handlers_pass_their_servers_interceptors() {
    for address in any_addresses() {
        // The one behind asks for the token, which only the relay's server has.
        let (behind, _gate) = server(&[&address]);
        let behind = behind.interceptor(TokenCheck).build();
        let behind = behind.expect("a server").spawn().expect("threads");
        for relay_address in any_addresses() {
            let (relay, _gate) = server(&[&relay_address]);
            let (_relay, channel) = start(relay.outgoing_interceptor(Token(TOKEN)));
            let request = RelayRequest::new()
                .with_address(behind.address())
                .with_bytes(b"handed on");
            let client = TestClient::new(channel);
            for _ in 0..3 {
                let response = client.relay(&request).wait().expect("the token is good");
                assert_eq!(response.message().bytes(), b"handed on");
            }
            let (relay, _gate) = server(&[&relay_address.replace("test", "test-b")]);
            let (_relay, channel) = start(relay);
            let status = TestClient::new(channel).relay(&request).wait();
            let status = status.expect_err("there is no token");
            assert_eq!(status.code(), starling::Code::Unauthenticated, "{status}");
        }
    }
}

#[test]
fn an_endpoints_own_channels_have_interceptors() {
    for address in any_addresses() {
        let (builder, _gate) = server(&[&address]);
        let builder = builder.interceptor(TokenCheck).build();
        let server = builder.expect("a server").spawn().expect("threads");
        let builder = Endpoint::builder().reach(server.address());
        let endpoint = builder.outgoing_interceptor(Token(TOKEN)).build();
        let mut endpoint = endpoint.expect("an endpoint");
        // Also to an address that its device does not reach.
        let (other, _gate) = common::server(&["mem://interceptors-elsewhere"]);
        let other = other.interceptor(TokenCheck).build().expect("a server");
        let other = other.spawn().expect("threads");
        for address in [server.address(), other.address()] {
            let client = TestClient::new(endpoint.channel(address).expect("a channel"));
            let call = client.echo(&payload(b"x"));
            let echo = endpoint.block_on(call).expect("no device fails");
            assert_eq!(echo.expect("an echo").message().bytes(), b"x");
        }
    }
}

/// Writes down that it was called.
struct Greeter(Arc<Mutex<Vec<String>>>);

impl Hello for Greeter {
    fn greet(&self, _: Request<'_, HelloRequest>, _: HelloReplyMut<'_>) -> Result<(), Status> {
        self.0.lock().push("greeted".to_owned());
        Ok(())
    }
}

/// Writes down when a call comes and when its response leaves. Has it wait in between, if it is told to.
struct Steps {
    log: Arc<Mutex<Vec<String>>>,
    waits: bool,
}

impl Interceptor for Steps {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        self.log.lock().push("comes".to_owned());
        let mut goes_on = !self.waits;
        let second_poll = std::future::poll_fn(|cx| {
            if std::mem::replace(&mut goes_on, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        second_poll.await;
        let response = next.run(call).await;
        self.log.lock().push("leaves".to_owned());
        response
    }
}

/// What is written down when a call with an interceptor and one without arrive together, in this order.
fn order_of(address: &str, waits: bool) -> Vec<String> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let steps = Steps {
        log: Arc::clone(&log),
        waits,
    };
    let service = TestServer::new(common::Service(Arc::default()));
    let server = Endpoint::builder().bind(address).idle(Idle::Spin);
    let server = server
        .add_intercepted(service, steps)
        .add_service(HelloServer::new(Greeter(Arc::clone(&log))));
    let mut server = server.build().expect("an endpoint");
    let client = Endpoint::builder().reach(address).idle(Idle::Spin);
    let mut client = client.build().expect("an endpoint");
    let channel = client.channel(address).expect("a channel");
    let (test, hello) = (TestClient::new(channel.clone()), HelloClient::new(channel));
    // The first calls open the session.
    for _ in 0..2 {
        logged(&log);
        let (echo, greeting) = (test.echo(&payload(b"x")), hello.greet(&HelloRequest::new()));
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        client.spawn(async move {
            let (echo, greeting) = futures::join!(echo, greeting);
            echo.expect("an echo");
            greeting.expect("a greeting");
            done.store(true, Ordering::SeqCst);
        });
        while !is_done.load(Ordering::SeqCst) {
            client.poll().expect("a device");
            server.poll().expect("a device");
        }
    }
    logged(&log)
}

#[test]
fn an_inline_handler_runs_in_place_unless_its_interceptor_waits() {
    for address in [shm_address(), shm_address().replace("shm", "mem")] {
        assert_eq!(order_of(&address, false), ["comes", "leaves", "greeted"]);
        assert_eq!(order_of(&address, true), ["comes", "greeted", "leaves"]);
    }
}
