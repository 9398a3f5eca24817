//! How a stream ends: what its client learns of it, and how a server sees that the client has forgotten it.

use bytes::Bytes;
use starling_call::{Code, Metadata, Status, StreamFlags, StreamPosition};
use starling_stream::{BUNDLE_BYTES, ClientEvent, ClientStream, ServerStream, StreamResponse};

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

#[test]
fn a_stream_that_its_server_ends_without_one_of_its_messages_has_failed() {
    let mut client = ClientStream::new(1, 1_000, 0, false);
    client.close();
    assert!(client.poll_request().is_some() && client.poll_request().is_none());
    let position = StreamPosition {
        id: 1,
        number: 1,
        received: 1,
        taken: 1,
        window: 1_000,
        flags: StreamFlags::END,
        ..StreamPosition::default()
    };
    let last = StreamResponse {
        position,
        ..StreamResponse::default()
    };
    assert!(client.handle_response(Ok(last)), "its reader learns of it");
    let Some(ClientEvent::End(Err(status))) = client.poll() else {
        panic!("no call is outstanding by which message 0 could come");
    };
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("message 0"), "{status}");
}

#[test]
fn packed_items_count_as_what_they_are_when_they_are_unpacked() {
    const WINDOW: u32 = 200_000;
    let mut client = ClientStream::new(1, WINDOW, 0, true);
    let push = |client: &mut ClientStream, unpacked| {
        let pushed = client.push_packed(&[0; 96], None, unpacked);
        pushed.expect("it is open");
    };
    push(&mut client, 0);
    let first = client.poll_request().expect("the first one");
    let known = StreamPosition {
        id: 1,
        received: 1,
        taken: 1,
        window: WINDOW,
        ..StreamPosition::default()
    };
    let answer = StreamResponse {
        position: known,
        ..StreamResponse::default()
    };
    client
        .handle_response(Ok(answer))
        .then_some(())
        .expect("it is known");
    assert_eq!(first.body.head.len(), 100);
    let mut items = 0;
    while client.may_push() {
        push(&mut client, 9_900);
        items += 1;
    }
    // What waits is bounded by the window, and a message by what a bundle may have.
    assert_eq!(items, WINDOW as usize / 10_000);
    let mut sent = 0;
    while let Some(request) = client.poll_request() {
        let in_it = request.body.head.len() / 100;
        assert!(in_it * 10_000 <= BUNDLE_BYTES, "{in_it} items");
        sent += in_it;
    }
    assert_eq!(items - sent, 2, "the last ones wait for more");
}

#[test]
fn a_client_that_counts_more_for_its_items_than_they_have_at_the_server_goes_on() {
    const WINDOW: u32 = 100_000;
    let mut client = ClientStream::new(1, WINDOW, 0, true);
    let mut server = ServerStream::new(1, WINDOW, 0);
    let exchange = |client: &mut ClientStream, server: &mut ServerStream<u64>| {
        while let Some(request) = client.poll_request() {
            // As it is when it is converted.
            let body = match request.body.head.is_empty() {
                true => Bytes::new(),
                false => Bytes::from_static(&[1, 0, 0, 0, 7]),
            };
            let number = request.position.number;
            let arrived = server.handle_request(request.position, body, number);
            arrived.expect("it is in order");
        }
        while let Some(answer) = server.poll_answer() {
            let response = StreamResponse {
                position: answer.position,
                ..StreamResponse::default()
            };
            client.handle_response(Ok(response));
        }
    };
    for round in 0..10 {
        let mut items = 0;
        while client.may_push() {
            client.push(&[7; 50_000], None).expect("it is open");
            exchange(&mut client, &mut server);
            items += 1;
        }
        assert!(items > 0, "round {round}: all was taken");
        for _ in 0..4 {
            while server.take().is_some() {}
            exchange(&mut client, &mut server);
        }
    }
}

#[test]
fn a_server_is_told_that_its_client_gives_up_whatever_the_reason() {
    let unavailable = || Status::unavailable("an interceptor says so");
    let mut client = ClientStream::new(1, 1_000, 0, true);
    assert!(client.poll_request().is_some());
    let told = client.cancel(unavailable()).expect("a request");
    assert!(told.position.flags.has(StreamFlags::CANCEL));
    // But not if it cannot be reached.
    let mut client = ClientStream::new(1, 1_000, 0, true);
    assert!(client.poll_request().is_some());
    assert!(client.handle_response(Err(unavailable())));
    assert_eq!(client.take_failure(), Some(None));
    // Nor if the stream has not begun there.
    for (refused, is_told) in [(false, true), (true, false)] {
        let mut client = ClientStream::new(1, 1_000, 0, true);
        assert!(client.poll_request().is_some());
        let status = Status::resource_exhausted("no room");
        let status = match refused {
            true => status.with_not_run(),
            false => status,
        };
        assert!(client.handle_response(Err(status)));
        assert_eq!(client.take_failure().map(|it| it.is_some()), Some(is_told));
    }
}

#[test]
fn headers_go_in_front_of_the_items_whatever_has_left_before() {
    let mut metadata = Metadata::new();
    metadata.insert("key", "value").expect("a short pair");
    let mut client = ClientStream::new(1, 1_000, 0, true);
    let mut server = ServerStream::new(1, 1_000, 0);
    let request = |client: &mut ClientStream, server: &mut ServerStream<u64>| {
        let request = client.poll_request().expect("a pull");
        let number = request.position.number;
        let arrived = server.handle_request(request.position, Bytes::new(), number);
        arrived.expect("it is in order");
    };
    let respond = |server: &mut ServerStream<u64>, client: &mut ClientStream| {
        let answer = server.poll_answer().expect("it is asked for");
        client.handle_response(Ok(StreamResponse {
            position: answer.position,
            status: answer.status,
            metadata: answer.metadata,
            body: answer.body.head.into(),
        }))
    };
    // The first request asks for an answer, and the handler has nothing yet.
    request(&mut client, &mut server);
    respond(&mut server, &mut client);
    assert!(client.headers().is_none());
    request(&mut client, &mut server);
    assert!(server.set_headers(metadata.clone()));
    assert!(!server.set_headers(metadata.clone()), "there are some");
    assert!(respond(&mut server, &mut client), "the headers");
    assert_eq!(client.headers(), Some(Ok(metadata.clone())));
    assert!(!server.set_headers(metadata.clone()), "they have left");
    // Nor may they come behind an item, whether that has left or not.
    let mut server = self::server(1);
    assert!(!server.set_headers(metadata.clone()));
    let mut server = ServerStream::<u64>::new(1, 1_000, 0);
    server.push(b"first", None).expect("it is open");
    assert!(!server.set_headers(metadata));
}
