//! Requests that wait outside their handlers are bounded, in all and for each client: also those of a
//! client that uses a slot again and again before it is answered.

mod common;

use std::sync::Arc;

use common::raw::Raw;
use common::{Pair, code};
use parking_lot::Mutex;
use starling_endpoint::{
    Code, Context, DeferredReply, Dispatch, EndpointConfig, Handler, Job, MethodId, Reply, Request,
    WorkerReply, WorkerRequest,
};
use starling_sim::stepped::SteppedIo;

/// Requests that may wait.
const MAX_WAITING: usize = 8;
/// The largest message of the server.
const MAX_MESSAGE: u32 = 4 << 10;
/// Of requests of 1,004 bytes, a client alone may have ten: 10,040 bytes, and fewer are free.
const MAX_WAITING_BYTES: usize = 20 << 10;

const SLOW: u32 = 1;
const ECHO: u32 = 2;

/// How the slow method waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Deferring,
    /// As an inline handler, of which the endpoint learns that it defers.
    Inline,
    Worker,
}

const ALL: [Waits; 3] = [Waits::Deferring, Waits::Inline, Waits::Worker];

/// Replies that no handler will ever complete.
type Kept = Arc<Mutex<Vec<DeferredReply>>>;

/// Jobs of stalled workers: those that wait, and those that were run.
type Jobs = (Vec<Box<Job>>, Vec<Box<Job>>);

/// Workers that begin nothing until the test says so.
#[derive(Clone, Default)]
struct Stalled(Arc<Mutex<Jobs>>);

impl Stalled {
    /// Runs all jobs.
    fn run(&self) {
        let (queued, done) = &mut *self.0.lock();
        for mut job in queued.drain(..) {
            job.run(0);
            done.push(job);
        }
    }
}

impl Dispatch for Stalled {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        self.0.lock().0.push(job);
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        self.0.lock().1.pop()
    }

    fn in_flight(&self) -> usize {
        let (queued, done) = &*self.0.lock();
        queued.len() + done.len()
    }
}

/// A server with a slow method, a client that waits for its answers, and one that does not.
struct Greedy {
    pair: Pair,
    raw: Raw,
    /// The last number that the raw client used.
    number: u64,
    kept: Kept,
    workers: Stalled,
    /// Requests that ran in workers.
    ran: Arc<Mutex<usize>>,
}

impl Greedy {
    /// The raw client has made one request of the slow method, with so many bytes.
    fn new(waits: Waits, max_waiting: usize, bytes: usize) -> Self {
        Self::with_request(waits, max_waiting, false, &vec![0; bytes - 4])
    }

    /// The raw client has made one request of the slow method, with these bytes behind its method id.
    fn with_request(waits: Waits, max_waiting: usize, ext: bool, rest: &[u8]) -> Self {
        let mut config = EndpointConfig {
            max_waiting,
            max_waiting_bytes: MAX_WAITING_BYTES,
            ..EndpointConfig::default()
        };
        config.protocol.max_message = MAX_MESSAGE;
        let mut pair = Pair::with(config);
        let (kept, workers, ran) = (Kept::default(), Stalled::default(), Arc::default());
        register(&mut pair, waits, &kept, &ran);
        pair.server.set_dispatch(Box::new(workers.clone()));
        let mut raw = Raw::new(&pair.network);
        let session = raw.connect(&pair.server.local_address());
        for _ in 0..4 {
            raw.turn();
            pair.settle();
        }
        let request = [&SLOW.to_le_bytes(), rest].concat();
        raw.request(session, ext, &request);
        raw.turn();
        pair.settle();
        assert_eq!(pair.server.stats().requests, 1);
        Self {
            pair,
            raw,
            number: 1,
            kept,
            workers,
            ran,
        }
    }

    /// The raw client uses the slot again, `times` times.
    fn displace(&mut self, times: usize) {
        for _ in 0..times {
            self.number += 1;
            self.raw.send_again_as(self.number);
            self.pair.settle();
        }
    }

    fn pending(&self) -> usize {
        self.pair.server.requests_pending()
    }

    fn refused(&self) -> u64 {
        self.pair.server.stats().waiting_full
    }

    /// All that waits ends. Returns how many handlers were told that nobody waits.
    fn end_all(&mut self) -> usize {
        let kept = std::mem::take(&mut *self.kept.lock());
        let cancelled = kept.iter().filter(|reply| reply.is_cancelled()).count();
        drop(kept);
        self.workers.run();
        self.pair.settle();
        let cancelled_in_queue = self.pair.server.stats().cancelled_in_queue;
        cancelled + cancelled_in_queue as usize
    }
}

/// Registers the methods.
fn register(pair: &mut Pair, waits: Waits, kept: &Kept, ran: &Arc<Mutex<usize>>) {
    let (kept, ran) = (kept.clone(), ran.clone());
    let defer = move |_: &mut Context<'_, SteppedIo>, _: Request<'_>, reply: Reply<'_>| {
        kept.lock().push(reply.defer());
    };
    let work = move |_: &mut WorkerRequest, _: &mut WorkerReply| *ran.lock() += 1;
    let slow = match waits {
        Waits::Deferring => Handler::deferring(defer),
        Waits::Inline => Handler::inline(defer),
        Waits::Worker => Handler::worker(Arc::new(work)),
    };
    pair.server.register(MethodId(SLOW), slow);
    let echo = Handler::inline(|_, request, mut reply| {
        reply.buffer().extend_from_slice(request.body());
        reply.ok();
    });
    pair.server.register(MethodId(ECHO), echo);
}

#[test]
fn a_client_that_displaces_its_requests_has_its_share_waiting_and_no_more() {
    for waits in ALL {
        let mut greedy = Greedy::new(waits, MAX_WAITING, 10);
        greedy.displace(99);
        // The first request of a method that was not known to defer takes no room.
        let unknown = usize::from(waits == Waits::Inline);
        let share = MAX_WAITING / 2 + unknown;
        assert_eq!(greedy.pending(), share, "{waits:?}");
        assert_eq!(greedy.refused(), 100 - share as u64, "{waits:?}");

        // Another client is served, by the same method, too.
        greedy.pair.call(ECHO, b"hello", 1);
        assert_eq!(greedy.pair.one_end().expect("an answer").body(), b"hello");
        for tag in 0..4 {
            greedy.pair.call(SLOW, b"", tag);
        }
        greedy.pair.settle();
        assert_eq!(greedy.pending(), share + 2, "half of what is free");
        let ends = greedy.pair.take_ends();
        assert_eq!(ends.len(), 2, "{ends:?}");
        for (_, end) in &ends {
            assert_eq!(code(end), Code::ResourceExhausted, "{end:?}");
            let status = end.as_ref().expect_err("refused");
            assert!(!status.may_have_run(), "{status}");
        }

        assert_eq!(
            greedy.end_all(),
            share,
            "those of the one client: {waits:?}"
        );
        assert_eq!(greedy.pending(), 0);
        if waits == Waits::Worker {
            assert_eq!(*greedy.ran.lock(), 2, "only what somebody waits for");
        }
        // What it had is free again.
        greedy.displace(20);
        assert_eq!(greedy.pending(), MAX_WAITING / 2, "{waits:?}");
    }
}

#[test]
fn the_bytes_of_waiting_requests_are_bounded_too() {
    for waits in ALL {
        let mut greedy = Greedy::new(waits, 1000, 1004);
        greedy.displace(99);
        let unknown = usize::from(waits == Waits::Inline);
        assert_eq!(greedy.pending(), 10 + unknown, "{waits:?}");
        assert_eq!(greedy.refused(), 90 - unknown as u64);
        greedy.pair.call(SLOW, &[0; 1000], 1);
        greedy.pair.settle();
        assert_eq!(greedy.pending(), 11 + unknown, "there is room for another");
        greedy.end_all();
        assert_eq!(greedy.pending(), 0);
        greedy.displace(20);
        assert_eq!(greedy.pending(), 10, "{waits:?}");
    }
}

/// Requests of some bytes that say that they are 3,000 when decompressed.
#[test]
fn compressed_requests_take_the_room_of_what_they_will_be() {
    for waits in ALL {
        let [low, high, ..] = 3_000_u32.to_le_bytes();
        // One field of 5 bytes, with tag 7: the algorithm, and the length.
        let rest = [8, 0, 7, 5, 0, 3, low, high, 0, 0, 1, 2, 3, 4];
        let mut greedy = Greedy::with_request(waits, 1000, true, &rest);
        greedy.displace(99);
        let unknown = usize::from(waits == Waits::Inline);
        assert_eq!(greedy.pending(), 3 + unknown, "{waits:?}");
        assert_eq!(greedy.refused(), 97 - unknown as u64);
        greedy.end_all();
        assert_eq!(greedy.pending(), 0);
        greedy.displace(20);
        assert_eq!(greedy.pending(), 3, "{waits:?}");
    }
}

/// Nothing is refused if the handlers end when their clients have gone on.
#[test]
fn a_handler_that_is_told_leaves_its_room_at_once() {
    let mut greedy = Greedy::new(Waits::Deferring, MAX_WAITING, 10);
    greedy.pair.server.register(
        MethodId(SLOW),
        Handler::deferring(|context, _, reply| {
            let reply = reply.defer();
            let local = context.local();
            context.spawn(async move {
                let status = reply.cancelled().await;
                local.complete_with(reply, Err(status));
            });
        }),
    );
    greedy.displace(1000);
    assert_eq!(greedy.refused(), 0);
    assert_eq!(
        greedy.pending(),
        2,
        "the last one, and the first one's reply"
    );
    assert_eq!(greedy.pair.server.stats().stale_responses, 999);
}
