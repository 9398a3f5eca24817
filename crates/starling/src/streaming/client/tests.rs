//! What becomes of the requests of a stream between its end and the endpoint.

use starling_endpoint::StreamPosition;

use super::*;
use crate::channel::Channel;
use crate::health::HEALTH_SERVICE;

/// An end of a stream of responses, to which the server has said something, so that its next request only waits.
fn waiting_end() -> Arc<ClientEnd> {
    let channel = Channel::lazy("mem://streams-of-nobody").expect("an address");
    let watch = &HEALTH_SERVICE.methods[1];
    assert!(watch.server_streaming);
    let route = Route::of_channel(channel.shared());
    let end = ClientEnd::new(route, watch, CallOptions::default(), None, None);
    let mut state = end.state.lock();
    let opening = state.stream.poll_request().expect("a stream begins");
    let response = StreamResponse {
        position: StreamPosition {
            received: 1,
            window: 1 << 20,
            ..opening.position
        },
        ..StreamResponse::default()
    };
    state.stream.handle_response(Ok(response));
    drop(state);
    end
}

#[test]
fn a_request_that_waits_at_the_server_is_not_kept_and_can_be_made_again() {
    let end = waiting_end();
    let mut state = end.state.lock();
    let request = state.stream.poll_request().expect("it asks for items");
    let position = request.position;
    assert_eq!(position.number, 1);
    let outgoing = end.outgoing(request);
    assert_eq!(outgoing.message.payload.capacity(), 0, "it has no body");
    let call = CallHandle(CallCell::of_stream(outgoing, Arc::clone(&end)));
    state.calls.push(Outstanding {
        call: call.clone(),
        number: 1,
    });
    drop(state);

    call.0.handle_sent();
    assert!(call.0.with_request(|_| ()).is_none(), "nothing is kept");
    // Its session ended before it was sent, and the endpoint gives its message back.
    let message = Msgbuf::from_vec(b"header".to_vec());
    call.0.put_back_message(message.clone());
    let Some(Operation::Call(again)) = call.0.take_operation() else {
        panic!("it is to be made again");
    };
    assert_eq!(again.message.stream, Some(position));
    assert_eq!(again.message.call, call.number());
    assert_eq!(again.message.payload, message);
    assert_eq!(again.message.headroom, again.message.header_len());
}

#[test]
fn the_request_that_begins_a_stream_is_kept() {
    let channel = Channel::lazy("mem://streams-of-nobody-else").expect("an address");
    let route = Route::of_channel(channel.shared());
    let watch = &HEALTH_SERVICE.methods[1];
    let end = ClientEnd::new(route, watch, CallOptions::default(), None, None);
    let opening = end.state.lock().stream.poll_request();
    let outgoing = end.outgoing(opening.expect("a stream begins"));
    let call = CallHandle(CallCell::of_stream(outgoing, Arc::clone(&end)));
    call.0.handle_sent();
    assert!(call.0.with_request(|_| ()).is_some());
    // It had no body, and its message comes back with the header in front of that.
    call.0
        .put_back_message(Msgbuf::from_vec(b"header".to_vec()));
    let expected = call.0.with_request(|call| {
        let message = &call.message;
        assert_eq!(message.payload.head(), b"header");
        (message.headroom, message.header_len())
    });
    assert!(expected.is_some_and(|(room, needed)| room == needed));
}
