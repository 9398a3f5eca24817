//! From method id to handler: open addressing with multiplicative hashing (Knuth, TAOCP 3,
//! section 6.4). The author of the server chooses the method ids, not its peers, so no peer can aim
//! at one bucket. A lookup is a multiplication and, nearly always, one compare.

use starling_call::MethodId;
use starling_io::PacketIo;

use crate::admission::RunTime;
use crate::context::{Handler, HandlerKind};
use crate::workers::WorkerHandler;

struct Bucket<I: PacketIo> {
    method: u32,
    /// `None`: the bucket is free.
    handler: Option<HandlerKind<I>>,
    run_time: RunTime,
}

/// The handlers of an endpoint.
pub(crate) struct Methods<I: PacketIo> {
    /// A power of two of them, at most half of them used. They hold the handlers themselves, so
    /// that a lookup reads one cache line.
    buckets: Vec<Bucket<I>>,
    shift: u32,
    used: usize,
    /// Of all other methods.
    others: Option<HandlerKind<I>>,
}

/// The binary logarithm of the initial number of buckets.
const BITS: u32 = 3;

impl<I: PacketIo> Methods<I> {
    pub(crate) fn new() -> Self {
        Self {
            buckets: free_buckets(1 << BITS),
            shift: u32::BITS - BITS,
            used: 0,
            others: None,
        }
    }

    /// The handler of a method, or that of all others.
    #[inline]
    pub(crate) fn find(&mut self, method: MethodId) -> Option<&mut HandlerKind<I>> {
        let index = self.index_of(method);
        self.buckets[index]
            .handler
            .as_mut()
            .or(self.others.as_mut())
    }

    /// From now on this handles all methods without a handler of their own.
    pub(crate) fn set_others(&mut self, handler: Handler<I>) {
        self.others = Some(handler.0);
    }

    /// The handler of a method, as it is kept: one compare tells its kind and that it is there.
    #[inline]
    pub(crate) fn entry(&mut self, method: MethodId) -> &mut Option<HandlerKind<I>> {
        let index = self.index_of(method);
        &mut self.buckets[index].handler
    }

    /// The bucket of a method, or the free one where it belongs.
    #[inline]
    fn index_of(&self, method: MethodId) -> usize {
        let index = self.first_bucket(method.0);
        // Nearly always it is there, so this is separate from the search.
        match self.buckets.get(index) {
            Some(bucket) if bucket.method == method.0 => index,
            _ => self.bucket(method.0),
        }
    }

    /// Where a method is unless another one has its bucket.
    #[inline]
    fn first_bucket(&self, method: u32) -> usize {
        (method.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    /// The bucket of a method, or the free one where it belongs.
    #[inline(never)]
    fn bucket(&self, method: u32) -> usize {
        let mut index = self.first_bucket(method);
        // Ends: at most half of the buckets are used.
        loop {
            let bucket = &self.buckets[index];
            if bucket.method == method || bucket.handler.is_none() {
                return index;
            }
            index = (index + 1) & (self.buckets.len() - 1);
        }
    }

    /// Adds a handler, in place of an earlier one for the same method.
    pub(crate) fn insert(&mut self, method: MethodId, handler: Handler<I>) {
        if let Some(found) = self.entry(method) {
            *found = handler.0;
            return;
        }
        self.used += 1;
        if 2 * self.used > self.buckets.len() {
            self.grow();
        }
        let index = self.bucket(method.0);
        self.buckets[index] = Bucket {
            method: method.0,
            handler: Some(handler.0),
            run_time: RunTime::default(),
        };
    }

    /// The methods that run in workers.
    pub(crate) fn of_workers(&self) -> impl Iterator<Item = (MethodId, &WorkerHandler)> {
        self.buckets.iter().filter_map(|bucket| {
            let HandlerKind::Worker(handler) = bucket.handler.as_ref()? else {
                return None;
            };
            Some((MethodId(bucket.method), handler))
        })
    }

    /// From now on the requests of a method with an inline handler need room to wait.
    #[cold]
    pub(crate) fn set_deferring(&mut self, method: MethodId) {
        let index = self.bucket(method.0);
        let handler = &mut self.buckets[index].handler;
        *handler = match handler.take() {
            Some(HandlerKind::OfEndpoint(run)) => Some(HandlerKind::Deferring(run)),
            other => other,
        };
    }

    /// How long a method's handler runs when it is called with a deadline.
    pub(crate) fn run_time(&mut self, method: MethodId) -> Option<&mut RunTime> {
        let index = self.bucket(method.0);
        let bucket = &mut self.buckets[index];
        bucket.handler.is_some().then_some(&mut bucket.run_time)
    }

    /// Records that a method's handler ran.
    #[cold]
    pub(crate) fn record_run_time(&mut self, method: MethodId, began_ns: u64, ended_ns: u64) {
        if let Some(run_time) = self.run_time(method) {
            run_time.record(ended_ns.saturating_sub(began_ns));
        }
    }

    fn grow(&mut self) {
        let twice = free_buckets(2 * self.buckets.len());
        let old = std::mem::replace(&mut self.buckets, twice);
        self.shift -= 1;
        for bucket in old.into_iter().filter(|bucket| bucket.handler.is_some()) {
            let index = self.bucket(bucket.method);
            self.buckets[index] = bucket;
        }
    }
}

fn free_buckets<I: PacketIo>(count: usize) -> Vec<Bucket<I>> {
    let free = || Bucket {
        method: 0,
        handler: None,
        run_time: RunTime::default(),
    };
    std::iter::repeat_with(free).take(count).collect()
}
