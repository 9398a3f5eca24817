//! What servers make of the traces that clients' calls come with.

use std::time::Duration;

use starling::testing::TestClock;
use starling::trace::ClientTraces;
use starling::{Channel, ServerHandle};
use starling_test_protos::test::{RelayRequest, TestClient};

use crate::common::{payload, wait_until};
use crate::service::builder;
use crate::spans::of_trace;
use crate::{enable, hex, root};

fn serve(address: &str, traces: ClientTraces, clock: &TestClock) -> ServerHandle {
    let builder = builder(address).client_traces(traces).clock(clock);
    let server = builder.build().expect("a server");
    server.spawn().expect("threads")
}

/// Makes a sampled call, and returns the kinds of its spans at both ends.
fn kinds_of(call: impl FnOnce()) -> Vec<String> {
    let context = root();
    let entered = context.clone().enter();
    call();
    drop(entered);
    let (trace, _) = hex(&context);
    wait_until(|| of_trace(&trace).iter().all(|span| span.is_over));
    let spans = of_trace(&trace).into_iter();
    spans.map(|it| it.field("otel.kind").to_owned()).collect()
}

/// How many of so many sampled calls have a span at the server.
fn followed(client: &TestClient<Channel>, calls: usize) -> usize {
    let inspect = || drop(client.inspect(&payload(b"")).wait().expect("a report"));
    let has_span = |_: &usize| kinds_of(inspect).iter().any(|kind| kind == "server");
    (0..calls).filter(has_span).count()
}

#[test]
fn a_server_follows_as_many_sampled_calls_of_clients_as_it_is_set_to() {
    enable();
    let clock = TestClock::new();
    for (number, traces, at_once, later) in [
        (0, ClientTraces::Follow, 20, 20),
        (1, ClientTraces::FollowAtMost(10), 10, 5),
        (2, ClientTraces::FollowAtMost(0), 0, 0),
        (3, ClientTraces::Ignore, 0, 0),
    ] {
        let address = format!("mem://tracing-clients-{number}");
        let server = serve(&address, traces, &clock);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        assert_eq!(followed(&client, 20), at_once, "{traces:?}");
        clock.advance(Duration::from_millis(500));
        assert_eq!(followed(&client, 20), later, "{traces:?}");
    }
    assert_eq!(ClientTraces::default(), ClientTraces::FollowAtMost(1000));
}

#[test]
fn the_calls_of_a_handler_are_as_its_own_call_is() {
    enable();
    let clock = TestClock::new();
    let next = serve("mem://tracing-clients-next", ClientTraces::Follow, &clock);
    let traces = ClientTraces::FollowAtMost(1);
    let server = serve("mem://tracing-clients-first", traces, &clock);
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let relay = RelayRequest::new().with_address(next.address());
    let call = || drop(client.relay(&relay).wait().expect("an answer"));
    assert_eq!(kinds_of(call), ["client", "server", "client", "server"]);
    assert_eq!(kinds_of(call), ["client"]);
}
