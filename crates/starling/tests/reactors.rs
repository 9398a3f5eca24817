//! The reactor of a runtime waits for the device: the channels' own thread sleeps meanwhile.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Gate, far_addresses, payload, serve, xdp};
use starling::Channel;
use starling_netns::{IPV4, Shape};
use starling_test_protos::test::TestClient;
use tokio::runtime::{Builder, Runtime};

const CALLS: u64 = 50;

/// How often the thread of this name has gone to sleep.
fn sleeps(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let statuses = tasks.filter_map(|task| {
        let status = task.ok()?.path().join("status");
        std::fs::read_to_string(status).ok()
    });
    let of_thread = statuses.filter(|status| status.starts_with(&format!("Name:\t{thread}\n")));
    let switches = of_thread.filter_map(|status| {
        let (_, rest) = status.split_once("\nvoluntary_ctxt_switches:")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    });
    switches.sum()
}

/// Calls that each take longer than a driver spins.
async fn slow_calls(client: &TestClient<Channel>, gate: &Gate) {
    for _ in 0..CALLS {
        gate.open.store(false, Ordering::SeqCst);
        let open = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            gate.open.store(true, Ordering::SeqCst);
        };
        let request = payload(b"slow");
        let (answer, ()) = futures::join!(client.wait(&request), open);
        assert_eq!(answer.expect("an answer").message().bytes(), b"slow");
    }
}

/// How often the channels' thread of this scheme slept while the runtime made calls.
fn sleeps_of(runtime: &Runtime, scheme: &str, client: &TestClient<Channel>, gate: &Gate) -> u64 {
    let thread = format!("starling-{scheme}");
    runtime.block_on(slow_calls(client, gate));
    let before = sleeps(&thread);
    runtime.block_on(slow_calls(client, gate));
    sleeps(&thread) - before
}

fn check(scheme: &str, client: &TestClient<Channel>, gate: &Gate) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let with = sleeps_of(&runtime.expect("a runtime"), scheme, client, gate);
    let runtime = Builder::new_current_thread().enable_time().build();
    let without = sleeps_of(&runtime.expect("a runtime"), scheme, client, gate);
    // Those that are left are timers' (5 ms): each call of a runtime without one costs two and more besides.
    assert!(
        with * 2 < without,
        "{scheme}: {with} sleeps with a reactor, {without} without"
    );
}

#[test]
fn a_runtime_with_a_reactor_waits_without_the_channels_thread() {
    for address in far_addresses() {
        let scheme = address.split(':').next().expect("a scheme");
        let (server, gate) = serve(&address);
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        check(scheme, &client, &gate);
    }
    let test = "a_runtime_with_a_reactor_waits_without_the_channels_thread (xdp)";
    if let Some(pair) = xdp::pair(test, Shape::default()) {
        let (server, gate) = xdp::serve_in(&pair.b, 1, &format!("xdp://vb/{}:0", IPV4[1]));
        let client = TestClient::new(xdp::channel(&pair, &xdp::from_a(&server)));
        check("xdp", &client, &gate);
    }
}
