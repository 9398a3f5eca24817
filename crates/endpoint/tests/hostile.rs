//! A peer that speaks the session protocol and sends malformed calls.

mod common;

use common::endpoint;
use common::raw::Raw;
use starling_endpoint::{CallOptions, Code, Handler, MethodId, Status};
use starling_io::PacketIo;
use starling_sim::stepped::SteppedNetwork;

/// Pseudorandom bytes, the same in each run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small numbers are valid tags and lengths.
            (state >> 32) as u8 % if state & 3 == 0 { 255 } else { 8 }
        })
        .collect()
}

#[test]
fn every_request_is_answered_whatever_its_bytes() {
    let network = SteppedNetwork::default();
    let mut server = endpoint(&network, 1);
    server.register(
        MethodId(0),
        Handler::inline(|_, request, mut reply| {
            let seen = request.metadata().iter().count() + request.body().len();
            let _ = (request.encoding(), request.stream(), request.remaining());
            reply.buffer().extend_from_slice(&seen.to_le_bytes());
            reply.ok();
        }),
    );
    let mut raw = Raw::new(&network);
    let session = raw.connect(&server.local_address());
    const REQUESTS: usize = 2000;
    for seed in 0..REQUESTS as u64 {
        let mut bytes = noise(seed, (seed % 60) as usize);
        if seed % 2 == 0 && bytes.len() >= 4 {
            bytes[..4].fill(0);
        }
        raw.request(session, seed % 3 != 0, &bytes);
        if seed % 16 == 0 {
            server.poll().unwrap();
            raw.turn();
        }
    }
    for _ in 0..REQUESTS {
        raw.turn();
        server.poll().unwrap();
    }
    assert_eq!(raw.responses.len(), REQUESTS);
    let stats = server.stats();
    assert_eq!(stats.requests, REQUESTS as u64);
    assert!(stats.malformed > 100, "{stats:?}");
    assert!(stats.unknown_method > 100, "{stats:?}");
    assert_eq!(stats.panics, 0);
    assert_eq!(server.requests_pending(), 0);
}

#[test]
fn a_malformed_response_is_the_servers_fault() {
    let network = SteppedNetwork::default();
    let mut client = endpoint(&network, 1);
    let mut raw = Raw::new(&network);
    let session = client.connect(&raw.io.local_address()).unwrap();
    let answers: [(bool, &[u8], Code); 5] = [
        (false, b"fine", Code::Ok),
        (true, &[0, 0, b'o', b'k'], Code::Ok),
        (true, &[4, 0, 5, 1, 0, 5], Code::NotFound),
        (true, &[4, 0, 5, 1, 0, 99], Code::Internal),
        (true, &[255], Code::Internal),
    ];
    for (ext, bytes, expected) in answers {
        raw.answer = (ext, bytes.to_vec());
        let options = CallOptions::default();
        let call = client.local().call(session, MethodId(1), &options, |_| {});
        let result = futures::executor::block_on(async {
            let mut call = std::pin::pin!(call);
            for _ in 0..20 {
                if let Some(result) = futures::FutureExt::now_or_never(call.as_mut()) {
                    return result;
                }
                client.poll().unwrap();
                raw.turn();
            }
            Err(Status::unknown("never answered"))
        });
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        assert_eq!(code, expected, "{result:?}");
    }
    assert_eq!(client.stats().malformed, 2);
}
