//! A server of the managed plane: it listens for the service, which listens for its clients.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use starling_endpoint::EndpointConfig;
use starling_io::Wake;

use super::generated::{ControlClient, HoldRequest, PublishRequest};
use super::{control_address, service_address};
use crate::address::Address;
use crate::channel::Channel;
use crate::error::Error;
use crate::options::CallOptions;
use crate::plane::{Listener, Serving};
use crate::wait::block_on;

/// The pause before an address is published again: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a server waits for the service to listen.
const PUBLISHED: Duration = Duration::from_secs(10);

/// How long an end waits for the service to end the publication.
const UNPUBLISHED: Duration = Duration::from_secs(2);

/// Numbers the listeners of this process.
static LISTENERS: AtomicU64 = AtomicU64::new(0);

/// Serves what comes to an address that the service listens at.
pub(crate) struct ManagedListener {
    inner: Box<dyn Listener>,
    publication: Publication,
}

impl ManagedListener {
    /// Has the service with this name listen at an address.
    pub(crate) fn bind(
        service: &str,
        address: &Address,
        config: &EndpointConfig,
    ) -> Result<Self, Error> {
        let number = LISTENERS.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let own = service_address(service, &format!(".app-{pid}-{number}"))?;
        let mut inner = own.device().listen(&own, 1, config)?;
        let inner = inner.pop().expect("a name has one device");
        Ok(Self {
            inner,
            publication: Publication::new(service, address, &own)?,
        })
    }
}

impl Listener for ManagedListener {
    fn scheme(&self) -> &str {
        self.inner.scheme()
    }

    fn local_address(&self) -> String {
        self.publication.address.clone()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }

    fn serve(self: Box<Self>, serving: Serving) -> Result<bool, Error> {
        let Self { inner, publication } = *self;
        let result = inner.serve(serving);
        // Clients have heard of the end by now, as the service has.
        drop(publication);
        result
    }
}

/// An address that the service listens at, until this is dropped. If the service is restarted, it is published again.
struct Publication {
    /// With the port that port 0 became.
    address: String,
    ended: Arc<Ended>,
    holder: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Ended {
    is_ended: AtomicBool,
    holder: AtomicWaker,
}

impl Ended {
    /// The result of a future; `None` if the publication ends before.
    fn or<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        block_on(std::future::poll_fn(|cx| {
            self.holder.register(cx.waker());
            match self.is_ended.load(Ordering::Acquire) {
                true => Poll::Ready(None),
                false => future.as_mut().poll(cx).map(Some),
            }
        }))
    }
}

impl Publication {
    fn new(service: &str, address: &Address, own: &Address) -> Result<Self, Error> {
        let channel = Channel::builder(&control_address(service)?)
            .direct()
            .lazy()?;
        let client = ControlClient::new(channel);
        let mut request = PublishRequest::new()
            .with_address(address.as_str())
            .with_application(own.as_str());
        let options = CallOptions::with_timeout(PUBLISHED);
        let published = client.publish_with(&request, &options).wait();
        let published = published.map_err(Error::Unreachable)?;
        let (id, address) = {
            let message = published.message();
            (message.id(), message.address().to_owned())
        };
        request.set_address(&address);
        let ended = Arc::new(Ended::default());
        let its_ended = Arc::clone(&ended);
        let holder = std::thread::Builder::new()
            .name("starling-managed".into())
            .spawn(move || hold(&client, &request, id, &its_ended))
            .map_err(|error| Error::system("start a thread that holds a publication", error))?;
        Ok(Self {
            address,
            ended,
            holder: Some(holder),
        })
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        self.ended.is_ended.store(true, Ordering::Release);
        self.ended.holder.wake();
        if let Some(holder) = self.holder.take() {
            holder.thread().unpark();
            // A panic of it was printed.
            let _ = holder.join();
        }
    }
}

/// Holds a publication, and publishes the address again if the service was restarted.
fn hold(client: &ControlClient<Channel>, request: &PublishRequest, mut id: u64, ended: &Ended) {
    let mut pause = PAUSE_MIN;
    loop {
        let held = HoldRequest::new().with_id(id);
        if ended.or(client.hold(&held)).is_none() {
            // The address is free when the server's owner hears of its end.
            let options = CallOptions::with_timeout(UNPUBLISHED);
            let _ = client.unpublish_with(&held, &options).wait();
            return;
        }
        loop {
            match ended.or(client.publish(request)) {
                None => return,
                Some(Ok(published)) => {
                    id = published.message().id();
                    pause = PAUSE_MIN;
                    break;
                }
                Some(Err(status)) => {
                    tracing::warn!(%status, address = request.address(), "not published: the service is asked again");
                }
            }
            std::thread::park_timeout(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}
