//! The server of `bench.Echo`.

use starling::{Request, Status};

use crate::api::bench::{Echo, EchoServer, Payload, PayloadMut};

/// Bytes of the response of `Sink`.
pub const SINK_RESPONSE_BYTES: usize = 32;

/// `Call` answers with the request's bytes, `Sink` with [`SINK_RESPONSE_BYTES`] zeros.
#[derive(Debug)]
pub struct EchoService;

/// The service, which a server can add.
pub fn server() -> EchoServer<EchoService> {
    EchoServer::new(EchoService)
}

impl Echo for EchoService {
    fn call(
        &self,
        request: Request<'_, Payload>,
        mut response: PayloadMut<'_>,
    ) -> Result<(), Status> {
        response.set_data(request.message().data());
        Ok(())
    }

    fn sink(&self, _: Request<'_, Payload>, mut response: PayloadMut<'_>) -> Result<(), Status> {
        response.set_data(&[0; SINK_RESPONSE_BYTES]);
        Ok(())
    }
}
