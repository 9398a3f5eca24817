//! Handlers that make calls of their own, each in the way of its kind.

use std::sync::Arc;

use starling::{
    Caller, Channel, NestedContext, OwnedRequest, Request, Server, ServerBuilder, ServerHandle,
    Status, StreamReceiver, StreamSender, block_on,
};
use starling_test_protos::blocking::{Blocking, BlockingServer, Count, Line};
use starling_test_protos::streams::{Number, Range, Streams, StreamsServer, Sum};
use starling_test_protos::test::{
    Failure, Payload, PayloadMut, RelayRequest, ReportMut, Test, TestClient, TestServer,
};

struct Service;

/// Asks another server what it knows about the call.
async fn ask<C: Caller>(client: TestClient<C>) -> Result<(), Status> {
    client.inspect(&Payload::new()).await.map(drop)
}

impl Test for Service {
    fn echo(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        Ok(())
    }

    fn fail(&self, request: Request<'_, Failure>, _: PayloadMut<'_>) -> Result<(), Status> {
        let code = starling::Code::from_u8(request.message().code() as u8);
        Err(Status::new(code.expect("a code"), "as asked for"))
    }

    fn panic(&self, _: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        std::panic::resume_unwind(Box::new("as requested"));
    }

    fn inspect(&self, request: Request<'_, Payload>, _: ReportMut<'_>) -> Result<(), Status> {
        request.set_response_metadata(request.metadata().to_owned());
        Ok(())
    }

    fn work(&self, request: Request<'_, Payload>, _: PayloadMut<'_>) -> Result<(), Status> {
        let address = std::str::from_utf8(request.message().bytes()).expect("an address");
        starling::block_on(ask(TestClient::new(Channel::lazy(address)?)))
    }

    async fn wait(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<Payload>,
    ) -> Result<Payload, Status> {
        std::future::pending().await
    }

    async fn relay(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<RelayRequest>,
    ) -> Result<Payload, Status> {
        tracing::info!(target: "test", "relays");
        ask(TestClient::new(cx.channel(request.message().address())?)).await?;
        Ok(Payload::new())
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
        _: NestedContext,
        request: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        for value in 0..request.message().to() {
            numbers.send(&Number::new().with_value(value)).await?;
        }
        Ok(())
    }

    async fn add(
        self: Arc<Self>,
        cx: NestedContext,
        mut numbers: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        while let Some(number) = numbers.message().await? {
            let address = std::str::from_utf8(number.message().padding()).expect("an address");
            ask(TestClient::new(cx.channel(address)?)).await?;
        }
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
        _: NestedContext,
        _numbers: StreamReceiver<Number>,
        _answers: StreamSender<Number>,
    ) -> Result<(), Status> {
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

impl Blocking for Service {
    /// Calls the server at the address that the request has, by a channel of each kind.
    fn spell(
        &self,
        context: NestedContext,
        request: OwnedRequest<Line>,
        _: StreamSender<Line>,
    ) -> Result<(), Status> {
        tracing::info!(target: "test", "in the handler");
        let address = request.message().text();
        let channel =
            Channel::lazy(address).map_err(|error| Status::internal(error.to_string()))?;
        TestClient::new(channel).inspect(&Payload::new()).wait()?;
        let local = context.channel(address).expect("an address");
        block_on(ask(TestClient::new(local)))?;
        Ok(())
    }

    fn tally(&self, _: NestedContext, _: StreamReceiver<Line>) -> Result<Count, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    fn repeat(
        &self,
        _: NestedContext,
        _: StreamReceiver<Line>,
        _: StreamSender<Line>,
    ) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

pub(crate) fn builder(address: &str) -> ServerBuilder {
    let builder = Server::builder()
        .bind(address)
        .expect("a free address")
        .workers(1);
    let builder = builder.add_service(TestServer::new(Service));
    let builder = builder.add_service(StreamsServer::new(Service));
    builder.add_service(BlockingServer::new(Service))
}

/// A server at an address.
pub(crate) fn serve(address: &str) -> ServerHandle {
    let server = builder(address).build();
    server.expect("a server").spawn().expect("threads")
}
