//! The methods of a server, for any listener.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use starling_endpoint::{RequestView, ResponseBuilder, Status, WorkerConfig};
use starling_message::protobuf::DecodeLimits;
use starling_message::{Message, MethodDescriptor, Mode, ServiceDescriptor};

use crate::coding::coded_at_server;
use crate::error::Error;
use crate::health::{HEALTH_SERVICE, Health, health_server};
use crate::interceptor::{Intercepted, Interceptor, Interceptors};
use crate::introspection::introspection_server;
use crate::message::{Here, OwnedRequest, Request, respond, serve};
use crate::method_options::{MethodOptions, MethodTable};
use crate::metrics::{self, MeasuredMethod};
use crate::nested::NestedContext;
use crate::plane::{ListenerContext, Method, MethodHandler, ServerStreamEnd};
use crate::reflection::{Catalog, ReflectionServer, bind_method};
use crate::service::{Registrar, Service};
use crate::streaming::{StreamLimits, StreamReceiver, StreamSender, StreamThreads};
use crate::trace::{self, ClientBound, ClientTraces, CurrentSpan, TracedMethod};

/// The future of a nested handler, as [`ServerBuilder::nested_executor`] gets it.
///
/// [`ServerBuilder::nested_executor`]: crate::ServerBuilder::nested_executor
pub type HandlerTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives the futures of nested handlers to an executor.
pub(crate) type SpawnTask = Arc<dyn Fn(HandlerTask) + Send + Sync>;

/// All methods of a server.
pub(crate) struct Registry {
    services: Vec<&'static ServiceDescriptor>,
    methods: Vec<Box<dyn Method>>,
    by_id: HashMap<u32, &'static str>,
    has_workers: bool,
    /// The services that are added now come with every server.
    is_built_in: bool,
    /// Clients may ask what the process does.
    pub(crate) has_introspection: bool,
    /// Clients may ask for a description of the services.
    pub(crate) has_reflection: bool,
    /// The statuses of the services.
    pub(crate) health: Health,
    /// What is made of the traces that calls come with.
    pub(crate) client_traces: ClientTraces,
    /// Where nested handlers run. In the dispatch thread if this is `None`.
    pub(crate) spawn: Option<SpawnTask>,
    /// The bounds on each client's streams.
    pub(crate) streams: StreamLimits,
    /// Where worker handlers with streams run.
    pub(crate) stream_threads: Arc<StreamThreads>,
    /// What messages may take that come in protobuf.
    pub(crate) decode: DecodeLimits,
    /// What the server does for single methods.
    pub(crate) options: Arc<MethodTable>,
    /// Around all methods.
    interceptors: Interceptors,
    /// Around the calls that handlers make.
    pub(crate) outgoing: Interceptors,
    error: Option<Error>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            services: Vec::new(),
            methods: Vec::new(),
            by_id: HashMap::new(),
            has_workers: false,
            is_built_in: false,
            has_introspection: true,
            has_reflection: true,
            health: Health::default(),
            client_traces: ClientTraces::default(),
            spawn: None,
            streams: StreamLimits::default(),
            stream_threads: Arc::default(),
            decode: DecodeLimits::default(),
            options: Arc::default(),
            interceptors: Interceptors::default(),
            outgoing: Interceptors::default(),
            error: None,
        }
    }
}

impl Registry {
    pub(crate) fn add<S: Service>(&mut self, service: S) {
        self.services.push(service.descriptor());
        service.register(self);
    }

    /// Adds a service with an interceptor of its own.
    pub(crate) fn add_intercepted<S: Service>(&mut self, service: S, own: impl Interceptor) {
        let first = self.methods.len();
        self.add(service);
        self.intercept_from(first, &Interceptors::default().with(own));
    }

    /// Puts one more interceptor around all methods, within the earlier ones.
    pub(crate) fn intercept(&mut self, interceptor: impl Interceptor) {
        self.interceptors = self.interceptors.with(interceptor);
    }

    /// Puts interceptors around the methods from this one on.
    fn intercept_from(&mut self, first: usize, interceptors: &Interceptors) {
        if interceptors.is_empty() {
            return;
        }
        let methods = self.methods.split_off(first);
        self.methods.extend(methods.into_iter().map(|method| {
            // A connection begins with it. It is no call of the user's, and has no token to show.
            if method.descriptor().path == bind_method().path {
                return method;
            }
            let interceptors = interceptors.clone();
            let around: Box<dyn Method> = Box::new(Intercepted {
                method,
                interceptors,
            });
            around
        }));
    }

    /// Sets the options of a method, a service, or all services.
    pub(crate) fn set_options(&mut self, name: &str, options: MethodOptions) {
        Arc::make_mut(&mut self.options).set(name, options);
    }

    /// Puts something around all methods and their interceptors.
    fn wrap(&mut self, wrap: impl Fn(Box<dyn Method>) -> Box<dyn Method>) {
        let methods = std::mem::take(&mut self.methods);
        self.methods = methods.into_iter().map(wrap).collect();
    }

    /// Whether no service was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The path of a method, by its id.
    pub(crate) fn path(&self, id: u32) -> Option<&'static str> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn methods(&self) -> &[Box<dyn Method>] {
        &self.methods
    }

    /// Whether a method runs in workers.
    pub(crate) fn has_workers(&self) -> bool {
        self.has_workers
    }

    fn insert(&mut self, method: Box<dyn Method>) {
        let descriptor = method.descriptor();
        if let Some(first) = self.by_id.insert(descriptor.id, descriptor.path) {
            self.error.get_or_insert(Error::MethodsCollide {
                first,
                second: descriptor.path,
                id: descriptor.id,
            });
        }
        self.methods.push(method);
    }

    /// Adds health, introspection and reflection, after all services, and checks that one server can serve them
    /// together, with these workers. A health service of the user's own takes the place of the built-in one.
    pub(crate) fn complete(&mut self, workers: &WorkerConfig) -> Result<(), Error> {
        self.is_built_in = true;
        if !(self.services.iter()).any(|service| service.name == HEALTH_SERVICE.name) {
            self.add(health_server(&self.health));
        }
        if self.has_introspection {
            self.add(introspection_server());
        }
        let catalog = Catalog::new(&self.services, self.has_reflection);
        self.add(ReflectionServer::new(catalog));
        let interceptors = std::mem::take(&mut self.interceptors);
        self.intercept_from(0, &interceptors);
        if trace::is_enabled() {
            let bound = Arc::new(ClientBound::new(self.client_traces));
            self.wrap(|method| {
                let bound = Arc::clone(&bound);
                Box::new(TracedMethod { method, bound })
            });
        }
        if metrics::is_enabled() {
            self.wrap(|method| Box::new(MeasuredMethod(method)));
        }
        let names = self.services.iter().map(|service| service.name);
        self.health.add_services(names);
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let paths = self.methods.iter().map(|method| method.descriptor().path);
        self.options.check(paths)?;
        workers.check()?;
        if workers.steered && !self.has_workers {
            return Err(Error::NothingToSteer);
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
        self.insert(Box::new(Unary::<Q, P, F> {
            method,
            handler: Arc::new(handler),
            is_built_in: self.is_built_in,
            in_worker,
            types: PhantomData,
        }));
    }

    fn nested<Q: Message, P: Message, F, Fut>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<P, Status>> + Send + 'static,
    {
        self.insert(Box::new(Nested::<Q, P, F> {
            method,
            handler: Arc::new(handler),
            is_built_in: self.is_built_in,
            types: PhantomData,
        }));
    }

    fn streaming<Q: Message, P: Message, F, Fut>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.insert(Box::new(Streaming::<Q, P, F> {
            method,
            handler: Arc::new(handler),
            is_built_in: self.is_built_in,
            types: PhantomData,
        }));
    }

    fn worker_streaming<Q: Message, P: Message, F>(
        &mut self,
        method: &'static MethodDescriptor,
        handler: F,
    ) where
        F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Result<(), Status>
            + Send
            + Sync
            + 'static,
    {
        let (threads, handler) = (Arc::clone(&self.stream_threads), Arc::new(handler));
        self.streaming::<Q, P, _, _>(method, move |context, requests, responses| {
            let (end, client) = (Arc::clone(responses.end()), context.peer().clone());
            let (threads, handler) = (Arc::clone(&threads), Arc::clone(&handler));
            async move {
                // Here, where the call's span is entered.
                let span = CurrentSpan::get();
                let handler = move || span.run(|| handler(context, requests, responses));
                match threads.run(&client, handler) {
                    Ok(outcome) => outcome.await,
                    Err(status) => {
                        end.refuse();
                        Err(status)
                    }
                }
            }
        });
    }
}

/// A method whose handler answers before it returns.
struct Unary<Q, P, F> {
    method: &'static MethodDescriptor,
    handler: Arc<F>,
    is_built_in: bool,
    in_worker: bool,
    types: PhantomData<fn(Q) -> P>,
}

impl<Q: Message, P: Message, F> Unary<Q, P, F>
where
    F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static,
{
    /// The handler on bytes. Each call of it is direct, and knows the types.
    fn on_bytes(
        &self,
        here: Here,
    ) -> impl Fn(RequestView<'_>, &mut ResponseBuilder<'_>) -> Result<(), Status>
    + Send
    + Sync
    + use<Q, P, F> {
        let handler = Arc::clone(&self.handler);
        move |request, response| serve::<Q, P>(request, &here, response, &*handler)
    }
}

impl<Q: Message, P: Message, F> Method for Unary<Q, P, F>
where
    F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn descriptor(&self) -> &'static MethodDescriptor {
        self.method
    }

    fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    fn handler(&self, listener: &ListenerContext) -> MethodHandler {
        let handler = self.on_bytes(listener.here(self.method, self.is_built_in));
        match self.in_worker {
            true => MethodHandler::Worker(Arc::new(handler)),
            false => MethodHandler::Inline(Box::new(handler)),
        }
    }
}

/// A method whose handler is a future.
struct Nested<Q, P, F> {
    method: &'static MethodDescriptor,
    handler: Arc<F>,
    is_built_in: bool,
    types: PhantomData<fn(Q) -> P>,
}

impl<Q: Message, P: Message, F, Fut> Method for Nested<Q, P, F>
where
    F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, Status>> + Send + 'static,
{
    fn descriptor(&self) -> &'static MethodDescriptor {
        self.method
    }

    fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    fn handler(&self, listener: &ListenerContext) -> MethodHandler {
        let (handler, channels) = (Arc::clone(&self.handler), Arc::clone(&listener.channels));
        let Here { coding, .. } = listener.here(self.method, self.is_built_in);
        let (coding, decoded) = (Arc::new(coding), listener.decoded.clone());
        MethodHandler::Nested(Arc::new(move |message, call| {
            let context = NestedContext::new(&channels, call);
            let (handler, coding) = (Arc::clone(&handler), Arc::clone(&coding));
            let decoded = decoded.clone();
            Ok(Box::pin(async move {
                // Here, because this may run in another thread than the one that received the request, which
                // has other clients.
                let encoding = message.encoding();
                let (message, accepts) = coding.open_owned(message)?;
                let limits = &coding.decode;
                let request = OwnedRequest::<Q>::receive(message, encoding, limits, &context)?;
                // As long as the handler runs, whatever it does with the request.
                let _held = decoded.hold(context.peer(), request.decoded_len())?;
                let metadata = context.response_metadata();
                let response = handler(context, request).await;
                let response = response.map_err(Status::with_run)?;
                let metadata = metadata.take();
                coding.seal_message(accepts, respond(&response, encoding, metadata)?)
            }))
        }))
    }
}

/// A method with streams.
struct Streaming<Q, P, F> {
    method: &'static MethodDescriptor,
    handler: Arc<F>,
    is_built_in: bool,
    types: PhantomData<fn(Q) -> P>,
}

impl<Q: Message, P: Message, F, Fut> Method for Streaming<Q, P, F>
where
    F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Status>> + Send + 'static,
{
    fn descriptor(&self) -> &'static MethodDescriptor {
        self.method
    }

    fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    fn handler(&self, listener: &ListenerContext) -> MethodHandler {
        let (handler, channels) = (Arc::clone(&self.handler), Arc::clone(&listener.channels));
        let Here { coding, .. } = listener.here(self.method, self.is_built_in);
        MethodHandler::Streaming(Arc::new(move |ServerStreamEnd(end), call| {
            let end = coded_at_server(end, &coding);
            let context = NestedContext::new(&channels, call);
            end.send_behind(context.response_metadata());
            let items = StreamReceiver::new(Arc::clone(&end));
            Box::pin(handler(context, items, StreamSender::new(end)))
        }))
    }
}
