//! Handlers of all kinds that tell the test who calls them, and when nobody waits any more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use starling::{
    Cancellation, NestedContext, OwnedRequest, Peer, Request, Server, ServerBuilder, ServerHandle,
    Status, StreamReceiver, StreamSender, block_on,
};
use starling_test_protos::streams::{Number, Range, Streams, StreamsServer, Sum};
use starling_test_protos::test::{
    Failure, Payload, PayloadMut, RelayRequest, ReportMut, Test, TestServer,
};

/// What a handler has seen.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) kind: &'static str,
    pub(crate) peer: Peer,
}

/// What handlers tell the test.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<State>);

#[derive(Default)]
struct State {
    reports: Mutex<Vec<Report>>,
    /// Handlers and threads that wait for the end of their call.
    running: AtomicUsize,
    told: Mutex<Option<Status>>,
}

impl Seen {
    pub(crate) fn report(&self, kind: &'static str, peer: &Peer) {
        let peer = peer.clone();
        self.0
            .reports
            .lock()
            .expect("no panic")
            .push(Report { kind, peer });
    }

    /// The reports, which are so many.
    pub(crate) fn take(&self, count: usize) -> Vec<Report> {
        let reports = std::mem::take(&mut *self.0.reports.lock().expect("no panic"));
        assert_eq!(reports.len(), count, "{reports:?}");
        reports
    }

    pub(crate) fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Why a handler stopped.
    pub(crate) fn told(&self) -> Option<Status> {
        self.0.told.lock().expect("no panic").clone()
    }

    fn begin(&self) {
        self.0.running.fetch_add(1, Ordering::SeqCst);
    }

    fn tell(&self, status: Option<Status>) {
        *self.0.told.lock().expect("no panic") = status;
    }

    /// Waits in a thread of its own.
    fn wait_in_thread(&self, cancellation: &Cancellation) {
        let (seen, cancelled) = (self.clone(), cancellation.cancelled());
        std::thread::spawn(move || {
            seen.begin();
            seen.tell(Some(block_on(cancelled)));
        });
    }
}

struct Service(Seen);

impl Test for Service {
    fn echo(&self, request: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        assert!(!request.is_cancelled());
        self.0.report("inline", request.peer());
        Ok(())
    }

    fn work(&self, request: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        self.0.report("worker", request.peer());
        if request.message().bytes() == b"cancels at once" {
            return Err(Status::cancelled("by the handler"));
        }
        if request.message().bytes() == b"says cancelled" {
            while !request.is_cancelled() {
                std::thread::yield_now();
            }
            return Err(Status::cancelled("by the handler"));
        }
        if request.message().bytes() == b"until cancelled" {
            self.0.begin();
            while !request.is_cancelled() {
                std::thread::yield_now();
            }
            let cancellation = request.cancellation().expect("workers have one");
            let late = || Status::deadline_exceeded("by the handler's own clock");
            self.0
                .tell(Some(cancellation.status().unwrap_or_else(late)));
        }
        Ok(())
    }

    async fn wait(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<Payload>,
    ) -> Result<Payload, Status> {
        assert_eq!(cx.peer(), request.peer());
        self.0.report("nested", request.peer());
        match request.message().bytes() {
            b"thread" => {
                self.0.wait_in_thread(cx.cancellation());
                std::future::pending().await
            }
            b"thread, answered" => {
                self.0.wait_in_thread(cx.cancellation());
                while self.0.running() == 0 {
                    cx.sleep(std::time::Duration::from_millis(1)).await;
                }
                assert!(!cx.is_cancelled());
                Ok(Payload::new())
            }
            _ => Ok(Payload::new()),
        }
    }

    fn fail(&self, _: Request<'_, Failure>, _: PayloadMut<'_>) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
    }

    fn panic(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
    }

    fn inspect(&self, _: Request<'_, Payload>, _: ReportMut<'_>) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn relay(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn relay_wait(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

impl Streams for Service {
    async fn count(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<Range>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        assert_eq!(cx.peer(), request.peer());
        self.0.report("count", cx.peer());
        Ok(())
    }

    async fn add(
        self: Arc<Self>,
        cx: NestedContext,
        mut numbers: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        while numbers.message().await?.is_some() {}
        self.0.report("add", cx.peer());
        Ok(Sum::new())
    }

    async fn echo(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<Number>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn wait(
        self: Arc<Self>,
        cx: NestedContext,
        _numbers: StreamReceiver<Number>,
        _answers: StreamSender<Number>,
    ) -> Result<(), Status> {
        self.0.wait_in_thread(cx.cancellation());
        std::future::pending().await
    }

    async fn panic(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<Range>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

/// A server at an address, and what its handlers tell.
pub(crate) fn serve(
    address: &str,
    with: impl FnOnce(ServerBuilder) -> ServerBuilder,
) -> (ServerHandle, Seen) {
    let seen = Seen::default();
    let builder = Server::builder()
        .bind(address)
        .expect("a free address")
        .workers(2);
    let builder = builder
        .add_service(TestServer::new(Service(seen.clone())))
        .add_service(StreamsServer::new(Service(seen.clone())));
    let server = with(builder).build().expect("a server").spawn();
    (server.expect("threads"), seen)
}
