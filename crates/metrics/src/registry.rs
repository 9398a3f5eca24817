//! The series of a process: for each method at each address the sum of all recorders, those that are gone
//! included.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cells::Writers;
use crate::recorder::CallRecorder;
use crate::totals::CallTotals;

/// Series of one registry, at most. When there are as many, those that nobody records to give way; calls of
/// further ones are counted together, under [`SeriesKey::other`].
pub const MAX_SERIES: usize = 4096;

/// The end of its calls that counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// That of their callers.
    Client,
    /// That of their handlers.
    Server,
}

/// What the calls of a series have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesKey {
    /// The end that counted.
    pub side: Side,
    /// The server's address, as the server is bound to it or as the client was given it.
    pub address: Arc<str>,
    /// The method: `kv.Kv/Get`.
    pub method: Arc<str>,
}

impl SeriesKey {
    /// Of all calls for which there is no room: OpenTelemetry's name for the rest.
    pub fn other(side: Side) -> Self {
        Self {
            side,
            address: "_OTHER".into(),
            method: "_OTHER".into(),
        }
    }
}

/// A series at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSeries {
    /// What its calls have in common.
    pub key: SeriesKey,
    /// Its counts.
    pub totals: CallTotals,
}

/// A copy takes no counts with it: it refers to the same ones.
#[derive(Clone, Default)]
struct Series {
    recorders: Vec<Arc<CallRecorder>>,
    /// The sum of those that are gone.
    gone: Arc<CallTotals>,
}

impl Series {
    fn totals(&self) -> CallTotals {
        let mut totals = CallTotals::clone(&self.gone);
        for recorder in &self.recorders {
            totals.add(&recorder.totals());
        }
        totals
    }
}

type Table = BTreeMap<SeriesKey, Series>;

/// All series of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Table>>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("series", &self.table().len())
            .finish()
    }
}

impl Registry {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A recorder whose counts belong to this series, also after it is dropped.
    pub fn recorder(&self, key: &SeriesKey, writers: Writers) -> Recorder {
        let recorder = Arc::new(CallRecorder::new(writers));
        let mut table = self.table();
        if table.len() >= MAX_SERIES && !table.contains_key(key) {
            table.retain(|_, series| !series.recorders.is_empty());
        }
        let key = match table.len() < MAX_SERIES || table.contains_key(key) {
            true => key.clone(),
            false => SeriesKey::other(key.side),
        };
        let series = table.entry(key.clone()).or_default();
        series.recorders.push(Arc::clone(&recorder));
        drop(table);
        Recorder {
            recorder,
            key,
            registry: self.clone(),
        }
    }

    /// All series, ordered by their keys.
    pub fn snapshot(&self) -> Vec<CallSeries> {
        self.page(0, usize::MAX)
    }

    /// Series in the same order, at most `most`, without the first `from`.
    pub fn page(&self, from: usize, most: usize) -> Vec<CallSeries> {
        // Sums take long, and whoever begins to record waits for the lock.
        let series = self.series(from, most).into_iter();
        series
            .map(|(key, series)| CallSeries {
                key,
                totals: series.totals(),
            })
            .collect()
    }

    fn series(&self, from: usize, most: usize) -> Vec<(SeriesKey, Series)> {
        let table = self.table();
        let page = table.iter().skip(from).take(most);
        page.map(|(key, series)| (key.clone(), series.clone()))
            .collect()
    }

    fn retire(&self, key: &SeriesKey, recorder: &Arc<CallRecorder>) {
        let totals = recorder.totals();
        let mut table = self.table();
        // It may have given way in the meantime.
        if let Some(series) = table.get_mut(key) {
            series
                .recorders
                .retain(|other| !Arc::ptr_eq(other, recorder));
            Arc::make_mut(&mut series.gone).add(&totals);
        }
    }
}

/// A recorder of a series. Its counts stay in the series when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    recorder: Arc<CallRecorder>,
    key: SeriesKey,
    registry: Registry,
}

impl Deref for Recorder {
    type Target = CallRecorder;

    #[inline]
    fn deref(&self) -> &CallRecorder {
        &self.recorder
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.registry.retire(&self.key, &self.recorder);
    }
}

#[cfg(test)]
mod tests {
    use starling_call::Code;

    use super::*;

    fn key(method: &str) -> SeriesKey {
        SeriesKey {
            side: Side::Server,
            address: "udp://h:1".into(),
            method: method.into(),
        }
    }

    #[test]
    fn a_series_is_the_sum_of_its_recorders_also_of_those_that_are_gone() {
        let registry = Registry::default();
        let first = registry.recorder(&key("a.A/B"), Writers::One);
        let second = registry.recorder(&key("a.A/B"), Writers::Many);
        for recorder in [&first, &second] {
            recorder.begin();
            recorder.begin();
            recorder.end(Code::Ok, 10);
        }
        let totals = |registry: &Registry| registry.snapshot().remove(0).totals;
        assert_eq!(
            (totals(&registry).calls(), totals(&registry).in_flight()),
            (2, 2)
        );
        // A call may begin with one recorder and end with another.
        second.end(Code::Cancelled, 10);
        second.end(Code::Cancelled, 10);
        drop(second);
        let now = totals(&registry);
        assert_eq!((now.calls(), now.in_flight()), (4, 0));
        drop(first);
        let now = totals(&registry);
        assert_eq!((now.calls(), now.in_flight()), (4, 0));
        assert_eq!(registry.snapshot().len(), 1);
    }

    #[test]
    fn what_retires_while_a_page_is_summed_counts_once() {
        let registry = Registry::default();
        let recorder = registry.recorder(&key("a.A/B"), Writers::One);
        recorder.begin();
        recorder.end(Code::Ok, 10);
        let (_, before) = registry.series(0, usize::MAX).remove(0);
        drop(recorder);
        let (_, after) = registry.series(0, usize::MAX).remove(0);
        for series in [before, after] {
            // The lock is free: a sum waits for nobody.
            let _table = registry.table();
            assert_eq!(series.totals().calls(), 1);
        }
    }

    #[test]
    fn the_number_of_series_is_bounded_and_those_at_rest_give_way() {
        let registry = Registry::default();
        let at_rest = registry.recorder(&key("rest"), Writers::One);
        drop(at_rest);
        let kept: Vec<_> = (0..MAX_SERIES + 10)
            .map(|number| registry.recorder(&key(&number.to_string()), Writers::One))
            .collect();
        let snapshot = registry.snapshot();
        assert_eq!(snapshot.len(), MAX_SERIES + 1, "with the one for the rest");
        assert!(!snapshot.iter().any(|series| series.key == key("rest")));
        kept[MAX_SERIES + 5].begin();
        let other = SeriesKey::other(Side::Server);
        let rest = registry
            .snapshot()
            .into_iter()
            .find(|series| series.key == other);
        assert_eq!(rest.expect("further ones").totals.in_flight(), 1);
    }
}
