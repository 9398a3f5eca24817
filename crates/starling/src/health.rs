//! Whether a server and its services are fit to be called: gRPC's health checking,
//! `grpc.health.v1.Health`, which every server has.
//!
//! ```text
//!  the program                 Board                     clients
//!  Health::set ──▶ ┌ a status for each name ┐ ──▶ Check: the status now
//!  begin, end  ──▶ └ watchers, their wakers ┘ ──▶ Watch: each change, if slow only the latest
//! ```
//!
//! The server as a whole has the name "". A server's services are SERVING while it serves, unless the program
//! says otherwise. Before it serves, and from the moment it begins to shut down, everything is NOT_SERVING.
//!
//! A service `grpc.health.v1.Health` that the program adds itself takes the place of this one.

mod board;
mod cell;
#[rustfmt::skip]
mod generated;
mod watching;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use futures_sink::Sink;
use starling_endpoint::Status;

use crate::message::{OwnedRequest, Request};
use crate::nested::NestedContext;
use crate::streaming::StreamSender;

pub(crate) use board::EndOnDrop;
pub use board::{Health, HealthError, MAX_CHOSEN_NAMES, MAX_NAME_BYTES};
pub use cell::{BackendHealth, HealthCell};
use generated::HealthServer;
pub use generated::health_check_response::ServingStatus;
pub use generated::{
    HEALTH_SERVICE, HealthCheckRequest, HealthCheckRequestMut, HealthCheckRequestView,
    HealthCheckResponse, HealthCheckResponseMut, HealthCheckResponseView, HealthClient,
};

pub(crate) use watching::watch_health;

/// The service of a server with these statuses.
pub(crate) fn health_server(health: &Health) -> HealthServer<impl generated::Health> {
    HealthServer::new(Reporter(health.clone()))
}

/// Tells clients the statuses.
struct Reporter(Health);

impl generated::Health for Reporter {
    fn check(
        &self,
        request: Request<'_, HealthCheckRequest>,
        mut response: HealthCheckResponseMut<'_>,
    ) -> Result<(), Status> {
        let service = request.message().service();
        check_name(service)?;
        match self.0.status(service) {
            ServingStatus::SERVICE_UNKNOWN => Err(Status::not_found(format!(
                "the server knows no service {service:?}; reflection lists those that it has"
            ))),
            status => {
                response.set_status(status);
                Ok(())
            }
        }
    }

    async fn watch(
        self: Arc<Self>,
        context: NestedContext,
        request: OwnedRequest<HealthCheckRequest>,
        mut changes: StreamSender<HealthCheckResponse>,
    ) -> Result<(), Status> {
        let service = request.message().service();
        check_name(service)?;
        let watch = self.0.watch(service, context.peer())?;
        drop(context);
        drop(request);
        changes.keep_one();
        loop {
            let change = poll_fn(|cx| {
                let has_room = match Pin::new(&mut changes).poll_ready(cx) {
                    Poll::Ready(ready) => ready.map(|()| true)?,
                    Poll::Pending => false,
                };
                let change = ready!(watch.poll_change(cx, has_room));
                Poll::Ready(Ok::<_, Status>(change))
            });
            let change = change.await?;
            if let Some(status) = change.status {
                let message = HealthCheckResponse::new().with_status(status);
                Pin::new(&mut changes).start_send(message)?;
            }
            if change.is_last {
                return Err(Status::unavailable(
                    "the server is shutting down; watch it again when it serves, or another one",
                ));
            }
        }
    }
}

/// A name costs the server memory, so a client cannot ask for a long one.
fn check_name(service: &str) -> Result<(), Status> {
    if service.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "the name of a service has at most {MAX_NAME_BYTES} bytes, not {}",
        service.len()
    )))
}
