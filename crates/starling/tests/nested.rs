//! Handlers that make calls of their own while their callers give up.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Gate, any_addresses, client, serve, wait_until};
use starling::{CallOptions, Channel, Code, ServerHandle};
use starling_test_protos::test::{RelayRequest, TestClient};

/// Two servers. The first one relays requests to the second one, whose gate is shut.
struct Chain {
    client: TestClient<Channel>,
    request: RelayRequest,
    first: Arc<Gate>,
    second: Arc<Gate>,
    _servers: [ServerHandle; 2],
}

impl Chain {
    fn new(first: &str, second: &str) -> Self {
        let (second, second_gate) = serve(second);
        let (first, first_gate) = serve(first);
        let mut request = RelayRequest::new();
        request.set_address(second.address());
        Self {
            client: client(first.address()),
            request,
            first: first_gate,
            second: second_gate,
            _servers: [first, second],
        }
    }

    fn wait_until_the_second_waits(&self, calls: usize) {
        wait_until(|| self.second.waiting.load(Ordering::SeqCst) == calls);
    }

    fn wait_until_both_dropped(&self, calls: usize) {
        wait_until(|| {
            [&self.first, &self.second]
                .iter()
                .all(|gate| gate.dropped.load(Ordering::SeqCst) == calls)
        });
    }
}

/// A chain over each scheme.
fn chains() -> impl Iterator<Item = Chain> {
    let pairs = any_addresses().into_iter().zip(any_addresses());
    pairs.map(|(first, second)| Chain::new(&first, &second))
}

#[test]
fn a_cancelled_call_ends_its_handler_and_the_handlers_own_calls() {
    for chain in chains() {
        let call = chain.client.relay_wait(&chain.request);
        chain.wait_until_the_second_waits(1);
        assert_eq!(chain.first.dropped.load(Ordering::SeqCst), 0);
        drop(call);
        chain.wait_until_both_dropped(1);
    }
}

#[test]
fn a_deadline_ends_the_handler_and_its_own_calls() {
    for chain in chains() {
        let options = CallOptions::with_timeout(Duration::from_millis(200));
        let call = chain.client.relay_wait_with(&chain.request, &options);
        let status = call.wait().expect_err("the gate is shut");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        wait_until(|| {
            let second = chain.second.waiting.load(Ordering::SeqCst);
            chain.second.dropped.load(Ordering::SeqCst) == second
                && chain.first.dropped.load(Ordering::SeqCst) == 1
        });
    }
}
