//! A small call with a continuation allocates nothing, on either side, whether its handler runs
//! inline or in a worker.

#![allow(unsafe_code, reason = "a global allocator cannot be had without")]

mod common;

use std::alloc::System;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::{TestEndpoint, endpoint, settle};
use counting::Counting;
use starling_endpoint::{CallOptions, ContinuationId, Handler, MethodId, WorkerConfig};
use starling_sim::stepped::SteppedNetwork;

mod counting {
    use std::alloc::{GlobalAlloc, Layout};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the allocations that it passes on.
    pub(super) struct Counting<A> {
        inner: A,
        count: AtomicU64,
    }

    impl<A> Counting<A> {
        pub(super) const fn new(inner: A) -> Self {
            Self {
                inner,
                count: AtomicU64::new(0),
            }
        }

        pub(super) fn count(&self) -> u64 {
            self.count.load(Ordering::Relaxed)
        }
    }

    // SAFETY: every call goes unchanged to the inner allocator, which upholds the contract.
    unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            self.count.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the caller keeps the contract.
            unsafe { self.inner.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract.
            unsafe { self.inner.dealloc(at, layout) }
        }

        unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            self.count.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the caller keeps the contract.
            unsafe { self.inner.realloc(at, layout, size) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting::new(System);

const IN_FLIGHT: u64 = 60;

// The only test of this binary: the thread of another test would be counted, too.
#[test]
fn a_small_call_allocates_nothing() {
    check(50_000, 0, |server| {
        server.register(
            MethodId(1),
            Handler::inline(|_, request, mut reply| {
                reply.buffer().extend_from_slice(request.body());
                reply.ok();
            }),
        );
    });
    check(5_000, 2, |server| {
        server.start_workers(&WorkerConfig::new(2, 100)).unwrap();
        server.register_worker(
            MethodId(1),
            Arc::new(|request, reply| {
                let is_new = HAS_RUN.with(|has_run| !has_run.replace(true));
                WORKERS.fetch_add(u64::from(is_new), Ordering::SeqCst);
                reply.buffer().extend_from_slice(request.body());
            }),
        );
    });
}

/// Workers that have run a request. A thread that has not may still be about to start, which allocates.
static WORKERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HAS_RUN: Cell<bool> = const { Cell::new(false) };
}

fn check(calls: u64, workers: u64, serve: impl FnOnce(&mut TestEndpoint)) {
    let network = SteppedNetwork::default();
    let (mut client, mut server) = (endpoint(&network, 1), endpoint(&network, 2));
    serve(&mut server);
    let session = client.connect(&server.local_address()).unwrap();
    let left = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    let again = Arc::new(OnceLock::<ContinuationId>::new());
    let (left_in, done_in, again_in) = (left.clone(), done.clone(), again.clone());
    let options = CallOptions::default();
    let id = client.register_continuation(move |context, completion| {
        let response = completion.result.unwrap();
        assert_eq!(response.body().len(), 32);
        assert_eq!(response.body()[..8], completion.tag.to_le_bytes());
        done_in.fetch_add(1, Ordering::Relaxed);
        let left = left_in.load(Ordering::Relaxed);
        if left > 0 {
            let tag = left - 1;
            left_in.store(tag, Ordering::Relaxed);
            let build = |buffer: &mut Vec<u8>| {
                buffer.extend_from_slice(&tag.to_le_bytes());
                buffer.extend_from_slice(&[7; 24]);
            };
            let id = *again_in.get().unwrap();
            context
                .call(session, MethodId(1), &options, build, id, tag)
                .unwrap();
        }
    });
    again.set(id).unwrap();

    let mut run = |calls: u64| {
        left.store(calls - IN_FLIGHT, Ordering::Relaxed);
        done.store(0, Ordering::Relaxed);
        for tag in 0..IN_FLIGHT {
            let build = |buffer: &mut Vec<u8>| {
                buffer.extend_from_slice(&tag.to_le_bytes());
                buffer.extend_from_slice(&[7; 24]);
            };
            let options = CallOptions::default();
            client
                .call(session, MethodId(1), &options, build, id, tag)
                .unwrap();
        }
        settle(&mut [&mut client, &mut server]);
        while server.requests_pending() > 0 {
            server.io().thread_waker().park();
            settle(&mut [&mut client, &mut server]);
        }
        assert_eq!(done.load(Ordering::Relaxed), calls);
    };
    run(calls / 5);
    while WORKERS.load(Ordering::SeqCst) < workers {
        run(calls / 5);
    }
    let before = ALLOCATOR.count();
    run(calls);
    // As long as the keepalive, so that the client suspects its peer, as on a busy host.
    network.clock().advance(Duration::from_millis(600));
    run(calls);
    let allocations = ALLOCATOR.count() - before;
    assert_eq!(allocations, 0, "in {} calls", 2 * calls);
}
