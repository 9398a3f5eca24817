//! Interceptors of a server: a method with them is a method.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use parking_lot::Mutex;
use starling_endpoint::{
    Cancellation, Encoding, Metadata, MethodPath, OwnedMessage, RequestView, ResponseBuilder,
    ResponseMessage, Status, UnaryFn, WorkerFn,
};
use starling_message::MethodDescriptor;

use super::body::Body;
use super::call::Method as Named;
use super::items::hooked;
use super::timer::Timer;
use super::{BoxFuture, Callee, InterceptedCall, InterceptedResponse, Interceptors, Outcome, Side};
use crate::coding::{MethodCoding, coded_at_server};
use crate::plane::{
    IncomingCall, ListenerContext, Method, MethodHandler, NestedFn, ServerStreamEnd, StreamingFn,
};
use crate::streaming::StreamEnd;
use crate::wait::block_on;

/// A method with interceptors before it.
pub(crate) struct Intercepted {
    pub(crate) method: Box<dyn Method>,
    pub(crate) interceptors: Interceptors,
}

impl Method for Intercepted {
    fn descriptor(&self) -> &'static MethodDescriptor {
        self.method.descriptor()
    }

    fn is_built_in(&self) -> bool {
        self.method.is_built_in()
    }

    fn handler(&self, listener: &ListenerContext) -> MethodHandler {
        let here = listener.here(self.method.descriptor(), self.method.is_built_in());
        let around = MethodInterceptors {
            coding: Arc::new(here.coding),
            timer: Timer::Endpoint(Arc::clone(&listener.channels.executor)),
            method: self.method.descriptor(),
            interceptors: self.interceptors.clone(),
        };
        match self.method.handler(listener) {
            MethodHandler::Inline(handler) => nested(around, Handler::Inline(Mutex::new(handler))),
            MethodHandler::Nested(handler) => nested(around, Handler::Nested(handler)),
            MethodHandler::Worker(handler) => worker(around, handler),
            MethodHandler::Streaming(handler) => streaming(around, handler),
        }
    }
}

/// A method's interceptors.
#[derive(Clone)]
struct MethodInterceptors {
    coding: Arc<MethodCoding>,
    timer: Timer,
    method: &'static MethodDescriptor,
    interceptors: Interceptors,
}

impl MethodInterceptors {
    fn call(&self, call: &IncomingCall, metadata: Metadata, body: Option<Body>) -> InterceptedCall {
        InterceptedCall {
            side: Side::Server,
            timer: self.timer.clone(),
            method: Named {
                path: MethodPath::Static(self.method.path),
                descriptor: Some(self.method),
            },
            metadata,
            deadline: (call.remaining).and_then(|left| self.timer.now().checked_add(left)),
            peer: Some(call.peer.clone()),
            body,
            hooks: None,
        }
    }

    /// Runs a request through the interceptors, then `handler`.
    async fn run(
        &self,
        request: OwnedMessage,
        incoming: IncomingCall,
        handler: &Handler,
    ) -> Result<ResponseMessage, Status> {
        let (request, accepts) = self.coding.open_owned(request)?;
        let encoding = request.encoding();
        let metadata = request.to_metadata();
        let body = Body::received(request, encoding).within(|| self.coding.decode);
        let call = self.call(&incoming, metadata, Some(body));
        let callee = UnaryCallee {
            method: self.method,
            encoding,
            handler,
            incoming,
            has_run: AtomicBool::new(false),
        };
        let result = self.interceptors.run(call, &callee).await;
        let result = result.and_then(|response| {
            let response = response.into_response(Some(self.method), encoding)?;
            self.coding.seal_message(accepts, response)
        });
        // A caller may call again what an interceptor has refused.
        result.map_err(|status| match callee.has_run.into_inner() {
            true => status.with_run(),
            false => status.with_not_run(),
        })
    }
}

/// A handler that answers one request.
enum Handler {
    Inline(Mutex<Box<UnaryFn>>),
    Nested(Arc<NestedFn>),
    Worker(Arc<WorkerFn>),
}

impl Handler {
    async fn run(
        &self,
        request: OwnedMessage,
        call: IncomingCall,
    ) -> Result<ResponseMessage, Status> {
        let view = RequestView::new(request.body(), request.fields(), call.remaining)
            .from_peer(&call.peer)
            .with_cancellation(&call.cancellation);
        let mut body = Vec::new();
        let mut response = ResponseBuilder::new(&mut body);
        match self {
            Self::Inline(handler) => (handler.lock())(view, &mut response)?,
            Self::Worker(handler) => handler(view, &mut response)?,
            Self::Nested(handler) => return handler(request, call)?.await,
        }
        let parts = response.into_parts();
        Ok(ResponseMessage::of_parts(body, parts))
    }
}

/// A handler behind the interceptors of one request.
struct UnaryCallee<'a> {
    method: &'static MethodDescriptor,
    encoding: Encoding,
    handler: &'a Handler,
    incoming: IncomingCall,
    has_run: AtomicBool,
}

impl UnaryCallee<'_> {
    async fn run(&self, call: InterceptedCall) -> Outcome {
        let incoming = IncomingCall {
            remaining: call.remaining(),
            ..self.incoming.clone()
        };
        let Some(body) = call.body else {
            return Err(Status::internal("an interceptor handed on no message"));
        };
        body.check(Some(self.method.request))?;
        run_once(&self.has_run)?;
        let request = match body.into_received(&call.metadata) {
            Ok(request) => request,
            Err(body) => {
                let bytes = body.into_bytes(self.encoding)?;
                OwnedMessage::of_parts(self.encoding, &call.metadata, &bytes)
            }
        };
        let result = self.handler.run(request, incoming).await;
        if result.as_ref().is_err_and(|status| !status.may_have_run()) {
            self.has_run.store(false, Ordering::Relaxed);
        }
        let response = result?;
        Ok(InterceptedResponse {
            method: Some(self.method),
            metadata: response.metadata,
            body: Some(Body::new(response.body, 0, self.encoding)),
        })
    }
}

impl Callee for UnaryCallee<'_> {
    fn run(&self, call: InterceptedCall) -> BoxFuture<'_, Outcome> {
        Box::pin(self.run(call))
    }
}

fn run_once(has_run: &AtomicBool) -> Result<(), Status> {
    match has_run.swap(true, Ordering::Relaxed) {
        false => Ok(()),
        true => Err(Status::failed_precondition(
            "an interceptor ran the handler of one request twice: the server refuses that",
        )),
    }
}

/// An inline handler is a nested one behind its interceptors, which may wait.
fn nested(around: MethodInterceptors, handler: Handler) -> MethodHandler {
    let parts = Arc::new((around, handler));
    MethodHandler::Nested(Arc::new(move |request, call| {
        let parts = Arc::clone(&parts);
        Ok(Box::pin(async move {
            let (around, handler) = &*parts;
            around.run(request, call, handler).await
        }))
    }))
}

/// The output of `run`, unless it waits when nobody waits for the call any more: then the worker is for other calls.
async fn unless_cancelled<T>(
    cancellation: &Cancellation,
    run: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let (mut run, mut cancelled) = (pin!(run), pin!(cancellation.cancelled()));
    poll_fn(|cx| match run.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => cancelled.as_mut().poll(cx).map(Err),
    })
    .await
}

fn worker(around: MethodInterceptors, handler: Arc<WorkerFn>) -> MethodHandler {
    let handler = Handler::Worker(handler);
    MethodHandler::Worker(Arc::new(move |request, response| {
        let call = IncomingCall {
            remaining: request.remaining(),
            peer: request.peer().clone(),
            cancellation: request.cancellation().cloned().unwrap_or_default(),
        };
        let cancellation = call.cancellation.clone();
        let answer = around.run(request.to_owned(), call, &handler);
        let answer = block_on(unless_cancelled(&cancellation, answer))?;
        let (head, tail) = answer.body.into_parts();
        response.body().extend_from_slice(&head);
        if let Some(tail) = tail {
            response.set_tail(tail);
        }
        if !answer.metadata.is_empty() {
            response.set_metadata(answer.metadata);
        }
        if let Some(compressed) = answer.compressed {
            response.set_compressed(compressed);
        }
        Ok(())
    }))
}

/// The handler of a stream behind its interceptors.
struct StreamCallee {
    method: &'static MethodDescriptor,
    handler: Arc<StreamingFn>,
    end: Arc<dyn StreamEnd>,
    incoming: IncomingCall,
    has_run: AtomicBool,
}

impl StreamCallee {
    async fn run(&self, call: InterceptedCall) -> Outcome {
        run_once(&self.has_run)?;
        let incoming = IncomingCall {
            remaining: call.remaining(),
            ..self.incoming.clone()
        };
        self.end.set_request_metadata(call.metadata);
        let end = Arc::clone(&self.end);
        let end = hooked(end, call.hooks, Side::Server, self.method, None);
        (self.handler)(ServerStreamEnd(end), incoming).await?;
        let trailers = self.end.trailers();
        Ok(InterceptedResponse::of_stream(trailers.unwrap_or_default()))
    }

    /// Sends what the interceptors have made of the end.
    fn finish(&self, response: InterceptedResponse) -> Result<(), Status> {
        if response.metadata != self.end.trailers().unwrap_or_default() {
            self.end.set_trailers(response.metadata)?;
        }
        let Some(body) = response.body else {
            return Ok(());
        };
        if self.has_run.load(Ordering::Relaxed) {
            return Err(Status::internal(
                "an interceptor answered a stream with a message after it had run it",
            ));
        }
        body.check(Some(self.method.response))?;
        let (head, tail) = body.into_buffer(self.end.encoding(), 0)?.into_parts();
        self.end.push(&head, tail.as_ref(), false)
    }
}

impl Callee for StreamCallee {
    fn run(&self, call: InterceptedCall) -> BoxFuture<'_, Outcome> {
        Box::pin(self.run(call))
    }
}

fn streaming(around: MethodInterceptors, handler: Arc<StreamingFn>) -> MethodHandler {
    MethodHandler::Streaming(Arc::new(move |end, incoming| {
        let around = around.clone();
        let metadata = end.0.headers().unwrap_or_default();
        let call = around.call(&incoming, metadata, None);
        let callee = StreamCallee {
            method: around.method,
            handler: Arc::clone(&handler),
            end: coded_at_server(end.0, &around.coding),
            incoming,
            has_run: AtomicBool::new(false),
        };
        Box::pin(async move {
            let response = around.interceptors.run(call, &callee).await;
            let finished = response.and_then(|response| callee.finish(response));
            // A caller may begin again what an interceptor has refused.
            if finished.is_err() && !callee.has_run.load(Ordering::Relaxed) {
                callee.end.refuse();
            }
            finished
        })
    }))
}
