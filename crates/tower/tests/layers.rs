//! Layers of tower around calls, at channels and at servers.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use starling::testing::{Fault, Faults};
use starling::{
    CallOptions, Channel, Code, HandlerTask, InterceptedCall, InterceptedResponse, Interceptor,
    Next, Request, Server, ServerBuilder, ServerHandle, Status, block_on,
};
use starling_test_protos::hello::*;
use starling_tower::{Call, TowerInterceptor};
use tokio::runtime::{Builder, Runtime};
use tower::retry::{Policy, RetryLayer};
use tower::{ServiceBuilder, ServiceExt};

/// Only a failing test waits this long.
const LONG: Duration = Duration::from_secs(120);

struct Greeter;

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut reply: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let layer = request.metadata().value("layer").unwrap_or_default();
        let layer = String::from_utf8_lossy(layer);
        reply.set_text(&format!("{}{layer}", request.message().name()));
        Ok(())
    }
}

/// Holds the calls of a server until it is open, and counts them.
#[derive(Clone, Default)]
struct Gate(Arc<Counts>);

#[derive(Default)]
struct Counts {
    is_open: AtomicBool,
    here: AtomicUsize,
    most: AtomicUsize,
    passed: AtomicUsize,
}

impl Gate {
    fn open() -> Self {
        let gate = Self::default();
        gate.0.is_open.store(true, Ordering::SeqCst);
        gate
    }

    fn here(&self) -> usize {
        self.0.here.load(Ordering::SeqCst)
    }

    fn passed(&self) -> usize {
        self.0.passed.load(Ordering::SeqCst)
    }
}

/// Counts a call while it is here.
struct Here<'a>(&'a Counts);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.here.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Interceptor for Gate {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let counts = &*self.0;
        let here = counts.here.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(here, Ordering::SeqCst);
        let _here = Here(counts);
        while !counts.is_open.load(Ordering::SeqCst) {
            call.sleep(Duration::from_millis(1)).await;
        }
        counts.passed.fetch_add(1, Ordering::SeqCst);
        next.run(call).await
    }
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_time().build();
    runtime.expect("a runtime")
}

fn spawn(builder: ServerBuilder) -> (ServerHandle, Channel) {
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, channel)
}

fn builder(address: &str) -> ServerBuilder {
    let builder = Server::builder().bind(address).expect("a name");
    builder.add_service(HelloServer::new(Greeter))
}

fn start(address: &str, gate: &Gate) -> (ServerHandle, Channel) {
    spawn(builder(address).interceptor(gate.clone()))
}

fn name(name: &str) -> HelloRequest {
    HelloRequest::new().with_name(name)
}

async fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LONG, "it does not happen");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_limit_is_one_for_all_calls_and_what_is_shed_does_not_run() {
    let gate = Gate::default();
    let (_server, channel) = start("mem://tower-limit", &gate);
    let limit = ServiceBuilder::new().concurrency_limit(3);
    let limited = HelloClient::new(channel.intercept(TowerInterceptor::new(limit)));
    let shed = ServiceBuilder::new().load_shed().concurrency_limit(1);
    let shed = HelloClient::new(channel.intercept(TowerInterceptor::new(shed)));
    runtime().block_on(async {
        let calls = join_all((0..20).map(|i| limited.greet(&name(&i.to_string()))));
        let calls = tokio::spawn(calls);
        until(|| gate.here() == 3).await;
        let held = tokio::spawn(shed.greet(&name("held")));
        until(|| gate.here() == 4).await;
        let status = shed.greet(&name("shed")).await.expect_err("one is there");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(!status.may_have_run(), "{status}");
        gate.0.is_open.store(true, Ordering::SeqCst);
        held.await.expect("no panic").expect("a greeting");
        for (i, greeting) in calls.await.expect("no panic").into_iter().enumerate() {
            let greeting = greeting.expect("a greeting");
            assert_eq!(greeting.message().text(), i.to_string());
        }
    });
    assert_eq!(gate.0.most.load(Ordering::SeqCst), 4);
    assert_eq!(gate.passed(), 21);
}

#[test]
fn a_timeout_of_a_layer_cancels_the_call() {
    let gate = Gate::default();
    let (_server, channel) = start("mem://tower-timeout", &gate);
    let layer = ServiceBuilder::new().timeout(Duration::from_millis(20));
    let client = HelloClient::new(channel.intercept(TowerInterceptor::new(layer)));
    runtime().block_on(async {
        let status = client.greet(&name("x")).await.expect_err("it is held");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.may_have_run(), "{status}");
        until(|| channel.calls_outstanding() == 0 && gate.here() == 0).await;
    });
    assert_eq!(gate.passed(), 0);
}

/// Repeats calls that have not run.
#[derive(Clone)]
struct Again(usize);

impl Policy<Call, InterceptedResponse, Status> for Again {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Call,
        result: &mut Result<InterceptedResponse, Status>,
    ) -> Option<Ready<()>> {
        let repeats = result.as_ref().is_err_and(|status| !status.may_have_run());
        self.0 = self.0.checked_sub(1).filter(|_| repeats)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, call: &Call) -> Option<Call> {
        Some(call.clone())
    }
}

#[test]
fn a_layer_repeats_calls_at_a_channel_and_not_at_a_server() {
    let gate = Gate::open();
    let (_server, channel) = start("mem://tower-retry", &gate);
    let abort = Fault::abort(Status::unavailable("a test"));
    let client = |times, repeats| {
        let faults = Faults::with_seed(1).add("", abort.clone().times(times));
        let layer = TowerInterceptor::new(RetryLayer::new(Again(repeats)));
        HelloClient::new(channel.intercept(layer).intercept(faults))
    };
    let greeting = client(2, 2).greet(&name("again")).wait();
    assert_eq!(greeting.expect("a greeting").message().text(), "again");
    assert_eq!(gate.passed(), 1);
    let status = client(3, 2).greet(&name("x")).wait().expect_err("all fail");
    assert_eq!(status, Status::unavailable("a test").with_not_run());

    // At a server, what did not run may run again: but not a handler.
    let faults = Faults::with_seed(1)
        .add("hello.Hello", abort.times(1))
        .add("hello.Hello", Fault::drop_response().times(1));
    let layers = ServiceBuilder::new()
        .layer(RetryLayer::new(Again(5)))
        .map_result(|result: Result<_, Status>| result.map_err(Status::with_not_run));
    let builder = builder("mem://tower-retry-server")
        .interceptor(TowerInterceptor::new(layers))
        .interceptor(faults);
    let (_server, channel) = spawn(builder);
    let client = HelloClient::new(channel);
    let status = client.greet(&name("x")).wait().expect_err("it ran");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    client.greet(&name("x")).wait().expect("no fault is left");
}

#[test]
fn layers_may_run_what_is_behind_them_in_another_task() {
    let gate = Gate::open();
    let (_server, channel) = start("mem://tower-buffer", &gate);
    runtime().block_on(async {
        let layers = ServiceBuilder::new()
            .buffer::<Call>(4)
            .rate_limit(1_000_000, Duration::from_secs(1));
        let client = HelloClient::new(channel.intercept(TowerInterceptor::new(layers)));
        let calls = (0..50).map(|i| tokio::spawn(client.greet(&name(&i.to_string()))));
        for (i, greeting) in join_all(calls).await.into_iter().enumerate() {
            let greeting = greeting.expect("no panic").expect("a greeting");
            assert_eq!(greeting.message().text(), i.to_string());
        }
        // A call that is given up is cancelled there, too.
        gate.0.is_open.store(false, Ordering::SeqCst);
        let held = tokio::spawn(client.greet(&name("held")));
        until(|| gate.here() == 1).await;
        held.abort();
        until(|| channel.calls_outstanding() == 0 && gate.here() == 0).await;
    });
}

#[test]
fn layers_see_and_change_calls_and_responses_without_a_runtime() {
    let layers = || {
        ServiceBuilder::new()
            .map_request(|mut call: Call| {
                let added = call.metadata_mut().insert("layer", " (layered)");
                added.expect("a short pair");
                call
            })
            .map_response(|mut response: InterceptedResponse| {
                let text = response.message::<HelloReply>().expect("a reply");
                let text = format!("{}!", text.text());
                response.set_message(&HelloReply::new().with_text(&text));
                response
            })
            .filter(|call: Call| match call.message::<HelloRequest>() {
                Ok(request) if request.name().is_empty() => {
                    Err(Status::invalid_argument("a name is missing"))
                }
                Ok(_) => Ok(call),
                Err(status) => Err(status),
            })
    };
    let gate = Gate::open();
    let (_server, channel) = start("mem://tower-maps", &gate);
    let at_client = channel.intercept(TowerInterceptor::new(layers()));
    let at_server = builder("mem://tower-maps-server").interceptor(TowerInterceptor::new(layers()));
    let (_other, at_server) = spawn(at_server);
    for channel in [at_client, at_server] {
        let client = HelloClient::new(channel);
        let greeting = client.greet(&name("x")).wait().expect("a greeting");
        assert_eq!(greeting.message().text(), "x (layered)!");
        let status = client.greet(&name("")).wait().expect_err("no name");
        let expected = Status::invalid_argument("a name is missing").with_not_run();
        assert_eq!(status, expected);
    }
    // The other way round.
    let client = HelloClient::new(channel);
    let service = tower::service_fn(move |request: HelloRequest| client.greet(&request));
    let greeting = block_on(service.oneshot(name("oneshot"))).expect("a greeting");
    assert_eq!(greeting.message().text(), "oneshot");
}

#[test]
fn a_server_with_a_runtime_takes_layers_with_timers() {
    let runtime = runtime();
    let handle = runtime.handle().clone();
    let gate = Gate::default();
    let layer = ServiceBuilder::new().timeout(Duration::from_millis(20));
    let builder = builder("mem://tower-server")
        .nested_executor(move |task: HandlerTask| drop(handle.spawn(task)))
        .interceptor(TowerInterceptor::new(layer))
        .interceptor(gate.clone());
    let (_server, channel) = spawn(builder);
    let client = HelloClient::new(channel);
    let status = client.greet(&name("x")).wait().expect_err("it is held");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(!status.may_have_run(), "the handler has not run: {status}");
    gate.0.is_open.store(true, Ordering::SeqCst);
    client
        .greet_with(&name("x"), &CallOptions::with_timeout(LONG))
        .wait()
        .expect("a greeting");
}
