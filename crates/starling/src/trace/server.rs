//! Spans of a server's calls: a method with them is a method, outside of its interceptors.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use starling_endpoint::{Code, MetadataView, Peer, Status, UnaryFn, WorkerFn};
use starling_message::MethodDescriptor;

use tracing::Span;

use super::{CallSpan, ClientBound, End, TraceContext, begins_trace};
use crate::plane::{
    ListenerContext, Method, MethodHandler, NestedFn, ServerStreamEnd, StreamingFn,
};
use crate::time::Time;

/// A method whose calls take part in traces.
pub(crate) struct TracedMethod {
    pub(crate) method: Box<dyn Method>,
    /// That of the server.
    pub(crate) bound: Arc<ClientBound>,
}

impl Method for TracedMethod {
    fn descriptor(&self) -> &'static MethodDescriptor {
        self.method.descriptor()
    }

    fn is_built_in(&self) -> bool {
        self.method.is_built_in()
    }

    fn handler(&self, listener: &ListenerContext) -> MethodHandler {
        let spans = Spans {
            path: self.descriptor().path,
            bound: Arc::clone(&self.bound),
            time: listener.channels.executor.time.clone(),
        };
        match self.method.handler(listener) {
            MethodHandler::Inline(handler) => inline(spans, handler),
            MethodHandler::Worker(handler) => worker(spans, handler),
            MethodHandler::Nested(handler) => nested(spans, handler),
            MethodHandler::Streaming(handler) => streaming(spans, handler),
        }
    }
}

/// Makes the spans of a method's calls.
struct Spans {
    path: &'static str,
    bound: Arc<ClientBound>,
    time: Time,
}

impl Spans {
    /// The span of a call that came. `None`: it is in no trace.
    #[inline]
    fn begin(&self, metadata: MetadataView<'_>, peer: &Peer) -> Option<CallSpan> {
        let begins = begins_trace();
        match !begins && metadata.has_no_extension() {
            // As most calls.
            true => None,
            false => self.begin_span(metadata, peer, begins),
        }
    }

    #[cold]
    fn begin_span(
        &self,
        metadata: MetadataView<'_>,
        peer: &Peer,
        begins: bool,
    ) -> Option<CallSpan> {
        let parent = self.bound.trace_of(metadata, &self.time);
        let client = peer.address();
        CallSpan::begin(self.path, End::Server { client }, parent, begins)
    }
}

impl CallSpan {
    /// Runs a handler within the span.
    fn run<T>(&self, handler: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
        let panicked = EndOnDrop(self);
        let result = {
            let _in_span = self.span.enter();
            let _in_trace = self.context.clone().enter();
            handler()
        };
        std::mem::forget(panicked);
        self.end(code_of(&result));
        result
    }

    /// The same for a future.
    async fn run_future<T>(
        self,
        future: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let dropped = EndOnDrop(&self);
        let mut future = pin!(future);
        let result = std::future::poll_fn(|cx| {
            let _in_span = self.span.enter();
            let _in_trace = self.context.clone().enter();
            future.as_mut().poll(cx)
        })
        .await;
        std::mem::forget(dropped);
        self.end(code_of(&result));
        result
    }
}

/// The span and the context of what runs here, for a part of it that runs in another thread.
pub(crate) struct CurrentSpan {
    span: Span,
    context: Option<TraceContext>,
}

impl CurrentSpan {
    pub(crate) fn get() -> Self {
        Self {
            span: Span::current(),
            context: TraceContext::current(),
        }
    }

    /// Runs that part.
    pub(crate) fn run<T>(self, part: impl FnOnce() -> T) -> T {
        let _in_span = self.span.enter();
        let _in_trace = self.context.map(TraceContext::enter);
        part()
    }
}

/// Ends the span of a handler that panics, or whose future is dropped because nobody waits any more.
struct EndOnDrop<'a>(&'a CallSpan);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(match std::thread::panicking() {
            true => Code::Internal,
            false => Code::Cancelled,
        });
    }
}

fn code_of<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

fn inline(spans: Spans, mut handler: Box<UnaryFn>) -> MethodHandler {
    MethodHandler::Inline(Box::new(move |request, response| {
        match spans.begin(request.metadata(), request.peer()) {
            None => handler(request, response),
            Some(span) => span.run(|| handler(request, response)),
        }
    }))
}

fn worker(spans: Spans, handler: Arc<WorkerFn>) -> MethodHandler {
    MethodHandler::Worker(Arc::new(move |request, response| {
        match spans.begin(request.metadata(), request.peer()) {
            None => handler(request, response),
            Some(span) => span.run(|| handler(request, response)),
        }
    }))
}

fn nested(spans: Spans, handler: Arc<NestedFn>) -> MethodHandler {
    MethodHandler::Nested(Arc::new(move |message, call| {
        let span = spans.begin(message.metadata(), &call.peer);
        let Some(span) = span else {
            return handler(message, call);
        };
        // What the handler does before its future begins belongs to the call, too.
        let future = {
            let _in_trace = span.context.clone().enter();
            handler(message, call).inspect_err(|status| span.end(status.code()))?
        };
        Ok(Box::pin(span.run_future(future)))
    }))
}

fn streaming(spans: Spans, handler: Arc<StreamingFn>) -> MethodHandler {
    MethodHandler::Streaming(Arc::new(move |ServerStreamEnd(end), call| {
        let metadata = end.headers().unwrap_or_default();
        let span = spans.begin(metadata.view(), &call.peer);
        let end = ServerStreamEnd(end);
        match span {
            None => handler(end, call),
            Some(span) => {
                let future = {
                    let _in_trace = span.context.clone().enter();
                    handler(end, call)
                };
                Box::pin(span.run_future(future))
            }
        }
    }))
}
