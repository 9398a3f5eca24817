//! Layers of [tower] as interceptors: for those who have some.
//!
//! A [`TowerInterceptor`] is a [`Layer`] around what stands behind it: further interceptors, then the transport
//! or the handler. It goes wherever an [`Interceptor`] goes, at channels and at servers.
//!
//! ```
//! # use std::time::Duration;
//! # use starling::Channel;
//! # use starling_sample_services::api::kv::KvClient;
//! # fn check(channel: Channel) {
//! use starling_tower::TowerInterceptor;
//! use tower::ServiceBuilder;
//!
//! let layers = ServiceBuilder::new()
//!     .load_shed()
//!     .concurrency_limit(100)
//!     .timeout(Duration::from_millis(50));
//! let client = KvClient::new(channel.intercept(TowerInterceptor::new(layers)));
//! # drop(client);
//! # }
//! ```
//!
//! - The layers are put together once, and each call gets a clone of that service, as axum does it. So what all
//!   calls share has to be shared by clones: `concurrency_limit` is, `rate_limit` needs a `buffer` before it.
//! - A layer that waits by tokio's timers (`timeout`, `buffer`) works where a tokio runtime is: in the tasks that
//!   await calls; at a server with [`nested_executor`]. It does not work there around a worker handler without
//!   streams, whose layers run in the worker's thread.
//! - A stream is one call, which lasts as long as it.
//! - A service's error becomes a status: a [`Status`] in it or in its sources is that; a timeout is
//!   DEADLINE_EXCEEDED, a load that is shed RESOURCE_EXHAUSTED; anything else is UNKNOWN with its text.
//! - At a server, a handler runs once, so a layer that repeats calls belongs to a channel.
//!
//! The other way round, a call of generated code is a service by one line:
//!
//! ```
//! # use starling::Channel;
//! # use starling_sample_services::api::kv::{GetRequest, KvClient};
//! # fn check(client: KvClient<Channel>) {
//! let service = tower::service_fn(move |request: GetRequest| {
//!     let call = client.get(&request);
//!     async move { call.await }
//! });
//! # drop(service);
//! # }
//! ```
//!
//! [tower]: https://docs.rs/tower
//! [`nested_executor`]: starling::ServerBuilder::nested_executor

#![forbid(unsafe_code)]

mod forward;
mod status;

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use starling::{InterceptedCall, InterceptedResponse, Interceptor, Next, Status};
use tower::{BoxError, Layer, Service};

use crate::forward::{ForwardedCall, Forwarding, Runs};
use crate::status::status_of;

/// A call that goes through layers. A copy is another call with the same content.
#[derive(Clone, Debug)]
pub struct Call {
    call: InterceptedCall,
    forwarding: Arc<Forwarding>,
}

impl Deref for Call {
    type Target = InterceptedCall;

    fn deref(&self) -> &InterceptedCall {
        &self.call
    }
}

impl DerefMut for Call {
    fn deref_mut(&mut self) -> &mut InterceptedCall {
        &mut self.call
    }
}

/// The service inside the layers: it forwards each call to what stands behind them. The layers may run it in
/// another task.
#[derive(Clone, Copy, Debug, Default)]
pub struct InnerService;

impl Service<Call> for InnerService {
    type Response = InterceptedResponse;
    type Error = Status;
    type Future = ForwardedCall;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, Call { call, forwarding }: Call) -> ForwardedCall {
        ForwardedCall::new(forwarding, call)
    }
}

/// Layers as an interceptor, see the crate's documentation.
pub struct TowerInterceptor<S>(Mutex<S>);

impl<S> TowerInterceptor<S> {
    /// The interceptor that these layers make.
    pub fn new<L>(layers: L) -> Self
    where
        L: Layer<InnerService, Service = S>,
        S: Service<Call, Response = InterceptedResponse> + Clone,
    {
        Self(Mutex::new(layers.layer(InnerService)))
    }
}

impl<S> Interceptor for TowerInterceptor<S>
where
    S: Service<Call, Response = InterceptedResponse, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let mut service = self.0.lock().clone();
        let forwarding = Arc::<Forwarding>::default();
        let _end = forwarding.end_when_dropped();
        let call = Call {
            call,
            forwarding: Arc::clone(&forwarding),
        };
        let served = async move {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(call).await
        };
        let (mut served, mut runs) = (pin!(served), Runs::default());
        poll_fn(|cx| {
            forwarding.register(cx.waker());
            loop {
                let served: Poll<Result<_, S::Error>> = served.as_mut().poll(cx);
                if let Poll::Ready(result) = served {
                    return Poll::Ready(result.map_err(|error| status_of(error.into())));
                }
                // What the layers have forwarded runs here, where `next` is.
                if !runs.poll(&forwarding, next, cx) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl<S: fmt::Debug> fmt::Debug for TowerInterceptor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TowerInterceptor")
            .field(&*self.0.lock())
            .finish()
    }
}
