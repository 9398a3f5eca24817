//! The methods of a server, for any endpoint.
//!
//! The dispatch threads of a server share a handler, and may have different devices. An [`Entry`] makes
//! a handler for each kind of device, so that each call of it is direct and knows the types.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use starling_endpoint::{DeferredReply, Handler, MethodId, Status, WorkerConfig};
use starling_io::PacketIo;
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;
use starling_message::{Message, MethodDescriptor, Mode, ServiceDescriptor};

use crate::channel_factory::ChannelFactory;
use crate::core::Core;
use crate::device::Device;
use crate::error::Error;
use crate::message::{OwnedRequest, RawRequest, Request, encode, serve};
use crate::nested::NestedContext;
use crate::reflection::{Catalog, ReflectionServer};
use crate::service::{Registrar, Service};

/// The future of a nested handler, as [`ServerBuilder::nested_executor`] gets it.
///
/// [`ServerBuilder::nested_executor`]: crate::ServerBuilder::nested_executor
pub type HandlerTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives the futures of nested handlers to an executor.
pub(crate) type SpawnTask = Arc<dyn Fn(HandlerTask) + Send + Sync>;

/// The parts of a dispatch thread that handlers use.
pub(crate) struct DispatchContext<'a> {
    channels: &'a Arc<ChannelFactory>,
    /// Where nested handlers run. In the dispatch thread if this is `None`.
    spawn: Option<&'a SpawnTask>,
}

/// A method with its handler.
pub(crate) trait Entry: Send + Sync {
    fn udp(&self, context: &DispatchContext<'_>) -> Handler<UdpIo>;
    fn shm(&self, context: &DispatchContext<'_>) -> Handler<ShmIo>;
    fn xdp(&self, context: &DispatchContext<'_>) -> Handler<XdpIo>;
}

/// A device that entries make handlers for.
pub(crate) trait ServedDevice: Device {
    fn handler(entry: &dyn Entry, context: &DispatchContext<'_>) -> Handler<Self>;
}

impl ServedDevice for UdpIo {
    fn handler(entry: &dyn Entry, context: &DispatchContext<'_>) -> Handler<Self> {
        entry.udp(context)
    }
}

impl ServedDevice for ShmIo {
    fn handler(entry: &dyn Entry, context: &DispatchContext<'_>) -> Handler<Self> {
        entry.shm(context)
    }
}

impl ServedDevice for XdpIo {
    fn handler(entry: &dyn Entry, context: &DispatchContext<'_>) -> Handler<Self> {
        entry.xdp(context)
    }
}

/// Makes a method's handler for any device: an [`Entry`] whose devices are not named.
trait MakeHandler: Send + Sync {
    fn handler<I: PacketIo>(&self, context: &DispatchContext<'_>) -> Handler<I>;
}

impl<T: MakeHandler> Entry for T {
    fn udp(&self, context: &DispatchContext<'_>) -> Handler<UdpIo> {
        self.handler(context)
    }

    fn shm(&self, context: &DispatchContext<'_>) -> Handler<ShmIo> {
        self.handler(context)
    }

    fn xdp(&self, context: &DispatchContext<'_>) -> Handler<XdpIo> {
        self.handler(context)
    }
}

/// All methods of a server.
#[derive(Default)]
pub(crate) struct Registry {
    services: Vec<&'static ServiceDescriptor>,
    entries: Vec<(&'static MethodDescriptor, Box<dyn Entry>)>,
    by_id: HashMap<u32, &'static str>,
    has_workers: bool,
    /// Where nested handlers run. In the dispatch thread if this is `None`.
    pub(crate) spawn: Option<SpawnTask>,
    error: Option<Error>,
}

impl Registry {
    pub(crate) fn add<S: Service>(&mut self, service: S) {
        self.services.push(service.descriptor());
        service.register(self);
    }

    /// Whether no service was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The path of a method, by its id.
    pub(crate) fn path(&self, id: u32) -> Option<&'static str> {
        self.by_id.get(&id).copied()
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

    /// Adds reflection, after all services, and checks that one server can serve them together, with
    /// these workers.
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

    /// Has an endpoint serve all methods, with workers if a method runs in workers.
    pub(crate) fn serve_on<I: ServedDevice>(
        &self,
        core: &mut Core<I>,
        channels: &Arc<ChannelFactory>,
        workers: &WorkerConfig,
    ) -> Result<(), Error> {
        let spawn = self.spawn.as_ref();
        let context = DispatchContext { channels, spawn };
        for (method, entry) in &self.entries {
            let handler = I::handler(&**entry, &context);
            core.raw.register(MethodId(method.id), handler);
        }
        if self.has_workers {
            core.raw.start_workers(workers)?;
        }
        Ok(())
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
        Fut: Future<Output = Result<P, Status>> + Send + 'static,
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

/// Runs a handler on a request, and writes the response into the reply's buffer. The requests and
/// replies of inline handlers and of workers are different types with the same methods.
macro_rules! run {
    ($handler:expr, $memory:expr, $request:expr, $reply:expr) => {{
        let request = RawRequest {
            body: $request.body(),
            encoding: $request.encoding(),
            metadata: $request.metadata(),
            remaining: $request.remaining(),
            memory: $memory,
        };
        let result = serve::<Q, P>(request, $reply.buffer(), |request, response| {
            $handler(request, response)
        });
        result.map(|tail| {
            if let Some(tail) = tail {
                $reply.set_tail(tail);
            }
        })
    }};
}

impl<Q: Message, P: Message, F> MakeHandler for Unary<Q, P, F>
where
    F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn handler<I: PacketIo>(&self, context: &DispatchContext<'_>) -> Handler<I> {
        let (handler, memory) = (Arc::clone(&self.handler), context.channels.memory.clone());
        if self.in_worker {
            return Handler::worker(Arc::new(move |request, reply| {
                match run!(handler, &memory, request, reply) {
                    Ok(()) => {}
                    Err(status) if status.may_have_run() => reply.set_status(status),
                    Err(status) => reply.refuse(status),
                }
            }));
        }
        Handler::inline(
            move |_, request, mut reply| match run!(handler, &memory, request, reply) {
                Ok(()) => reply.ok(),
                Err(status) if status.may_have_run() => reply.status(status),
                Err(status) => reply.refuse(status),
            },
        )
    }
}

struct Nested<Q, P, F> {
    handler: Arc<F>,
    types: PhantomData<fn(Q) -> P>,
}

impl<Q: Message, P: Message, F, Fut> MakeHandler for Nested<Q, P, F>
where
    F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, Status>> + Send + 'static,
{
    fn handler<I: PacketIo>(&self, context: &DispatchContext<'_>) -> Handler<I> {
        let (handler, channels) = (Arc::clone(&self.handler), Arc::clone(context.channels));
        let spawn = context.spawn.cloned();
        Handler::inline(move |cx, request, reply| {
            let (encoding, remaining) = (request.encoding(), request.remaining());
            let deadline_ns = request.deadline_ns();
            let request =
                match OwnedRequest::<Q>::receive(request.into_owned(), encoding, remaining) {
                    Ok(request) => request,
                    Err(status) => return reply.refuse(status),
                };
            let mut reply = reply.defer();
            let future = handler(NestedContext::new(&channels, deadline_ns), request);
            let local = cx.local();
            let task = async move {
                let result = until_cancelled(&reply, future).await;
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
            };
            match &spawn {
                None => cx.spawn(task),
                Some(spawn) => spawn(Box::pin(task)),
            }
        })
    }
}

/// Runs a nested handler until its call is cancelled. The handler's future is dropped then, which
/// cancels the calls that it made.
async fn until_cancelled<T>(
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
