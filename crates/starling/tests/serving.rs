//! Servers inside an executor, and what handlers may do in one.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{LONG, any_addresses, client, payload, serve, server, shm_address, wait_until};
use starling::{
    CallOptions, Channel, Code, NestedContext, OwnedRequest, Request, Server, Status, block_on,
};
use starling_test_protos::hello::{
    Hello, HelloClient, HelloReply, HelloReplyMut, HelloRequest, HelloServer,
};
use starling_test_protos::test::{
    Failure, Payload, PayloadMut, RelayRequest, ReportMut, Test, TestClient, TestServer,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

#[test]
fn a_server_serves_inside_a_runtime_until_it_is_told_to_stop() {
    for address in any_addresses() {
        let (builder, gate) = server(&[&address]);
        let server = builder.build().expect("a server");
        let address = server.addresses().remove(0);
        runtime().block_on(async {
            let (stop, stopped) = oneshot::channel::<()>();
            let stopped = async { drop(stopped.await) };
            let serving = tokio::spawn(server.serve_until(stopped, LONG));
            let channel = Channel::connect(&address).await.expect("it serves");
            let client = TestClient::new(channel);
            client.echo(&payload(b"x")).await.expect("an echo");
            let last = client.wait(&payload(b"the last one"));
            let last = tokio::spawn(last);
            while gate.waiting.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            stop.send(()).expect("it serves");
            gate.open.store(true, Ordering::SeqCst);
            let last = last.await.expect("no panic").expect("it is finished");
            assert_eq!(last.message().bytes(), b"the last one");
            let drained = serving.await.expect("no panic").expect("no device fails");
            assert!(drained, "calls were cut off");
            client.echo(&payload(b"x")).await.expect_err("it is gone");
        });
    }
}

#[test]
fn a_server_whose_future_is_dropped_is_shut_down() {
    let address = shm_address();
    let (builder, _) = server(&[&address]);
    let server = builder.build().expect("a server");
    runtime().block_on(async {
        let serving = tokio::spawn(server.serve());
        let channel = Channel::connect(&address).await.expect("it serves");
        serving.abort();
        assert!(serving.await.expect_err("aborted").is_cancelled());
        let status = TestClient::new(channel).echo(&payload(b"x")).await;
        assert_eq!(status.expect_err("gone").code(), Code::Unavailable);
    });
    let (builder, _) = common::server(&[&address]);
    builder.build().expect("the address is free again");
}

#[test]
fn the_threads_of_a_server_count_wherever_they_are_set() {
    let (builder, _) = server(&["udp://127.0.0.1:0"]);
    let server = builder.threads(3).build().expect("a server");
    let handle = server.spawn().expect("threads");
    assert_eq!(handle.stats().len(), 3);
}

/// Its nested handler uses tokio's timers and tasks.
struct OnTokio;

impl Test for OnTokio {
    async fn wait(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Payload>,
    ) -> Result<Payload, Status> {
        if request.message().bytes() == b"panic" {
            std::panic::resume_unwind(Box::new("as requested"));
        }
        // No tokio timer works outside its runtime.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let task = tokio::spawn(async { 7 });
        assert_eq!(task.await.expect("no panic"), 7);
        Ok(request.into_message())
    }

    async fn relay(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        common::relay(&cx, &request).await
    }

    async fn relay_wait(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        std::future::pending().await
    }

    fn echo(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn fail(&self, _: Request<'_, Failure>, _: PayloadMut<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn panic(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn inspect(&self, _: Request<'_, Payload>, _: ReportMut<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn work(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        Ok(())
    }
}

#[test]
fn nested_handlers_run_in_a_runtime_and_may_use_it() {
    let (other, _) = serve(&shm_address());
    for address in any_addresses() {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        let builder = Server::builder().bind(&address).expect("an address");
        let builder = builder.add_service(TestServer::new(OnTokio));
        let builder = builder.nested_executor(move |task| drop(handle.spawn(task)));
        let server = builder.build().expect("a server").spawn().expect("threads");
        let client = client(server.address());
        let response = client.wait(&payload(b"tokio")).wait().expect("a timer");
        assert_eq!(response.message().bytes(), b"tokio");
        let mut request = RelayRequest::new();
        request.set_address(other.address());
        request.set_bytes(b"relayed");
        let response = client.relay(&request).wait().expect("an own call");
        assert_eq!(response.message().bytes(), b"relayed");
        let status = client.wait(&payload(b"panic")).wait();
        let status = status.expect_err("it panics");
        assert_eq!(status.code(), Code::Internal);
        assert!(status.may_have_run());
        // The runtime drops its tasks at its end. Their calls end.
        let mut request = RelayRequest::new();
        request.set_bytes(b"bound");
        let waiting = CallOptions::with_timeout(Duration::from_millis(1));
        let status = client.relay_wait_with(&request, &waiting).wait();
        assert_eq!(
            status.expect_err("it never ends").code(),
            Code::DeadlineExceeded
        );
        let before = server.stats()[0].endpoint.requests;
        let open = client.relay_wait(&request);
        let open = std::thread::spawn(move || open.wait());
        wait_until(|| server.stats()[0].endpoint.requests == before + 1);
        runtime.shutdown_timeout(LONG);
        let status = open.join().expect("no panic").expect_err("dropped");
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
}

/// Calls the address that a request names, and waits for it where it must not.
struct Blocking(Arc<AtomicBool>);

impl Hello for Blocking {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut reply: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let deadline = request.deadline();
        let client = HelloClient::new(Channel::lazy(request.message().name())?);
        let call = || client.greet(&HelloRequest::new()).wait().map(drop);
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        let panic = waited.expect_err("it cannot wait here");
        let text = panic.downcast_ref::<&str>().expect("a text");
        reply.set_text(text);
        std::thread::sleep(Duration::from_millis(2));
        let is_fixed = deadline.is_some() && request.deadline() == deadline;
        self.0.store(is_fixed, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_handler_that_waits_in_a_dispatch_thread_is_told_what_to_do() {
    let is_fixed = Arc::new(AtomicBool::new(false));
    let service = HelloServer::new(Blocking(Arc::clone(&is_fixed)));
    let server = Server::builder().bind(&shm_address()).expect("a name");
    let server = server.add_service(service).build().expect("a server");
    let server = server.spawn().expect("threads");
    let client = HelloClient::new(Channel::lazy(server.address()).expect("a channel"));
    let request = HelloRequest::new().with_name(server.address());
    let options = CallOptions::with_timeout(LONG);
    let reply: HelloReply = block_on(client.greet_with(&request, &options))
        .expect("the handler catches it")
        .into_message();
    for remedy in ["NESTED", "WORKER"] {
        assert!(reply.text().contains(remedy), "{}", reply.text());
    }
    assert!(is_fixed.load(Ordering::SeqCst), "the deadline has moved");
}
