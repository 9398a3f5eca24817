//! What a stream keeps at each end while nobody says anything, by counting what is allocated.

#![allow(unsafe_code, reason = "a global allocator cannot be had without")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod service;

use std::alloc::System;

use common::shm_address;
use counting::{Counting, Side};
use service::{end, number, serve};

mod counting {
    use std::alloc::{GlobalAlloc, Layout};
    use std::cell::Cell;
    use std::sync::atomic::{AtomicIsize, Ordering};

    /// Of a stream.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Side {
        Client,
        Server,
    }

    static BYTES: [AtomicIsize; 2] = [const { AtomicIsize::new(0) }; 2];

    thread_local! {
        static SIDE: Cell<Option<Side>> = const { Cell::new(None) };
    }

    /// Counts each side's bytes, and passes all on.
    pub(super) struct Counting<A>(pub(super) A);

    /// Bytes that a side has allocated and not freed.
    pub(super) fn live(side: Side) -> isize {
        BYTES[side as usize].load(Ordering::SeqCst)
    }

    /// The side of this thread: a server's threads say so in their names.
    fn side() -> Side {
        let find = || {
            let mut name = [0_u8; 16];
            // SAFETY: the kernel writes a name of at most 16 bytes there.
            let named = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
            assert_eq!(named, 0);
            match name.starts_with(b"starling-shm-s") {
                true => Side::Server,
                false => Side::Client,
            }
        };
        let known = SIDE.try_with(|side| match side.get() {
            Some(side) => side,
            None => {
                let found = find();
                side.set(Some(found));
                found
            }
        });
        known.unwrap_or_else(|_| find())
    }

    fn add(layout: Layout, sign: isize) {
        // As glibc's malloc does.
        let bytes = (layout.size() + 8).next_multiple_of(16).max(32) as isize;
        BYTES[side() as usize].fetch_add(sign * bytes, Ordering::SeqCst);
    }

    // SAFETY: every call goes unchanged to the inner allocator, which upholds the contract.
    unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            add(layout, 1);
            // SAFETY: the caller keeps the contract.
            unsafe { self.0.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            add(layout, -1);
            // SAFETY: the caller keeps the contract.
            unsafe { self.0.dealloc(at, layout) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Streams, and those before them.
const STREAMS: usize = 10_000;
const FIRST: usize = 100;
/// Streams whose items are on their way at once.
const AT_ONCE: usize = 50;

/// Bytes that one of the streams allocates at most, with the tables that they are in, and without the two halves that
/// the caller has.
const MOST_OF_CLIENT: isize = 915;
const MOST_OF_SERVER: isize = 1580;

#[test]
fn an_idle_stream_keeps_little_at_each_end() {
    let (server, _, client) = serve(&shm_address());
    let mut streams = Vec::with_capacity(FIRST + STREAMS);
    let mut open = |count: usize| {
        for _ in 0..count / AT_ONCE {
            let begin = streams.len();
            streams.extend((0..AT_ONCE).map(|_| client.echo()));
            for (there, _) in &mut streams[begin..] {
                there.send_wait(&number(1, 32)).expect("room");
            }
            for (_, back) in &mut streams[begin..] {
                back.wait().expect("a number");
            }
        }
    };
    open(FIRST);
    let sides = [Side::Client, Side::Server];
    let before = sides.map(counting::live);
    open(STREAMS);
    for (side, before) in sides.into_iter().zip(before) {
        let each = (counting::live(side) - before) / STREAMS as isize;
        let most = match side {
            Side::Client => MOST_OF_CLIENT,
            Side::Server => MOST_OF_SERVER,
        };
        assert!(each <= most, "{each} bytes of a stream, {side:?}");
    }
    streams.clear();
    end(server);
}
