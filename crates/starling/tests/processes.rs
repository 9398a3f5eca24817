//! Servers and clients in processes of their own, which are killed, stopped and continued.

mod common;

use std::time::Duration;

use common::process::{self, Process};
use common::{far_addresses, impatient, payload, server};
use rustix::process::Signal;
use starling::{CallOptions, Channel, ChannelState, Code, EndpointConfig};
use starling_test_protos::test::TestClient;

const CALL: &str = "STARLING_TEST_CALL";

/// Not a test: [`Process::serve`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    process::serve_if_told(EndpointConfig::default());
}

/// Not a test: [`Process::run`] runs it in a process of its own. Makes a call for each line of its
/// standard input.
#[test]
fn call_in_this_process() {
    let Some(address) = std::env::var_os(CALL) else {
        return;
    };
    let (client, _) = client(address.to_str().expect("text"));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match client.echo(&payload(line.as_bytes())).wait() {
            Ok(response) => assert_eq!(response.message().bytes(), line.as_bytes()),
            Err(status) => return println!("\nfailed {status}"),
        }
        println!("\nechoed {line}");
    }
}

fn client(address: &str) -> (TestClient<Channel>, Channel) {
    let builder = Channel::builder(address).endpoint_config(impatient());
    let channel = builder.lazy().expect("a channel");
    (TestClient::new(channel.clone()), channel)
}

#[test]
fn calls_to_a_killed_server_are_unavailable_and_a_new_one_is_found() {
    for address in far_addresses() {
        let first = Process::serve(&address);
        let address = first.address.clone();
        let (client, channel) = client(&address);
        client.echo(&payload(b"")).wait().expect("an echo");
        let outstanding: Vec<_> = (0..3).map(|_| client.wait(&payload(b""))).collect();
        first.signal(Signal::KILL);
        for call in outstanding {
            let status = call.wait().expect_err("its server is dead");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains(&address), "{status}");
        }
        drop(first);
        let _second = Process::serve(&address);
        let options = CallOptions::waiting();
        client
            .echo_with(&payload(b""), &options)
            .wait()
            .expect("the new one");
        assert_eq!(channel.state(), ChannelState::Ready);
    }
}

#[test]
fn only_calls_that_were_never_sent_are_made_again() {
    for address in far_addresses() {
        let first = Process::serve(&address);
        let address = first.address.clone();
        let (client, _) = client(&address);
        client.echo(&payload(b"")).wait().expect("an echo");
        // Until the client knows the server's version of the method.
        let soon = CallOptions::with_timeout(Duration::from_millis(1));
        while client
            .wait_with(&payload(b""), &soon)
            .wait()
            .is_err_and(|status| {
                assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
                status.message().contains("did not run")
            })
        {}
        // One call for each slot of the session, and calls that queue behind them.
        let slots = EndpointConfig::default().protocol.slots;
        let sent: Vec<_> = (0..slots).map(|_| client.wait(&payload(b""))).collect();
        let waiting = CallOptions::waiting();
        let queued: Vec<_> = (0..20u8)
            .map(|i| client.echo_with(&payload(&[i]), &waiting))
            .collect();
        first.signal(Signal::KILL);
        for call in sent {
            let status = call.wait().expect_err("its server is dead");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains("may have run"), "{status}");
        }
        drop(first);
        let _second = Process::serve(&address);
        for (i, call) in (0..20u8).zip(queued) {
            assert_eq!(call.wait().expect("an echo").message().bytes(), [i]);
        }
    }
}

#[test]
fn a_stopped_server_that_continues_in_time_loses_nothing() {
    for address in far_addresses() {
        let server = Process::serve(&address);
        let client = TestClient::new(Channel::lazy(&server.address).expect("a channel"));
        client.echo(&payload(b"")).wait().expect("an echo");
        server.signal(Signal::STOP);
        let calls: Vec<_> = (0..20u8).map(|i| client.echo(&payload(&[i]))).collect();
        std::thread::sleep(Duration::from_millis(50));
        server.signal(Signal::CONT);
        for (i, call) in (0..20u8).zip(calls) {
            assert_eq!(call.wait().expect("an echo").message().bytes(), [i]);
        }
    }
}

#[test]
fn a_stopped_server_is_unavailable_after_the_peer_timeout() {
    for address in far_addresses() {
        let server = Process::serve(&address);
        let (client, _) = client(&server.address);
        client.echo(&payload(b"")).wait().expect("an echo");
        server.signal(Signal::STOP);
        let status = client
            .wait(&payload(b""))
            .wait()
            .expect_err("it is stopped");
        assert_eq!(status.code(), Code::Unavailable);
        server.signal(Signal::CONT);
        let options = CallOptions::waiting();
        client
            .echo_with(&payload(b""), &options)
            .wait()
            .expect("it is back");
    }
}

/// The server has dropped the client meanwhile. The client learns that before it sends its next call.
#[test]
fn the_next_call_of_a_client_that_was_stopped_for_long_succeeds() {
    for address in far_addresses() {
        let (builder, _) = server(&[&address]);
        let server = builder.config(impatient()).build().expect("a server");
        let server = server.spawn().expect("threads");
        let mut client = Process::run("call_in_this_process", CALL, server.address());
        for word in ["first", "again"] {
            client.send(word);
            assert_eq!(client.next("echoed "), word);
            client.signal(Signal::STOP);
            // Longer than an impatient server waits for a silent client.
            std::thread::sleep(Duration::from_millis(1_200));
            client.send("stopped");
            client.signal(Signal::CONT);
            assert_eq!(client.next("echoed "), "stopped");
        }
    }
}

#[test]
fn calls_to_a_stopped_server_end_at_their_deadline_or_are_answered() {
    for address in far_addresses() {
        let server = Process::serve(&address);
        let client = TestClient::new(Channel::lazy(&server.address).expect("a channel"));
        client.echo(&payload(b"")).wait().expect("an echo");
        server.signal(Signal::STOP);
        let patient = CallOptions::with_timeout(common::LONG);
        let hasty = CallOptions::with_timeout(Duration::from_millis(100));
        let late: Vec<_> = (0..20u8)
            .map(|i| client.echo_with(&payload(&[i]), &hasty))
            .collect();
        for (i, call) in (0..20u8).zip(late) {
            // The server may have run for a moment after the signal.
            match call.wait() {
                Ok(response) => assert_eq!(response.message().bytes(), [i]),
                Err(status) => assert_eq!(status.code(), Code::DeadlineExceeded, "{status}"),
            }
        }
        let kept: Vec<_> = (0..20u8)
            .map(|i| client.echo_with(&payload(&[i]), &patient))
            .collect();
        server.signal(Signal::CONT);
        for (i, call) in (0..20u8).zip(kept) {
            assert_eq!(call.wait().expect("an echo").message().bytes(), [i]);
        }
    }
}
