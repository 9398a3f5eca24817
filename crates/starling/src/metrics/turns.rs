//! What a thread counts when a turn of its endpoint ends: its clock is read once for all calls of inline
//! handlers, and calls that are alike are counted together.
//!
//! ```text
//!  turn: ── burst ── handler ── handler ── future: a call ended ── ... ── flush ──▶ Turns::end
//!                    record     record     end
//! ```
//! The time of an inline handler's call is that of its turn: its response leaves with the turn's flush. Calls that
//! channels make have times of their own, and are counted in the turn after: see [`Core::count_later`].
//!
//! [`Core::count_later`]: crate::core::Core::count_later

use std::array;
use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use starling_endpoint::Code;
use starling_metrics::{MAX_SERIES, Recorder, Side, Writers};

use super::recorder;

/// The recorders of one endpoint, at most, that count by turns; others count each call by itself.
const RECORDERS: usize = WORDS * 64;
const WORDS: usize = MAX_SERIES / 64;

/// Which recorders of one endpoint have calls of this turn. The endpoint's thread alone writes that.
pub(crate) struct Turns {
    /// Which words of `touched` are not 0, as bits.
    touched_words: AtomicU64,
    /// By the recorders' places, as bits.
    touched: [AtomicU64; WORDS],
    places: Mutex<Places>,
    have_changed: AtomicBool,
}

/// The places of recorders.
#[derive(Default)]
struct Places {
    /// Those that have been taken so far.
    used: usize,
    /// Those of them that are free.
    free: Vec<usize>,
    /// The recorders that have come, and the places whose recorders are gone, since a turn ended.
    changes: Vec<(usize, Option<Arc<Recorder>>)>,
}

impl Turns {
    fn new() -> Self {
        const { assert!(WORDS <= u64::BITS as usize) };
        Self {
            touched_words: AtomicU64::new(0),
            touched: array::from_fn(|_| AtomicU64::new(0)),
            places: Mutex::default(),
            have_changed: AtomicBool::new(false),
        }
    }

    /// A place for a recorder. `None`: all are taken.
    fn add(&self, recorder: &Arc<Recorder>) -> Option<usize> {
        let mut places = self.places.lock();
        let place = match places.free.pop() {
            Some(place) => place,
            None if places.used < RECORDERS => {
                places.used += 1;
                places.used - 1
            }
            None => return None,
        };
        places.changes.push((place, Some(Arc::clone(recorder))));
        self.have_changed.store(true, Ordering::Relaxed);
        Some(place)
    }

    /// The recorder of a place is gone.
    fn remove(&self, place: usize) {
        let mut places = self.places.lock();
        places.free.push(place);
        places.changes.push((place, None));
        self.have_changed.store(true, Ordering::Relaxed);
    }

    /// A recorder has its first call of the turn.
    fn touch(&self, place: usize) {
        set(&self.touched[place / 64], place % 64);
        set(&self.touched_words, place / 64);
    }
}

/// Sets a bit of a word that this thread alone writes.
fn set(word: &AtomicU64, bit: usize) {
    word.store(word.load(Ordering::Relaxed) | 1 << bit, Ordering::Relaxed);
}

/// Takes the bits of such a word.
fn take(word: &AtomicU64) -> u64 {
    let bits = word.load(Ordering::Relaxed);
    word.store(0, Ordering::Relaxed);
    bits
}

/// What ends the turns of an endpoint, in its thread.
pub(crate) struct TurnEnds {
    pub(crate) turns: Arc<Turns>,
    /// By their places.
    recorders: Vec<Option<Arc<Recorder>>>,
}

impl TurnEnds {
    /// Those of a new endpoint, if metrics are enabled.
    pub(crate) fn of_endpoint() -> Option<Self> {
        super::is_enabled().then(Self::new)
    }

    fn new() -> Self {
        Self {
            turns: Arc::new(Turns::new()),
            recorders: Vec::new(),
        }
    }

    /// Whether the end of the turn has anything to do.
    #[inline]
    pub(crate) fn are_due(&self) -> bool {
        self.turns.touched_words.load(Ordering::Relaxed) != 0
            || self.turns.have_changed.load(Ordering::Relaxed)
    }

    /// The turn ends. How long it took is asked for once at most.
    #[inline(never)]
    pub(crate) fn end(&mut self, elapsed_ns: impl FnOnce() -> u64) {
        let elapsed_ns = LazyCell::new(elapsed_ns);
        // First: the recorders of touched places are there then.
        if self.turns.have_changed.load(Ordering::Relaxed) {
            self.apply_changes(|| *elapsed_ns);
        }
        let mut words = take(&self.turns.touched_words);
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let mut bits = take(&self.turns.touched[word]);
            while bits != 0 {
                let place = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(Some(recorder)) = self.recorders.get(place) {
                    recorder.end_turn(|| *elapsed_ns);
                }
            }
        }
    }

    #[cold]
    fn apply_changes(&mut self, elapsed_ns: impl Fn() -> u64) {
        let mut places = self.turns.places.lock();
        self.turns.have_changed.store(false, Ordering::Relaxed);
        let changes = std::mem::take(&mut places.changes);
        self.recorders.resize(places.used, None);
        drop(places);
        for (place, recorder) in changes {
            let before = std::mem::replace(&mut self.recorders[place], recorder);
            if let Some(gone) = before {
                gone.end_turn(&elapsed_ns);
            }
        }
    }
}

impl Drop for TurnEnds {
    fn drop(&mut self) {
        // What the last turn has left.
        self.end(|| 0);
    }
}

/// Records the calls of one method in the thread of one endpoint.
pub(super) struct TurnRecorder {
    recorder: Arc<Recorder>,
    /// Its place among those that count by turns, if it has one.
    of_turns: Option<(Arc<Turns>, usize)>,
}

impl Drop for TurnRecorder {
    fn drop(&mut self) {
        if let Some((turns, place)) = &self.of_turns {
            turns.remove(*place);
        }
    }
}

impl TurnRecorder {
    pub(super) fn new(
        turns: Option<&Arc<Turns>>,
        side: Side,
        address: &Arc<str>,
        path: &str,
    ) -> Self {
        let recorder = recorder(side, address, path, Writers::One);
        let of_turns = turns.and_then(|turns| Some((Arc::clone(turns), turns.add(&recorder)?)));
        Self { recorder, of_turns }
    }

    pub(super) fn counts_by_turns(&self) -> bool {
        self.of_turns.is_some()
    }

    /// Records a call that has been answered in this turn. Of a recorder that counts by turns.
    #[inline]
    pub(super) fn record(&self, code: Code, request: usize, response: usize) {
        if self.recorder.record_in_turn(code, request, response) {
            self.touch();
        }
    }

    /// A call begins.
    #[inline]
    pub(super) fn begin(&self) {
        self.recorder.begin_alone();
    }

    /// A call that was begun ends in a turn: with the bytes of its response or a code.
    #[inline(always)]
    pub(super) fn end(&self, elapsed_ns: u64, request: usize, result: Result<usize, Code>) {
        match (result, &self.of_turns) {
            (Ok(response), Some((turns, place))) => {
                if self.recorder.end_in_turn(elapsed_ns, request, response) {
                    turns.touch(*place);
                }
            }
            _ => self.end_at_once(elapsed_ns, request, result),
        }
    }

    /// The same for a call that may end between two turns, or with an error.
    #[inline(never)]
    pub(super) fn end_at_once(&self, elapsed_ns: u64, request: usize, result: Result<usize, Code>) {
        let (code, response) = match result {
            Ok(bytes) => (Code::Ok, Some(bytes)),
            Err(code) => (code, None),
        };
        (self.recorder).end_with(code, elapsed_ns, request, response);
    }

    /// A call that was begun counts elsewhere.
    #[cold]
    pub(super) fn leave(&self) {
        self.recorder.leave();
    }

    fn touch(&self) {
        if let Some((turns, index)) = &self.of_turns {
            turns.touch(*index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(address: &str) -> Vec<(String, u64)> {
        (crate::metrics::snapshot().into_iter())
            .filter(|series| &*series.key.address == address)
            .map(|series| (series.key.method.to_string(), series.totals.calls()))
            .collect()
    }

    #[test]
    fn a_turn_ends_for_the_methods_that_had_calls() {
        let address = Arc::from("mem://a-turn-ends");
        let mut ends = TurnEnds::new();
        let recorders: Vec<_> = (0..1100)
            .map(|number| {
                let path = format!("/a.B/{number:04}");
                TurnRecorder::new(Some(&ends.turns), Side::Server, &address, &path)
            })
            .collect();
        assert!(recorders.iter().all(TurnRecorder::counts_by_turns));
        ends.end(|| unreachable!("the turn had no calls"));
        assert!(!ends.are_due());
        recorders[3].record(Code::Ok, 1, 1);
        recorders[1000].record(Code::Ok, 1, 1);
        recorders[1000].record(Code::Internal, 1, 0);
        assert!(ends.are_due());
        let mut asked = 0;
        ends.end(|| {
            asked += 1;
            1000
        });
        assert!(!ends.are_due());
        assert_eq!(asked, 1);
        let calls = calls(&address);
        assert_eq!((calls[3].1, calls[1000].1), (1, 2));
        assert_eq!(calls.iter().map(|(_, calls)| calls).sum::<u64>(), 3);
    }

    #[test]
    fn beyond_the_last_place_calls_are_counted_at_once() {
        let address = Arc::from("mem://beyond-the-last-place");
        let mut ends = TurnEnds::new();
        ends.turns.places.lock().used = RECORDERS - 1;
        let [last, beyond] = ["/a.B/Last", "/a.B/Beyond"]
            .map(|path| TurnRecorder::new(Some(&ends.turns), Side::Client, &address, path));
        assert!(last.counts_by_turns() && !beyond.counts_by_turns());
        for recorder in [&last, &beyond] {
            recorder.begin();
            recorder.end(500, 32, Ok(32));
        }
        let expected = |last| vec![("a.B/Beyond".into(), 1), ("a.B/Last".into(), last)];
        assert_eq!(calls(&address), expected(0));
        ends.end(|| unreachable!("a client's call has a time of its own"));
        assert_eq!(calls(&address), expected(1));
    }

    #[test]
    fn a_recorder_that_goes_leaves_its_counts_and_its_place() {
        let address = Arc::from("mem://a-recorder-goes");
        let mut ends = TurnEnds::new();
        for round in 1..=3 {
            let path = format!("/a.B/{round}");
            let recorder = TurnRecorder::new(Some(&ends.turns), Side::Client, &address, &path);
            recorder.begin();
            recorder.end(500, 32, Ok(32));
            drop(recorder);
            let next = TurnRecorder::new(Some(&ends.turns), Side::Client, &address, "/a.B/Next");
            next.begin();
            next.end(500, 32, Ok(32));
            ends.end(|| unreachable!("a client's call has a time of its own"));
            let calls = calls(&address);
            assert!(calls.contains(&(format!("a.B/{round}"), 1)));
            assert!(calls.contains(&("a.B/Next".to_owned(), round)));
        }
        assert!(ends.turns.places.lock().used <= 2);
        assert_eq!(
            ends.recorders.iter().flatten().count(),
            1,
            "that of the last turn"
        );
    }

    #[test]
    fn what_the_last_turn_has_left_counts_when_the_endpoint_goes() {
        let address = Arc::from("mem://the-last-turn");
        let ends = TurnEnds::new();
        let recorder = TurnRecorder::new(Some(&ends.turns), Side::Client, &address, "/a.B/Last");
        recorder.begin();
        recorder.end(500, 32, Ok(32));
        assert_eq!(calls(&address), vec![("a.B/Last".into(), 0)]);
        drop(ends);
        assert_eq!(calls(&address), vec![("a.B/Last".into(), 1)]);
    }
}
