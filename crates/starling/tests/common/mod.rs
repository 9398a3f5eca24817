//! A server whose handlers do what a test's request asks for, and addresses that no other test has.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod process;
pub(crate) mod store;
pub(crate) mod xdp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use starling::{
    Channel, Code, EndpointConfig, LocalChannel, Metadata, NestedContext, OwnedRequest, Request,
    Server, ServerBuilder, ServerHandle, Status,
};
use starling_test_protos::test::{
    Failure, FailureView, Payload, PayloadMut, RelayRequest, Report, ReportMut, Test, TestClient,
    TestServer,
};

/// Only a failing test waits this long.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The state that a test and its server share.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) open: AtomicBool,
    pub(crate) waiting: AtomicUsize,
    /// Handlers that were dropped while they waited.
    pub(crate) dropped: AtomicUsize,
    pub(crate) runs: AtomicU64,
}

/// Counts handlers that are dropped before they end.
struct Unfinished<'a>(&'a AtomicUsize);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) struct Service(pub(crate) Arc<Gate>);

/// Answers with the bytes of a request. Many bytes go into the memory that they are sent from.
fn put(request: &Request<'_, Payload>, response: &mut PayloadMut<'_>) {
    let bytes = request.message().bytes();
    match bytes.len() {
        0..=4096 => response.set_bytes(bytes),
        _ => response.set_bytes_bytes(request.memory().copy(bytes)),
    }
}

impl Test for Service {
    fn echo(
        &self,
        request: Request<'_, Payload>,
        mut response: PayloadMut<'_>,
    ) -> Result<(), Status> {
        self.0.runs.fetch_add(1, Ordering::SeqCst);
        put(&request, &mut response);
        Ok(())
    }

    fn fail(&self, request: Request<'_, Failure>, _: PayloadMut<'_>) -> Result<(), Status> {
        let failure: FailureView<'_> = request.message();
        let code = Code::from_u8(failure.code() as u8).unwrap_or(Code::Unknown);
        let mut metadata = Metadata::new();
        metadata.insert("detail", "seven").expect("a valid pair");
        Err(Status::new(code, failure.text().to_owned()).with_metadata(metadata))
    }

    fn panic(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        std::panic::resume_unwind(Box::new("as requested"));
    }

    fn inspect(
        &self,
        request: Request<'_, Payload>,
        mut report: ReportMut<'_>,
    ) -> Result<(), Status> {
        let remaining = request.remaining().unwrap_or_default();
        report.set_remaining_us(remaining.as_micros() as u64);
        let who = request.metadata().value("who").unwrap_or_default();
        report.set_who(str::from_utf8(who).expect("the tests send text"));
        request.set_response_metadata(request.metadata().to_owned());
        report.set_runs(self.0.runs.fetch_add(1, Ordering::SeqCst) + 1);
        Ok(())
    }

    fn work(
        &self,
        request: Request<'_, Payload>,
        mut response: PayloadMut<'_>,
    ) -> Result<(), Status> {
        let thread = std::thread::current();
        assert!(thread.name().is_some_and(|name| name.contains("worker")));
        request.set_response_metadata(request.metadata().to_owned());
        put(&request, &mut response);
        Ok(())
    }

    async fn wait(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<Payload>,
    ) -> Result<Payload, Status> {
        if request.message().bytes() == b"panic" {
            std::panic::resume_unwind(Box::new("as requested"));
        }
        let unfinished = Unfinished(&self.0.dropped);
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        while !self.0.open.load(Ordering::SeqCst) {
            cx.sleep(Duration::from_millis(1)).await;
        }
        std::mem::forget(unfinished);
        cx.set_response_metadata(request.metadata().to_owned());
        Ok(request.into_message())
    }

    async fn relay(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        relay(&cx, &request).await
    }

    async fn relay_wait(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        let unfinished = Unfinished(&self.0.dropped);
        let message = payload(request.message().bytes());
        let response = next_client(&cx, &request)?.wait(&message).await?;
        std::mem::forget(unfinished);
        Ok(response.into_message())
    }
}

/// A client of the server that a relay's request names.
fn next_client(
    cx: &NestedContext,
    request: &OwnedRequest<RelayRequest>,
) -> Result<TestClient<LocalChannel>, Status> {
    let channel = cx
        .channel(request.message().address())
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(TestClient::new(channel))
}

/// Has the server that a request names echo its bytes.
pub(crate) async fn relay(
    cx: &NestedContext,
    request: &OwnedRequest<RelayRequest>,
) -> Result<Payload, Status> {
    let message = payload(request.message().bytes());
    let response = next_client(cx, request)?.echo(&message).await?;
    Ok(response.into_message())
}

pub(crate) fn server(addresses: &[&str]) -> (ServerBuilder, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let mut builder = Server::builder();
    for address in addresses {
        builder = builder.bind(address).expect("a free address");
    }
    let service = TestServer::new(Service(Arc::clone(&gate)));
    (builder.add_service(service).workers(2), gate)
}

/// A running server at one address.
pub(crate) fn serve(address: &str) -> (ServerHandle, Arc<Gate>) {
    let (builder, gate) = server(&[address]);
    let handle = builder.build().expect("a server").spawn();
    (handle.expect("threads"), gate)
}

pub(crate) fn client(address: &str) -> TestClient<Channel> {
    TestClient::new(Channel::lazy(address).expect("a channel"))
}

pub(crate) fn payload(bytes: &[u8]) -> Payload {
    let mut payload = Payload::new();
    payload.set_bytes(bytes);
    payload
}

/// A name of this host that no other test has.
pub(crate) fn shm_address() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://starling-test-{}-{number}", std::process::id())
}

/// An address of each scheme that reaches other processes and needs no root.
pub(crate) fn far_addresses() -> [String; 3] {
    let [udp, tcp] = ["udp", "tcp"].map(|scheme| format!("{scheme}://127.0.0.1:0"));
    [udp, shm_address(), tcp]
}

/// An address of each scheme that needs no root.
pub(crate) fn any_addresses() -> [String; 4] {
    let [udp, shm, tcp] = far_addresses();
    let mem = shm.replace("shm://", "mem://");
    [udp, shm, mem, tcp]
}

/// An address for another server on the device of this one.
pub(crate) fn another_address(address: &str, number: usize) -> String {
    match address.ends_with(":0") {
        true => address.to_owned(),
        false => format!("{address}-{number}"),
    }
}

/// Notices a dead peer soon: for tests that wait for it.
pub(crate) fn impatient() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.protocol.peer_timeout_ns = 300_000_000;
    config.protocol.keepalive_ns = 100_000_000;
    config.protocol.connect_timeout_ns = 300_000_000;
    config
}

pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done() {
        assert!(begun.elapsed() < LONG, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn report_of(report: &starling::Response<Report>) -> (u64, String) {
    let message = report.message();
    (message.remaining_us(), message.who().to_owned())
}
