//! Panics, drops and ends at unusual moments, and the largest values of a configuration.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use common::{Pair, ms};
use parking_lot::Mutex;
use starling_endpoint::{CallError, Dispatch, Handler, Job, MethodId, Status, WorkerConfig};

/// A handler may return the status of a nested call that did not run; the handler itself ran.
#[test]
fn a_forwarded_status_does_not_mark_the_handlers_own_request_as_not_run() {
    let mut pair = Pair::new();
    let ran = Arc::new(AtomicU64::new(0));
    let counts = ran.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| {
            counts.fetch_add(1, Ordering::Relaxed);
            // Like `?` in a handler, after a nested call.
            reply.status(Status::from(CallError::QueueFull));
        }),
    );
    pair.call(1, b"", 1);
    let status = pair.one_end().unwrap_err();
    assert_eq!(ran.load(Ordering::Relaxed), 1, "the handler ran");
    assert!(status.may_have_run(), "{status:?}");
}

#[test]
fn a_queue_without_a_bound_takes_requests() {
    let mut pair = Pair::new();
    pair.server
        .start_workers(&WorkerConfig::new(1, usize::MAX))
        .unwrap();
    pair.server
        .register_worker(MethodId(1), Arc::new(|_, reply| reply.buffer().push(1)));
    pair.call(1, b"", 1);
    for _ in 0..200 {
        pair.settle();
        std::thread::sleep(ms(1));
    }
    let end = pair.one_end();
    assert_eq!(end.unwrap().body(), [1]);
}

struct Bomb(bool);

impl Future for Bomb {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 {
            panic!("in drop");
        }
    }
}

#[test]
fn a_future_that_panics_when_it_is_dropped_stops_no_other() {
    let mut pair = Pair::new();
    pair.settle();
    let local = pair.client.local();
    let done = Arc::new(AtomicBool::new(false));
    local.spawn(Bomb(true));
    let (sets, its_local) = (done.clone(), local.clone());
    local.spawn(async move {
        its_local.sleep(ms(5)).await;
        sets.store(true, Ordering::Relaxed);
    });
    let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = pair.client.poll().unwrap();
    }));
    let escaped = first.is_err();
    pair.pass(ms(20));
    assert!(
        done.load(Ordering::Relaxed),
        "the other one was lost (panic escaped: {escaped})"
    );
    assert!(!escaped, "the panic went to the owner of the endpoint");
}

#[test]
fn invalid_settings_of_workers_are_refused() {
    let mut pair = Pair::new();
    let mut config = WorkerConfig::new(1, 16);
    config.depth = 9;
    let error = pair.server.start_workers(&config).unwrap_err();
    assert_eq!(error.fault, starling_io::Fault::Caller);
    let says = "WorkerConfig::depth is 9; it must be 1 to 8";
    assert!(error.to_string().ends_with(says), "{error}");
}

#[test]
fn starting_workers_twice_is_refused_and_loses_no_request() {
    let mut pair = Pair::new();
    let config = WorkerConfig::new(1, 16);
    pair.server.start_workers(&config).unwrap();
    let again = pair.server.start_workers(&config).unwrap_err();
    assert!(again.to_string().contains("workers already"), "{again}");
    pair.server
        .register_worker(MethodId(1), Arc::new(|_, reply| reply.buffer().push(1)));
    pair.call(1, b"", 1);
    for _ in 0..200 {
        pair.settle();
        std::thread::sleep(ms(1));
    }
    assert_eq!(pair.one_end().unwrap().body(), [1]);
}

struct PanicBomb;
impl Drop for PanicBomb {
    fn drop(&mut self) {
        panic!("payload's drop");
    }
}

#[test]
fn panics_of_several_continuations_lose_no_response() {
    let mut pair = Pair::new();
    pair.server
        .register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
    pair.settle();
    let ends = Arc::new(AtomicU64::new(0));
    let counts = ends.clone();
    let collect = pair.client.register_continuation(move |_, completion| {
        counts.fetch_add(1, Ordering::Relaxed);
        match completion.tag {
            0 => std::panic::panic_any("the first"),
            1 => std::panic::panic_any(PanicBomb),
            _ => {}
        }
    });
    for tag in 0..4 {
        pair.client
            .call(
                pair.session,
                MethodId(1),
                &Default::default(),
                |_| {},
                collect,
                tag,
            )
            .unwrap();
    }
    let _ = pair.client.poll().unwrap();
    let _ = pair.server.poll().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = pair.client.poll().unwrap();
    }));
    if let Err(payload) = caught {
        std::mem::forget(payload);
    }
    assert_eq!(ends.load(Ordering::Relaxed), 4);
}

/// The panic is the task's fault, and ends only the task.
#[test]
fn a_task_that_answers_another_endpoints_request_panics() {
    let mut pair = Pair::new();
    let kept = Arc::new(Mutex::new(None));
    let keeps = kept.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| *keeps.lock() = Some(reply.defer())),
    );
    pair.call(1, b"", 1);
    pair.settle();
    let reply = kept.lock().take().expect("the handler ran");
    let (local, went_on) = (pair.client.local(), Arc::new(AtomicBool::new(false)));
    let goes_on = went_on.clone();
    pair.client.local().spawn(async move {
        local.complete_with(reply, Ok(()));
        goes_on.store(true, Ordering::Relaxed);
    });
    let status = pair.one_end().unwrap_err();
    assert_eq!(
        status.code(),
        starling_endpoint::Code::Internal,
        "{status:?}"
    );
    assert!(!went_on.load(Ordering::Relaxed));
}

fn configured(
    change: impl Fn(&mut starling_endpoint::EndpointConfig),
) -> (
    starling_sim::stepped::SteppedNetwork,
    common::TestEndpoint,
    common::TestEndpoint,
) {
    let network = starling_sim::stepped::SteppedNetwork::default();
    let mut config = starling_endpoint::EndpointConfig {
        idle: starling_endpoint::Idle::Block,
        ..Default::default()
    };
    change(&mut config);
    let client = common::endpoint_with(&network, 1, config.clone());
    let server = common::endpoint_with(&network, 2, config);
    (network, client, server)
}

fn serves_for_a_second(change: impl Fn(&mut starling_endpoint::EndpointConfig)) {
    let (network, mut client, mut server) = configured(change);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = kept.clone();
    server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| keeps.lock().push(reply.defer())),
    );
    network.clock().advance(ms(1000));
    let session = client.connect(&server.local_address()).unwrap();
    let end = Arc::new(Mutex::new(None));
    let into = end.clone();
    let collect = client.register_continuation(move |_, completion| {
        *into.lock() = Some(completion.result.map(drop));
    });
    client
        .call(
            session,
            MethodId(1),
            &Default::default(),
            |_| {},
            collect,
            1,
        )
        .unwrap();
    common::pass(&network, &mut [&mut client, &mut server], ms(3000));
    assert!(end.lock().is_none(), "{:?}", end.lock());
    let kept = std::mem::take(&mut *kept.lock());
    for reply in kept {
        server.complete(reply, |_| {});
    }
    common::pass(&network, &mut [&mut client, &mut server], ms(100));
    let end = end.lock().take();
    assert!(matches!(end, Some(Ok(()))), "{end:?}");
}

/// The longest time that a configuration may have.
const LONGEST_NS: u64 = 1 << 60;

#[test]
fn the_longest_connect_timeout_works() {
    serves_for_a_second(|config| config.protocol.connect_timeout_ns = LONGEST_NS);
}

#[test]
fn the_longest_peer_timeout_works() {
    serves_for_a_second(|config| {
        config.protocol.peer_timeout_ns = LONGEST_NS - 1;
        config.protocol.response_retention_ns = LONGEST_NS;
    });
}

#[test]
fn the_longest_retransmission_timeout_works() {
    serves_for_a_second(|config| config.protocol.rto_max_ns = LONGEST_NS);
}

#[test]
fn dropping_the_endpoint_cancels_the_requests_that_are_worked_on() {
    let Pair {
        network: _wire,
        mut client,
        mut server,
        session,
        collect,
        ..
    } = Pair::new();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeps = kept.clone();
    server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| keeps.lock().push(reply.defer())),
    );
    server.start_workers(&WorkerConfig::new(1, 16)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let tell = Mutex::new(tell);
    server.register_worker(
        MethodId(2),
        Arc::new(move |request, _| {
            let begun = std::time::Instant::now();
            while !request.is_cancelled() && begun.elapsed() < ms(3000) {
                std::thread::sleep(ms(1));
            }
            let _ = tell.lock().send(request.is_cancelled());
        }),
    );
    for method in [1, 2] {
        client
            .call(
                session,
                MethodId(method),
                &Default::default(),
                |_| {},
                collect,
                1,
            )
            .unwrap();
    }
    common::settle(&mut [&mut client, &mut server]);
    assert_eq!(server.requests_pending(), 2);
    std::thread::sleep(ms(50));
    drop(server);
    let reply = kept.lock().pop().unwrap();
    assert!(reply.is_cancelled(), "a deferred one");
    assert_eq!(told.recv(), Ok(true), "a worker");
}

/// A dispatch whose worker has claimed a request.
#[derive(Default)]
struct Claimed {
    is_draining: bool,
}

impl Dispatch for Claimed {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        Err(job)
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        None
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn drain(&mut self) {
        self.is_draining = true;
    }

    fn claimed(&self) -> usize {
        assert!(self.is_draining, "another may be claimed meanwhile");
        1
    }
}

#[test]
#[should_panic(expected = "requests would be lost")]
fn workers_that_claimed_a_request_are_not_replaced() {
    let mut pair = Pair::new();
    for _ in 0..2 {
        pair.server.set_dispatch(Box::new(Claimed::default()));
    }
}
