//! How a stream ends: what its client learns of it, and how a server sees that the client has forgotten it.

use bytes::Bytes;
use starling_call::{Code, Status, StreamFlags, StreamPosition};
use starling_stream::ServerStream;

/// Another request of the client, which has taken nothing yet and has room for one byte.
fn pull(server: &mut ServerStream<u64>, number: u64) {
    let position = StreamPosition {
        id: 1,
        number,
        window: 1,
        hold: 2,
        ..StreamPosition::default()
    };
    let arrived = server.handle_request(position, Bytes::new(), number);
    arrived.expect("it is in order");
}

/// A server whose first item has left, and whose second one, if there is one, waits for room.
fn server(items: usize) -> ServerStream<u64> {
    let mut server = ServerStream::new(1, 1_000, 0);
    pull(&mut server, 0);
    server.push(b"first", None).expect("it is open");
    let first = server.poll_answer().expect("there is room for one");
    assert!(!first.position.flags.has(StreamFlags::END));
    for _ in 1..items {
        server.push(b"second", None).expect("it is open");
    }
    server
}

/// The status in the last answer.
fn end(server: &mut ServerStream<u64>) -> Option<Code> {
    let last = server.poll_answer().expect("the end needs no room");
    assert!(last.position.flags.has(StreamFlags::END));
    last.status.map(|status| status.code())
}

#[test]
fn a_stream_whose_last_items_were_not_sent_does_not_end_well() {
    let mut server = server(2);
    server.finish(Ok(()));
    pull(&mut server, 1);
    assert!(server.poll_answer().is_none(), "there is no room");
    server.abort(Status::deadline_exceeded("nobody waits any more"));
    assert_eq!(end(&mut server), Some(Code::DeadlineExceeded));
}

#[test]
fn a_stream_whose_items_were_all_sent_ends_as_its_handler_did() {
    let mut server = server(1);
    server.finish(Ok(()));
    server.abort(Status::deadline_exceeded("nobody waits any more"));
    pull(&mut server, 1);
    assert_eq!(end(&mut server), None);
}

#[test]
fn a_stream_is_forgotten_if_no_request_is_held_or_comes_between_two_looks() {
    let mut server = ServerStream::new(1, 1_000, 0);
    let ask = |server: &mut ServerStream<u64>, number| {
        let position = StreamPosition {
            id: 1,
            number,
            taken: number,
            window: 1_000,
            ..StreamPosition::default()
        };
        let arrived = server.handle_request(position, Bytes::new(), number);
        arrived.expect("it is in order");
    };
    let answer = |server: &mut ServerStream<u64>| {
        server.push(b"item", None).expect("it is open");
        assert!(server.poll_answer().is_some() && server.held().is_empty());
    };
    for number in 0..3 {
        ask(&mut server, number);
        answer(&mut server);
        assert!(!server.is_forgotten(), "request {number} came");
    }
    ask(&mut server, 3);
    for _ in 0..3 {
        assert!(!server.is_forgotten(), "one is held");
    }
    answer(&mut server);
    assert!(!server.is_forgotten(), "one was held a moment ago");
    assert!(server.is_forgotten());
}
