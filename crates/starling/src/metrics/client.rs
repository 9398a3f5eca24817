//! The measures of a client's calls.
//!
//! The endpoint behind a channel measures: it has the time of the turn at hand when it makes a call and when
//! the response comes, and it is one thread's at a time. So a call costs no clock, no lock and no count of
//! references. For calls of an endpoint's own futures the clock is read as they begin, once for several that follow
//! one another quickly: a future may have computed for long in its turn.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_endpoint::{Code, MethodPath};
use starling_metrics::{Recorder, Side, Writers};

use super::places::Places;
use super::recorder;
use super::turns::{TurnRecorder, Turns};
use crate::executor::Executor;
use crate::plane::{Operation, OutgoingCall};

/// Places for methods of one address.
const PLACES: usize = 64;
/// Further ones, where there is no room among those.
const MORE: usize = 1024;
/// The place of methods for which there is none.
const OTHER: usize = PLACES + MORE;

/// A call that is being measured. It belongs to the metrics of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    place: u16,
    request_bytes: u32,
    /// By the endpoint's clock. Never 0, so that no call takes no more room than a call.
    begun_ns: NonZero<u64>,
}

/// A call that its endpoint's driver measures, or none. Only the driver uses it.
#[derive(Debug, Default)]
pub(crate) struct CallMeasure {
    /// 0: the call is not measured.
    begun_ns: AtomicU64,
    /// The place, and above it the bytes of the request.
    what: AtomicU64,
}

impl CallMeasure {
    fn set(&self, call: Measured) {
        let what = u64::from(call.request_bytes) << u16::BITS | u64::from(call.place);
        self.what.store(what, Ordering::Relaxed);
        self.begun_ns.store(call.begun_ns.get(), Ordering::Relaxed);
    }

    /// The measure of a call that ends.
    #[inline]
    pub(crate) fn take(&self) -> Option<Measured> {
        let begun_ns = NonZero::new(self.begun_ns.load(Ordering::Relaxed))?;
        self.begun_ns.store(0, Ordering::Relaxed);
        let what = self.what.load(Ordering::Relaxed);
        Some(Measured {
            place: what as u16,
            request_bytes: (what >> u16::BITS) as u32,
            begun_ns,
        })
    }
}

impl Measured {
    fn elapsed_ns(self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.begun_ns.get())
    }
}

/// In which thread something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the one that runs the endpoint.
    Endpoint,
    /// In another one: in that of an executor.
    Elsewhere,
}

/// The recorders of methods, by their places.
type Recorders<R> = [OnceLock<R>; PLACES];

/// Those of further methods, in the endpoint's thread.
struct More {
    places: Places<MORE>,
    own: Box<[OnceLock<TurnRecorder>]>,
}

impl Default for More {
    fn default() -> Self {
        Self {
            places: Places::default(),
            own: (0..MORE).map(|_| OnceLock::new()).collect(),
        }
    }
}

/// The recorders of the calls that one endpoint makes to one address.
pub(crate) struct ClientMetrics {
    address: Arc<str>,
    places: Places<PLACES>,
    /// Those of the endpoint's thread.
    own: Recorders<TurnRecorder>,
    more: OnceLock<Box<More>>,
    /// That of all methods for which there is no place.
    other: OnceLock<TurnRecorder>,
    /// Those of other threads.
    shared: OnceLock<Box<Recorders<Arc<Recorder>>>>,
    turns: Option<Arc<Turns>>,
}

impl ClientMetrics {
    /// The metrics of calls to this address, if metrics are enabled.
    pub(crate) fn of(address: &str, executor: &Executor) -> Option<Self> {
        super::is_enabled().then(|| Self {
            address: address.into(),
            places: Places::default(),
            own: std::array::from_fn(|_| OnceLock::new()),
            more: OnceLock::new(),
            other: OnceLock::new(),
            shared: OnceLock::new(),
            turns: executor.turns.clone(),
        })
    }

    /// A driver begins a call, at this time of its endpoint's clock. A request of a stream has no measure:
    /// the stream is measured as a whole. Nor has a call that its caller measures.
    pub(crate) fn begin(&self, call: &OutgoingCall, now_ns: u64, measure: &CallMeasure) {
        if !call.counted_by_caller {
            let message = &call.message;
            let bytes = message.payload.len().saturating_sub(message.headroom);
            let path = message.path.as_str();
            measure.set(self.begin_call(message.method.0, path, bytes, Place::Endpoint, now_ns));
        }
    }

    /// The same for a call of which only these parts are known, in any thread.
    #[inline]
    pub(super) fn begin_call(
        &self,
        method: u32,
        path: &str,
        request_bytes: usize,
        at: Place,
        now_ns: u64,
    ) -> Measured {
        let place = self.place(method);
        match at {
            Place::Endpoint => self.own(place, path).begin(),
            Place::Elsewhere => self.shared(place, path).begin(),
        }
        Measured {
            place: place as u16,
            request_bytes: u32::try_from(request_bytes).unwrap_or(u32::MAX),
            begun_ns: NonZero::new(now_ns).unwrap_or(NonZero::<u64>::MIN),
        }
    }

    /// A call ends that a driver has begun: with the bytes of its response or a code. If this is between two
    /// turns, the call is counted with those of the next one.
    #[inline]
    pub(crate) fn end(&self, call: Measured, result: Result<usize, Code>, now_ns: u64) {
        if let Some(recorder) = self.slot(call.place.into()).get() {
            let elapsed_ns = call.elapsed_ns(now_ns);
            recorder.end(elapsed_ns, call.request_bytes as usize, result);
        }
    }

    /// A call that a driver has begun did not run, and another server makes it: that one's driver counts it.
    #[cold]
    pub(crate) fn leave(&self, call: Measured) {
        if let Some(recorder) = self.slot(call.place.into()).get() {
            recorder.leave();
        }
    }

    /// The same in a turn, for a call that may have begun in another thread.
    #[inline]
    pub(super) fn end_in_turn(
        &self,
        call: Measured,
        path: &str,
        result: Result<usize, Code>,
        now_ns: u64,
    ) {
        let (recorder, elapsed_ns) = (self.own(call.place.into(), path), call.elapsed_ns(now_ns));
        recorder.end(elapsed_ns, call.request_bytes as usize, result);
    }

    /// A call ends in another thread than the endpoint's, with the bytes of its response or its code.
    #[cold]
    pub(super) fn end_elsewhere(
        &self,
        call: Measured,
        path: &str,
        result: Result<usize, Code>,
        now_ns: u64,
    ) {
        let (recorder, elapsed_ns) = (
            self.shared(call.place.into(), path),
            call.elapsed_ns(now_ns),
        );
        let (code, response) = match result {
            Ok(bytes) => (Code::Ok, Some(bytes)),
            Err(code) => (code, None),
        };
        recorder.end_with(code, elapsed_ns, call.request_bytes as usize, response);
    }

    /// The recorder of a method's place, in the endpoint's thread. The path is that of the method.
    #[inline]
    fn own(&self, place: usize, path: &str) -> &TurnRecorder {
        match self.slot(place).get() {
            Some(recorder) => recorder,
            None => self.make_own(place, path),
        }
    }

    /// The place of a method.
    #[inline]
    fn place(&self, method: u32) -> usize {
        let place = self.places.of(method);
        place.unwrap_or_else(|| self.further_place(method))
    }

    #[cold]
    fn further_place(&self, method: u32) -> usize {
        let more = self.more.get_or_init(Box::default);
        more.places.of(method).map_or(OTHER, |place| PLACES + place)
    }

    /// Where the recorder of a place is, in the endpoint's thread.
    #[inline]
    fn slot(&self, place: usize) -> &OnceLock<TurnRecorder> {
        let slot = self.own.get(place);
        slot.unwrap_or_else(|| self.further_slot(place))
    }

    #[cold]
    fn further_slot(&self, place: usize) -> &OnceLock<TurnRecorder> {
        let slot = self
            .more
            .get()
            .and_then(|more| more.own.get(place - PLACES));
        slot.unwrap_or(&self.other)
    }

    #[cold]
    fn make_own(&self, place: usize, path: &str) -> &TurnRecorder {
        self.slot(place).get_or_init(|| {
            let (address, path) = self.labels(place, path);
            TurnRecorder::new(self.turns.as_ref(), Side::Client, &address, path)
        })
    }

    /// The same in other threads.
    #[cold]
    fn shared(&self, place: usize, path: &str) -> Arc<Recorder> {
        let (address, path) = self.labels(place, path);
        let shared = || Box::new(std::array::from_fn(|_| OnceLock::new()));
        match self.shared.get_or_init(shared).get(place) {
            None => shared_recorder(&address, path),
            Some(slot) => {
                let make = || recorder(Side::Client, &address, path, Writers::Many);
                Arc::clone(slot.get_or_init(make))
            }
        }
    }

    fn labels<'a>(&self, place: usize, path: &'a str) -> (Arc<str>, &'a str) {
        match place {
            OTHER => ("_OTHER".into(), "_OTHER"),
            _ => (Arc::clone(&self.address), path),
        }
    }
}

/// The recorders of a channel's methods that all threads of the process share: found without a lock, but for the
/// first time.
#[derive(Default)]
pub(crate) struct SharedRecorders(OnceLock<Box<(Places<PLACES>, Recorders<Arc<Recorder>>)>>);

impl SharedRecorders {
    /// That of a method of this channel.
    pub(super) fn of(&self, address: &str, method: u32, path: &str) -> Arc<Recorder> {
        let empty = || Box::new((Places::default(), std::array::from_fn(|_| OnceLock::new())));
        let (places, recorders) = &**self.0.get_or_init(empty);
        match places.of(method) {
            None => shared_recorder(address, path),
            Some(place) => {
                let make = || shared_recorder(address, path);
                Arc::clone(recorders[place].get_or_init(make))
            }
        }
    }
}

/// Recorders that are kept though nobody uses them.
const KEPT: usize = 256;

type Known = HashMap<(Arc<str>, Arc<str>), Arc<Recorder>>;

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// A recorder that all threads of the process share, for what is rare or long: streams, and calls that wait for
/// a full channel.
fn shared_recorder(address: &str, path: &str) -> Arc<Recorder> {
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    let key = (Arc::from(address), Arc::from(path));
    if let Some(recorder) = known.get(&key) {
        return Arc::clone(recorder);
    }
    if known.len() >= KEPT {
        known.retain(|_, recorder| Arc::strong_count(recorder) > 1);
    }
    let recorder = recorder(Side::Client, &key.0, path, Writers::Many);
    known.insert(key, Arc::clone(&recorder));
    recorder
}

/// A call of a method is made once more.
#[cold]
pub(crate) fn record_retry(address: &str, path: &str) {
    if super::is_enabled() {
        shared_recorder(address, path).record_retry();
    }
}

/// A call waited so long for room in its channel, and then was made, or ended with a code.
#[cold]
pub(crate) fn record_queue(
    address: &str,
    operation: &Operation,
    waited: Duration,
    ended: Option<Code>,
) {
    let Operation::Call(call) = operation else {
        return;
    };
    let recorder = shared_recorder(address, call.message.path.as_str());
    let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
    recorder.record_queued(waited_ns);
    if let Some(code) = ended
        && !call.counted_by_caller
    {
        record_unmade(address, call.message.path.as_str(), waited, code);
    }
}

/// A call ended with this code after so long, and no driver has begun it.
#[cold]
fn record_unmade(address: &str, path: &str, waited: Duration, code: Code) {
    let recorder = shared_recorder(address, path);
    recorder.begin();
    recorder.end(code, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
}

/// A call that waits for a driver to begin it. If this is dropped before, it was cancelled.
pub(crate) struct QueueMeasure {
    since: Instant,
    address: Arc<str>,
    path: MethodPath,
    has_ended: bool,
}

impl QueueMeasure {
    /// None: metrics are not enabled, or the call's caller counts it.
    pub(crate) fn begin(address: &Arc<str>, call: &OutgoingCall) -> Option<Self> {
        (super::is_enabled() && !call.counted_by_caller).then(|| Self {
            since: Instant::now(),
            address: Arc::clone(address),
            path: call.message.path.clone(),
            has_ended: false,
        })
    }

    /// A driver begins the call, and counts it.
    pub(crate) fn leave(mut self) {
        self.has_ended = true;
    }

    /// The call ends with this code, and no driver has begun it.
    pub(crate) fn end(mut self, code: Code) {
        self.record(code);
    }

    fn record(&mut self, code: Code) {
        self.has_ended = true;
        record_unmade(
            &self.address,
            self.path.as_str(),
            self.since.elapsed(),
            code,
        );
    }
}

impl Drop for QueueMeasure {
    fn drop(&mut self) {
        if !self.has_ended {
            self.record(Code::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_call_of_a_method_waits_for_the_recorders_of_the_process() {
        let recorders = SharedRecorders::default();
        let other = SharedRecorders::default();
        let (address, path) = ("udp://recorders:1", "/a.A/B");
        let first = recorders.of(address, 7, path);
        assert!(Arc::ptr_eq(&first, &other.of(address, 7, path)));
        assert!(!Arc::ptr_eq(&first, &recorders.of(address, 8, "/a.A/C")));
        let _others = KNOWN.lock();
        assert!(Arc::ptr_eq(&first, &recorders.of(address, 7, path)));
    }

    #[test]
    fn methods_for_which_there_is_no_place_have_their_recorders_all_the_same() {
        let recorders = SharedRecorders::default();
        let path = |method: u32| format!("/a.Many/M{method}");
        let address = "udp://recorders:2";
        let of = |method| recorders.of(address, method, &path(method));
        let all: Vec<_> = (1..=2 * PLACES as u32).map(of).collect();
        for (method, recorder) in (1..).zip(&all) {
            assert!(Arc::ptr_eq(recorder, &of(method)), "{method}");
        }
    }
}
