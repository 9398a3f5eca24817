//! Calls that one endpoint makes on another: answers, statuses, metadata, sizes, deadlines.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use common::{Pair, code, metadata, ms};
use starling_endpoint::{
    CallError, CallOptions, Code, Encoding, Handler, MethodId, Msgbuf, SessionState, Status,
    StreamPosition,
};

/// The default of the largest body.
const MAX_BODY: usize = 64 << 20;

/// Registers a method that answers with the request's bytes.
fn serve_echo(pair: &mut Pair) {
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, request, mut reply| {
            reply.buffer().extend_from_slice(request.body());
            reply.ok();
        }),
    );
}

#[test]
fn a_call_is_answered() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    pair.call(1, b"hello", 7);
    assert_eq!(
        pair.client.session_state(pair.session),
        Some(SessionState::Connecting)
    );
    pair.settle();
    let ends = pair.take_ends();
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0].0, 7);
    assert_eq!(ends[0].1.as_ref().unwrap().body(), b"hello");
    assert_eq!(
        pair.client.session_state(pair.session),
        Some(SessionState::Connected)
    );
    assert_eq!(pair.client.stats().completions, 1);
    assert_eq!(pair.server.stats().requests, 1);
    assert_eq!(pair.client.calls_outstanding(), 0);
}

#[test]
fn many_calls_each_get_their_own_answer() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    for tag in 0..1000u64 {
        pair.call(1, &tag.to_le_bytes(), tag);
    }
    pair.settle();
    let ends = pair.take_ends();
    assert_eq!(ends.len(), 1000);
    for (tag, result) in ends {
        assert_eq!(result.unwrap().body(), tag.to_le_bytes());
    }
}

#[test]
fn a_status_comes_with_message_and_metadata() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, _, mut reply| {
            reply.buffer().extend_from_slice(b"not sent");
            let status = Status::not_found("no such key").with_metadata(metadata("shard", "3"));
            reply.status(status);
        }),
    );
    pair.call(1, b"", 0);
    let status = pair.one_end().unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(status.message(), "no such key");
    assert_eq!(status.metadata().unwrap().value("shard"), Some(&b"3"[..]));
}

#[test]
fn metadata_encoding_and_stream_go_both_ways() {
    let mut pair = Pair::new();
    let position = StreamPosition {
        id: 5,
        number: 6,
        ..StreamPosition::default()
    };
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, request, mut reply| {
            assert_eq!(request.encoding(), Encoding::Protobuf);
            assert_eq!(request.stream(), Some(position));
            assert_eq!(request.method(), MethodId(1));
            assert_eq!(request.body(), b"body");
            let who = request.metadata().value("who").unwrap().to_vec();
            reply.buffer().extend_from_slice(b"answer");
            reply.set_metadata(metadata("to", std::str::from_utf8(&who).unwrap()));
            // The end of a stream is no failure of the call that brings it.
            let position = StreamPosition {
                id: 5,
                number: 7,
                ..position
            };
            reply.set_stream(position, Some(Status::aborted("the stream")), 0);
            reply.ok();
        }),
    );
    let options = CallOptions {
        encoding: Encoding::Protobuf,
        stream: Some(position),
        metadata: metadata("who", "me"),
        ..CallOptions::default()
    };
    pair.call_with(1, b"body", 0, &options);
    let response = pair.one_end().unwrap();
    assert_eq!(response.body(), b"answer");
    assert_eq!(response.metadata().value("to"), Some(&b"me"[..]));
    assert_eq!(response.stream().unwrap().number, 7);
    let status = response.stream_status().unwrap();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Aborted, "the stream")
    );
    assert_eq!(pair.server.stats().panics, 0);
}

#[test]
fn an_unknown_method_is_unimplemented_and_named() {
    let mut pair = Pair::new();
    pair.call(0xabcd, b"", 0);
    let status = pair.one_end().unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("0x0000abcd"), "{status}");
    assert_eq!(pair.server.stats().unknown_method, 1);
}

#[test]
fn each_of_many_methods_has_its_own_handler() {
    let mut pair = Pair::new();
    for method in 0..300u32 {
        pair.server.register(
            MethodId(method.wrapping_mul(0x0100_0001)),
            Handler::inline(move |_, _, mut reply| {
                reply.buffer().extend_from_slice(&method.to_le_bytes());
                reply.ok();
            }),
        );
    }
    for method in 0..300u32 {
        pair.call(method.wrapping_mul(0x0100_0001), b"", u64::from(method));
        let body = pair.one_end().unwrap();
        assert_eq!(body.body(), method.to_le_bytes());
    }
}

#[test]
fn a_later_handler_replaces_an_earlier_one_even_from_within() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|context, _, mut reply| {
            context.register(
                MethodId(1),
                Handler::inline(|_, _, mut reply| {
                    reply.buffer().push(2);
                    reply.ok();
                }),
            );
            reply.buffer().push(1);
            reply.ok();
        }),
    );
    pair.call(1, b"", 0);
    pair.call(1, b"", 1);
    pair.settle();
    let bodies: Vec<_> = pair
        .take_ends()
        .into_iter()
        .map(|(_, result)| result.unwrap().body().to_vec())
        .collect();
    assert_eq!(bodies, [[1], [2]]);
}

#[test]
fn large_messages_go_both_ways_with_segments_by_reference() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, request, mut reply| {
            let body = request.body();
            reply.buffer().extend_from_slice(&body[..3]);
            reply.set_tail(Bytes::copy_from_slice(&body[3..]));
            reply.ok();
        }),
    );
    let bytes: Vec<u8> = (0..1u32 << 20).map(|i| (i % 251) as u8).collect();
    let options = CallOptions {
        metadata: metadata("k", "v"),
        ..CallOptions::default()
    };
    let mut head = vec![0; options.header_len()];
    head.extend_from_slice(&bytes[..100]);
    let tail = Bytes::from(bytes.clone()).slice(100..);
    let message = Msgbuf::from_parts(head, Some(tail));
    pair.client
        .call_message(
            pair.session,
            MethodId(1),
            &options,
            message,
            pair.collect,
            0,
        )
        .unwrap();
    let response = pair.one_end().unwrap();
    assert_eq!(response.body(), bytes);
}

#[test]
fn a_call_that_is_not_made_returns_its_message() {
    let mut pair = Pair::new();
    let options = CallOptions::default();
    let (session, collect) = (pair.session, pair.collect);
    let short = Msgbuf::from_vec(vec![1, 2, 3]);
    let not_made = pair
        .client
        .call_message(session, MethodId(1), &options, short.clone(), collect, 0)
        .unwrap_err();
    assert_eq!(not_made.error, CallError::NoHeaderRoom { needed: 4 });
    assert_eq!(not_made.message, short);
    let huge = Msgbuf::from_parts(vec![0; 4], Some(Bytes::from(vec![0; MAX_BODY + 1])));
    let not_made = pair
        .client
        .call_message(session, MethodId(1), &options, huge, collect, 0)
        .unwrap_err();
    assert_eq!(
        not_made.error,
        CallError::TooLarge {
            len: MAX_BODY + 1,
            max: MAX_BODY
        }
    );
    assert_eq!(not_made.message.len(), MAX_BODY + 1 + 4);
    assert_eq!(pair.client.calls_outstanding(), 0);
}

#[test]
fn the_largest_body_goes_both_ways_with_any_header() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, request, mut reply| {
            assert_eq!(request.metadata().value("k"), Some(&b"v"[..]));
            let body = request.into_owned();
            reply.set_metadata(metadata("k", "v"));
            reply.set_tail(Bytes::copy_from_slice(body.body()));
            reply.ok();
        }),
    );
    let options = CallOptions {
        metadata: metadata("k", "v"),
        ..CallOptions::with_timeout(std::time::Duration::from_secs(1000))
    };
    let body = Bytes::from_iter((0..MAX_BODY).map(|i| (i * 31 / 7) as u8));
    let head = vec![0; options.header_len()];
    let message = Msgbuf::from_parts(head, Some(body.clone()));
    let (session, collect) = (pair.session, pair.collect);
    pair.client
        .call_message(session, MethodId(1), &options, message, collect, 0)
        .unwrap();
    let response = pair.one_end().unwrap();
    assert_eq!(response.metadata().value("k"), Some(&b"v"[..]));
    assert!(response.body() == body);
}

#[test]
fn a_response_that_is_too_large_becomes_a_status() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, _, mut reply| {
            reply.set_tail(Bytes::from(vec![0; MAX_BODY + 1]));
            reply.ok();
        }),
    );
    pair.call(1, b"", 0);
    let end = pair.one_end();
    assert_eq!(code(&end), Code::ResourceExhausted);
    let text = end.unwrap_err().to_string();
    assert!(
        text.contains("67108865") && text.contains("67108864"),
        "{text}"
    );
}

#[test]
fn a_panic_in_a_handler_is_internal_and_the_endpoint_stays_usable() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    pair.server.register(
        MethodId(2),
        Handler::inline(|_, _, _| panic!("a handler's bug (expected in this test)")),
    );
    pair.server
        .register(MethodId(3), Handler::inline(|_, _, reply| drop(reply)));
    pair.call(2, b"", 0);
    assert_eq!(code(&pair.one_end()), Code::Internal);
    assert_eq!(pair.server.stats().panics, 1);
    pair.call(3, b"", 0);
    assert_eq!(code(&pair.one_end()), Code::Internal);
    pair.call(1, b"alive", 0);
    assert_eq!(pair.one_end().unwrap().body(), b"alive");
}

#[test]
fn a_panic_in_a_continuation_reaches_the_owner_and_spares_the_rest_of_the_burst() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    let broken = pair
        .client
        .register_continuation(|_, _| panic!("a continuation's bug (expected in this test)"));
    pair.call(1, b"", 0);
    pair.settle();
    let (session, plain) = (pair.session, CallOptions::default());
    pair.client
        .call(session, MethodId(1), &plain, |_| {}, broken, 0)
        .unwrap();
    pair.call(1, b"", 1);
    pair.client.poll().unwrap();
    pair.server.poll().unwrap();
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pair.client.poll())).is_err();
    assert!(panicked);
    assert_eq!(pair.take_ends().len(), 2);
    pair.call(1, b"", 2);
    assert_eq!(code(&pair.one_end()), Code::Ok);
}

#[test]
fn a_client_ends_a_call_at_its_deadline() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    pair.call(1, b"", 0);
    assert!(pair.one_end().is_ok());
    pair.network.lose_all(true);
    pair.call_with(1, b"", 1, &CallOptions::with_timeout(ms(5)));
    pair.call_with(1, b"", 2, &CallOptions::with_timeout(ms(3)));
    pair.pass(ms(2));
    assert!(pair.take_ends().is_empty());
    pair.pass(ms(3));
    let ends = pair.take_ends();
    assert_eq!(ends.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [2, 1]);
    assert!(ends.iter().all(|(_, r)| code(r) == Code::DeadlineExceeded));
    assert_eq!(pair.client.stats().deadline_exceeded, 2);
    assert_eq!(pair.client.calls_outstanding(), 0);
    // The session is still usable.
    pair.network.lose_all(false);
    pair.call(1, b"back", 3);
    pair.pass(ms(200));
    assert_eq!(pair.take_ends()[0].1.as_ref().unwrap().body(), b"back");
}

#[test]
fn a_server_sees_the_time_left_and_does_not_begin_expired_requests() {
    let mut pair = Pair::new();
    let ran = Arc::new(AtomicU64::new(0));
    let count = ran.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |context, request, reply| {
            count.fetch_add(1, Ordering::Relaxed);
            assert_eq!(request.remaining(), Some(ms(3)));
            let deadline_ns = request.deadline_ns().unwrap();
            assert_eq!(deadline_ns - context.now_ns(), 3_000_000);
            reply.ok();
        }),
    );
    pair.call_with(1, b"", 0, &CallOptions::with_timeout(ms(3)));
    assert!(pair.one_end().is_ok());
    // A client without time left sends the request, and it does not run.
    let expired = CallOptions::with_timeout(ms(0));
    pair.call_with(1, b"", 1, &expired);
    assert_eq!(code(&pair.one_end()), Code::DeadlineExceeded);
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    assert_eq!(pair.server.stats().expired, 1);
    assert_eq!(pair.server.stats().panics, 0);
}

#[test]
fn a_cancelled_call_ends_at_once_and_only_once() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    let call = pair.call(1, b"", 4);
    assert!(pair.client.cancel(call));
    assert!(!pair.client.cancel(call));
    pair.settle();
    let ends = pair.take_ends();
    assert_eq!(ends.len(), 1);
    assert_eq!((ends[0].0, code(&ends[0].1)), (4, Code::Cancelled));
    let call = pair.call(1, b"", 5);
    assert!(pair.one_end().is_ok());
    assert!(!pair.client.cancel(call));
    assert_eq!(pair.client.stats().cancelled, 1);
}

#[test]
fn a_failed_peer_ends_every_call_with_a_status_that_names_the_peer() {
    let mut pair = Pair::new();
    serve_echo(&mut pair);
    pair.settle();
    pair.network.lose_all(true);
    for tag in 0..100 {
        pair.call(1, b"", tag);
    }
    pair.pass(ms(5000));
    let ends = pair.take_ends();
    assert_eq!(ends.len(), 100);
    for (_, result) in ends {
        let status = result.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(
            status.message().starts_with("sim://10.0.0.1:4000: "),
            "{status}"
        );
    }
    assert!(matches!(
        pair.client.session_state(pair.session),
        Some(SessionState::Ended(_))
    ));
    let late = pair.client.call(
        pair.session,
        MethodId(1),
        &CallOptions::default(),
        |_| {},
        pair.collect,
        0,
    );
    assert_eq!(late, Err(CallError::SessionOver));
}

#[test]
fn closing_a_session_cancels_its_calls() {
    let mut pair = Pair::new();
    pair.server.register(
        MethodId(1),
        Handler::inline({
            let mut kept = Vec::new();
            move |_, _, reply| kept.push(reply.defer())
        }),
    );
    pair.call(1, b"", 0);
    pair.settle();
    pair.client.close(pair.session);
    assert_eq!(code(&pair.one_end()), Code::Cancelled);
}

#[test]
fn the_error_of_an_invalid_address_gives_the_reason() {
    let mut pair = Pair::new();
    let error = pair.client.connect("nonsense").unwrap_err();
    assert_eq!(
        error.to_string(),
        "open nonsense: not an address of a simulated host; write sim://10.x.y.z:port"
    );
}

#[test]
fn a_call_to_an_address_without_a_server_is_unavailable() {
    let mut pair = Pair::new();
    pair.session = pair.client.connect("sim://10.0.0.99:4000").unwrap();
    pair.call(1, b"", 0);
    pair.pass(ms(3000));
    assert_eq!(code(&pair.take_ends()[0].1), Code::Unavailable);
}
