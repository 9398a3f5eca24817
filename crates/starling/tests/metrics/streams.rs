//! A server of streams, of which this needs two.

use std::sync::Arc;

use starling::{
    NestedContext, OwnedRequest, Server, ServerHandle, Status, StreamReceiver, StreamSender,
};
use starling_test_protos::streams::{Number, Range, Streams, StreamsServer, Sum};

struct Service;

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
        _: NestedContext,
        mut numbers: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        let mut sum = 0;
        while let Some(number) = numbers.message().await? {
            sum += number.message().value();
        }
        Ok(Sum::new().with_sum(sum))
    }

    async fn echo(
        self: Arc<Self>,
        _: NestedContext,
        _numbers: StreamReceiver<Number>,
        _echoes: StreamSender<Number>,
    ) -> Result<(), Status> {
        std::future::pending().await
    }

    async fn wait(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<Number>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        Err(Status::unimplemented("not in this test"))
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

pub(crate) fn server(address: &str) -> ServerHandle {
    let builder = Server::builder().bind(address).expect("a free address");
    let server = builder.add_service(StreamsServer::new(Service)).build();
    server.expect("a server").spawn().expect("threads")
}
