//! Keeps the spans of calls, with their fields.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// The fields of a span, and whether it is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    pub(crate) fields: HashMap<&'static str, String>,
    pub(crate) is_over: bool,
    handles: usize,
    metadata: Option<&'static Metadata<'static>>,
    /// Events while a thread was in it.
    pub(crate) events: usize,
}

impl Span {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl Visit for Span {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

static SPANS: Mutex<Vec<Span>> = Mutex::new(Vec::new());

fn spans() -> MutexGuard<'static, Vec<Span>> {
    SPANS.lock().expect("no panic")
}

/// All spans so far of this trace.
pub(crate) fn of_trace(trace_id: &str) -> Vec<Span> {
    let of_trace = |span: &&Span| span.field("trace_id") == trace_id;
    spans().iter().filter(of_trace).cloned().collect()
}

pub(crate) fn count() -> usize {
    spans().len()
}

/// Keeps the spans whose target is that of calls.
pub(crate) struct Keep;

std::thread_local! {
    static ENTERED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "starling::rpc" || metadata.target() == "test"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut span = Span {
            handles: 1,
            metadata: Some(attributes.metadata()),
            ..Span::default()
        };
        attributes.record(&mut span);
        let mut all = spans();
        all.push(span);
        NEXT.store(all.len() as u64, Ordering::Relaxed);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut spans()[id.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        if let Some(id) = ENTERED.with_borrow(|entered| entered.last().copied()) {
            spans()[id as usize - 1].events += 1;
        }
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn current_span(&self) -> Current {
        let Some(id) = ENTERED.with_borrow(|entered| entered.last().copied()) else {
            return Current::none();
        };
        let metadata = spans()[id as usize - 1].metadata.expect("it was made");
        Current::new(Id::from_u64(id), metadata)
    }

    fn clone_span(&self, id: &Id) -> Id {
        spans()[id.into_u64() as usize - 1].handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let span = &mut spans()[id.into_u64() as usize - 1];
        span.handles -= 1;
        span.is_over = span.handles == 0;
        span.is_over
    }
}
