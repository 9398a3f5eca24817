//! Calls as futures, in the endpoint's own thread.

mod common;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use common::{Pair, TestEndpoint, code, endpoint, ms, pass, settle};
use futures::future::{Either, join_all, select};
use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, Code, Handler, LocalHandle, MethodId, OwnedMessage, SessionId, Status,
};

fn serve_increment(server: &mut TestEndpoint) {
    server.register(
        MethodId(1),
        Handler::inline(|_, request, mut reply| match request.body() {
            [n] => {
                reply.buffer().push(n + 1);
                reply.ok();
            }
            _ => reply.status(Status::invalid_argument("one byte, please")),
        }),
    );
}

async fn increment(local: &LocalHandle, session: SessionId, n: u8) -> Result<u8, Status> {
    let options = CallOptions::default();
    let response = local
        .call(session, MethodId(1), &options, |buffer| buffer.push(n))
        .await?;
    Ok(response.body()[0])
}

#[test]
fn a_future_awaits_one_call_after_the_other() {
    let mut pair = Pair::new();
    serve_increment(&mut pair.server);
    let (local, session) = (pair.client.local(), pair.session);
    let result = Arc::new(AtomicU8::new(0));
    let into = result.clone();
    pair.client.local().spawn(async move {
        let mut n = 0;
        for _ in 0..10 {
            n = increment(&local, session, n).await.unwrap();
        }
        let options = CallOptions::default();
        let error = local.call(session, MethodId(1), &options, |_| {}).await;
        assert_eq!(code(&error), Code::InvalidArgument);
        into.store(n, Ordering::Relaxed);
    });
    pair.settle();
    assert_eq!(result.load(Ordering::Relaxed), 10);
    assert_eq!(pair.client.stats().panics, 0);
}

#[test]
fn several_calls_are_outstanding_at_once() {
    let mut pair = Pair::new();
    let replies = Arc::new(Mutex::new(Vec::new()));
    let into = replies.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, request, reply| {
            into.lock().push((request.body()[0], reply.defer()));
        }),
    );
    let (local, session) = (pair.client.local(), pair.session);
    let results = Arc::new(Mutex::new(Vec::new()));
    let into = results.clone();
    pair.client.local().spawn(async move {
        let calls = (0..5).map(|n| increment(&local, session, n));
        let all = join_all(calls).await;
        *into.lock() = all;
    });
    pair.settle();
    assert_eq!(replies.lock().len(), 5);
    // The answers come in the opposite order.
    let replies = std::mem::take(&mut *replies.lock());
    for (n, reply) in replies.into_iter().rev() {
        pair.server.complete(reply, |buffer| buffer.push(n + 100));
    }
    pair.settle();
    let results = std::mem::take(&mut *results.lock());
    let results: Vec<u8> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(results, [100, 101, 102, 103, 104]);
}

#[test]
fn dropping_a_future_cancels_its_call() {
    let mut pair = Pair::new();
    let replies = Arc::new(Mutex::new(Vec::new()));
    let into = replies.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, _, reply| into.lock().push(reply.defer())),
    );
    let (local, session) = (pair.client.local(), pair.session);
    let options = CallOptions::default();
    let on_its_way = local.call(session, MethodId(1), &options, |_| {});
    pair.settle();
    let not_sent = local.call(session, MethodId(1), &options, |_| {});
    drop(not_sent);
    drop(on_its_way);
    pair.settle();
    assert_eq!(replies.lock().len(), 1, "one was never sent");
    assert!(replies.lock()[0].is_cancelled());
    assert_eq!(pair.client.calls_outstanding(), 0);
    assert_eq!(pair.client.stats().cancelled, 1);
}

#[test]
fn a_select_with_a_sleep_and_a_timeout_option_both_end_a_call() {
    let mut pair = Pair::new();
    pair.settle();
    pair.network.lose_all(true);
    let (local, session) = (pair.client.local(), pair.session);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    pair.client.local().spawn(async move {
        let options = CallOptions::default();
        let call = local.call(session, MethodId(1), &options, |_| {});
        let first = select(call, local.sleep(ms(10))).await;
        into.lock().push(matches!(first, Either::Right(_)));
        drop(first);
        let options = CallOptions::with_timeout(ms(5));
        let result = local.call(session, MethodId(1), &options, |_| {}).await;
        into.lock().push(code(&result) == Code::DeadlineExceeded);
    });
    pair.pass(ms(9));
    assert_eq!(*seen.lock(), []);
    pair.pass(ms(2));
    assert_eq!(*seen.lock(), [true]);
    pair.pass(ms(6));
    assert_eq!(*seen.lock(), [true, true]);
    assert_eq!(pair.client.calls_outstanding(), 0);
}

#[test]
fn a_handler_answers_from_a_future_that_makes_calls() {
    let mut pair = Pair::new();
    let mut backend = endpoint(&pair.network, 3);
    serve_increment(&mut backend);
    let next = pair.server.connect(&backend.local_address()).unwrap();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |context, request, reply| {
            let n = request.body()[0];
            let (local, reply) = (context.local(), reply.defer());
            context.spawn(async move {
                let both = futures::future::try_join(
                    increment(&local, next, n),
                    increment(&local, next, n + 10),
                );
                match both.await {
                    Ok((a, b)) => local.complete(reply, |buffer| buffer.extend([a, b])),
                    Err(status) => local.complete_with(reply, Err(status)),
                }
            });
        }),
    );
    pair.server.register(
        MethodId(2),
        Handler::inline(|context, _, reply| {
            let reply = reply.defer();
            context.spawn(async move {
                let _reply = reply;
                panic!("a future's bug (expected in this test)");
            });
        }),
    );
    pair.call(1, &[1], 0);
    pair.call(2, &[], 1);
    settle(&mut [&mut pair.client, &mut pair.server, &mut backend]);
    let mut ends = pair.take_ends();
    ends.sort_by_key(|(tag, _)| *tag);
    assert_eq!(ends[0].1.as_ref().unwrap().body(), [2, 12]);
    assert_eq!(code(&ends[1].1), Code::Internal);
    assert_eq!(pair.server.stats().panics, 1);
}

#[test]
fn a_call_that_is_not_made_is_an_error_of_its_future() {
    let mut pair = Pair::new();
    pair.settle();
    pair.client.close(pair.session);
    pair.settle();
    let (local, session) = (pair.client.local(), pair.session);
    let call = local.call(session, MethodId(1), &CallOptions::default(), |_| {});
    let result = pair.client.block_on(call).unwrap();
    assert_eq!(code(&result), Code::Unavailable);
}

#[test]
fn a_failed_peer_ends_futures() {
    let mut pair = Pair::new();
    pair.settle();
    pair.network.lose_all(true);
    let (local, session) = (pair.client.local(), pair.session);
    let call = local.call(session, MethodId(1), &CallOptions::default(), |_| {});
    // Time passes only because the endpoint sleeps, and it never sleeps too long.
    let result = pair.client.block_on(call).unwrap();
    assert_eq!(code(&result), Code::Unavailable);
}

#[test]
fn an_endpoint_sleeps_until_the_next_timer_and_not_longer() {
    use starling_io::Clock;
    let network = starling_sim::stepped::SteppedNetwork::default();
    let mut alone = endpoint(&network, 1);
    let local = alone.local();
    let turns = alone.stats().turns;
    let order = alone
        .block_on(async {
            let order = RefCell::new(Vec::new());
            let note = async |n: u8, time| {
                local.sleep(time).await;
                order.borrow_mut().push(n);
            };
            futures::join!(note(3, ms(30)), note(1, ms(10)), note(2, ms(20)));
            order.take()
        })
        .unwrap();
    assert_eq!(order, [1, 2, 3]);
    assert_eq!(network.clock().now_ns(), 30_000_000);
    let turns = alone.stats().turns - turns;
    assert!(turns <= 20, "{turns} turns for three sleeps");
}

#[test]
fn a_future_is_woken_from_another_thread() {
    let network = starling_sim::stepped::SteppedNetwork::default();
    let mut alone = endpoint(&network, 1);
    let (send, receive) = futures::channel::oneshot::channel();
    let (send_back, receive_back) = futures::channel::oneshot::channel();
    // One wake-up happens while the endpoint sleeps, in any order of the threads.
    let thread = std::thread::spawn(move || {
        send.send(5).unwrap();
        futures::executor::block_on(receive_back).unwrap()
    });
    alone.local().spawn(async move {
        let n: u32 = receive.await.unwrap();
        send_back.send(n + 1).unwrap();
    });
    let (done, is_done) = futures::channel::oneshot::channel();
    let waiter = std::thread::spawn(move || done.send(thread.join().unwrap()).unwrap());
    assert_eq!(alone.block_on(is_done).unwrap(), Ok(6));
    waiter.join().unwrap();
}

#[test]
fn an_endpoint_calls_itself() {
    let network = starling_sim::stepped::SteppedNetwork::default();
    let mut alone = endpoint(&network, 1);
    serve_increment(&mut alone);
    let session = alone.connect(&alone.local_address()).unwrap();
    let local = alone.local();
    let n = alone.block_on(increment(&local, session, 4)).unwrap();
    assert_eq!(n, Ok(5));
}

#[test]
fn calls_tasks_and_replies_that_outlive_their_endpoint_end() {
    let Pair {
        network,
        client,
        mut server,
        session,
        ..
    } = Pair::new();
    let local = client.local();
    let before = Arc::new(());
    let held = before.clone();
    let options = CallOptions::default();
    let pending = local.call(session, MethodId(1), &options, |_| {});
    let inner = client.local();
    client.local().spawn(async move {
        let _held = held;
        inner.sleep(ms(1000)).await;
    });
    drop(client);
    assert_eq!(Arc::strong_count(&before), 1, "the future was dropped");
    let after = local.call(session, MethodId(1), &options, |_| {});
    local.spawn(async { unreachable!("never polled") });
    let results: Vec<Result<OwnedMessage, Status>> =
        futures::executor::block_on(join_all([pending, after]));
    assert!(results.iter().all(|r| code(r) == Code::Cancelled));
    pass(&network, &mut [&mut server], ms(10));
}
