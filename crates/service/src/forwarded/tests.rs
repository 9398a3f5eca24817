//! Any header of a request or a response, on its way through the service.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use starling_call::header::{
    REQUEST_BODY_AT, REQUEST_FIELDS_AT, RESPONSE_FIELDS_AT, RequestExtension, ResponseHeader,
    method_of,
};
use starling_endpoint::{
    Code, ContinuationId, Endpoint, EndpointConfig, Handler, Secrets, SessionId,
};
use starling_io::{Device, MonotonicClock};
use starling_io_mem::MemIo;

use super::*;

/// A message with this header, and a body, as an endpoint has it that read the header: its body is there.
fn received(bytes: &[u8], fields_at: usize, body_at: usize) -> OwnedMessage {
    let message = Msgbuf::from_vec(bytes.to_vec());
    OwnedMessage::new(message, fields_at as u32, body_at as u32)
}

/// The parts of a header that a fuzzer chooses, so that most headers are valid.
type Fields = Vec<(u8, Vec<u8>)>;

/// Tags of requests and of responses, as PROTOCOL.md has them.
const OF_REQUESTS: [u8; 8] = [1, 2, 3, 4, 7, 128, 130, 200];
const OF_RESPONSES: [u8; 7] = [3, 4, 5, 6, 7, 129, 200];

/// An extension with these fields, most of which have a tag of these and a value that it may have.
fn extension(fields: &Fields, tags: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 2];
    for (choice, value) in fields {
        let chosen = tags.get(usize::from(*choice) % (tags.len() + 1)).copied();
        let (tag, mut value) = (chosen.unwrap_or(*choice), value.clone());
        let length = match tag {
            1 => 8,
            2 | 5 | 130 => 1,
            4 => 38,
            7 => 5,
            128 => 4,
            129 => 0,
            _ => value.len(),
        };
        value.resize(length, 1);
        match (tag, &mut value[..]) {
            // A key of one letter.
            (3, [_, ..]) => drop(value.splice(..1, [1, b'k'])),
            (4, [.., flags]) => *flags %= 8,
            (5, [code]) => *code %= 17,
            (2, [encoding]) => *encoding %= 2,
            _ => {}
        }
        bytes.push(tag);
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&value);
    }
    let length = (bytes.len() - 2) as u16;
    bytes[..2].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn check_request(bytes: &[u8], body_at: usize) {
    let original = received(bytes, REQUEST_FIELDS_AT, body_at);
    let method = method_of(bytes).expect("it has one");
    for timeout in [None, Some(Duration::MAX), Some(Duration::from_nanos(1))] {
        let request = ForwardedRequest::of_message(method, timeout, original.clone());
        assert_eq!(request.body(), original.body());
        let (options, message) = request.into_parts();
        let room = options.header_len();
        assert_eq!(&message.head()[room..], original.body());
        let mut sent = Vec::new();
        let size = options.put_header(method, &mut sent, 7);
        assert_eq!(usize::from(size.len), room);
        sent.extend_from_slice(&message.head()[room..]);
        let arrived_at = match size.extended {
            true => {
                RequestExtension::parse(&sent)
                    .expect("the service's own")
                    .body_at
            }
            false => REQUEST_BODY_AT,
        };
        let arrived = received(&sent, REQUEST_FIELDS_AT, arrived_at);
        assert_eq!(method_of(&sent), Some(method));
        assert_eq!(arrived.body(), original.body());
        assert_eq!(arrived.stream(), original.stream());
        assert_eq!(arrived.form(), original.form());
        assert_eq!(arrived.to_metadata(), original.to_metadata());
    }
}

#[test]
fn any_request_is_handed_on_as_it_came() {
    bolero::check!()
        .with_type::<(u32, Fields, Vec<u8>)>()
        .for_each(|(method, fields, body)| {
            let method = method.to_le_bytes();
            let plain = [&method[..], body].concat();
            check_request(&plain, REQUEST_BODY_AT);
            let bytes = [&method[..], &extension(fields, &OF_REQUESTS), body].concat();
            if let Ok(extension) = RequestExtension::parse(&bytes) {
                check_request(&bytes, extension.body_at);
            }
        });
}

#[test]
fn the_streams_of_two_callers_do_not_meet_and_come_back() {
    bolero::check!()
        .with_type::<(u64, u64, u64, u64)>()
        .for_each(|&(id, number, key, other)| {
            let position = StreamPosition {
                id,
                number,
                ..StreamPosition::default()
            };
            let there = translate(Some(position), key).expect("a position");
            assert_eq!(there.number, number);
            assert_eq!(translate(Some(there), key), Some(position));
            let others = translate(Some(position), other).expect("a position");
            assert_eq!(there.id == others.id, key == other);
        });
    assert_eq!(translate(None, 7), None);
}

type Calls = Arc<Mutex<Vec<DeferredReply>>>;
type Ends = Arc<Mutex<Vec<CallResult>>>;

/// An endpoint that calls another, which keeps the replies for the test.
struct Pair {
    client: Endpoint<MemIo, MonotonicClock>,
    server: Endpoint<MemIo, MonotonicClock>,
    session: SessionId,
    collect: ContinuationId,
    replies: Calls,
    ends: Ends,
}

const METHOD: MethodId = MethodId(7);

impl Pair {
    fn new(name: &str) -> Self {
        let address = format!("mem://{name}-{}", std::process::id());
        let io = MemIo::bind(&address).expect("it is free");
        let endpoint = |io, key| {
            let secrets = Secrets {
                token_key: [key; 16],
                cookie_key: [key; 16],
            };
            let clock = MonotonicClock::new();
            Endpoint::new(io, clock, EndpointConfig::default(), secrets).expect("its settings")
        };
        let mut server = endpoint(io, 1);
        let mut client = endpoint(<MemIo as Device>::client(&address).expect("a device"), 2);
        let (replies, ends) = (Calls::default(), Ends::default());
        let into = Arc::clone(&replies);
        let keep =
            Handler::deferring(move |_, _, reply| into.lock().push(reply.defer_without_buffer()));
        server.register(METHOD, keep);
        let into = Arc::clone(&ends);
        let collect = client.register_continuation(move |_, completion| {
            into.lock()
                .push(completion.result.map(|response| response.into_owned()));
        });
        let session = client.connect(&address).expect("it listens");
        Self {
            client,
            server,
            session,
            collect,
            replies,
            ends,
        }
    }

    /// What a caller gets of a response that the service has got.
    fn answer(&mut self, response: OwnedMessage, key: u64) -> OwnedMessage {
        let options = CallOptions::default();
        (self.client)
            .call(self.session, METHOD, &options, |_| {}, self.collect, 0)
            .expect("it is made");
        let mut response = Some(response);
        for _ in 0..100_000 {
            self.client.poll().expect("a device that works");
            self.server.poll().expect("a device that works");
            if let Some(mut reply) = self.replies.lock().pop() {
                fill(&mut reply, response.take().expect("one call"), key);
                self.server.complete_with(reply, Ok(()));
            }
            if let Some(end) = self.ends.lock().pop() {
                return end.expect("it is answered");
            }
        }
        panic!("no answer");
    }
}

#[test]
fn any_response_is_handed_on_as_it_came() {
    let pair = std::sync::Mutex::new(Pair::new("responses"));
    bolero::check!()
        .with_type::<(Fields, Vec<u8>, u64)>()
        .for_each(|(fields, body, key)| {
            let mut pair = pair.lock().expect("no panic before");
            let plain = pair.answer(received(body, RESPONSE_FIELDS_AT, 0), *key);
            assert_eq!(plain.body(), body);
            let bytes = [&extension(fields, &OF_RESPONSES)[..], body].concat();
            let Ok(header) = ResponseHeader::parse(&bytes) else {
                return;
            };
            // Others end as a status, without a body.
            if header.code != Code::Ok && header.stream.is_none() {
                return;
            }
            let original = received(&bytes, RESPONSE_FIELDS_AT, header.body_at);
            let got = pair.answer(original.clone(), *key);
            assert_eq!(got.body(), original.body());
            assert_eq!(got.stream(), translate(original.stream(), *key));
            assert_eq!(got.form().1.compressed, original.form().1.compressed);
            assert_eq!(got.to_metadata(), original.to_metadata());
            let status = |of: &OwnedMessage| {
                let status = of.stream().and(of.stream_status())?;
                Some((status.code(), status.message().to_owned()))
            };
            assert_eq!(status(&got), status(&original));
        });
}
