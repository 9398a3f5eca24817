//! Services for the futures of one endpoint's thread: tasks, timers, the clock and random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_endpoint::{LargeBuffers, LocalHandle};
use starling_io::{Clock, MonotonicClock};
use starling_message::protobuf::DecodeLimits;

use crate::metrics::{CallClock, Turns};
use crate::streaming::ByteAccount;
use crate::time::Time;

pub(crate) struct Executor {
    pub(crate) local: LocalHandle,
    /// Those of the endpoint.
    pub(crate) buffers: LargeBuffers,
    /// For what the endpoint's thread counts at the end of a turn, if metrics are enabled.
    pub(crate) turns: Option<Arc<Turns>>,
    clock: MonotonicClock,
    /// The times of measured calls.
    calls: CallClock,
    pub(crate) time: Time,
    /// What the streams hold that the futures open.
    pub(crate) streams: Arc<ByteAccount>,
    /// What responses and messages of streams may take that come in protobuf.
    pub(crate) decode: DecodeLimits,
    /// State of the generator for jitter.
    random: AtomicU64,
}

impl Executor {
    pub(crate) fn new(
        local: LocalHandle,
        buffers: LargeBuffers,
        clock: MonotonicClock,
        time: Time,
        seed: u64,
        turns: Option<Arc<Turns>>,
        decode: DecodeLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            local,
            buffers,
            turns,
            clock,
            calls: CallClock::default(),
            time,
            streams: ByteAccount::of_client(None),
            decode,
            random: AtomicU64::new(seed | 1),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// The time of a call that is measured, in the endpoint's thread.
    #[inline]
    pub(crate) fn call_ns(&self) -> u64 {
        self.calls.time_of_call(&self.clock)
    }

    /// The endpoint's thread runs futures next, and may have done something else.
    #[inline]
    pub(crate) fn begin_turn(&self) {
        if self.turns.is_some() {
            self.calls.begin_turn();
        }
    }

    /// A number for jitter: xorshift64 (Marsaglia, 2003). Two callers at once may get the same one.
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        x
    }
}
