//! The context of a trace, as W3C's recommendation Trace Context has it: a `traceparent`, and what tracing systems add
//! to it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use starling_endpoint::TraceParent;

/// Bytes of a `tracestate` that is passed on, at most.
const MAX_STATE: usize = 512;

/// Where in which trace something happens: what a call carries to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    parent: TraceParent,
    state: Option<Arc<str>>,
}

thread_local! {
    /// The context of what this thread does now.
    static CURRENT: RefCell<Option<TraceContext>> = const { RefCell::new(None) };
    /// The state of the generator of random numbers; 0: not seeded.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread has a context.
#[inline]
pub(super) fn is_entered() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// A random number: splitmix64 (Steele, Lea and Flood, 2014), seeded for each thread.
#[inline]
pub(super) fn random() -> u64 {
    let mut state = RANDOM.get();
    if state == 0 {
        state = seed();
    }
    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.set(state);
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cold]
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) | 1
}

impl TraceContext {
    /// A context with these ids. `None` if one of them is 0, which names nothing.
    pub fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<Self> {
        let parent = TraceParent::new(trace_id, span_id, is_sampled)?;
        let state = None;
        Some(Self { parent, state })
    }

    /// The same context with what tracing systems add, if that can be passed on: at most 512 bytes of
    /// printable ASCII.
    #[must_use]
    pub fn with_tracestate(mut self, state: &str) -> Self {
        let is_printable = |byte: u8| byte == b'\t' || (0x20..0x7f).contains(&byte);
        let is_sound =
            !state.is_empty() && state.len() <= MAX_STATE && state.bytes().all(is_printable);
        self.state = is_sound.then(|| state.into());
        self
    }

    /// The context that a `traceparent` and a `tracestate` give. `None` if the first is malformed; a second
    /// one that is malformed is left out.
    pub fn parse(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<Self> {
        let context = Self {
            parent: TraceParent::parse(traceparent)?,
            state: None,
        };
        Some(
            match tracestate.and_then(|state| std::str::from_utf8(state).ok()) {
                Some(state) => context.with_tracestate(state),
                None => context,
            },
        )
    }

    /// The root of a new trace, which is sampled.
    pub(super) fn new_root() -> Self {
        Self {
            parent: TraceParent::root([random(), random(), random()]),
            state: None,
        }
    }

    /// Another span of the same trace.
    pub(super) fn child(&self) -> Self {
        Self {
            parent: self.parent.child(random()),
            state: self.state.clone(),
        }
    }

    /// The same, and nobody records it from here on.
    pub(super) fn not_sampled(mut self) -> Self {
        self.parent = self.parent.not_sampled();
        self
    }

    /// The trace.
    pub fn trace_id(&self) -> u128 {
        self.parent.trace_id()
    }

    /// The span.
    pub fn span_id(&self) -> u64 {
        self.parent.span_id()
    }

    /// Whether whoever began the trace records it.
    pub fn is_sampled(&self) -> bool {
        self.parent.is_sampled()
    }

    /// As `traceparent`.
    pub fn traceparent(&self) -> String {
        self.parent.to_string()
    }

    /// As `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    pub(super) fn trace_id_hex(&self) -> String {
        format!("{:032x}", self.trace_id())
    }

    pub(super) fn span_id_hex(&self) -> String {
        format!("{:016x}", self.span_id())
    }

    /// The context of what runs here: of the handler that this thread runs, or whose future it polls, or of
    /// [`TraceContext::scope`].
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Makes it the context of this thread, until the result is dropped.
    #[must_use = "it is the context while this lives"]
    pub fn enter(self) -> TraceEntered {
        TraceEntered {
            before: CURRENT.replace(Some(self)),
        }
    }

    /// Makes it the context of a future, each time that it is polled.
    pub fn scope<F: Future>(self, future: F) -> Scoped<F> {
        Scoped {
            context: self,
            future: Box::pin(future),
        }
    }
}

/// A thread has a context: [`TraceContext::enter`].
#[derive(Debug)]
pub struct TraceEntered {
    before: Option<TraceContext>,
}

impl Drop for TraceEntered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// A future with a context: [`TraceContext::scope`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Scoped<F> {
    context: TraceContext,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.context.clone().enter();
        self.future.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_recommendations_example_comes_back_as_it_was() {
        let context = TraceContext::parse(PARENT.as_bytes(), Some(b"congo=t61rcWkgMzE"));
        let context = context.expect("well formed");
        assert_eq!(
            context.trace_id(),
            0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736
        );
        assert_eq!(context.span_id(), 0x00f0_67aa_0ba9_02b7);
        assert!(context.is_sampled());
        assert_eq!(context.traceparent(), PARENT);
        assert_eq!(context.tracestate(), Some("congo=t61rcWkgMzE"));
        let child = context.child();
        assert_eq!(child.trace_id(), context.trace_id());
        assert_ne!(child.span_id(), context.span_id());
        assert_eq!(child.tracestate(), context.tracestate());
    }

    #[test]
    fn what_is_malformed_is_no_context() {
        assert_eq!(TraceContext::parse(&PARENT.as_bytes()[1..], None), None);
        let long = "k=".to_owned() + &"v".repeat(MAX_STATE);
        for state in [long.as_bytes(), b"k=\x01", b"k=\xff", b""] {
            let context = TraceContext::parse(PARENT.as_bytes(), Some(state));
            assert_eq!(context.expect("the rest is sound").tracestate(), None);
        }
        assert_eq!(TraceContext::new(0, 1, true), None);
    }

    #[test]
    fn any_bytes_are_a_context_that_comes_back_or_none() {
        bolero::check!()
            .with_type::<(Vec<u8>, Vec<u8>)>()
            .for_each(|(parent, state)| {
                // Near a sound one, so that more than the first byte is looked at.
                let mut near = PARENT.as_bytes().to_vec();
                for (at, byte) in parent.iter().take(PARENT.len()).enumerate() {
                    near[at] ^= byte & u8::from(at % 7 == parent.len() % 7);
                }
                for bytes in [parent, &near] {
                    if let Some(context) = TraceContext::parse(bytes, Some(state)) {
                        let text = context.traceparent();
                        let again = TraceContext::parse(
                            text.as_bytes(),
                            context.tracestate().map(str::as_bytes),
                        );
                        assert_eq!(again, Some(context));
                    }
                }
            });
    }

    #[test]
    fn a_context_lasts_as_long_as_its_scope_and_comes_back() {
        let root = TraceContext::new_root();
        assert_eq!(TraceContext::current(), None);
        {
            let _entered = root.clone().enter();
            let inner = root.child();
            let seen = crate::block_on(inner.clone().scope(async { TraceContext::current() }));
            assert_eq!(seen, Some(inner));
            assert_eq!(TraceContext::current(), Some(root));
        }
        assert_eq!(TraceContext::current(), None);
    }
}
