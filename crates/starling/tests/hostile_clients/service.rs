//! The server that is attacked: all its settings are the defaults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use starling::{
    NestedContext, OwnedRequest, Request, Server, ServerBuilder, Status, StreamReceiver,
    StreamSender,
};
use starling_test_protos::target::{Amount, AmountMut, Blob, BlobMut, Target, TargetServer};

/// The address of the server that a process is to run.
pub(crate) const SERVE: &str = "STARLING_TEST_SERVE";

struct Service;

impl Target for Service {
    fn echo(&self, request: Request<'_, Blob>, mut response: BlobMut<'_>) -> Result<(), Status> {
        let blob = request.message();
        match blob.bytes().len() {
            0..=4096 => response.set_bytes(blob.bytes()),
            _ => response.set_bytes_bytes(request.memory().copy(blob.bytes())),
        }
        Ok(())
    }

    fn fetch(&self, request: Request<'_, Amount>, mut response: BlobMut<'_>) -> Result<(), Status> {
        response.set_bytes(&vec![1; request.message().value() as usize]);
        Ok(())
    }

    fn scan(
        &self,
        request: Request<'_, Amount>,
        mut response: AmountMut<'_>,
    ) -> Result<(), Status> {
        let begun = Instant::now();
        let time = Duration::from_micros(request.message().value());
        let mut looks = 0;
        while begun.elapsed() < time {
            looks += 1;
        }
        response.set_value(looks);
        Ok(())
    }

    async fn wait(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Blob>,
    ) -> Result<Blob, Status> {
        std::future::pending::<()>().await;
        Ok(request.into_message())
    }

    async fn read(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Amount>,
        mut blobs: StreamSender<Blob>,
    ) -> Result<(), Status> {
        let blob = Blob::new().with_bytes(&vec![1; request.message().value() as usize]);
        loop {
            blobs.send(&blob).await?;
        }
    }

    async fn write(
        self: Arc<Self>,
        _: NestedContext,
        blobs: StreamReceiver<Blob>,
    ) -> Result<Blob, Status> {
        std::future::pending::<()>().await;
        drop(blobs);
        Ok(Blob::new())
    }
}

pub(crate) fn builder() -> ServerBuilder {
    Server::builder().add_service(TargetServer::new(Service))
}

/// Serves until the standard input is closed, if this process was told to.
pub(crate) fn serve_if_told() {
    let Some(address) = std::env::var_os(SERVE) else {
        return;
    };
    let builder = builder().bind(address.to_str().expect("text"));
    let server = builder.expect("a free address").build().expect("a server");
    let server = server.spawn().expect("threads");
    println!("\nserving {}", server.address());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
