//! Ties the spans of calls to OpenTelemetry's.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use starling::trace::{TraceContext, Tracer};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Has OpenTelemetry give the spans of calls their ids, as children of the span that a call is made in:
/// `starling::trace::set_tracer(OtelTracer::new())`. The process has a `tracing` subscriber with the layer of
/// `tracing-opentelemetry`; without it, calls are in no trace.
#[derive(Debug, Default)]
pub struct OtelTracer(());

impl OtelTracer {
    /// The tracer. It has no settings.
    pub fn new() -> Self {
        Self::default()
    }
}

fn to_starling(context: &SpanContext) -> Option<TraceContext> {
    let trace_id = u128::from_be_bytes(context.trace_id().to_bytes());
    let span_id = u64::from_be_bytes(context.span_id().to_bytes());
    let own = TraceContext::new(trace_id, span_id, context.is_sampled())?;
    Some(own.with_tracestate(&context.trace_state().header()))
}

fn to_otel(context: &TraceContext) -> SpanContext {
    let flags = match context.is_sampled() {
        true => TraceFlags::SAMPLED,
        false => TraceFlags::default(),
    };
    let state = context
        .tracestate()
        .and_then(|state| state.parse::<TraceState>().ok());
    SpanContext::new(
        TraceId::from_bytes(context.trace_id().to_be_bytes()),
        SpanId::from_bytes(context.span_id().to_be_bytes()),
        flags,
        true,
        state.unwrap_or_default(),
    )
}

impl Tracer for OtelTracer {
    fn current(&self) -> Option<TraceContext> {
        let span = Span::current();
        if span.is_disabled() {
            return None;
        }
        to_starling(span.context().span().span_context())
    }

    fn begin(&self, span: &Span, parent: Option<&TraceContext>) -> Option<TraceContext> {
        if let Some(parent) = parent {
            let context = Context::new().with_remote_span_context(to_otel(parent));
            // Without the layer there is no span to have a parent.
            let _ = span.set_parent(context);
        }
        to_starling(span.context().span().span_context())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_comes_back_as_it_was() {
        for is_sampled in [true, false] {
            let context = TraceContext::new(0x1234 << 64, 0x5678, is_sampled).expect("no zeros");
            let context = context.with_tracestate("vendor=x");
            assert_eq!(to_starling(&to_otel(&context)), Some(context));
        }
        assert_eq!(to_starling(&SpanContext::empty_context()), None);
    }

    #[test]
    fn without_a_subscriber_calls_are_in_no_trace() {
        let tracer = OtelTracer::new();
        assert_eq!(tracer.current(), None);
        assert_eq!(tracer.begin(&Span::none(), None), None);
    }
}
