//! Servers that say that they are not to be called (gRPC A17).

use std::sync::atomic::Ordering;

use starling::{
    BackendHealth, Channel, ChannelBuilder, Code, InterceptedCall, InterceptedResponse,
    Interceptor, LoadBalancing, Next, ServiceConfig, ServingStatus, Status,
};
use starling_test_protos::test::TestClient;

use crate::common::{any_addresses, payload, server, shm_address, wait_until};
use crate::{addresses_of, end_server, servers, shares, two_servers, until_ready, until_shares};

const NOT_SERVING: ServingStatus = ServingStatus::NOT_SERVING;
const SERVING: ServingStatus = ServingStatus::SERVING;

#[test]
fn a_server_that_is_not_serving_gets_no_new_calls_and_keeps_those_it_has() {
    for address in any_addresses() {
        let servers = two_servers(&address);
        let channel = Channel::balanced(addresses_of(&servers)).lazy();
        let channel = channel.expect("a channel");
        let client = TestClient::new(channel.clone());
        until_shares(&client, &servers, &[5, 5]);
        let at_first = TestClient::new(channel.each_backend()[0].clone());
        let early = at_first.wait(&payload(b"early"));
        let gate = &servers[0].1;
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);

        let health = servers[0].0.health();
        health.set("", NOT_SERVING).expect("known");
        wait_until(|| channel.backends()[0].health == BackendHealth::NotServing);
        until_shares(&client, &servers, &[0, 10]);
        assert_eq!(shares(&client, &servers, 50), [0, 50]);
        gate.open.store(true, Ordering::SeqCst);
        early.wait().expect("it goes on");

        health.set("", SERVING).expect("known");
        until_shares(&client, &servers, &[5, 5]);
        // The watches end with the channel.
        drop((client, channel, at_first));
        for (server, _) in servers {
            wait_until(|| server.health().watchers() == 0);
            end_server(server);
        }
    }
}

#[test]
fn a_channel_whose_servers_are_all_not_serving_says_so() {
    let servers = servers(&[shm_address(), shm_address()]);
    for (server, _) in &servers {
        server.health().set("", NOT_SERVING).expect("known");
    }
    let channel = Channel::balanced(addresses_of(&servers)).lazy();
    let channel = channel.expect("a channel");
    let client = TestClient::new(channel.clone());
    let status = client.echo(&payload(b"")).wait().expect_err("no server");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.may_have_run());
    assert!(status.message().contains("not serving"), "{status}");
    let waiting = client.with_options(starling::CallOptions::waiting());
    let call = waiting.echo(&payload(b"late"));
    servers[1].0.health().set("", SERVING).expect("known");
    call.wait().expect("one serves");
}

#[test]
fn a_channel_may_watch_one_service_or_none() {
    let servers = servers(&[shm_address(), shm_address()]);
    let (plugin, whole) = (servers[0].0.health(), servers[1].0.health());
    plugin.set("plugin", SERVING).expect("room");
    let channel = |build: fn(ChannelBuilder) -> ChannelBuilder| {
        let builder = Channel::balanced(addresses_of(&servers));
        build(builder).lazy().expect("a channel")
    };
    // Only the first server knows it.
    let config = r#"{"healthCheckConfig": {"serviceName": "plugin"}}"#;
    let config = ServiceConfig::from_json(config).expect("it is valid");
    let by_config = Channel::balanced(addresses_of(&servers)).service_config(config);
    for channel in [
        channel(|builder| builder.health_check(Some("plugin"))),
        by_config.lazy().expect("a channel"),
    ] {
        let client = TestClient::new(channel.clone());
        until_shares(&client, &servers, &[10, 0]);
        wait_until(|| channel.backends()[1].health == BackendHealth::NotServing);
    }

    whole.set("", NOT_SERVING).expect("known");
    let blind = channel(|builder| builder.health_check(None));
    let client = TestClient::new(blind.clone());
    until_shares(&client, &servers, &[5, 5]);
    assert_eq!(blind.backends()[1].health, BackendHealth::Unchecked);
    // As in gRPC, pick_first does not ask unless it is told to.
    let first = channel(|builder| builder.load_balancing(LoadBalancing::pick_first()));
    plugin.set("", NOT_SERVING).expect("known");
    assert_eq!(shares(&TestClient::new(first), &servers, 5), [5, 0]);
}

/// Refuses health checks.
struct Refuses(Code);

impl Interceptor for Refuses {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        match call.path() {
            "/grpc.health.v1.Health/Watch" => Err(Status::new(self.0, "not here")),
            _ => next.run(call).await,
        }
    }
}

#[test]
fn a_server_that_cannot_say_how_it_is_gets_calls_and_one_that_fails_to_does_not() {
    for (code, is_called) in [
        (Code::Unimplemented, true),
        (Code::ResourceExhausted, true),
        (Code::Internal, false),
        (Code::Unauthenticated, false),
        // As if the connection had ended, but it has not.
        (Code::Unavailable, false),
    ] {
        let (builder, gate) = server(&[&shm_address()]);
        let builder = builder.interceptor(Refuses(code)).build();
        let server = builder.expect("a server").spawn().expect("threads");
        let channel = Channel::balanced([server.address()]).lazy();
        let channel = channel.expect("a channel");
        let client = TestClient::new(channel.clone());
        // It has no deadline, and ends all the same.
        let result = client.echo(&payload(b"")).wait();
        match is_called {
            true => {
                result.expect("it is called");
                assert_eq!(channel.backends()[0].health, BackendHealth::Unchecked);
            }
            false => {
                let status = result.expect_err("it is not called");
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(
                    status.message().contains("asked for its health"),
                    "{status}"
                );
                assert!(!status.may_have_run(), "{status}");
                assert_eq!(channel.backends()[0].health, BackendHealth::CheckFailed);
                assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
            }
        }
    }
}

#[test]
fn a_server_that_floods_its_watchers_disturbs_no_calls() {
    let servers = servers(&[shm_address(), shm_address()]);
    let channel = Channel::balanced(addresses_of(&servers)).lazy();
    let channel = channel.expect("a channel");
    until_ready_by_calls(&channel);
    let health = servers[0].0.health();
    let client = TestClient::new(channel.clone());
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for number in 0..200_000 {
                let status = [NOT_SERVING, SERVING][number % 2];
                health.set("", status).expect("known");
            }
        });
        while !flood.is_finished() {
            client.echo(&payload(b"")).wait().expect("a server");
        }
    });
    until_ready(&channel, 2);
    until_shares(&client, &servers, &[5, 5]);
}

fn until_ready_by_calls(channel: &Channel) {
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().expect("a server");
    until_ready(channel, 2);
}

#[test]
fn a_service_config_that_names_a_service_counts_for_a_channel_to_one_address_too() {
    let (builder, _gate) = server(&[&shm_address()]);
    builder.health().set("mine", NOT_SERVING).expect("room");
    let server = builder.build().expect("a server").spawn().expect("threads");
    let config = ServiceConfig::from_json(r#"{"healthCheckConfig": {"serviceName": "mine"}}"#);
    let channel = Channel::builder(server.address()).service_config(config.expect("valid"));
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let status = client.echo(&payload(b"")).wait().expect_err("no server");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    server.health().set("mine", SERVING).expect("known");
    until_ready(&channel, 1);
    client.echo(&payload(b"")).wait().expect("it serves");
}
