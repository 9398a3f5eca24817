//! The measures of a client's calls.
//!
//! The endpoint behind a channel measures: it has the time of the turn at hand when it makes a call and when
//! the response comes, and it is one thread's at a time. So a call costs no clock, no lock and no count of
//! references. For calls of an endpoint's own futures the clock is read as they begin, once for several that follow
//! one another quickly: a future may have computed for long in its turn.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::Code;
use starling_metrics::{Recorder, Side, Writers};

use super::recorder;
use super::turns::{TurnRecorder, Turns};
use crate::executor::Executor;
use crate::plane::{Operation, OutgoingCall};

/// Places for methods of one address, a power of two.
const PLACES: usize = 64;
/// Places in which a method is looked for.
const LOOKS: usize = 16;
/// The place of methods for which there is none.
const OTHER: usize = PLACES;

/// A call that is being measured. It belongs to the metrics of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    place: u8,
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
        let what = u64::from(call.request_bytes) << u8::BITS | u64::from(call.place);
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
            place: what as u8,
            request_bytes: (what >> u8::BITS) as u32,
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

/// Methods by their ids, in places that do not change: without a lock, by open addressing.
struct Places {
    /// 0: the place is free.
    methods: [AtomicU32; PLACES],
}

impl Default for Places {
    fn default() -> Self {
        Self {
            methods: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Places {
    /// The place of a method.
    #[inline]
    fn of(&self, method: u32) -> usize {
        let spread = method.wrapping_mul(0x9e37_79b1) >> (u32::BITS - PLACES.trailing_zeros());
        for step in 0..LOOKS {
            let place = (spread as usize + step) % PLACES;
            match self.methods[place].load(Ordering::Relaxed) {
                0 => return self.add(place, method),
                known if known == method => return place,
                _ => {}
            }
        }
        OTHER
    }

    /// Takes a free place, unless another thread does.
    #[cold]
    fn add(&self, place: usize, method: u32) -> usize {
        let (order, known) = (Ordering::Relaxed, &self.methods[place]);
        match known.compare_exchange(0, method, order, order) {
            Ok(_) => place,
            Err(other) if other == method => place,
            Err(_) => OTHER,
        }
    }
}

/// The recorders of methods, by their places; the last one is that of the methods for which there is no place.
type Recorders<R> = [OnceLock<R>; PLACES + 1];

/// The recorders of the calls that one endpoint makes to one address.
pub(crate) struct ClientMetrics {
    address: Arc<str>,
    places: Places,
    /// Those of the endpoint's thread.
    own: Recorders<TurnRecorder>,
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
        let place = self.places.of(method);
        match at {
            Place::Endpoint => self.own(place, path).begin(),
            Place::Elsewhere => self.shared(place, path).begin(),
        }
        Measured {
            place: place as u8,
            request_bytes: u32::try_from(request_bytes).unwrap_or(u32::MAX),
            begun_ns: NonZero::new(now_ns).unwrap_or(NonZero::<u64>::MIN),
        }
    }

    /// A call ends that a driver has begun: with the bytes of its response or a code. If this is between two
    /// turns, the call is counted with those of the next one.
    #[inline]
    pub(crate) fn end(&self, call: Measured, result: Result<usize, Code>, now_ns: u64) {
        if let Some(recorder) = self.own[usize::from(call.place)].get() {
            let elapsed_ns = call.elapsed_ns(now_ns);
            recorder.end(elapsed_ns, call.request_bytes as usize, result);
        }
    }

    /// A call that a driver has begun did not run, and another server makes it: that one's driver counts it.
    #[cold]
    pub(crate) fn leave(&self, call: Measured) {
        if let Some(recorder) = self.own[usize::from(call.place)].get() {
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
        match self.own[place].get() {
            Some(recorder) => recorder,
            None => self.make_own(place, path),
        }
    }

    #[cold]
    fn make_own(&self, place: usize, path: &str) -> &TurnRecorder {
        self.own[place].get_or_init(|| {
            let (address, path) = self.labels(place, path);
            TurnRecorder::new(self.turns.as_ref(), Side::Client, &address, path)
        })
    }

    /// The same in other threads.
    #[cold]
    fn shared(&self, place: usize, path: &str) -> &Recorder {
        let shared = || Box::new(std::array::from_fn(|_| OnceLock::new()));
        self.shared.get_or_init(shared)[place].get_or_init(|| {
            let (address, path) = self.labels(place, path);
            recorder(Side::Client, &address, path, Writers::Many)
        })
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
pub(crate) struct SharedRecorders(OnceLock<Box<(Places, Recorders<Arc<Recorder>>)>>);

impl SharedRecorders {
    /// That of a method of this channel.
    pub(super) fn of(&self, address: &str, method: u32, path: &str) -> Arc<Recorder> {
        let empty = || Box::new((Places::default(), std::array::from_fn(|_| OnceLock::new())));
        let (places, recorders) = &**self.0.get_or_init(empty);
        match places.of(method) {
            OTHER => shared_recorder(address, path),
            place => Arc::clone(recorders[place].get_or_init(|| shared_recorder(address, path))),
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
    if let Some(code) = ended {
        record_unmade(address, operation, waited, code);
    }
}

/// A call ended with this code after so long, and no driver has begun it.
#[cold]
pub(crate) fn record_unmade(address: &str, operation: &Operation, waited: Duration, code: Code) {
    if let Operation::Call(call) = operation
        && !call.counted_by_caller
    {
        let recorder = shared_recorder(address, call.message.path.as_str());
        recorder.begin();
        recorder.end(code, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
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
