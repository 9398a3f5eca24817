//! The server of `bench.Echo`.

use starling::{Request, Status};

use super::api::bench::{Echo, EchoServer, Payload, PayloadMut};
use crate::floor::SMALL_BYTES;

/// Answers with what it gets, or with 32 bytes.
#[derive(Debug)]
pub struct EchoService;

/// The service, ready to be added to a server.
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
        response.set_data(&[0; SMALL_BYTES]);
        Ok(())
    }
}
