//! The seam between the API and the planes: a plane that is not part of the library, made of both traits
//! and a channel of the standard library, carries calls of generated clients to generated servers.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Gate, LONG, Service, payload, wait_until};
use starling::plane::{
    CallHandle, Direction, IncomingCall, Listener, ListenerContext, MethodHandler, Operation,
    OwnedMessage, Reply, RequestView, ResponseBuilder, Serving, Transport,
};
use starling::plane::{DeadlineWaker, Encoding};
use starling::{
    CallOptions, Channel, ChannelState, Code, DeviceReport, Endpoint, Error, MessageMemory,
    ProtocolStats, Server, Stats, Status, ThreadStats, Wake,
};
use starling_test_protos::test::{Failure, TestClient, TestServer};

/// The plane's client side.
struct Line {
    to_server: Mutex<Sender<Reply>>,
    memory: MessageMemory,
    started: Arc<AtomicUsize>,
    cancelled: Arc<AtomicUsize>,
}

impl Transport for Line {
    fn start(&self, reply: Reply) {
        self.started.fetch_add(1, Ordering::SeqCst);
        // A server that has ended drops the reply.
        let _ = self.to_server.lock().expect("nobody panics").send(reply);
    }

    fn cancel(&self, call: &CallHandle) {
        assert!(call.is_abandoned());
        self.cancelled.fetch_add(1, Ordering::SeqCst);
    }

    fn wake_at(&self, deadline: Instant, waker: Arc<DeadlineWaker>) {
        std::thread::spawn(move || {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            waker.wake();
        });
    }

    fn state(&self) -> ChannelState {
        ChannelState::Ready
    }

    fn memory(&self) -> &MessageMemory {
        &self.memory
    }

    fn stats(&self) -> Result<ThreadStats, Status> {
        Ok(no_stats())
    }
}

fn no_stats() -> ThreadStats {
    ThreadStats {
        address: "line://test".to_owned(),
        endpoint: Stats::default(),
        protocol: ProtocolStats::default(),
        device: DeviceReport::default(),
    }
}

/// The plane's server side.
struct LineListener {
    requests: Receiver<Reply>,
    asked: Arc<Asked>,
}

#[derive(Default)]
struct Asked(AtomicBool);

impl Wake for Asked {
    fn wake(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Listener for LineListener {
    fn scheme(&self) -> &str {
        "line"
    }

    fn local_address(&self) -> String {
        "line://test".to_owned()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.asked) as Arc<dyn Wake>
    }

    fn serve(self: Box<Self>, serving: Serving) -> Result<bool, Error> {
        let mut endpoint = Endpoint::client("mem://any")?;
        let context = ListenerContext::on_endpoint(&endpoint, &serving);
        let methods = serving.methods().iter();
        let handlers = methods.map(|it| (it.descriptor().path, it.handler(&context)));
        let mut handlers: HashMap<_, _> = handlers.collect();
        serving.begun();
        while !serving.must_stop(no_stats) {
            match self.requests.recv_timeout(Duration::from_millis(1)) {
                Ok(reply) => answer(reply, &mut handlers, &mut endpoint)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        serving.leave_stats(no_stats());
        Ok(true)
    }
}

/// Runs a handler, and sends its answer back.
fn answer(
    reply: Reply,
    handlers: &mut HashMap<&'static str, MethodHandler>,
    endpoint: &mut Endpoint,
) -> Result<(), Error> {
    let call = match reply.take_operation() {
        Some(Operation::Call(call)) => call,
        Some(Operation::Connect { .. }) => {
            reply.finish(Ok((OwnedMessage::default(), Encoding::Native)));
            return Ok(());
        }
        // Its caller has given up.
        None => return Ok(()),
    };
    let message = call.message;
    assert_eq!(message.direction, Direction::Request);
    assert_eq!(reply.call().number(), message.call);
    let (head, tail) = message.payload.into_parts();
    let mut body = head[message.headroom..].to_vec();
    body.extend_from_slice(tail.as_deref().unwrap_or_default());
    let view = RequestView::new(&body, &[], None);
    let mut out = Vec::new();
    let mut response = ResponseBuilder::new(&mut out);
    let result = match handlers.get_mut(message.path.as_str()) {
        None => Err(Status::unimplemented("the server has no such method")),
        Some(MethodHandler::Inline(handler)) => handler(view, &mut response),
        Some(MethodHandler::Worker(handler)) => std::thread::scope(|scope| {
            let worker = std::thread::Builder::new().name("worker".to_owned());
            let worker = worker.spawn_scoped(scope, || handler(view, &mut response));
            worker.expect("a thread").join().expect("no panic")
        }),
        Some(MethodHandler::Nested(handler)) => {
            let future = handler(OwnedMessage::of_body(body.clone()), IncomingCall::default());
            match future.map(|future| endpoint.block_on(future)) {
                Ok(ended) => ended?.map(|built| {
                    let (head, tail) = built.body.into_parts();
                    response.body().extend(head);
                    response.body().extend(tail.unwrap_or_default());
                }),
                Err(status) => Err(status),
            }
        }
        Some(MethodHandler::Streaming(_)) => {
            Err(Status::unimplemented("the line carries single calls"))
        }
    };
    let (tail, _) = response.into_parts();
    out.extend(tail.unwrap_or_default());
    reply.finish(result.map(|()| (OwnedMessage::of_body(out), Encoding::Native)));
    Ok(())
}

/// A line with both of its ends, and the counts of operations begun and cancelled.
fn line() -> (Line, LineListener, [Arc<AtomicUsize>; 2]) {
    let (sender, requests) = channel();
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let line = Line {
        to_server: Mutex::new(sender),
        memory: MessageMemory::default(),
        started: Arc::clone(&counts[0]),
        cancelled: Arc::clone(&counts[1]),
    };
    let asked = Arc::default();
    (line, LineListener { requests, asked }, counts)
}

#[test]
fn a_plane_of_ones_own_cannot_be_steered() {
    let (_, listener, _) = line();
    let builder = Server::builder()
        .listen(listener)
        .add_service(TestServer::new(Service(Arc::default())));
    let error = builder.steered().build().expect_err("no network interface");
    assert!(
        matches!(&error, Error::Device(error) if error.remedy.contains("xdp://")),
        "{error}"
    );
}

#[test]
fn a_plane_of_ones_own_carries_all_kinds_of_calls_of_generated_code() {
    let (line, listener, [started, _]) = line();
    let gate = Arc::<Gate>::default();
    let server = Server::builder()
        .listen(listener)
        .add_service(TestServer::new(Service(Arc::clone(&gate))))
        .build()
        .expect("a server")
        .spawn()
        .expect("it serves");
    assert_eq!(server.addresses(), ["line://test"]);
    let channel = Channel::builder("line://test").over(line);
    starling::block_on(channel.ready()).expect("it says so");
    let client = TestClient::new(channel.clone());
    for size in [0, 32, 5000] {
        let request = payload(&vec![7; size]);
        let echoed = client.echo(&request).wait().expect("an inline method");
        assert_eq!(echoed.message().bytes().len(), size);
        let worked = client.work(&request).wait().expect("a worker's method");
        assert_eq!(worked.message().bytes(), request.bytes());
    }
    gate.open.store(true, Ordering::SeqCst);
    let waited = client.wait(&payload(b"nested")).wait();
    let waited = waited.expect("a nested method");
    assert_eq!(waited.message().bytes(), b"nested");
    let mut failure = Failure::new();
    failure.set_code(Code::NotFound as u32);
    let failed = client.fail(&failure).wait().expect_err("as asked");
    assert_eq!(failed.code(), Code::NotFound, "{failed}");
    assert_eq!(started.load(Ordering::SeqCst), 9, "one operation each");
    assert_eq!(channel.state(), ChannelState::Ready);
    assert_eq!(channel.calls_outstanding(), 0);
    assert!(server.shutdown(LONG).expect("it stops when told"));
    let late = client.echo(&payload(b"late")).wait().expect_err("it ended");
    assert_eq!(late.code(), Code::Unavailable, "{late}");
}

#[test]
fn a_channel_bounds_and_cancels_the_calls_of_any_transport() {
    let (line, listener, [started, cancelled]) = line();
    let channel = Channel::builder("line://test").capacity(2).over(line);
    let client = TestClient::new(channel.clone());
    // Nobody serves.
    let calls: Vec<_> = (0..2).map(|_| client.echo(&payload(b"out"))).collect();
    let options = CallOptions::with_timeout(Duration::from_millis(20));
    let third = client.echo_with(&payload(b"no room"), &options);
    let status = third.wait().expect_err("the channel is full");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(!status.may_have_run());
    assert_eq!(started.load(Ordering::SeqCst), 2);
    drop(calls);
    assert_eq!(cancelled.load(Ordering::SeqCst), 2);
    drop(listener);
    wait_until(|| channel.calls_outstanding() == 0);
}
