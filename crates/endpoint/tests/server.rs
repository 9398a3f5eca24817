//! Handlers that answer later: deferred, nested, in workers; and shutting down.

mod common;

use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context as TaskContext, Poll, Waker};

use common::{Pair, TestEndpoint, code, endpoint, metadata, ms, pass, settle};
use parking_lot::Mutex;
use starling_endpoint::{
    CallError, CallOptions, Code, Context, DeferredReply, Handler, MethodId, SessionId,
    SessionState, Status, StreamPosition, WorkerConfig, unsent_message,
};

/// Keeps the replies of method 1.
fn keep_replies(pair: &mut Pair) -> Arc<Mutex<Vec<DeferredReply>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let into = kept.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| into.lock().push(reply.defer())),
    );
    kept
}

#[test]
fn a_deferred_reply_is_answered_later() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    pair.call(1, b"", 0);
    pair.call(1, b"", 1);
    pair.settle();
    assert_eq!(pair.server.requests_pending(), 2);
    assert!(pair.take_ends().is_empty());
    let second = kept.lock().remove(1);
    let first = kept.lock().remove(0);
    pair.server.complete(second, |buffer| buffer.push(2));
    pair.server
        .complete_with(first, Err(Status::aborted("lost the race")));
    pair.settle();
    let ends = pair.take_ends();
    assert_eq!(ends[0].0, 1);
    assert_eq!(ends[0].1.as_ref().unwrap().body(), [2]);
    assert_eq!((ends[1].0, code(&ends[1].1)), (0, Code::Aborted));
    assert_eq!(pair.server.requests_pending(), 0);
}

#[test]
fn a_dropped_reply_is_internal_never_a_hang() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    pair.call(1, b"", 0);
    pair.settle();
    // A drop in another thread wakes the endpoint.
    let reply = kept.lock().remove(0);
    std::thread::spawn(move || drop(reply)).join().unwrap();
    assert!(pair.server.io().thread_waker().is_woken());
    assert_eq!(code(&pair.one_end()), Code::Internal);
    assert_eq!(pair.server.stats().abandoned, 1);
    assert_eq!(pair.server.requests_pending(), 0);
}

#[test]
fn a_reply_that_is_deferred_and_used_within_its_handler_leaves_nothing_pending() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|context, _, reply| {
            let reply = reply.defer();
            context.complete(reply, |buffer| buffer.push(9));
        }),
    );
    pair.server.register(
        MethodId(2),
        Handler::inline(|_, _, reply| drop(reply.defer())),
    );
    pair.call(1, b"", 0);
    assert_eq!(pair.one_end().unwrap().body(), [9]);
    pair.call(2, b"", 0);
    assert_eq!(code(&pair.one_end()), Code::Internal);
    assert_eq!(pair.server.requests_pending(), 0);
}

#[test]
fn a_cancelled_call_cancels_its_deferred_request() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    let call = pair.call(1, b"", 0);
    pair.call_with(1, b"", 1, &CallOptions::with_timeout(ms(2)));
    pair.settle();
    assert!(kept.lock().iter().all(|reply| !reply.is_cancelled()));
    pair.client.cancel(call);
    pair.settle();
    assert!(kept.lock()[0].is_cancelled());
    assert!(!kept.lock()[1].is_cancelled());
    assert!(kept.lock()[1].deadline_ns().is_some());
    // A client whose deadline passes cancels, too.
    pair.pass(ms(3));
    assert!(kept.lock()[1].is_cancelled());
    // The handler may still answer, without effect.
    let replies = std::mem::take(&mut *kept.lock());
    for reply in replies {
        pair.server.complete(reply, |_| {});
    }
    pair.settle();
    assert_eq!(pair.server.stats().stale_responses, 2);
    assert_eq!(pair.server.requests_pending(), 0);
    let codes: Vec<_> = pair.take_ends().iter().map(|(_, r)| code(r)).collect();
    assert_eq!(codes, [Code::Cancelled, Code::DeadlineExceeded]);
}

/// Registers a method that calls the same method on the next server and adds a byte.
fn forward(server: &mut TestEndpoint, next: SessionId, name: u8) {
    let waiting = Arc::new(Mutex::new(Vec::<Option<DeferredReply>>::new()));
    let replies = waiting.clone();
    let answered = server.register_continuation(move |context, completion| {
        let reply = replies.lock()[completion.tag as usize].take();
        let reply = reply.expect("answered once");
        match completion.result {
            Ok(response) => context.complete(reply, |buffer| {
                buffer.extend_from_slice(response.body());
                buffer.push(name);
            }),
            Err(status) => context.complete_with(reply, Err(status)),
        }
    });
    server.register(
        MethodId(1),
        Handler::inline(move |context: &mut Context<'_, _>, request, reply| {
            let options = CallOptions {
                timeout: request.remaining(),
                ..CallOptions::default()
            };
            let tag = waiting.lock().len() as u64;
            let body = request.body();
            context
                .call(
                    next,
                    MethodId(1),
                    &options,
                    |buffer| buffer.extend_from_slice(body),
                    answered,
                    tag,
                )
                .unwrap();
            waiting.lock().push(Some(reply.defer()));
        }),
    );
}

#[test]
fn calls_nest_two_levels_deep_and_the_deadline_goes_with_them() {
    let mut pair = Pair::new();
    let mut second = endpoint(&pair.network, 3);
    let mut third = endpoint(&pair.network, 4);
    let to_second = pair.server.connect(&second.local_address()).unwrap();
    let to_third = second.connect(&third.local_address()).unwrap();
    forward(&mut pair.server, to_second, b'1');
    forward(&mut second, to_third, b'2');
    let seen = Arc::new(Mutex::new(None));
    let see = seen.clone();
    third.register(
        MethodId(1),
        Handler::inline(move |_, request, mut reply| {
            *see.lock() = request.remaining();
            reply.buffer().extend_from_slice(request.body());
            reply.buffer().push(b'3');
            reply.ok();
        }),
    );
    pair.call_with(1, b"0", 0, &CallOptions::with_timeout(ms(50)));
    pair.call(1, b"x", 1);
    settle(&mut [&mut pair.client, &mut pair.server, &mut second, &mut third]);
    let ends = pair.take_ends();
    assert_eq!(ends[0].1.as_ref().unwrap().body(), b"0321");
    assert_eq!(ends[1].1.as_ref().unwrap().body(), b"x321");
    assert_eq!(seen.lock().take(), None, "the second call has no deadline");
    // The status of the innermost server reaches the first caller.
    third.register(
        MethodId(1),
        Handler::inline(|_, _, reply| reply.status(Status::data_loss("disk"))),
    );
    pair.call(1, b"", 2);
    settle(&mut [&mut pair.client, &mut pair.server, &mut second, &mut third]);
    assert_eq!(code(&pair.take_ends()[0].1), Code::DataLoss);
}

#[test]
fn a_continuation_makes_the_next_call() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, request, mut reply| {
            let n = request.body()[0];
            reply.buffer().push(n + 1);
            reply.ok();
        }),
    );
    let (session, collect) = (pair.session, pair.collect);
    let again = Arc::new(Mutex::new(collect));
    let id = again.clone();
    let chain = pair
        .client
        .register_continuation(move |context, completion| {
            let n = completion.result.unwrap().body()[0];
            let next = if n < 9 { *id.lock() } else { collect };
            let plain = CallOptions::default();
            context
                .call(session, MethodId(1), &plain, |b| b.push(n), next, 0)
                .unwrap();
        });
    *again.lock() = chain;
    let plain = CallOptions::default();
    pair.client
        .call(session, MethodId(1), &plain, |b| b.push(0), chain, 0)
        .unwrap();
    assert_eq!(pair.one_end().unwrap().body(), [10]);
}

/// Takes turns of both, with sleeps while workers run.
fn settle_workers(pair: &mut Pair) {
    pair.settle();
    while pair.server.requests_pending() > 0 {
        pair.server.io().thread_waker().park();
        pair.settle();
    }
}

#[test]
fn workers_answer_and_survive_panics() {
    let mut pair = Pair::new();
    pair.server
        .start_workers(&WorkerConfig::new(2, 16))
        .unwrap();
    pair.server.register_worker(
        MethodId(1),
        Arc::new(|request, reply| {
            assert!(!request.is_cancelled());
            match request.body() {
                b"panic" => panic!("a worker's bug (expected in this test)"),
                b"fail" => reply.set_status(Status::out_of_range("too far")),
                body => {
                    reply.buffer().extend_from_slice(body);
                    reply.set_metadata(metadata("thread", "worker"));
                }
            }
        }),
    );
    for _ in 0..3 {
        for (tag, body) in [&b"hello"[..], b"panic", b"fail"].into_iter().enumerate() {
            pair.call(1, body, tag as u64);
        }
        settle_workers(&mut pair);
        let mut ends = pair.take_ends();
        ends.sort_by_key(|(tag, _)| *tag);
        let response = ends[0].1.as_ref().unwrap();
        assert_eq!(response.body(), b"hello");
        assert_eq!(response.metadata().value("thread"), Some(&b"worker"[..]));
        assert_eq!(code(&ends[1].1), Code::Internal);
        assert_eq!(code(&ends[2].1), Code::OutOfRange);
    }
    assert_eq!(pair.server.stats().panics, 3);
    // Large requests are moved, not copied.
    let large = vec![5; 1 << 20];
    pair.call(1, &large, 0);
    settle_workers(&mut pair);
    assert_eq!(pair.take_ends()[0].1.as_ref().unwrap().body(), large);
}

/// The panic's value panics once more when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a bug in a destructor (expected in this test)");
    }
}

#[test]
fn a_panic_whose_value_panics_when_dropped_ends_only_its_call() {
    let mut pair = Pair::new();
    pair.server
        .start_workers(&WorkerConfig::new(1, 16))
        .unwrap();
    pair.server
        .register_worker(MethodId(1), Arc::new(|_, _| std::panic::panic_any(Bomb)));
    pair.server.register(
        MethodId(2),
        Handler::inline(|_, _, _| std::panic::panic_any(Bomb)),
    );
    for round in 0..2 {
        pair.call(1, b"", 2 * round);
        pair.call(2, b"", 2 * round + 1);
        settle_workers(&mut pair);
        let ends = pair.take_ends();
        assert_eq!(ends.len(), 2);
        assert!(ends.iter().all(|(_, end)| code(end) == Code::Internal));
    }
    assert_eq!(pair.server.stats().panics, 4);
}

#[test]
fn requests_beyond_a_full_queue_and_cancelled_requests_do_not_run() {
    let mut pair = Pair::new();
    // One runs, three wait. One client does not get the other two places.
    pair.server.start_workers(&WorkerConfig::new(1, 5)).unwrap();
    let (ran, runs) = mpsc::channel::<u8>();
    let (gate, open) = mpsc::channel::<()>();
    let open = std::sync::Mutex::new(open);
    pair.server.register_worker(
        MethodId(1),
        Arc::new(move |request, _| {
            ran.send(request.body()[0]).unwrap();
            open.lock().unwrap().recv().unwrap();
        }),
    );
    pair.call(1, &[0], 0);
    pair.settle();
    assert_eq!(runs.recv().unwrap(), 0);
    pair.call(1, &[1], 1);
    let cancelled = pair.call(1, &[2], 2);
    pair.call_with(1, &[3], 3, &CallOptions::with_timeout(ms(5)));
    pair.call(1, &[4], 4);
    pair.settle();
    let ends = pair.take_ends();
    assert_eq!((ends[0].0, code(&ends[0].1)), (4, Code::ResourceExhausted));
    assert_eq!(pair.server.stats().workers_full, 1);

    pair.client.cancel(cancelled);
    pair.pass(ms(10));
    gate.send(()).unwrap();
    gate.send(()).unwrap();
    settle_workers(&mut pair);
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), [1]);
    // A client whose deadline passes cancels, too.
    assert_eq!(pair.server.stats().cancelled_in_queue, 2);
    let mut ends = pair.take_ends();
    ends.sort_by_key(|(tag, _)| *tag);
    let codes: Vec<_> = ends.iter().map(|(tag, r)| (*tag, code(r))).collect();
    let expected = [
        (0, Code::Ok),
        (1, Code::Ok),
        (2, Code::Cancelled),
        (3, Code::DeadlineExceeded),
    ];
    assert_eq!(codes, expected);
}

#[test]
fn a_worker_does_not_begin_a_request_that_expired_in_the_queue() {
    let mut pair = Pair::new();
    pair.server.start_workers(&WorkerConfig::new(1, 8)).unwrap();
    let (gate, open) = mpsc::channel::<()>();
    let (ran, runs) = mpsc::channel::<u8>();
    let open = std::sync::Mutex::new(open);
    pair.server.register_worker(
        MethodId(1),
        Arc::new(move |request, _| {
            ran.send(request.body()[0]).unwrap();
            open.lock().unwrap().recv().unwrap();
        }),
    );
    pair.call(1, &[0], 0);
    pair.call_with(1, &[1], 1, &CallOptions::with_timeout(ms(5)));
    pair.settle();
    assert_eq!(runs.recv().unwrap(), 0);
    // Time passes while the cancellation is lost.
    pair.network.clock().advance(ms(6));
    pair.network.lose_all(true);
    pair.client.poll().unwrap();
    pair.network.lose_all(false);
    gate.send(()).unwrap();
    settle_workers(&mut pair);
    assert_eq!(runs.try_iter().count(), 0);
    assert_eq!(pair.server.stats().expired, 1);
}

#[test]
fn the_status_of_a_worker_method_without_workers_names_what_is_missing() {
    let mut pair = Pair::new();
    pair.server
        .register_worker(MethodId(1), Arc::new(|_, _| {}));
    pair.call(1, b"", 0);
    let status = pair.one_end().unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("start_workers"));
}

#[test]
fn shutting_down_finishes_pending_requests_and_refuses_new_ones() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    pair.call(1, b"", 0);
    pair.settle();
    pair.server.start_drain();
    assert!(!pair.server.is_drained());
    pair.call(1, b"", 1);
    let status = pair.one_end().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("shutting down"));
    // New sessions are refused, too.
    let session = pair.session;
    pair.session = pair.client.connect(&pair.server.local_address()).unwrap();
    pair.call(1, b"", 2);
    assert_eq!(code(&pair.one_end()), Code::Unavailable);
    pair.session = session;

    let reply = kept.lock().remove(0);
    pair.server.complete(reply, |buffer| buffer.push(1));
    assert!(pair.server.drain(ms(1000)).unwrap());
    assert!(pair.server.is_drained());
    let Pair {
        network,
        mut client,
        server,
        ends,
        ..
    } = pair;
    drop(server);
    pass(&network, &mut [&mut client], ms(1));
    assert_eq!(ends.lock()[0].1.as_ref().unwrap().body(), [1]);
    assert_eq!(client.calls_outstanding(), 0);
}

/// Why a reply kept by [`keep_replies`] was cancelled, if it was.
fn why_cancelled(reply: &DeferredReply) -> Option<Code> {
    let mut cx = TaskContext::from_waker(Waker::noop());
    match reply.poll_cancelled(&mut cx) {
        Poll::Ready(status) => Some(status.code()),
        Poll::Pending => None,
    }
}

#[test]
fn a_deferred_reply_is_cancelled_at_once_when_its_caller_gives_up() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    let options = CallOptions::with_timeout(ms(50));
    let (session, collect) = (pair.session, pair.collect);
    for tag in 0..3 {
        let options = if tag == 1 {
            options.clone()
        } else {
            CallOptions::default()
        };
        let call = pair
            .client
            .call(session, MethodId(1), &options, |_| {}, collect, tag)
            .unwrap();
        pair.settle();
        if tag == 0 {
            pair.client.cancel(call);
        }
    }
    pair.settle();
    let heard = |n: usize| why_cancelled(&kept.lock()[n]);
    assert_eq!(heard(0), Some(Code::Cancelled));
    assert_eq!((heard(1), heard(2)), (None, None));
    // The server knows the deadline and needs no frame from the client.
    pair.network.lose_all(true);
    pair.pass(ms(49));
    assert_eq!(heard(1), None);
    pair.pass(ms(2));
    assert_eq!(heard(1), Some(Code::DeadlineExceeded));
    assert!(kept.lock()[1].is_cancelled());
    pair.network.lose_all(false);
    assert_eq!(heard(2), None);
    // The end of a session ends its calls.
    pair.client.close(session);
    pair.settle();
    assert_eq!(heard(2), Some(Code::Cancelled));
    kept.lock().clear();
    pair.settle();
    assert_eq!(pair.server.requests_pending(), 0);
}

#[test]
fn a_future_that_waits_for_its_caller_to_give_up_is_woken() {
    let mut pair = Pair::new();
    let heard = Arc::new(Mutex::new(None));
    let into = heard.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |context: &mut Context<'_, _>, _, reply| {
            let (reply, into) = (reply.defer(), into.clone());
            context.spawn(async move {
                let code = reply.cancelled().await.code();
                *into.lock() = Some(code);
            });
        }),
    );
    let call = pair.call(1, b"", 0);
    pair.settle();
    assert_eq!(*heard.lock(), None);
    pair.client.cancel(call);
    pair.settle();
    assert_eq!(*heard.lock(), Some(Code::Cancelled));
    assert_eq!(pair.server.requests_pending(), 0);
}

#[test]
fn a_client_of_a_server_that_shuts_down_gets_its_calls_back() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    pair.call(1, b"runs", 0);
    pair.settle();
    let early = CallOptions::default();
    // On its way when the server begins to shut down.
    pair.call(1, b"late", 1);
    pair.client.poll().unwrap();
    pair.server.start_drain();
    pair.settle();
    let mut status = pair.one_end().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.may_have_run());
    let unsent = unsent_message(&mut status).expect("it is to be made elsewhere");
    assert_eq!(&unsent.head()[early.header_len()..], b"late");
    assert_eq!(pair.server.stats().refused_draining, 1);

    // From then on the client makes none.
    let state = pair.client.session_state(pair.session);
    assert_eq!(state, Some(SessionState::Draining));
    assert_eq!(pair.client.stats().sessions_draining, 1);
    let method = MethodId(1);
    let options = CallOptions {
        stream: Some(StreamPosition::default()),
        ..CallOptions::default()
    };
    for new in [&early, &options] {
        let made = pair
            .client
            .call(pair.session, method, new, |_| {}, pair.collect, 2);
        assert_eq!(made.err(), Some(CallError::Draining));
    }
    // What a stream goes on with is no new call.
    let position = StreamPosition {
        number: 1,
        ..StreamPosition::default()
    };
    let options = CallOptions {
        stream: Some(position),
        ..CallOptions::default()
    };
    pair.client
        .call(pair.session, method, &options, |_| {}, pair.collect, 3)
        .unwrap();
    pair.settle();
    assert_eq!(kept.lock().len(), 2);
    assert_eq!(pair.server.stats().refused_draining, 1);
}

#[test]
fn a_drain_gives_up_at_its_deadline() {
    let mut pair = Pair::new();
    let kept = keep_replies(&mut pair);
    pair.call(1, b"", 0);
    pair.settle();
    assert!(!pair.server.drain(ms(30)).unwrap());
    assert_eq!(kept.lock().len(), 1);
}

#[test]
fn a_client_that_drains_closes_its_sessions() {
    let mut pair = Pair::new();
    pair.settle();
    assert_eq!(pair.server.protocol().session_counts(), (0, 1));
    pair.client.start_drain();
    pair.client.close(pair.session);
    pair.settle();
    assert_eq!(pair.server.protocol().session_counts(), (0, 0));
    assert!(pair.client.drain(ms(10)).unwrap());
}
