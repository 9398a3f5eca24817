//! Two endpoints on a network, for tests.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod raw;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, Code, ContinuationId, Endpoint, EndpointConfig, Idle, Metadata, MethodId,
    OwnedMessage, Secrets, SessionId, Status,
};
use starling_io::{Clock, PacketIo};
use starling_sim::stepped::{SteppedClock, SteppedIo, SteppedNetwork};

pub type TestEndpoint = Endpoint<SteppedIo, SteppedClock>;

/// The ends of calls, in order: tag and result.
pub type Ends = Arc<Mutex<Vec<(u64, Result<OwnedMessage, Status>)>>>;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn endpoint(network: &SteppedNetwork, key: u32) -> TestEndpoint {
    let config = EndpointConfig {
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    endpoint_with(network, key, config)
}

pub fn endpoint_with(network: &SteppedNetwork, key: u32, config: EndpointConfig) -> TestEndpoint {
    let secrets = Secrets {
        token_key: [key as u8; 16],
        cookie_key: [key as u8; 16],
    };
    Endpoint::new(network.device(), network.clock(), config, secrets).unwrap()
}

/// A client with a session to a server.
pub struct Pair {
    pub network: SteppedNetwork,
    pub client: TestEndpoint,
    pub server: TestEndpoint,
    pub session: SessionId,
    pub ends: Ends,
    pub collect: ContinuationId,
}

impl Pair {
    pub fn new() -> Self {
        Self::with(EndpointConfig::default())
    }

    /// The same, with a configuration of the server.
    pub fn with(server: EndpointConfig) -> Self {
        let network = SteppedNetwork::default();
        let mut client = endpoint(&network, 1);
        let idle = Idle::Block;
        let server = endpoint_with(&network, 2, EndpointConfig { idle, ..server });
        let session = client.connect(&server.local_address()).unwrap();
        let ends = Ends::default();
        let into = ends.clone();
        let collect = client.register_continuation(move |_, completion| {
            let result = completion.result.map(|response| response.into_owned());
            into.lock().push((completion.tag, result));
        });
        Self {
            network,
            client,
            server,
            session,
            ends,
            collect,
        }
    }

    /// Makes a call and collects its end.
    pub fn call(&mut self, method: u32, body: &[u8], tag: u64) -> starling_endpoint::CallId {
        self.call_with(method, body, tag, &CallOptions::default())
    }

    pub fn call_with(
        &mut self,
        method: u32,
        body: &[u8],
        tag: u64,
        options: &CallOptions,
    ) -> starling_endpoint::CallId {
        self.client
            .call(
                self.session,
                MethodId(method),
                options,
                |buffer| buffer.extend_from_slice(body),
                self.collect,
                tag,
            )
            .unwrap()
    }

    /// Takes turns of both until neither has anything to do at this time.
    pub fn settle(&mut self) {
        settle(&mut [&mut self.client, &mut self.server]);
    }

    /// Lets time pass in small steps.
    pub fn pass(&mut self, time: Duration) {
        pass(
            &self.network.clone(),
            &mut [&mut self.client, &mut self.server],
            time,
        );
    }

    /// The ends collected so far.
    pub fn take_ends(&mut self) -> Vec<(u64, Result<OwnedMessage, Status>)> {
        std::mem::take(&mut self.ends.lock())
    }

    /// Settles; returns the end of the one call that has ended.
    pub fn one_end(&mut self) -> Result<OwnedMessage, Status> {
        self.settle();
        let mut ends = self.take_ends();
        assert_eq!(ends.len(), 1, "{ends:?}");
        ends.remove(0).1
    }
}

/// Takes a turn; returns how many requests arrived in it.
pub fn requests_of_turn<I: PacketIo, C: Clock>(endpoint: &mut Endpoint<I, C>) -> u64 {
    let before = endpoint.stats().requests;
    endpoint.poll().unwrap();
    endpoint.stats().requests - before
}

pub fn settle(endpoints: &mut [&mut TestEndpoint]) {
    let mut idle_rounds = 0;
    for _ in 0..100_000 {
        let mut idle = true;
        for endpoint in endpoints.iter_mut() {
            idle &= endpoint.poll().unwrap().is_idle();
        }
        // An idle turn still sends the frames of calls that the owner made before it.
        idle_rounds = if idle { idle_rounds + 1 } else { 0 };
        if idle_rounds == 2 {
            return;
        }
    }
    panic!("never at rest");
}

pub fn pass(network: &SteppedNetwork, endpoints: &mut [&mut TestEndpoint], time: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(ms(1));
        network.clock().advance(step);
        settle(endpoints);
        left -= step;
    }
}

pub fn code(result: &Result<OwnedMessage, Status>) -> Code {
    match result {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

pub fn metadata(key: &str, value: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert(key, value).unwrap();
    metadata
}
