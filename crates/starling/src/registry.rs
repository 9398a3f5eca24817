//! The methods of a server, ready to be put into any endpoint.
//!
//! A handler is shared by all dispatch threads of a server, which may stand on different devices:
//! an [`Entry`] makes the handler for each of them, so that none is called through a pointer that
//! knows less than its types.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use starling_endpoint::{DeferredReply, Handler, MethodId, Status, WorkerConfig};
use starling_io::PacketIo;
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;
use starling_message::{Message, MethodDescriptor, Mode, ServiceDescriptor};

use crate::error::Error;
use crate::hub::Hub;
use crate::message::{OwnedRequest, Request, encode, serve};
use crate::nested::NestedContext;
use crate::reflection::{Catalog, ReflectionServer};
use crate::service::{Registrar, Service};

/// A method with its handler.
pub(crate) trait Entry: Send + Sync {
    fn udp(&self, hub: &Rc<Hub>) -> Handler<UdpIo>;
    fn shm(&self, hub: &Rc<Hub>) -> Handler<ShmIo>;
    fn xdp(&self, hub: &Rc<Hub>) -> Handler<XdpIo>;
}

/// All methods of a server.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) services: Vec<&'static ServiceDescriptor>,
    entries: Vec<(&'static MethodDescriptor, Box<dyn Entry>)>,
    by_id: HashMap<u32, &'static str>,
    has_workers: bool,
    error: Option<Error>,
}

impl Registry {
    pub(crate) fn add<S: Service>(&mut self, service: S) {
        self.services.push(service.descriptor());
        service.register(self);
    }

    fn insert(&mut self, method: &'static MethodDescriptor, entry: Box<dyn Entry>) {
        if let Some(first) = self.by_id.insert(method.id, method.path) {
            self.error.get_or_insert(Error::MethodsCollide {
                first,
                second: method.path,
                id: method.id,
            });
        }
        self.entries.push((method, entry));
    }

    /// All services have been added: adds what every server says of itself, and looks whether they
    /// can be served together, by workers like these.
    pub(crate) fn complete(&mut self, workers: &WorkerConfig) -> Result<(), Error> {
        let catalog = Catalog::new(&self.services);
        self.add(ReflectionServer::new(catalog));
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        workers.check()?;
        if workers.steered && !self.has_workers {
            return Err(Error::NothingToSteer);
        }
        Ok(())
    }

    /// Whether a method runs in workers.
    pub(crate) fn has_workers(&self) -> bool {
        self.has_workers
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (MethodId, &dyn Entry)> {
        self.entries
            .iter()
            .map(|(method, entry)| (MethodId(method.id), &**entry))
    }
}

impl Registrar for Registry {
    fn unary<Q: Message, P: Message, F>(
        &mut self,
        method: &'static MethodDescriptor,
        mode: Mode,
        handler: F,
    ) where
        F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static,
    {
        let in_worker = mode == Mode::Worker;
        self.has_workers |= in_worker;
        let entry = Unary::<Q, P, F> {
            handler: Arc::new(handler),
            in_worker,
            types: PhantomData,
        };
        self.insert(method, Box::new(entry));
    }

    fn nested<Q: Message, P: Message, F, Fut>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, Status>> + 'static,
    {
        let entry = Nested::<Q, P, F> {
            handler: Arc::new(handler),
            types: PhantomData,
        };
        self.insert(method, Box::new(entry));
    }
}

struct Unary<Q, P, F> {
    handler: Arc<F>,
    in_worker: bool,
    types: PhantomData<fn(Q) -> P>,
}

impl<Q: Message, P: Message, F> Unary<Q, P, F>
where
    F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn handler<I: PacketIo>(&self, hub: &Hub) -> Handler<I> {
        let (handler, memory) = (Arc::clone(&self.handler), hub.memory.clone());
        if self.in_worker {
            return Handler::worker(Arc::new(move |request, reply| {
                let result = serve::<Q, P>(
                    request.body(),
                    request.encoding(),
                    request.metadata(),
                    request.remaining(),
                    &memory,
                    std::mem::take(reply.buffer()),
                    |request, response| handler(request, response),
                );
                match result {
                    Ok((head, tail)) => {
                        *reply.buffer() = head;
                        if let Some(tail) = tail {
                            reply.set_tail(tail);
                        }
                    }
                    Err(status) => reply.set_status(status),
                }
            }));
        }
        Handler::inline(move |_, request, mut reply| {
            let result = serve::<Q, P>(
                request.body(),
                request.encoding(),
                request.metadata(),
                request.remaining(),
                &memory,
                std::mem::take(reply.buffer()),
                |request, response| handler(request, response),
            );
            match result {
                Ok((head, tail)) => {
                    *reply.buffer() = head;
                    if let Some(tail) = tail {
                        reply.set_tail(tail);
                    }
                    reply.ok();
                }
                Err(status) => reply.status(status),
            }
        })
    }
}

impl<Q: Message, P: Message, F> Entry for Unary<Q, P, F>
where
    F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn udp(&self, hub: &Rc<Hub>) -> Handler<UdpIo> {
        self.handler(hub)
    }

    fn shm(&self, hub: &Rc<Hub>) -> Handler<ShmIo> {
        self.handler(hub)
    }

    fn xdp(&self, hub: &Rc<Hub>) -> Handler<XdpIo> {
        self.handler(hub)
    }
}

struct Nested<Q, P, F> {
    handler: Arc<F>,
    types: PhantomData<fn(Q) -> P>,
}

impl<Q: Message, P: Message, F, Fut> Nested<Q, P, F>
where
    F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, Status>> + 'static,
{
    fn handler<I: PacketIo>(&self, hub: &Rc<Hub>) -> Handler<I> {
        let (handler, hub) = (Arc::clone(&self.handler), Rc::clone(hub));
        Handler::inline(move |cx, request, reply| {
            let (encoding, remaining) = (request.encoding(), request.remaining());
            let deadline_ns = request.deadline_ns();
            let request =
                match OwnedRequest::<Q>::receive(request.into_owned(), encoding, remaining) {
                    Ok(request) => request,
                    Err(status) => return reply.status(status),
                };
            let mut reply = reply.defer();
            let future = handler(NestedContext::new(&hub, deadline_ns), request);
            let local = cx.local();
            cx.spawn_local(async move {
                let result = while_wanted(&reply, future).await;
                let result = result.and_then(|response| {
                    let buffer = std::mem::take(reply.buffer());
                    let (head, tail) = encode(response, encoding, buffer)?;
                    *reply.buffer() = head;
                    if let Some(tail) = tail {
                        reply.set_tail(tail);
                    }
                    Ok(())
                });
                local.complete_with(reply, result);
            });
        })
    }
}

/// Runs a nested handler until its caller gives up. What it was doing is dropped then, and so its
/// own calls are cancelled.
async fn while_wanted<T>(
    reply: &DeferredReply,
    future: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => reply.poll_cancelled(cx).map(Err),
    })
    .await
}

impl<Q: Message, P: Message, F, Fut> Entry for Nested<Q, P, F>
where
    F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, Status>> + 'static,
{
    fn udp(&self, hub: &Rc<Hub>) -> Handler<UdpIo> {
        self.handler(hub)
    }

    fn shm(&self, hub: &Rc<Hub>) -> Handler<ShmIo> {
        self.handler(hub)
    }

    fn xdp(&self, hub: &Rc<Hub>) -> Handler<XdpIo> {
        self.handler(hub)
    }
}
