//! The other end may send anything: it gets an error or is understood. Nothing panics, memory is bounded.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use starling_call::{Status, StreamFlags, StreamPosition};
use starling_stream::{
    Arrival, ClientEvent, ClientStream, Items, LENGTH, ServerStream, StreamResponse, Violation,
};

const WINDOW: u32 = 1_000;
/// Twice the window, 120 KiB, and the message that comes then.
const BOUND: usize = 2_000 + (120 << 10) + 70_000;

/// Numbers near those that an honest end would send, and any others.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..6u64, 2 => 0..200u64, 1 => any::<u64>()]
}

fn flags() -> impl Strategy<Value = StreamFlags> {
    let all = [
        StreamFlags::END,
        StreamFlags::CANCEL,
        StreamFlags::ANSWER,
        StreamFlags::MORE,
        StreamFlags::GONE,
    ];
    proptest::array::uniform5(prop::bool::weighted(0.1)).prop_map(move |set| {
        let with = |flags: StreamFlags, (on, flag): (bool, StreamFlags)| flags.with_if(on, flag);
        set.into_iter().zip(all).fold(StreamFlags::NONE, with)
    })
}

fn position() -> impl Strategy<Value = StreamPosition> {
    let counters = (number(), number(), number());
    (counters, any::<u32>(), any::<u8>(), flags()).prop_map(
        |((number, received, taken), window, hold, flags)| StreamPosition {
            id: 1,
            number,
            received,
            taken,
            window,
            hold,
            flags,
        },
    )
}

/// Items, some of them cut short or with a wrong length.
fn body() -> impl Strategy<Value = Bytes> {
    let items = prop::collection::vec(0..3_000usize, 0..4).prop_map(|lengths| {
        let mut body = Vec::new();
        for len in lengths {
            body.extend_from_slice(&(len as u32).to_le_bytes());
            body.resize(body.len() + len, 7);
        }
        body
    });
    let broken = prop::collection::vec(any::<u8>(), 0..50);
    let large = Just([60_000u32.to_le_bytes().to_vec(), vec![7; 60_000]].concat());
    prop_oneof![6 => items, 1 => broken, 1 => large].prop_map(Bytes::from)
}

/// Takes the items of any body. They lie in it, one behind the other, and what is left is none.
fn take_all(mut items: Items) {
    let mut at = 0;
    while let Ok(Some(range)) = items.next_range() {
        assert_eq!(range.start, at + LENGTH);
        assert!(range.start <= range.end && range.end <= items.body().len());
        at = range.end;
    }
    assert_eq!(items.is_empty(), at == items.body().len());
    assert_eq!(items.next_range().is_err(), !items.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_server_withstands_any_requests(
        requests in prop::collection::vec((position(), body(), any::<bool>()), 1..120),
    ) {
        let mut server = ServerStream::new(1, WINDOW, 0);
        for (number, (position, body, reads)) in requests.into_iter().enumerate() {
            match server.handle_request(position, body, number) {
                Ok(Arrival::Cancelled) => break,
                Ok(_) => {}
                Err(violation) => {
                    prop_assert!(!violation.to_string().is_empty());
                    break;
                }
            }
            if reads {
                while let Some(items) = server.take() {
                    take_all(items);
                }
            }
            let _ = server.push(b"an item", None);
            while server.poll_answer().is_some() {}
            prop_assert!(server.unread_bytes() <= BOUND, "{} bytes", server.unread_bytes());
            prop_assert!(server.held().len() <= 256);
        }
        // Whatever happened, the stream can be ended, and every request gets an answer.
        server.abort(starling_call::Status::cancelled("over"));
        while server.poll_answer().is_some() {}
        prop_assert!(server.is_over() || server.held().is_empty());
        prop_assert!(server.held().is_empty());
    }

    #[test]
    fn a_client_withstands_any_responses(
        responses in prop::collection::vec((position(), body(), any::<bool>()), 1..120),
    ) {
        let mut client = ClientStream::new(1, WINDOW, 0, true);
        for (position, body, reads) in responses {
            let _ = client.push(b"an item", None);
            while client.poll_request().is_some() {}
            let response = StreamResponse {
                position,
                body,
                ..StreamResponse::default()
            };
            client.handle_response(Ok(response));
            if reads {
                while let Some(ClientEvent::Items(items)) = client.poll() {
                    take_all(items);
                }
            }
            prop_assert!(client.unread_bytes() <= BOUND, "{} bytes", client.unread_bytes());
            prop_assert!(client.outstanding() <= 32);
        }
    }
}

#[test]
fn each_fault_has_its_own_error() {
    let at = |number| StreamPosition {
        id: 1,
        number,
        window: 1_000,
        hold: 1,
        ..StreamPosition::default()
    };
    let item = |len: usize| {
        let mut body = (len as u32).to_le_bytes().to_vec();
        body.resize(4 + len, 7);
        Bytes::from(body)
    };
    let handle = |requests: Vec<(StreamPosition, Bytes)>| {
        let mut server = ServerStream::new(1, WINDOW, 0);
        let mut result = Ok(Arrival::Nothing);
        for (position, body) in requests {
            result = server.handle_request(position, body, ());
            // As a server does: what is held beyond `hold` is answered.
            while server.poll_answer().is_some() {}
        }
        result.expect_err("a fault")
    };
    let twice = handle(vec![(at(0), item(1)), (at(0), item(1))]);
    assert_eq!(
        twice,
        Violation::Number {
            number: 0,
            expected: 1
        }
    );
    let ahead = handle(vec![(at(65), item(1))]);
    assert_eq!(
        ahead,
        Violation::Number {
            number: 65,
            expected: 0
        }
    );
    let flood = (0..40).map(|number| (at(number), item(60_000))).collect();
    assert!(matches!(
        handle(flood),
        Violation::Window { window: 1_000, .. }
    ));
    let end = StreamPosition {
        flags: StreamFlags::END,
        ..at(0)
    };
    let after_end = handle(vec![(end, item(1)), (at(1), item(1))]);
    assert_eq!(after_end, Violation::Position);
    let all_held = StreamPosition { hold: 255, ..at(0) };
    let requests = (0..17).map(|number| StreamPosition { number, ..all_held });
    let requests: Vec<_> = requests.map(|it| (it, Bytes::new())).collect();
    for answered in [true, false] {
        let mut server = ServerStream::new(1, WINDOW, 0);
        for (position, body) in &requests[..16] {
            let arrived = server.handle_request(*position, body.clone(), ());
            arrived.expect("a client has as many");
        }
        if answered {
            let surplus = std::iter::from_fn(|| server.poll_answer()).count();
            assert_eq!(surplus, 12, "four are held at most");
        }
        let one_more = server.handle_request(requests[16].0, Bytes::new(), ());
        assert_eq!(one_more.is_ok(), answered, "{one_more:?}");
    }
    let never_sent = StreamPosition { taken: 5, ..at(0) };
    assert_eq!(handle(vec![(never_sent, item(1))]), Violation::Position);
}

/// Items that are in memory as long as the `Arc` is shared.
struct Watched(Arc<Vec<u8>>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn messages_whose_predecessors_are_missing_end_with_the_stream() {
    let ends: [fn(&mut ServerStream<u64>); 3] = [
        |server| server.finish(Ok(())),
        |server| server.abort(Status::cancelled("the client is gone")),
        ServerStream::discard,
    ];
    for end in ends {
        let items = Arc::new(vec![0; 4]);
        let mut server = ServerStream::new(1, WINDOW, 0);
        let send = |server: &mut ServerStream<_>, number| {
            let position = StreamPosition {
                id: 1,
                number,
                window: WINDOW,
                ..StreamPosition::default()
            };
            let body = Bytes::from_owner(Watched(Arc::clone(&items)));
            server
                .handle_request(position, body, number)
                .expect("it is in the window");
        };
        send(&mut server, 2);
        end(&mut server);
        assert_eq!(Arc::strong_count(&items), 1, "of before the end");
        send(&mut server, 1);
        assert_eq!(Arc::strong_count(&items), 1, "of after the end");
        // The client's window is free again only when all are here.
        assert_ne!(server.unread_bytes(), 0);
        send(&mut server, 0);
        assert_eq!(server.unread_bytes(), 0);
    }
}
