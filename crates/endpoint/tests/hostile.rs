//! A peer that speaks the session protocol and sends malformed calls.

mod common;

use std::net::SocketAddr;

use common::endpoint;
use starling_endpoint::{CallOptions, Code, Handler, MethodId, Secrets, Status};
use starling_io::{Clock, PacketIo, PacketRx, PacketTx};
use starling_proto::{
    Config, FrameSink, Incoming, Msgbuf, Origin, PeerId, Prefix, Protocol, SessionId, SinkError,
    Source,
};
use starling_sim::SimTx;
use starling_sim::stepped::{SteppedIo, SteppedNetwork};

struct Sink<'a>(&'a mut SimTx);

impl FrameSink for Sink<'_> {
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError> {
        let peer = starling_io::PeerId(peer.0);
        self.0
            .append(peer, preamble, head, body, tail)
            .map_err(|_| SinkError::Gone)
    }

    fn seal(&mut self, peer: PeerId) {
        self.0.seal(starling_io::PeerId(peer.0));
    }

    fn reply(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.0.send_to_unknown(to, datagram);
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId> {
        self.0.accept_peer(address).ok().map(|peer| PeerId(peer.0))
    }

    fn origin(&self, peer: PeerId) -> Origin {
        Origin(self.0.origin(starling_io::PeerId(peer.0)).0)
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        self.0.limit_datagram(starling_io::PeerId(peer.0), bytes);
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        self.0.max_datagram(starling_io::PeerId(peer.0))
    }
}

/// The session protocol without an endpoint.
struct Raw {
    io: SteppedIo,
    protocol: Protocol,
    network: SteppedNetwork,
    /// Extension bit and bytes of the responses that arrived.
    responses: Vec<(bool, Vec<u8>)>,
    /// The answer to every request.
    answer: (bool, Vec<u8>),
}

impl Raw {
    fn new(network: &SteppedNetwork) -> Self {
        let config = Config {
            reliable: true,
            ..Config::default()
        };
        let secrets = Secrets {
            token: 77,
            cookie_key: [7; 16],
        };
        Self {
            io: network.device(),
            protocol: Protocol::new(config, secrets, 0).unwrap(),
            network: network.clone(),
            responses: Vec::new(),
            answer: (false, Vec::new()),
        }
    }

    fn connect(&mut self, address: &str) -> SessionId {
        let now = self.network.clock().now_ns();
        let peer = PeerId(self.io.open_peer(address).unwrap().0);
        let sink = &mut Sink(self.io.split().1);
        self.protocol.connect(now, peer, sink).unwrap()
    }

    fn request(&mut self, session: SessionId, ext: bool, bytes: &[u8]) {
        let now = self.network.clock().now_ns();
        let message = Msgbuf::from_vec(bytes.to_vec());
        let sink = &mut Sink(self.io.split().1);
        self.protocol
            .request(now, session, message, Prefix { ext, len: 0 }, 0, sink)
            .unwrap();
    }

    fn turn(&mut self) {
        let now = self.network.clock().now_ns();
        let (rx, tx) = self.io.split();
        for index in 0..rx.rx_burst().unwrap() {
            let datagram = rx.datagram(index);
            let source = match datagram.source {
                starling_io::Source::Peer(peer) => Source::Peer(PeerId(peer.0)),
                starling_io::Source::Unknown(address) => Source::Unknown(address),
            };
            let sink = &mut Sink(&mut *tx);
            let mut frames = self
                .protocol
                .handle_datagram(now, source, false, datagram.bytes, sink)
                .unwrap();
            while let Some(incoming) =
                self.protocol
                    .poll_incoming(now, &mut frames, &mut Sink(&mut *tx))
            {
                match incoming {
                    Incoming::Response { ext, body, .. } => {
                        self.responses.push((ext, body.bytes().to_vec()));
                    }
                    Incoming::Request { id, .. } => {
                        let (ext, bytes) = self.answer.clone();
                        let mut message = Msgbuf::from_vec(bytes);
                        let sink = &mut Sink(&mut *tx);
                        self.protocol
                            .respond(now, id, &mut message, Prefix { ext, len: 0 }, sink)
                            .unwrap();
                    }
                    Incoming::Cancelled { .. } => {}
                }
            }
        }
        while self.protocol.poll_event().is_some() {}
        self.protocol.flush(now, &mut Sink(&mut *tx));
        tx.flush().unwrap();
    }
}

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
