//! Health checks of a server, over all devices that need no root.

#[path = "../common/mod.rs"]
mod common;
mod shutdown;
mod watchers;

use std::time::{Duration, Instant};

use common::{any_addresses, client, payload, server};
use starling::health::{
    HEALTH_SERVICE, HealthCheckRequest, HealthCheckResponse, HealthCheckResponseMut, HealthClient,
};
use starling::{
    CallOptions, Channel, Code, Endpoint, Registrar, Request, Server, ServerBuilder, ServerHandle,
    Service, ServingStatus, Status, StreamReceiver,
};

/// Only a failing test waits this long.
const SHORT: Duration = Duration::from_secs(30);
const SERVING: ServingStatus = ServingStatus::SERVING;
const NOT_SERVING: ServingStatus = ServingStatus::NOT_SERVING;
const UNKNOWN: ServingStatus = ServingStatus::SERVICE_UNKNOWN;

fn start(builder: ServerBuilder) -> ServerHandle {
    builder.build().expect("a server").spawn().expect("threads")
}

fn health_client(address: &str) -> HealthClient<Channel> {
    let channel = Channel::lazy(address).expect("a channel");
    HealthClient::new(channel).with_options(CallOptions::with_timeout(SHORT))
}

fn request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest::new().with_service(service)
}

fn check(client: &HealthClient<Channel>, service: &str) -> Result<ServingStatus, Status> {
    let response = client.check(&request(service)).wait()?;
    Ok(response.message().status())
}

/// The next status that a watcher gets.
fn next(changes: &mut StreamReceiver<HealthCheckResponse>) -> Result<ServingStatus, Status> {
    let item = changes.wait()?.expect("a watch ends with an error only");
    Ok(item.message().status())
}

/// Ends a server whose calls are over, or end by themselves.
fn end(server: ServerHandle) {
    let finished = server.shutdown(SHORT).expect("the device works");
    assert!(finished, "a call was left behind");
}

#[test]
fn a_server_and_all_of_its_services_serve_unless_the_program_says_otherwise() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let health = builder.health();
        health.set("later", NOT_SERVING).expect("room");
        let built = builder.build().expect("a server");
        assert_eq!(built.health().status("test.Test"), NOT_SERVING);
        let server = built.spawn().expect("threads");
        let client = health_client(server.address());
        let services = ["", "test.Test", "starling.reflection.Reflection"];
        for service in services.into_iter().chain([HEALTH_SERVICE.name]) {
            assert_eq!(check(&client, service), Ok(SERVING), "{service}");
        }
        assert_eq!(check(&client, "later"), Ok(NOT_SERVING));
        health.set("later", SERVING).expect("known");
        server.health().set("", NOT_SERVING).expect("known");
        assert_eq!(check(&client, "later"), Ok(SERVING));
        assert_eq!(check(&client, ""), Ok(NOT_SERVING));
        assert_eq!(check(&client, "test.Test"), Ok(SERVING));

        let status = check(&client, "test.Toast").expect_err("there is none");
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains("\"test.Toast\""), "{status}");
        let status = check(&client, &"n".repeat(2_000)).expect_err("too long");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(health.forget("later"));
        let status = check(&client, "later").expect_err("forgotten");
        assert_eq!(status.code(), Code::NotFound);
        end(server);
        assert_eq!(health.status("test.Test"), NOT_SERVING);
    }
}

#[test]
fn a_watcher_gets_the_status_at_once_and_then_each_change() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder);
        let health = server.health();
        let client = health_client(server.address());
        let mut whole = client.watch(&request(""));
        let mut service = client.watch(&request("test.Test"));
        assert_eq!(next(&mut whole), Ok(SERVING));
        assert_eq!(next(&mut service), Ok(SERVING));
        for status in [NOT_SERVING, ServingStatus::UNKNOWN, SERVING] {
            health.set("test.Test", status).expect("known");
            // What does not change is not sent, so the next status is the next change.
            health.set("test.Test", status).expect("known");
            assert_eq!(next(&mut service), Ok(status));
        }
        health.set("", NOT_SERVING).expect("known");
        assert_eq!(next(&mut whole), Ok(NOT_SERVING));
        drop((whole, service));
        end(server);
    }
}

#[test]
fn a_watcher_of_an_unknown_service_goes_on_and_hears_when_it_is_known() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder);
        let health = server.health();
        let mut changes = health_client(server.address()).watch(&request("plugin"));
        assert_eq!(next(&mut changes), Ok(UNKNOWN));
        health.set("plugin", SERVING).expect("room");
        assert_eq!(next(&mut changes), Ok(SERVING));
        assert!(health.forget("plugin"));
        assert_eq!(next(&mut changes), Ok(UNKNOWN));
        let mut long = health_client(server.address()).watch(&request(&"n".repeat(2_000)));
        let status = next(&mut long).expect_err("too long");
        assert_eq!(status.code(), Code::InvalidArgument);
        drop(changes);
        end(server);
    }
}

#[test]
fn a_server_that_shuts_down_tells_its_watchers_before_it_ends_their_streams() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder);
        let health = server.health();
        let client = health_client(server.address());
        let watched = ["", "test.Test", "test.Toast"];
        let mut watchers = watched.map(|service| client.watch(&request(service)));
        let expected = [Ok(SERVING), Ok(SERVING), Ok(UNKNOWN)];
        assert_eq!(watchers.each_mut().map(next), expected);
        let shutdown = std::thread::spawn(move || {
            let begun = Instant::now();
            end(server);
            begun.elapsed()
        });
        let [whole, service, unknown] = &mut watchers;
        assert_eq!(next(whole), Ok(NOT_SERVING));
        assert_eq!(next(service), Ok(NOT_SERVING));
        for changes in [whole, service, unknown] {
            let status = next(changes).expect_err("the server ends");
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("shutting down"), "{status}");
        }
        // The watchers did not hold it up.
        let took = shutdown.join().expect("no panic");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(health.watchers(), 0);
    }
}

#[test]
fn an_endpoint_has_the_health_of_its_services() {
    let [_, _, address, _] = any_addresses();
    let builder = Endpoint::builder().bind(&address);
    let health = builder.health();
    assert_eq!(health.status(""), NOT_SERVING);
    let endpoint = builder.build().expect("an endpoint");
    assert_eq!(endpoint.health().status(HEALTH_SERVICE.name), SERVING);
    drop(endpoint);
    assert_eq!(health.status(""), NOT_SERVING);
}

#[test]
fn watchers_need_no_executor_of_the_users() {
    let (builder, _) = server(&["mem://health-no-executor"]);
    let server = start(builder.nested_executor(drop));
    let mut changes = health_client(server.address()).watch(&request(""));
    assert_eq!(next(&mut changes), Ok(SERVING));
    drop(changes);
    end(server);
}

/// A health service of the user's own, which knows no services.
struct Own;

impl Service for Own {
    fn descriptor(&self) -> &'static starling::stub::ServiceDescriptor {
        &HEALTH_SERVICE
    }

    fn register<R: Registrar + ?Sized>(self, registrar: &mut R) {
        fn check(
            _: Request<'_, HealthCheckRequest>,
            mut response: HealthCheckResponseMut<'_>,
        ) -> Result<(), Status> {
            response.set_status(ServingStatus::UNKNOWN);
            Ok(())
        }
        let mode = starling::stub::Mode::Inline;
        registrar.unary::<HealthCheckRequest, HealthCheckResponse, _>(
            &HEALTH_SERVICE.methods[0],
            mode,
            check,
        );
    }
}

#[test]
fn a_health_service_of_the_users_own_takes_the_place_of_the_built_in_one() {
    let builder = Server::builder().bind("mem://health-own").expect("free");
    let server = start(builder.add_service(Own));
    let client = health_client(server.address());
    assert_eq!(check(&client, "none"), Ok(ServingStatus::UNKNOWN));
    end(server);
}

/// Other calls go on beside whatever is done to the health of a server.
fn echoes(address: &str) {
    let options = CallOptions::with_timeout(SHORT);
    let echo = client(address).echo_with(&payload(b"hi"), &options).wait();
    assert_eq!(echo.expect("an echo").message().bytes(), b"hi");
}
