//! Interceptors that do wrong around streams: each ends that stream, with one status, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use futures::SinkExt;
use starling::{CallOptions, Code, InterceptedCall, Interceptor, Next, block_on};
use starling_test_protos::streams::Sum;

use crate::common::{any_addresses, wait_until};
use crate::kinds::{Answers, Outcome, Panics, RefusesFrom, Repeats};
use crate::service::{end, number, range};
use crate::{start, values};

#[test]
fn a_message_that_is_refused_ends_the_stream_at_both_ends() {
    for at_server in [false, true] {
        for address in any_addresses() {
            let refuses = RefusesFrom {
                request: usize::MAX,
                response: 5,
            };
            let (server, counts, client) = start(&address, refuses, at_server);
            let mut numbers = client.count(&range(0, u64::MAX, 0));
            let mut items = numbers.blocking();
            let read = items.by_ref().take_while(Result::is_ok).count();
            assert!(read <= 5, "{read}");
            assert!(items.next().is_none());
            wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
            end(server);

            let refuses = RefusesFrom {
                request: 5,
                response: usize::MAX,
            };
            let address = address.replace("test", "test-b");
            let (server, counts, client) = start(&address, refuses, at_server);
            let mut add = client.add();
            let sent = (0..100).map(|value| add.send_wait(&number(value, 0)));
            let refused = sent.filter_map(Result::err).next();
            let status = add.finish_wait().expect_err("it is refused");
            for status in refused.iter().chain([&status]) {
                let said = (status.code(), status.message());
                assert_eq!(said, (Code::PermissionDenied, "one too many"));
            }
            assert!(refused.is_some() || at_server, "the client's own says so");
            wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
            end(server);
        }
    }
}

#[test]
fn a_request_that_is_refused_leaves_no_gap_in_what_has_come() {
    for address in any_addresses() {
        let refuses = RefusesFrom {
            request: 12,
            response: usize::MAX,
        };
        let (server, counts, client) = start(&address, refuses, false);
        // Some of these are amid the items of a message.
        for read in 1..12 {
            let before = counts.sent.load(Ordering::SeqCst);
            // They come in several messages.
            let options = CallOptions::default().stream_window(1 << 20);
            let (mut there, mut back) = client.echo_with(&options);
            for value in 0..12 {
                there.send_wait(&number(value, 12_000)).expect("room");
            }
            wait_until(|| counts.sent.load(Ordering::SeqCst) == before + 12);
            let mut next = || back.wait().map(|it| it.map(|it| it.message().value()));
            for value in 0..read {
                assert_eq!(next(), Ok(Some(value)));
            }
            let refused = there.send_wait(&number(12, 0)).expect_err("one too many");
            let rest = std::iter::from_fn(|| next().ok().flatten());
            let rest: Vec<u64> = rest.collect();
            assert!(
                rest.iter().copied().eq((read..12).take(rest.len())),
                "{rest:?}"
            );
            assert_eq!(refused.code(), Code::PermissionDenied);
        }
        drop(client);
        end(server);
    }
}

#[test]
fn a_stream_begins_once() {
    for at_server in [false, true] {
        let address = format!("mem://stream-repeats-{at_server}");
        let (server, counts, client) = start(&address, Repeats, at_server);
        let mut numbers = client.count(&range(0, 3, 0));
        let failure = numbers.blocking().find_map(Result::err).expect("a failure");
        assert_eq!(failure.code(), Code::FailedPrecondition, "{failure}");
        assert_eq!(counts.sent.load(Ordering::SeqCst), 3);
        end(server);
    }
}

#[test]
fn a_panic_is_the_callers_at_a_client_and_internal_at_a_server() {
    for at_item in [false, true] {
        let address = format!("mem://stream-panics-{at_item}");
        let (server, counts, client) = start(&address, Panics { at_item }, true);
        let failure = client
            .count(&range(0, 3, 0))
            .blocking()
            .find_map(Result::err);
        assert_eq!(failure.expect("a failure").code(), Code::Internal);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        end(server);

        let address = format!("mem://stream-panics-{at_item}-client");
        let (server, counts, client) = start(&address, Panics { at_item }, false);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            client.count(&range(0, u64::MAX, 0)).wait().map(drop)
        }));
        assert!(caught.is_err(), "the panic is the caller's");
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        end(server);
    }
}

/// Runs a stream, and answers it all the same.
struct AnswersTwice;

impl Interceptor for AnswersTwice {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        let mut response = next.run(call).await?;
        response.set_message(&Sum::new());
        Ok(response)
    }
}

#[test]
fn an_answer_of_the_wrong_kind_is_internal() {
    for at_server in [false, true] {
        let address = format!("mem://stream-answers-wrong-{at_server}");
        let (server, _counts, client) = start(&address, Answers::Sum(1), at_server);
        let mut numbers = client.count(&range(0, 3, 0));
        let status = numbers.wait().expect_err("a sum is no number");
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("streams.Number"), "{status}");
        end(server);

        let address = format!("mem://stream-answers-twice-{at_server}");
        let (server, _counts, client) = start(&address, AnswersTwice, at_server);
        let failure = client
            .count(&range(0, 3, 0))
            .blocking()
            .find_map(Result::err);
        let status = failure.expect("a failure");
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("after it had run it"), "{status}");
        end(server);
    }
}

#[test]
fn a_sink_that_is_not_asked_for_room_is_told() {
    let (server, _counts, client) = start("mem://stream-sink", Never, false);
    let (mut there, _back) = client.echo();
    there
        .start_send_unpin(number(1, 0))
        .expect("one message waits");
    let status = there
        .start_send_unpin(number(2, 0))
        .expect_err("it was not ready");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    end(server);

    let (server, _counts, client) = start(
        "mem://stream-sink-2",
        crate::kinds::Counts::default(),
        false,
    );
    let (mut there, mut back) = client.echo();
    block_on(async {
        for value in 0..100 {
            SinkExt::feed(&mut there, number(value, 0))
                .await
                .expect("room");
        }
        SinkExt::close(&mut there).await.expect("an end");
        assert!(values(&mut back).await.into_iter().eq(0..100));
    });
    end(server);
}

/// Does not begin anything.
struct Never;

impl Interceptor for Never {
    async fn intercept(&self, _: InterceptedCall, _: Next<'_>) -> Outcome {
        std::future::pending().await
    }
}
