//! A server of streams that counts what its handlers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use starling::{
    Channel, Code, Metadata, NestedContext, OwnedRequest, Server, ServerBuilder, ServerHandle,
    Status, StreamReceiver, StreamSender,
};
use starling_test_protos::streams::{Number, Range, Streams, StreamsClient, StreamsServer, Sum};

/// What a test and its server share.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Messages that handlers have sent.
    pub(crate) sent: AtomicU64,
    /// Messages that handlers have read.
    pub(crate) read: AtomicU64,
    pub(crate) running: AtomicUsize,
    /// Handlers that have nothing to say wait for this before they send metadata.
    pub(crate) is_late: AtomicBool,
    /// Handlers that were dropped before they ended.
    pub(crate) dropped: AtomicUsize,
}

/// Counts a handler while it runs.
struct Running(Arc<Counts>, bool);

impl Running {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(counts), false)
    }

    fn end<T>(mut self, result: T) -> T {
        self.1 = true;
        result
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        if !self.1 {
            self.0.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

pub(crate) struct Service(pub(crate) Arc<Counts>);

pub(crate) fn number(value: u64, padding: usize) -> Number {
    let mut number = Number::new();
    number.set_value(value);
    if padding > 0 {
        number.set_padding(&vec![value as u8; padding]);
    }
    number
}

fn pair(key: &str, value: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert(key, value).expect("a valid pair");
    metadata
}

impl Streams for Service {
    async fn count(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        let running = Running::new(&self.0);
        let range = request.message();
        if let Some(token) = request.metadata().value("token") {
            let token = str::from_utf8(token).expect("the tests send text");
            numbers.send_metadata(pair("token-back", token))?;
        }
        for value in range.from()..range.to() {
            numbers
                .send(&number(value, range.padding() as usize))
                .await?;
            self.0.sent.fetch_add(1, Ordering::SeqCst);
        }
        numbers.set_trailers(pair("last", &range.to().to_string()))?;
        running.end(match Code::from_u8(range.code() as u8) {
            Some(Code::Ok) | None => Ok(()),
            Some(code) => Err(Status::new(code, "as requested")),
        })
    }

    async fn add(
        self: Arc<Self>,
        _: NestedContext,
        mut numbers: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        let running = Running::new(&self.0);
        let mut sum = Sum::new();
        while let Some(number) = numbers.message().await? {
            sum.set_sum(sum.view().sum() + number.message().value());
            sum.set_count(sum.view().count() + 1);
            self.0.read.fetch_add(1, Ordering::SeqCst);
        }
        running.end(Ok(sum))
    }

    async fn echo(
        self: Arc<Self>,
        _: NestedContext,
        mut numbers: StreamReceiver<Number>,
        mut back: StreamSender<Number>,
    ) -> Result<(), Status> {
        let running = Running::new(&self.0);
        while let Some(number) = numbers.message().await? {
            self.0.read.fetch_add(1, Ordering::SeqCst);
            back.send(&number.into_message()).await?;
            self.0.sent.fetch_add(1, Ordering::SeqCst);
        }
        running.end(Ok(()))
    }

    async fn wait(
        self: Arc<Self>,
        context: NestedContext,
        _numbers: StreamReceiver<Number>,
        mut back: StreamSender<Number>,
    ) -> Result<(), Status> {
        let running = Running::new(&self.0);
        // The server has answered the stream's first request by then.
        context.sleep(std::time::Duration::from_millis(20)).await;
        while self.0.is_late.load(Ordering::SeqCst) {
            context.sleep(std::time::Duration::from_millis(1)).await;
        }
        back.send_metadata(pair("waits", "here"))?;
        loop {
            context.sleep(std::time::Duration::from_secs(3600)).await;
            if self.0.running.load(Ordering::SeqCst) == usize::MAX {
                return running.end(Ok(()));
            }
        }
    }

    async fn panic(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        numbers.send(&number(1, 0)).await?;
        std::panic::resume_unwind(Box::new("as requested"));
    }
}

pub(crate) fn builder(address: &str) -> (ServerBuilder, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let service = StreamsServer::new(Service(Arc::clone(&counts)));
    let builder = Server::builder().bind(address).expect("a free address");
    (builder.add_service(service), counts)
}

pub(crate) fn serve(address: &str) -> (ServerHandle, Arc<Counts>, StreamsClient<Channel>) {
    let (builder, counts) = builder(address);
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, counts, StreamsClient::new(channel))
}

pub(crate) fn range(from: u64, to: u64, padding: u32) -> Range {
    Range::new()
        .with_from(from)
        .with_to(to)
        .with_padding(padding)
}

/// Ends a server whose streams are over: nothing is left that it has to wait for.
pub(crate) fn end(server: ServerHandle) {
    let finished = server.shutdown(crate::common::LONG);
    assert!(
        finished.expect("the device works"),
        "a stream was left behind"
    );
}
