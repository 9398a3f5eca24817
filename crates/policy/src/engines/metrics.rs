//! `metrics`: counts calls, how long they took and how large their messages were, by application, server and method.
//!
//! ```text
//!  end of a call ─▶ (datapath, method) ─▶ a series: its recorder ◀── read by the operator's thread
//!                         │ no room                    │
//!                         └───────────▶ the rest       └─ save ─▶ numbers ─▶ the successor's recorder
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use serde::Deserialize;
use starling_call::{Code, MethodId};
use starling_metrics::{CallRecorder, Writers};

use crate::engine::{PolicyEnd, PolicyEngine, PolicyRequest, Verdict};
use crate::recorded::{Series, SeriesLabels};
use crate::saved::{RestoreError, Saved, SavedReader};
use crate::spec::Side;

/// The version of the saved state, in which are the counts of [`CallRecorder::save`].
const VERSION: u16 = 1;
/// Series, at most: each takes some kilobytes here, and some ten of text.
const MAX_SERIES: u32 = 1024;
/// Datapaths and methods whose series is known at once, at most. The others' is looked for by its labels.
const MAX_KNOWN: usize = 4096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// So many series have counts of their own.
    #[serde(default = "some")]
    series: u32,
}

fn some() -> u32 {
    256
}

#[derive(Debug)]
pub(crate) struct Metrics {
    max: usize,
    series: Vec<(Arc<SeriesLabels>, Arc<CallRecorder>)>,
    by_labels: HashMap<Arc<SeriesLabels>, usize, RandomState>,
    /// Of series, and `None` of what has none.
    by_datapath: HashMap<(u64, MethodId), Option<usize>, RandomState>,
    /// What has no series.
    rest: Arc<CallRecorder>,
}

fn recorder() -> Arc<CallRecorder> {
    Arc::new(CallRecorder::new(Writers::One))
}

impl Metrics {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        if !(1..=MAX_SERIES).contains(&settings.series) {
            return Err(format!(
                "series is {}: write 1 to {MAX_SERIES}",
                settings.series
            ));
        }
        Ok(Self::with_room_for(settings.series as usize))
    }

    fn with_room_for(max: usize) -> Self {
        Self {
            max,
            series: Vec::new(),
            by_labels: HashMap::default(),
            by_datapath: HashMap::default(),
            rest: recorder(),
        }
    }

    /// What counts a call.
    fn recorder_of(&mut self, end: &PolicyEnd<'_>) -> &CallRecorder {
        let key = (end.datapath.id, end.method);
        let index = match self.by_datapath.get(&key) {
            Some(index) => *index,
            None => self.find(key, end),
        };
        match index {
            Some(index) => &self.series[index].1,
            None => &self.rest,
        }
    }

    #[cold]
    fn find(&mut self, key: (u64, MethodId), end: &PolicyEnd<'_>) -> Option<usize> {
        let labels = SeriesLabels {
            side: end.datapath.side,
            program: end.datapath.program.clone(),
            server: end.datapath.server.clone(),
            method: end.method,
        };
        let index = match self.by_labels.get(&labels) {
            Some(index) => Some(*index),
            // Whoever calls methods that nobody has uses up no room.
            None if end.code == Code::Unimplemented => return None,
            None if self.series.len() >= self.max => None,
            None => Some(self.insert(labels, recorder())),
        };
        if self.by_datapath.len() >= MAX_KNOWN {
            self.by_datapath.clear();
        }
        self.by_datapath.insert(key, index);
        index
    }

    fn insert(&mut self, labels: SeriesLabels, recorder: Arc<CallRecorder>) -> usize {
        let labels = Arc::new(labels);
        let index = self.series.len();
        self.by_labels.insert(Arc::clone(&labels), index);
        self.series.push((labels, recorder));
        index
    }
}

impl PolicyEngine for Metrics {
    fn on_request(&mut self, _: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        Verdict::Pass
    }

    fn on_end(&mut self, end: &PolicyEnd<'_>) {
        let elapsed_ns = end.now_ns.saturating_sub(end.since_ns);
        let (request, response) = (end.request_bytes, end.response_bytes);
        let recorder = self.recorder_of(end);
        recorder.record(end.code, elapsed_ns, request, response);
    }

    fn series(&self, into: &mut Vec<Series>) {
        let series = self.series.iter().map(|(labels, recorder)| Series {
            labels: Some(Arc::clone(labels)),
            recorder: Arc::clone(recorder),
        });
        into.extend(series);
        into.push(Series {
            labels: None,
            recorder: Arc::clone(&self.rest),
        });
    }

    fn save(&self) -> Saved {
        let mut saved = Saved::new(VERSION).with_u64(self.series.len() as u64);
        for (labels, recorder) in &self.series {
            let side = match labels.side {
                Side::Client => 0,
                Side::Server => 1,
            };
            saved = saved
                .with_u64(side)
                .with_bytes(labels.program.as_bytes())
                .with_bytes(labels.server.as_bytes())
                .with_u64(labels.method.0.into());
            recorder.save(|number| saved.put_u64(number));
        }
        self.rest.save(|number| saved.put_u64(number));
        saved
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        saved.check_version(VERSION)?;
        let count = saved.u64()?;
        if count > MAX_SERIES.into() {
            return Err(RestoreError::Broken);
        }
        // More than it would begin may be there already: they go on.
        let mut next = Self::with_room_for(self.max);
        for _ in 0..count {
            let labels = SeriesLabels {
                side: match saved.u64()? {
                    0 => Side::Client,
                    1 => Side::Server,
                    _ => return Err(RestoreError::Broken),
                },
                program: saved.text()?,
                server: saved.text()?,
                method: MethodId(u32::try_from(saved.u64()?).map_err(|_| RestoreError::Broken)?),
            };
            let recorder = restored(saved)?;
            if next.by_labels.contains_key(&labels) {
                return Err(RestoreError::Broken);
            }
            next.insert(labels, recorder);
        }
        next.rest = restored(saved)?;
        saved.end()?;
        *self = next;
        Ok(())
    }
}

fn restored(saved: &mut SavedReader<'_>) -> Result<Arc<CallRecorder>, RestoreError> {
    let recorder = CallRecorder::restore(Writers::One, || saved.u64().ok());
    recorder.map(Arc::new).ok_or(RestoreError::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::Datapath;
    use crate::engines::testing::{ask, succeed};

    fn metrics(series: u32) -> Metrics {
        Metrics::new(Settings { series }).expect("settings")
    }

    fn datapath(id: u64, program: &str) -> Datapath {
        Datapath {
            id,
            side: Side::Client,
            program: program.to_owned(),
            server: "udp://h:1".to_owned(),
        }
    }

    /// A call of a method that took a microsecond, with 32 bytes, and 8 if it ended well.
    fn call(engine: &mut Metrics, datapath: &Datapath, method: u32, code: Code) {
        assert!(matches!(ask(engine, 0), Verdict::Pass));
        engine.on_end(&PolicyEnd {
            now_ns: 1500,
            call: 1,
            method: MethodId(method),
            code,
            datapath,
            since_ns: 500,
            request_bytes: 32,
            response_bytes: (code == Code::Ok).then_some(8),
        });
    }

    /// Programs and methods, with their calls and errors. The rest is the last one.
    fn counts(engine: &Metrics) -> Vec<(String, u64, u64)> {
        let mut series = Vec::new();
        engine.series(&mut series);
        let counts = series.into_iter().map(|series| {
            let totals = series.recorder.totals();
            let name = series.labels.map_or("rest".to_owned(), |labels| {
                format!("{} {}", labels.program, labels.method.0)
            });
            (name, totals.calls(), totals.errors())
        });
        counts.collect()
    }

    fn expected(counts: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
        let counts = counts.iter();
        let owned = counts.map(|(name, calls, errors)| ((*name).to_owned(), *calls, *errors));
        owned.collect()
    }

    #[test]
    fn calls_are_counted_by_program_and_method_with_times_and_sizes() {
        let mut engine = metrics(8);
        let (first, second) = (datapath(1, "a"), datapath(2, "b"));
        call(&mut engine, &first, 7, Code::Ok);
        call(&mut engine, &first, 7, Code::NotFound);
        call(&mut engine, &first, 8, Code::Ok);
        call(&mut engine, &second, 7, Code::Ok);
        // The same application again, by another datapath.
        call(&mut engine, &datapath(3, "a"), 7, Code::Ok);
        let names = [("a 7", 3, 1), ("a 8", 1, 0), ("b 7", 1, 0), ("rest", 0, 0)];
        assert_eq!(counts(&engine), expected(&names));
        let mut series = Vec::new();
        engine.series(&mut series);
        let totals = series[0].recorder.totals();
        assert_eq!(totals.duration(Code::Ok).sum(), 2000);
        assert_eq!((totals.requests.count(), totals.requests.sum()), (3, 96));
        assert_eq!((totals.responses.count(), totals.responses.sum()), (2, 16));
    }

    #[test]
    fn series_are_bounded_and_methods_that_nobody_has_begin_none() {
        let mut engine = metrics(2);
        let of = datapath(1, "a");
        for method in 100..200 {
            call(&mut engine, &of, method, Code::Unimplemented);
        }
        for method in 1..=4 {
            call(&mut engine, &of, method, Code::Ok);
        }
        call(&mut engine, &of, 1, Code::Unimplemented);
        let names = [("a 1", 2, 1), ("a 2", 1, 0), ("rest", 102, 100)];
        assert_eq!(counts(&engine), expected(&names));
        // However many come, what is known at once is bounded, too.
        for id in 0..2 * MAX_KNOWN as u64 {
            call(&mut engine, &datapath(id, "b"), 1, Code::Ok);
        }
        assert!(engine.by_datapath.len() <= MAX_KNOWN);
        assert_eq!(counts(&engine).len(), 3);
        assert!(Metrics::new(Settings { series: 0 }).is_err());
        assert!(Metrics::new(Settings { series: 1025 }).is_err());
    }

    #[test]
    fn a_successor_goes_on_with_the_counts() {
        let mut engine = metrics(8);
        let of = datapath(1, "a");
        for method in 1..=3 {
            call(&mut engine, &of, method, Code::Ok);
        }
        call(&mut engine, &of, 9, Code::Unimplemented);
        let mut next = metrics(1);
        succeed(&engine, &mut next);
        assert_eq!(counts(&next), counts(&engine));
        call(&mut next, &of, 2, Code::Ok);
        call(&mut next, &of, 4, Code::Ok);
        let names = [("a 1", 1, 0), ("a 2", 2, 0), ("a 3", 1, 0), ("rest", 2, 1)];
        assert_eq!(counts(&next), expected(&names));
    }

    #[test]
    fn a_broken_state_is_refused_and_changes_nothing() {
        let mut engine = metrics(8);
        let of = datapath(1, "a");
        call(&mut engine, &of, 1, Code::Ok);
        let series = |saved: Saved| {
            let labels = saved
                .with_u64(0)
                .with_bytes(b"a")
                .with_bytes(b"b")
                .with_u64(7);
            [0; 5].into_iter().fold(labels, Saved::with_u64)
        };
        for broken in [
            [0; 5].into_iter().fold(
                series(series(Saved::new(VERSION).with_u64(2))),
                Saved::with_u64,
            ),
            Saved::new(VERSION),
            Saved::new(VERSION).with_u64(u64::MAX),
            Saved::new(VERSION).with_u64(1).with_u64(2),
            Saved::new(VERSION).with_u64(0),
            engine.save().with_u64(0),
        ] {
            let restored = engine.restore(&mut broken.reader());
            assert_eq!(restored, Err(RestoreError::Broken), "{broken:?}");
        }
        let later = Saved::new(VERSION + 1);
        let restored = engine.restore(&mut later.reader());
        assert!(matches!(restored, Err(RestoreError::Later { .. })));
        assert_eq!(counts(&engine)[0].1, 1);
    }
}
