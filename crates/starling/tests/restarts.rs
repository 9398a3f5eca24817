//! Servers of a balanced channel that are restarted and killed while many threads call: real processes, on every
//! device that reaches other processes and needs no root.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::process::{self, Process};
use common::{another_address, far_addresses, impatient, payload, wait_until};
use rustix::process::Signal;
use starling::{Channel, ChannelBuilder, Code, EndpointConfig, RetryPolicy, ServiceConfig, Status};
use starling_test_protos::test::TestClient;

const THREADS: usize = 16;

/// Not a test: [`Process::serve`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    process::serve_if_told(EndpointConfig::default());
}

fn three_servers(address: &str) -> Vec<Process> {
    (0..3)
        .map(|number| Process::serve(&another_address(address, number)))
        .collect()
}

fn channel_to(servers: &[Process]) -> ChannelBuilder {
    Channel::balanced(servers.iter().map(|server| server.address.clone()))
}

/// What threads do and see.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    succeeded: AtomicU64,
}

impl Load {
    /// Calls until it is to stop. Returns how calls failed.
    fn call(&self, channel: &Channel, thread: usize) -> Vec<Status> {
        let client = TestClient::new(channel.clone());
        let mut failures = Vec::new();
        for number in 0u64.. {
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            let bytes = number.to_le_bytes();
            let message = payload(&bytes);
            let call = match thread % 2 {
                0 => client.echo(&message),
                _ => client.work(&message),
            };
            match call.wait() {
                Ok(response) => {
                    assert_eq!(response.message().bytes(), bytes);
                    self.succeeded.fetch_add(1, Ordering::SeqCst);
                }
                Err(status) => failures.push(status),
            }
        }
        failures
    }

    /// Waits until so many more calls have succeeded.
    fn until_more(&self, calls: u64) {
        let before = self.succeeded.load(Ordering::SeqCst);
        wait_until(|| self.succeeded.load(Ordering::SeqCst) >= before + calls);
    }
}

/// Has all threads call while `disturb` runs. Returns how calls failed.
fn under_load(channel: &Channel, disturb: impl FnOnce(&Load)) -> Vec<Status> {
    let load = Load::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let load = &load;
                    move || load.call(channel, thread)
                })
            })
            .collect();
        load.until_more(1000);
        disturb(&load);
        load.stop.store(true, Ordering::SeqCst);
        let failures = threads.into_iter();
        failures
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

/// Waits until all three backends take calls.
fn until_all_take_calls(channel: &Channel) {
    wait_until(|| {
        let backends = channel.backends();
        backends
            .iter()
            .filter(|backend| backend.takes_calls())
            .count()
            == 3
    });
}

#[test]
fn no_call_fails_while_all_servers_are_restarted_one_after_the_other() {
    for address in far_addresses() {
        let mut servers = three_servers(&address);
        let channel = channel_to(&servers).lazy().expect("a channel");
        let failures = under_load(&channel, |load| {
            for _ in 0..2 {
                for server in &mut servers {
                    until_all_take_calls(&channel);
                    let address = server.address.clone();
                    server.end();
                    load.until_more(500);
                    *server = Process::serve(&address);
                    load.until_more(500);
                }
            }
        });
        assert_eq!(failures, [], "{address}");
    }
}

#[test]
fn only_calls_at_a_killed_server_fail() {
    for address in far_addresses() {
        let servers = three_servers(&address);
        let channel = channel_to(&servers).endpoint_config(impatient());
        let channel = channel.lazy().expect("a channel");
        let failures = under_load(&channel, |load| {
            until_all_take_calls(&channel);
            load.until_more(500);
            servers[1].signal(Signal::KILL);
            // Longer than it takes to notice.
            load.until_more(3000);
            wait_until(|| !channel.backends()[1].takes_calls());
            load.until_more(1000);
        });
        for status in &failures {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(
                status.may_have_run(),
                "it would have been made elsewhere: {status}"
            );
            let killed = &servers[1].address;
            assert!(status.message().contains(killed.as_str()), "{status}");
        }
    }
}

#[test]
fn with_retries_no_call_fails_when_a_server_is_killed() {
    let pause = Duration::from_millis(1);
    let retry = RetryPolicy::default().backoff(pause, 10 * pause, 2.0);
    let config = ServiceConfig::new().retry_idempotent(retry);
    for address in far_addresses() {
        let mut servers = three_servers(&address);
        let channel = channel_to(&servers).endpoint_config(impatient());
        let channel = channel
            .service_config(config.clone())
            .lazy()
            .expect("a channel");
        let failures = under_load(&channel, |load| {
            for killed in [1, 2, 0] {
                until_all_take_calls(&channel);
                load.until_more(500);
                servers[killed].signal(Signal::KILL);
                wait_until(|| !channel.backends()[killed].takes_calls());
                load.until_more(500);
                let address = servers[killed].address.clone();
                servers[killed] = Process::serve(&address);
            }
        });
        assert_eq!(failures, [], "{address}");
    }
}
