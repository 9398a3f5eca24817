//! Traces: spans of calls at both ends, by the crate `tracing`, and W3C trace context in their metadata.
//!
//! ```text
//!  client                                  server                         its own calls
//!  span ── metadata: traceparent ────────▶ span, around the handler ─────▶ span ── traceparent ──▶ ...
//! ```
//!
//! ```no_run
//! // First: servers that are made from now on take part. One call of 1,000 that belongs to no trace
//! // begins one; what comes with a trace continues it.
//! starling::trace::enable(0.001);
//! ```
//!
//! Calls that a handler makes continue its trace: those of a nested handler or a stream's by its future, those
//! of inline and worker handlers in their thread. What a handler begins elsewhere takes the context along with
//! [`TraceContext::current`] and [`TraceContext::scope`].
//!
//! A span's target is `starling::rpc`, its level INFO, its name that of the method. Its fields are those of
//! OpenTelemetry's semantic conventions for RPC:
//!
//! | field | value |
//! |---|---|
//! | `otel.name`, `rpc.method` | `kv.Kv/Get` |
//! | `otel.kind` | `client` or `server` |
//! | `rpc.system.name` | `starling` |
//! | `server.address` | at a client, the address of its channel |
//! | `client.address` | at a server, the caller's address |
//! | `rpc.response.status_code`, and `otel.status_code` if that is an error | `OK`, `NOT_FOUND`, `ERROR` |
//! | `trace_id`, `span_id`, `parent_id` | in hexadecimal |
//!
//! A span costs what the subscriber makes of it, so choose the share of calls that begin a trace. A call that
//! is in no trace costs some nanoseconds, and a branch unless traces are enabled. A trace that its beginner does
//! not sample is passed on without spans. A client says itself whether its calls are sampled: a server follows 1,000
//! such calls a second unless it is set otherwise ([`ClientTraces`]). To have OpenTelemetry make the ids, set a
//! [`Tracer`]; the crate `starling-otlp` has one.

mod client;
mod clients;
mod context;
mod server;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use starling_endpoint::{Code, Metadata, MetadataView};

pub use starling_endpoint::{TRACEPARENT, TRACESTATE};
use tracing::Span;
use tracing::field::Empty;

pub(crate) use client::{ClientSpan, begin_call, begin_stream};
pub(crate) use clients::ClientBound;
pub use clients::ClientTraces;
pub use context::{Scoped, TraceContext, TraceEntered};
pub(crate) use server::{CurrentSpan, TracedMethod};

static ENABLED: AtomicBool = AtomicBool::new(false);
/// A call begins a trace if a random number is below this.
static ROOTS_BELOW: AtomicU64 = AtomicU64::new(0);
static TRACER: OnceLock<Box<dyn Tracer>> = OnceLock::new();

/// Has the calls of channels, and of servers and endpoints that are made from now on, take part in traces. Of
/// calls that belong to none, this share (0 to 1) begins one. Later calls of this function change the share.
pub fn enable(share_of_roots: f64) {
    let below = share_of_roots.clamp(0.0, 1.0) * u64::MAX as f64;
    ROOTS_BELOW.store(below as u64, Ordering::Relaxed);
    ENABLED.store(true, Ordering::Relaxed);
}

/// Whether [`enable`] was called.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// A tracing system that gives spans their ids itself.
pub trait Tracer: Send + Sync + 'static {
    /// The context of the code that runs here: the parent of a call that it makes.
    fn current(&self) -> Option<TraceContext>;

    /// A span of a call was made. Makes it a child of this parent, or the root of a trace, and returns its own
    /// context. `None`: it takes part in no trace.
    fn begin(&self, span: &Span, parent: Option<&TraceContext>) -> Option<TraceContext>;
}

/// Sets the tracing system of the process, once.
///
/// # Errors
/// The tracer, if there is one already.
pub fn set_tracer(tracer: impl Tracer) -> Result<(), Box<dyn Tracer>> {
    TRACER.set(Box::new(tracer))
}

/// The context of the code that runs here.
fn current() -> Option<TraceContext> {
    let of_tracer = TRACER.get().and_then(|tracer| tracer.current());
    of_tracer.or_else(TraceContext::current)
}

/// Whether [`current`] may have one.
#[inline]
fn may_be_in_trace() -> bool {
    TRACER.get().is_some() || context::is_entered()
}

/// Whether a call that belongs to no trace begins one.
#[inline]
fn begins_trace() -> bool {
    context::random() < ROOTS_BELOW.load(Ordering::Relaxed)
}

/// The context that metadata has.
fn of_metadata(metadata: MetadataView<'_>) -> Option<TraceContext> {
    let parent = metadata.value(TRACEPARENT)?;
    TraceContext::parse(parent, metadata.value(TRACESTATE))
}

/// Puts a context into metadata, in place of what is there. If there is no room, it stays out.
fn put(context: &TraceContext, metadata: &mut Metadata) {
    if metadata.set(TRACEPARENT, context.traceparent()).is_ok() {
        match context.tracestate() {
            Some(state) => drop(metadata.set(TRACESTATE, state)),
            None => drop(metadata.remove(TRACESTATE)),
        }
    }
}

/// A span of a call, and the context of what is done for it.
struct CallSpan {
    span: Span,
    context: TraceContext,
}

/// Which end of a call a span is of, and the address of the other one.
#[derive(Clone, Copy)]
enum End<'a> {
    Client { server: &'a str },
    Server { client: &'a str },
}

impl CallSpan {
    /// The span of a call with this parent. `None`: the call has no parent and does not begin a trace.
    fn begin(
        path: &str,
        end: End<'_>,
        parent: Option<TraceContext>,
        begins_trace: bool,
    ) -> Option<Self> {
        match parent {
            // Passed on as it is.
            Some(parent) if !parent.is_sampled() => Some(Self {
                span: Span::none(),
                context: parent,
            }),
            None if !begins_trace => None,
            parent => Self::make(path, end, parent.as_ref()),
        }
    }

    #[cold]
    fn make(path: &str, end: End<'_>, parent: Option<&TraceContext>) -> Option<Self> {
        let method = path.strip_prefix('/').unwrap_or(path);
        let span = tracing::info_span!(
            target: "starling::rpc",
            "rpc",
            otel.name = method,
            otel.kind = Empty,
            otel.status_code = Empty,
            rpc.system.name = "starling",
            rpc.method = method,
            rpc.response.status_code = Empty,
            server.address = Empty,
            client.address = Empty,
            trace_id = Empty,
            span_id = Empty,
            parent_id = Empty,
        );
        match end {
            End::Client { server } => {
                span.record("otel.kind", "client");
                span.record("server.address", server);
            }
            End::Server { client } => {
                span.record("otel.kind", "server");
                span.record("client.address", client);
            }
        }
        let context = match TRACER.get() {
            Some(tracer) => tracer.begin(&span, parent)?,
            None => parent.map_or_else(TraceContext::new_root, TraceContext::child),
        };
        if !span.is_disabled() {
            span.record("trace_id", context.trace_id_hex());
            span.record("span_id", context.span_id_hex());
            if let Some(parent) = parent {
                span.record("parent_id", parent.span_id_hex());
            }
        }
        Some(Self { span, context })
    }

    fn end(&self, code: Code) {
        if self.span.is_disabled() {
            return;
        }
        self.span.record("rpc.response.status_code", code.name());
        if code != Code::Ok {
            self.span.record("otel.status_code", "ERROR");
        }
    }
}
