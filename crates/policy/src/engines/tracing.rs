//! `tracing`: records sampled calls as spans, and hands their context on as W3C's recommendation Trace Context has it.
//!
//! ```text
//!  traceparent of a sampled trace ─▶ its id in `follow`? ─▶ a span of that trace ─┐ the call goes on with the span's
//!  none ───────────────────────────▶ a new id in `share`? ▶ a new trace ──────────┘ traceparent
//!  traceparent of another trace, or not chosen ─▶ goes on as it came
//! ```
//!
//! A trace is chosen by its id, as OpenTelemetry's samplers do (OTEP 235): all services with the same share choose the
//! same traces.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::Deserialize;
use starling_call::{CallOptions, TRACEPARENT, TRACESTATE, TraceParent};

use crate::engine::{PolicyEnd, PolicyEngine, PolicyRequest, Verdict};
use crate::random::Random;
use crate::recorded::Span;
use crate::saved::{RestoreError, Saved, SavedReader};
use crate::settings::Share;

/// The version of the saved state.
const VERSION: u16 = 1;
/// Spans of calls that are not over, at most: further calls are not sampled.
const MAX_OPEN: usize = 10_000;
/// The bits of a trace's id that are random by the recommendation.
const RANDOM_BITS: u32 = 56;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The share of calls in no trace that begin one.
    #[serde(default = "one_of_a_hundred")]
    share: Share,
    /// The share of sampled traces whose calls are recorded. Missing: as `share`.
    follow: Option<Share>,
}

fn one_of_a_hundred() -> Share {
    Share(0.01)
}

/// Chooses traces by their ids.
#[derive(Debug)]
struct Sampler {
    from: u64,
}

impl Sampler {
    fn new(share: &Share) -> Self {
        let all = (1_u64 << RANDOM_BITS) as f64;
        Self {
            from: (all * (1.0 - share.0)) as u64,
        }
    }

    fn chooses(&self, low_half_of_id: u64) -> bool {
        low_half_of_id & ((1 << RANDOM_BITS) - 1) >= self.from
    }
}

#[derive(Debug)]
pub(crate) struct Tracing {
    roots: Sampler,
    followed: Sampler,
    random: Random,
    /// Spans of calls that are not over.
    open: HashMap<u64, Span, RandomState>,
}

impl Tracing {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let follow = settings.follow.as_ref().unwrap_or(&settings.share);
        Ok(Self {
            roots: Sampler::new(&settings.share),
            followed: Sampler::new(follow),
            random: Random(0),
            open: HashMap::default(),
        })
    }

    /// The span of a call. `None`: it is not sampled.
    fn sample(&mut self, options: &CallOptions) -> Option<Span> {
        let came = options.metadata.value(TRACEPARENT);
        match came.and_then(TraceParent::parse) {
            Some(parent) => {
                let is_chosen =
                    parent.is_sampled() && self.followed.chooses(parent.trace_id() as u64);
                is_chosen.then(|| Span {
                    context: parent.child(self.random.next()),
                    parent_id: Some(parent.span_id()),
                })
            }
            None => {
                let low = self.random.next();
                let is_chosen = self.roots.chooses(low);
                is_chosen.then(|| Span {
                    context: TraceParent::root([self.random.next(), low, self.random.next()]),
                    parent_id: None,
                })
            }
        }
    }
}

impl PolicyEngine for Tracing {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        if self.open.len() >= MAX_OPEN {
            return Verdict::Pass;
        }
        let Some(span) = self.sample(request.options) else {
            return Verdict::Pass;
        };
        let metadata = &mut request.options.metadata;
        // Without room for it the call goes on as it came, and is not recorded.
        if metadata.set(TRACEPARENT, span.context.to_string()).is_ok() {
            // What is there without a trace belongs to none.
            if span.parent_id.is_none() && metadata.value(TRACESTATE).is_some() {
                metadata.remove(TRACESTATE);
            }
            self.open.insert(request.call, span);
        }
        Verdict::Pass
    }

    fn records_spans(&self) -> bool {
        true
    }

    fn end_span(&mut self, end: &PolicyEnd<'_>) -> Option<Span> {
        self.open.remove(&end.call)
    }

    fn seed(&mut self, random: u64) {
        self.random = Random(random);
    }

    fn save(&self) -> Saved {
        let saved = Saved::new(VERSION).with_u64(self.random.0);
        let mut saved = saved.with_u64(self.open.len() as u64);
        for (call, span) in &self.open {
            let trace_id = span.context.trace_id();
            let numbers = [
                *call,
                (trace_id >> 64) as u64,
                trace_id as u64,
                span.context.span_id(),
                span.parent_id.unwrap_or(0),
            ];
            numbers.into_iter().for_each(|number| saved.put_u64(number));
        }
        saved
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let (random, count) = (saved.u64()?, saved.u64()?);
        if count > MAX_OPEN as u64 {
            return Err(RestoreError::Broken);
        }
        let mut open = HashMap::default();
        for _ in 0..count {
            let call = saved.u64()?;
            let trace_id = u128::from(saved.u64()?) << 64 | u128::from(saved.u64()?);
            let context = TraceParent::new(trace_id, saved.u64()?, true);
            let context = context.ok_or(RestoreError::Broken)?;
            let parent_id = Some(saved.u64()?).filter(|id| *id != 0);
            if open.insert(call, Span { context, parent_id }).is_some() {
                return Err(RestoreError::Broken);
            }
        }
        saved.end()?;
        self.random = Random(random);
        self.open = open;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use starling_call::{Code, Metadata};

    use super::*;
    use crate::engines::testing::{ask_for, end_of, succeed};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn tracing(share: f64, follow: Option<f64>) -> Tracing {
        let settings = Settings {
            share: Share(share),
            follow: follow.map(Share),
        };
        let mut engine = Tracing::new(settings).expect("settings");
        engine.seed(1);
        engine
    }

    fn options(pairs: &[(&str, &str)]) -> CallOptions {
        let mut options = CallOptions::default();
        for (key, value) in pairs {
            options.metadata.insert(key, value).expect("short");
        }
        options
    }

    /// The metadata with which a call goes on.
    fn pass(engine: &mut Tracing, call: u64, pairs: &[(&str, &str)]) -> Metadata {
        let mut options = options(pairs);
        let verdict = ask_for(engine, call, 0, &mut options, 0);
        assert!(matches!(verdict, Verdict::Pass));
        options.metadata
    }

    fn parent_in(metadata: &Metadata) -> TraceParent {
        TraceParent::parse(metadata.value(TRACEPARENT).expect("one")).expect("well formed")
    }

    #[test]
    fn a_trace_is_continued_with_a_span_of_its_own() {
        let mut engine = tracing(1.0, None);
        let came = [
            (TRACEPARENT, PARENT),
            ("tenant", "blue"),
            (TRACESTATE, "x=1"),
        ];
        let metadata = pass(&mut engine, 5, &came);
        let (parent, next) = (
            TraceParent::parse(PARENT.as_bytes()).expect("well formed"),
            parent_in(&metadata),
        );
        assert_eq!(next.trace_id(), parent.trace_id());
        assert_ne!(next.span_id(), parent.span_id());
        assert!(next.is_sampled());
        assert_eq!(metadata.value("tenant"), Some(&b"blue"[..]));
        assert_eq!(metadata.value(TRACESTATE), Some(&b"x=1"[..]));
        let span = engine.end_span(&end_of(5, 9, Code::Ok));
        let parent_id = Some(parent.span_id());
        let expected = Span {
            context: next,
            parent_id,
        };
        assert_eq!(span, Some(expected));
        assert_eq!(engine.end_span(&end_of(5, 9, Code::Ok)), None, "it is over");
    }

    #[test]
    fn without_a_trace_one_begins() {
        let mut engine = tracing(1.0, Some(0.0));
        for (call, came) in [
            (1, &[][..]),
            (2, &[(TRACEPARENT, "00-malformed"), (TRACESTATE, "x=1")]),
        ] {
            let metadata = pass(&mut engine, call, came);
            assert_eq!(metadata.value(TRACESTATE), None);
            let span = engine.end_span(&end_of(call, 9, Code::Ok)).expect("a span");
            assert_eq!((span.context, span.parent_id), (parent_in(&metadata), None));
            assert_eq!(metadata.view().iter().count(), 1);
        }
        // `follow` is for traces that come.
        let came = [(TRACEPARENT, PARENT)];
        assert_eq!(pass(&mut engine, 3, &came), options(&came).metadata);
    }

    #[test]
    fn calls_that_are_not_sampled_go_on_as_they_came() {
        let not_sampled = PARENT.replace("-01", "-00");
        for (share, came) in [
            (1.0, &[(TRACEPARENT, &*not_sampled)][..]),
            (0.0, &[(TRACEPARENT, PARENT)]),
            (0.0, &[(TRACEPARENT, "00-malformed")]),
            (0.0, &[("tenant", "blue")]),
        ] {
            let mut engine = tracing(share, None);
            let metadata = pass(&mut engine, 1, came);
            assert_eq!(metadata, options(came).metadata, "{came:?}");
            assert_eq!(engine.end_span(&end_of(1, 9, Code::Ok)), None);
        }
    }

    #[test]
    fn metadata_without_room_goes_on_as_it_came() {
        let mut engine = tracing(1.0, None);
        let mut full = Metadata::new();
        let mut len = 60_000;
        while len > 0 {
            let value = vec![b'x'; len];
            if full.insert("k", &value).is_err() {
                len /= 2;
            }
        }
        let mut options = CallOptions {
            metadata: full.clone(),
            ..CallOptions::default()
        };
        ask_for(&mut engine, 1, 0, &mut options, 0);
        assert_eq!(options.metadata, full);
        assert_eq!(engine.end_span(&end_of(1, 9, Code::Ok)), None);
    }

    #[test]
    fn shares_are_kept_and_two_services_choose_the_same_traces() {
        let mut engine = tracing(0.25, None);
        let mut chosen = Vec::new();
        for call in 0..1000 {
            let metadata = pass(&mut engine, call, &[]);
            if !metadata.is_empty() {
                chosen.push(parent_in(&metadata).to_string());
            }
        }
        assert!((200..300).contains(&chosen.len()), "{}", chosen.len());
        let follows = |share: f64| {
            let mut next = tracing(share, None);
            let changed = chosen.iter().enumerate().filter(|(call, parent)| {
                let came = [(TRACEPARENT, parent.as_str())];
                pass(&mut next, *call as u64, &came) != options(&came).metadata
            });
            changed.count()
        };
        assert_eq!(follows(0.25), chosen.len());
        assert_eq!(follows(0.5), chosen.len());
        assert!(follows(0.125) < chosen.len());
    }

    #[test]
    fn spans_of_calls_that_are_not_over_are_bounded() {
        let mut engine = tracing(1.0, None);
        for call in 0..=MAX_OPEN as u64 {
            let is_sampled = !pass(&mut engine, call, &[]).is_empty();
            assert_eq!(is_sampled, call < MAX_OPEN as u64);
        }
        assert!(engine.end_span(&end_of(0, 9, Code::Ok)).is_some());
        assert!(!pass(&mut engine, 20_000, &[]).is_empty());
    }

    #[test]
    fn a_successor_ends_the_spans_of_its_predecessor_and_draws_on() {
        let mut engine = tracing(1.0, None);
        pass(&mut engine, 1, &[(TRACEPARENT, PARENT)]);
        pass(&mut engine, 2, &[]);
        let mut next = tracing(1.0, None);
        succeed(&engine, &mut next);
        assert_eq!(pass(&mut next, 3, &[]), pass(&mut engine, 3, &[]));
        for call in 1..=3 {
            let end = end_of(call, 9, Code::Ok);
            let span = next.end_span(&end);
            assert!(span.is_some());
            assert_eq!(span, engine.end_span(&end));
        }
        for broken in [
            Saved::new(VERSION),
            Saved::new(VERSION).with_u64(1).with_u64(u64::MAX),
            // One call twice.
            [1, 2, 7, 1, 1, 1, 0, 7, 1, 1, 1, 0]
                .into_iter()
                .fold(Saved::new(VERSION), Saved::with_u64),
            engine.save().with_u64(0),
        ] {
            let restored = next.restore(&mut broken.reader());
            assert_eq!(restored, Err(RestoreError::Broken));
        }
    }
}
