//! Interceptors that do wrong, and streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use starling::{
    Channel, Code, InterceptedCall, InterceptedResponse, Interceptor, Next, Server, Status,
    block_on,
};
use starling_test_protos::streams::{Range, StreamsClient, StreamsServer};
use starling_test_protos::test::{Report, TestClient};

use crate::common::{any_addresses, payload, server, wait_until};
use crate::kinds::{Panics, Rewrites, TOKEN, Token, TokenCheck, Writes, logged};
use crate::start;
use crate::stream_service::{Counts, Service, range};

/// Sends a message of another type than the method has.
struct WrongType;

impl Interceptor for WrongType {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let refused = call.message::<Report>().expect_err("it is no report");
        assert_eq!(refused.code(), Code::Internal);
        call.set_message(&Report::new())?;
        next.run(call).await
    }
}

/// Makes its answer longer than metadata may be.
struct LongMetadata;

impl Interceptor for LongMetadata {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let added = call.metadata_mut().insert("long", vec![0; 1 << 20]);
        added.map_err(|error| Status::invalid_argument(error.to_string()))?;
        next.run(call).await
    }
}

fn fails(interceptor: impl Interceptor, at_server: bool) -> Status {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let number = {
        let mut next = NEXT.lock();
        *next += 1;
        *next
    };
    let (builder, gate) = server(&[&format!("mem://interceptor-fails-{number}")]);
    let (server, channel) = match at_server {
        true => start(builder.interceptor(interceptor)),
        false => {
            let (server, channel) = start(builder);
            (server, channel.intercept(interceptor))
        }
    };
    let client = TestClient::new(channel);
    let status = client.echo(&payload(b"x")).wait().expect_err("a fault");
    assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
    drop(server);
    status
}

#[test]
fn a_message_of_another_type_is_refused() {
    for at_server in [false, true] {
        let status = fails(WrongType, at_server);
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("test.Payload"), "{status}");
        assert!(!status.may_have_run(), "{status}");
        let status = fails(AnswersReport(Report::new()), at_server);
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
}

struct AnswersReport(Report);

impl Interceptor for AnswersReport {
    async fn intercept(
        &self,
        _: InterceptedCall,
        _: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        Ok(InterceptedResponse::new(&self.0))
    }
}

#[test]
fn metadata_beyond_the_limit_is_the_interceptors_error() {
    for at_server in [false, true] {
        let status = fails(LongMetadata, at_server);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
}

#[test]
fn a_panic_ends_its_call_and_the_server_goes_on() {
    let service =
        starling_test_protos::test::TestServer::new(crate::common::Service(Arc::default()));
    let streams = StreamsServer::new(Service(Arc::new(Counts::default())));
    let builder = Server::builder()
        .bind("mem://interceptor-panics")
        .expect("a name");
    let (_server, channel) = start(
        builder
            .add_intercepted(service, Panics)
            .add_service(streams),
    );
    let client = TestClient::new(channel.clone());
    for call in [client.echo(&payload(b"x")), client.work(&payload(b"x"))] {
        let status = call.wait().expect_err("it panics");
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
    let mut numbers = StreamsClient::new(channel).count(&range(0, 3, 0));
    for _ in 0..3 {
        block_on(numbers.message())
            .expect("no error")
            .expect("a number");
    }
}

fn read_all(client: &StreamsClient<Channel>, range: &Range) -> Result<usize, Status> {
    let mut numbers = client.count(range);
    let mut count = 0;
    while block_on(numbers.message())?.is_some() {
        count += 1;
    }
    Ok(count)
}

#[test]
fn streams_pass_by_interceptors_at_both_ends() {
    for address in any_addresses() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let streams = StreamsServer::new(Service(Arc::new(Counts::default())));
        let builder = Server::builder().bind(&address).expect("an address");
        let builder = builder
            .interceptor(Writes("log", Arc::clone(&log)))
            .interceptor(TokenCheck);
        let (_server, channel) = start(builder.add_service(streams));
        let range = range(0, 2000, 100);
        let without = StreamsClient::new(channel.clone());
        let status = read_all(&without, &range).expect_err("no token");
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        assert_eq!(logged(&log), ["log", "log Unauthenticated"]);
        let with = StreamsClient::new(channel.intercept(Token(TOKEN)));
        assert_eq!(read_all(&with, &range), Ok(2000));
        assert_eq!(logged(&log), ["log", "log ok"]);
        // One that was written for single calls and takes the message does not let a stream pass in silence.
        let unaware = StreamsClient::new(channel.intercept(Rewrites));
        let status = read_all(&unaware, &range).expect_err("there is no message");
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("is_stream"), "{status}");
        assert!(!status.may_have_run());
        assert_eq!(logged(&log).len(), 0);
    }
}

/// Blocks the thread that it runs in.
enum Blocks {
    /// By a wait for another call.
    On(TestClient<Channel>),
    Sleeping(Duration),
}

impl Interceptor for Blocks {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        match self {
            Self::On(client) => drop(client.echo(&payload(b"x")).wait()),
            Self::Sleeping(time) => std::thread::sleep(*time),
        }
        next.run(call).await
    }
}

#[test]
fn an_interceptor_that_blocks_ends_its_call_or_is_counted_and_may_do_so_in_a_worker() {
    let (other, _gate) = crate::common::serve("mem://interceptor-blocks-on");
    let client = crate::common::client(other.address());
    let (builder, gate) = server(&["mem://interceptor-blocks"]);
    let (_server, channel) = start(builder.interceptor(Blocks::On(client)));
    let blocked = TestClient::new(channel);
    // In a dispatch thread, that is a panic. No other call is held up by it.
    for _ in 0..2 {
        let status = blocked.echo(&payload(b"x")).wait().expect_err("a panic");
        assert_eq!(status.code(), Code::Internal, "{status}");
        blocked.work(&payload(b"x")).wait().expect("in a worker");
    }
    assert_eq!(gate.runs.load(Ordering::SeqCst), 0);

    let long = Duration::from_millis(60);
    let (builder, _gate) = server(&["mem://interceptor-sleeps"]);
    let (server, channel) = start(builder.interceptor(Blocks::Sleeping(long)));
    let client = TestClient::new(channel);
    client.echo(&payload(b"x")).wait().expect("late");
    let stalls = || server.stats()[0].endpoint.stalls;
    wait_until(|| stalls() > 0);
}
