//! Watches a server's health for a balanced channel (gRPC A17), on the connection that the channel has.
//!
//! It runs in the event loop behind the channel and is no call that a thread waits for. So it costs callers
//! nothing: what the server says is read when somebody drives, and else by the keeper.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use starling_balance::{Backoff, Random};
use starling_endpoint::{Code, Status};

use super::cell::{BackendHealth, HealthCell};
use super::{HealthCheckRequest, HealthClient, ServingStatus};
use crate::connection::Connection;
use crate::executor::Executor;
use crate::interceptor::Interceptors;
use crate::local::LocalChannel;

/// Pauses before a server is asked again.
const AGAIN: Backoff = Backoff {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(10),
    multiplier: 2.0,
    jitter: 0.2,
};

/// Keeps what the server at this connection says of a service in the cell, until that is closed.
pub(crate) async fn watch_health(
    connection: Arc<Connection>,
    executor: Arc<Executor>,
    service: Box<str>,
    health: Arc<HealthCell>,
) {
    let channel = LocalChannel::new(Arc::clone(&connection), &executor, Interceptors::default());
    let client = HealthClient::new(channel);
    let request = HealthCheckRequest::new().with_service(&service);
    let mut watching = pin!(async {
        let mut failures = 0;
        // In which a watch ended as if the session had.
        let mut suspected = None;
        loop {
            // Fails only if it does not wait.
            let session = connection.open(true).await.ok();
            let begun_ns = executor.now_ns();
            let mut changes = client.watch(&request);
            let end = loop {
                match changes.message().await {
                    Ok(Some(change)) => {
                        failures = 0;
                        suspected = None;
                        health.set(match change.message().status() {
                            ServingStatus::SERVING => BackendHealth::Serving,
                            _ => BackendHealth::NotServing,
                        });
                    }
                    Ok(None) => break Status::internal("the server ended the watch"),
                    Err(end) => break end,
                }
            };
            health.set(match after(&end) {
                // The session stands, so the server says this of itself.
                BackendHealth::Pending if session.is_some() && session == suspected => {
                    BackendHealth::CheckFailed
                }
                health => health,
            });
            suspected = session;
            let pause_ns = AGAIN.pause_ns(failures, &mut Random::new(executor.random()));
            let lasted_ns = executor.now_ns().saturating_sub(begun_ns);
            // A17: at once after an answer. One that ends each watch at once is asked as seldom as one that fails.
            if failures > 0 || lasted_ns < pause_ns {
                executor.local.sleep(Duration::from_nanos(pause_ns)).await;
            }
            failures += 1;
        }
    });
    poll_fn(|cx| match health.poll_closed(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => watching.as_mut().poll(cx),
    })
    .await;
}

/// What is known of a server whose watch ended so.
fn after(end: &Status) -> BackendHealth {
    match end.code() {
        // It has no health checks, or watchers enough: whether it can be called shows when it is.
        Code::Unimplemented | Code::ResourceExhausted => BackendHealth::Unchecked,
        // The connection is over, or the server ends, as it seems. The next one begins anew.
        Code::Unavailable => BackendHealth::Pending,
        // A17: a channel's calls fail meanwhile, they do not wait.
        _ => BackendHealth::CheckFailed,
    }
}
