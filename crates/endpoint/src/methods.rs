//! From method id to handler: open addressing with multiplicative hashing (Knuth, TAOCP 3,
//! section 6.4). Method ids are chosen by whoever writes the server, not by its peers, so nobody
//! can aim at one bucket; a lookup is a multiplication and, nearly always, one compare.

use starling_io::PacketIo;

use crate::context::Context;
use crate::header::MethodId;
use crate::server::{Reply, Request};
use crate::worker::WorkerHandler;

/// What an inline handler is.
pub(crate) type InlineFn<I> = dyn FnMut(&mut Context<'_, I>, Request<'_>, Reply<'_>);

/// What runs when a request arrives.
pub struct Handler<I: PacketIo>(pub(crate) HandlerKind<I>);

pub(crate) enum HandlerKind<I: PacketIo> {
    Inline(Box<InlineFn<I>>),
    Worker(WorkerHandler),
}

impl<I: PacketIo> Handler<I> {
    /// Runs in the endpoint's own thread, on the receive buffer: for what takes less than some
    /// microseconds. Everything else of this endpoint waits meanwhile.
    pub fn inline(
        handler: impl FnMut(&mut Context<'_, I>, Request<'_>, Reply<'_>) + 'static,
    ) -> Self {
        Self(HandlerKind::Inline(Box::new(handler)))
    }

    /// Runs in a thread of the endpoint's worker pool; see
    /// [`crate::Endpoint::start_workers`].
    pub fn worker(handler: WorkerHandler) -> Self {
        Self(HandlerKind::Worker(handler))
    }
}

#[derive(Clone, Copy)]
struct Bucket {
    method: u32,
    handler: u32,
}

/// A bucket that nothing is in.
const FREE: u32 = u32::MAX;

pub(crate) struct Methods<I: PacketIo> {
    buckets: Vec<Bucket>,
    shift: u32,
    handlers: Vec<HandlerKind<I>>,
}

impl<I: PacketIo> Methods<I> {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![
                Bucket {
                    method: 0,
                    handler: FREE
                };
                8
            ],
            shift: 32 - 3,
            handlers: Vec::new(),
        }
    }

    /// The bucket of a method, or the free one where it belongs.
    #[inline]
    fn bucket(&self, method: u32) -> usize {
        let mask = self.buckets.len() - 1;
        let mut index = (method.wrapping_mul(0x9e37_79b1) >> self.shift) as usize;
        loop {
            // Ends: at most half of the buckets are taken.
            let bucket = self.buckets[index & mask];
            if bucket.handler == FREE || bucket.method == method {
                return index & mask;
            }
            index += 1;
        }
    }

    #[inline]
    pub(crate) fn find(&mut self, method: MethodId) -> Option<&mut HandlerKind<I>> {
        let handler = self.buckets[self.bucket(method.0)].handler;
        self.handlers.get_mut(handler as usize)
    }

    /// Adds a handler, in place of an earlier one for the same method.
    pub(crate) fn insert(&mut self, method: MethodId, handler: Handler<I>) {
        if let Some(place) = self.find(method) {
            *place = handler.0;
            return;
        }
        if 2 * (self.handlers.len() + 1) > self.buckets.len() {
            self.grow();
        }
        let index = self.bucket(method.0);
        self.buckets[index] = Bucket {
            method: method.0,
            handler: self.handlers.len() as u32,
        };
        self.handlers.push(handler.0);
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.buckets);
        self.shift -= 1;
        self.buckets = vec![
            Bucket {
                method: 0,
                handler: FREE
            };
            2 * old.len()
        ];
        for bucket in old.into_iter().filter(|bucket| bucket.handler != FREE) {
            let index = self.bucket(bucket.method);
            self.buckets[index] = bucket;
        }
    }
}
