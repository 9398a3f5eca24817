//! A peer that speaks the session protocol without an endpoint, and sends what it likes.

use std::net::SocketAddr;

use starling_endpoint::Secrets;
use starling_io::{Clock, PacketIo, PacketRx, PacketTx};
use starling_proto::{
    Config, FrameSink, Incoming, Msgbuf, Origin, PeerId, Prefix, Protocol, SessionId, SinkError,
    Source,
};
use starling_sim::SimTx;
use starling_sim::stepped::{SteppedIo, SteppedNetwork};

/// Where the number is in the header of a frame.
const NUMBER_AT: usize = 8;

/// A frame: its peer, the preamble, the header and the body.
type SentFrame = (starling_io::PeerId, [u8; 8], Vec<u8>, Vec<u8>);

struct Sink<'a>(&'a mut SimTx, &'a mut Option<SentFrame>);

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
        *self.1 = Some((peer, *preamble, head.to_vec(), body.to_vec()));
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

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.0.address(starling_io::PeerId(peer.0))
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        self.0.limit_datagram(starling_io::PeerId(peer.0), bytes);
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        self.0.max_datagram(starling_io::PeerId(peer.0))
    }
}

/// The session protocol without an endpoint.
pub struct Raw {
    pub io: SteppedIo,
    protocol: Protocol,
    network: SteppedNetwork,
    /// The frame that it sent last.
    sent: Option<SentFrame>,
    /// Extension bit and bytes of the responses that arrived.
    pub responses: Vec<(bool, Vec<u8>)>,
    /// The answer to every request.
    pub answer: (bool, Vec<u8>),
}

impl Raw {
    pub fn new(network: &SteppedNetwork) -> Self {
        let config = Config {
            reliable: true,
            ..Config::default()
        };
        let secrets = Secrets {
            token_key: [77; 16],
            cookie_key: [7; 16],
        };
        Self {
            io: network.device(),
            protocol: Protocol::new(config, secrets, 0).unwrap(),
            network: network.clone(),
            sent: None,
            responses: Vec::new(),
            answer: (false, Vec::new()),
        }
    }

    pub fn connect(&mut self, address: &str) -> SessionId {
        let now = self.network.clock().now_ns();
        let peer = PeerId(self.io.open_peer(address).unwrap().0);
        let sink = &mut Sink(self.io.split().1, &mut self.sent);
        self.protocol.connect(now, peer, sink).unwrap()
    }

    pub fn request(&mut self, session: SessionId, ext: bool, bytes: &[u8]) {
        let now = self.network.clock().now_ns();
        let message = Msgbuf::from_vec(bytes.to_vec());
        let sink = &mut Sink(self.io.split().1, &mut self.sent);
        self.protocol
            .request(
                now,
                session,
                message,
                Prefix {
                    ext,
                    ..Prefix::NONE
                },
                0,
                sink,
            )
            .unwrap();
    }

    pub fn turn(&mut self) {
        let now = self.network.clock().now_ns();
        let (rx, tx) = self.io.split();
        for index in 0..rx.rx_burst().unwrap() {
            let datagram = rx.datagram(index);
            let source = match datagram.source {
                starling_io::Source::Peer(peer) => Source::Peer(PeerId(peer.0)),
                starling_io::Source::Unknown(address) => Source::Unknown(address),
            };
            let sink = &mut Sink(&mut *tx, &mut self.sent);
            let mut frames = self
                .protocol
                .handle_datagram(now, source, false, datagram.bytes, sink)
                .unwrap();
            while let Some(incoming) =
                self.protocol
                    .poll_incoming(now, &mut frames, &mut Sink(&mut *tx, &mut self.sent))
            {
                match incoming {
                    Incoming::Response { ext, body, .. } => {
                        self.responses.push((ext, body.bytes().to_vec()));
                    }
                    Incoming::Request { id, .. } => {
                        let (ext, bytes) = self.answer.clone();
                        let mut message = Msgbuf::from_vec(bytes);
                        let sink = &mut Sink(&mut *tx, &mut self.sent);
                        self.protocol
                            .respond(
                                now,
                                id,
                                &mut message,
                                Prefix {
                                    ext,
                                    ..Prefix::NONE
                                },
                                sink,
                            )
                            .unwrap();
                    }
                    Incoming::Cancelled { .. } => {}
                }
            }
        }
        while self.protocol.poll_event().is_some() {}
        self.protocol
            .flush(now, &mut Sink(&mut *tx, &mut self.sent));
        tx.flush().unwrap();
    }

    /// Sends the frame that was sent last with another number: a later request in the same slot, if
    /// the number is higher.
    pub fn send_again_as(&mut self, number: u64) {
        let (peer, preamble, head, body) = self.sent.as_mut().expect("it sent something");
        head[NUMBER_AT..][..8].copy_from_slice(&number.to_le_bytes());
        let (_, tx) = self.io.split();
        tx.append(*peer, preamble, head, body, &[]).unwrap();
        tx.flush().unwrap();
    }
}
