//! The allocations of a small typed call: none at the server and in the raw client, one buffer in
//! which a local channel keeps the response. And those of a stream's small message: none of its own.

#![allow(unsafe_code, reason = "a global allocator cannot be had without")]

#[path = "../common/mod.rs"]
mod common;
mod numbers;

use std::alloc::System;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Gate, payload, shm_address};
use counting::Counting;
use numbers::{CASES, Numbers};
use starling::{Endpoint, Idle, Message};
use starling_endpoint::{CallOptions, MethodId};
use starling_io_shm::ShmIo;
use starling_test_protos::streams::{StreamsClient, StreamsServer};
use starling_test_protos::test::{TEST_SERVICE, TestClient, TestServer};

mod counting {
    use std::alloc::{GlobalAlloc, Layout};
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts each thread's allocations, and passes them on.
    pub(super) struct Counting<A>(pub(super) A);

    /// Allocations of this thread so far.
    pub(super) fn count() -> u64 {
        COUNT.get()
    }

    fn add_one() {
        // A thread that is ending is not counted.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
    }

    // SAFETY: every call goes unchanged to the inner allocator, which upholds the contract.
    unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            add_one();
            // SAFETY: the caller keeps the contract.
            unsafe { self.0.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract.
            unsafe { self.0.dealloc(at, layout) }
        }

        unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            add_one();
            // SAFETY: the caller keeps the contract.
            unsafe { self.0.realloc(at, layout, size) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Calls before counting: pools and tables have their size then.
const WARM_UP: u64 = 6000;
const CALLS: u64 = 1000;
const COUNTED: Range<u64> = WARM_UP..WARM_UP + CALLS;
/// While one of these calls is under way the thread is held up, as a busy machine may do at any time. The server asks
/// why, and shares its time among clients for a while.
const HELD_UP: [u64; 2] = [500, WARM_UP + 500];
/// Before this call there are none for so long that the server shares its time no more.
const AT_REST: u64 = WARM_UP + 250;

/// Messages of a stream. Some thousand of them travel together.
const ITEMS: u64 = 1_000_000;

/// Allocations while `done` is in this range. Everything happens in this thread.
fn count(done: &AtomicU64, counted: Range<u64>, mut turn: impl FnMut()) -> u64 {
    while done.load(Ordering::Relaxed) < counted.start {
        turn();
    }
    let before = counting::count();
    while done.load(Ordering::Relaxed) < counted.end {
        turn();
    }
    counting::count() - before
}

#[test]
fn a_small_typed_call_allocates_at_most_the_kept_response() {
    check();
    // Nor do metrics, and traces that the call is not in.
    starling::metrics::enable();
    starling::trace::enable(0.0);
    check();
}

fn check() {
    let service = TestServer::new(common::Service(Arc::new(Gate::default())));
    let address = shm_address();
    let mut server = Endpoint::builder()
        .bind(&address)
        .idle(Idle::Spin)
        .add_service(service)
        .build()
        .expect("an endpoint");
    let client = || {
        let builder = Endpoint::builder().reach(&address).idle(Idle::Spin);
        builder.build().expect("an endpoint")
    };

    let mut endpoint = client();
    let raw = endpoint.raw::<ShmIo>().expect("its device");
    let done = Arc::new(AtomicU64::new(0));
    let its_done = Arc::clone(&done);
    let continuation = raw.register_continuation(move |_, completion| {
        completion.result.expect("an echo");
        its_done.fetch_add(1, Ordering::Relaxed);
    });
    let session = raw.connect(&address).expect("a session");
    let (request, options) = (payload(b"a small request"), CallOptions::default());
    let echo = MethodId(TEST_SERVICE.methods[0].id);
    let mut made = 0;
    let allocations = count(&done, COUNTED, || {
        if [made, done.load(Ordering::Relaxed)] == [AT_REST; 2] {
            std::thread::sleep(Duration::from_millis(30));
            (0..2).for_each(|_| server.poll().map(drop).expect("no device fails"));
        }
        let mut is_held_up = false;
        // Every slot is used before counting begins.
        let in_flight = if done.load(Ordering::Relaxed) < WARM_UP / 2 {
            16
        } else {
            1
        };
        while made < done.load(Ordering::Relaxed) + in_flight {
            made += 1;
            let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(request.parts().0);
            raw.call(session, echo, &options, build, continuation, 0)
                .expect("there is room");
            is_held_up |= HELD_UP.contains(&made);
        }
        raw.poll().expect("no device fails");
        if is_held_up {
            std::thread::sleep(Duration::from_millis(60));
        }
        server.poll().expect("no device fails");
    });
    assert!(server.stats().stalls >= 2, "{:?}", server.stats());
    assert_eq!(allocations, 0, "in {CALLS} calls of a raw client");

    let mut endpoint = client();
    let local = TestClient::new(endpoint.channel(&address).expect("a channel"));
    done.store(0, Ordering::Relaxed);
    let its_done = Arc::clone(&done);
    endpoint.spawn(async move {
        loop {
            let response = local.echo(&request).await.expect("an echo");
            assert_eq!(response.message().bytes(), b"a small request");
            its_done.fetch_add(1, Ordering::Relaxed);
        }
    });
    let allocations = count(&done, COUNTED, || {
        endpoint.poll().expect("no device fails");
        server.poll().expect("no device fails");
    });
    assert!(
        allocations <= CALLS,
        "{allocations} in {CALLS} calls of a local channel"
    );
}

#[test]
fn a_small_message_of_a_stream_allocates_nothing_at_either_end() {
    for case in CASES {
        let done = Arc::new(AtomicU64::new(0));
        let address = shm_address();
        let service = StreamsServer::new(Numbers(Arc::clone(&done)));
        let mut server = Endpoint::builder()
            .bind(&address)
            .idle(Idle::Spin)
            .add_service(service)
            .build()
            .expect("an endpoint");
        let builder = Endpoint::builder().reach(&address).idle(Idle::Spin);
        let mut endpoint = builder.build().expect("an endpoint");
        let client = StreamsClient::new(endpoint.channel(&address).expect("a channel"));
        endpoint.spawn(numbers::use_stream(client, case, Arc::clone(&done)));
        let allocations = count(&done, ITEMS / 2..ITEMS + ITEMS / 2, || {
            endpoint.poll().expect("no device fails");
            server.poll().expect("no device fails");
        });
        // What travels together has memory of its own.
        assert!(
            allocations < ITEMS / 50,
            "{case:?}: {allocations} for {ITEMS} messages"
        );
    }
}
