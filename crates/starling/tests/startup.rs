//! Settings that cannot work are errors before the server serves.

mod common;

use common::{Service, far_addresses, server};
use starling::{Channel, Endpoint, Error, Server, WorkerConfig, jbsq};
use starling_test_protos::hello::{Hello, HelloReplyMut, HelloRequest, HelloServer};
use starling_test_protos::test::TestServer;

type Change = fn(&mut WorkerConfig);

/// Settings of workers that cannot work, and the field that is wrong.
const UNSOUND: [(Change, &str); 5] = [
    (|config| config.threads = 0, "threads"),
    (|config| config.depth = 0, "depth"),
    (|config| config.depth = jbsq::MAX_DEPTH + 1, "depth"),
    (
        |config| config.model = jbsq::QueueModel::Grouped(0),
        "model",
    ),
    (
        |config| (config.steered, config.model) = (true, jbsq::QueueModel::Partitioned),
        "model",
    ),
];

#[test]
fn worker_settings_that_cannot_work_are_refused_at_build() {
    for address in far_addresses() {
        for (change, field) in UNSOUND {
            let mut config = WorkerConfig::new(2, 16);
            change(&mut config);
            let (builder, _) = server(&[&address]);
            let built = builder.worker_config(config.clone()).build().map(drop);
            let endpoint = Endpoint::builder().bind(&address).worker_config(config);
            for result in [built, endpoint.build().map(drop)] {
                match result.expect_err(field) {
                    Error::Workers(error) => assert_eq!(error.field, field),
                    error => panic!("{field}: {error}"),
                }
            }
        }
    }
}

#[test]
fn session_settings_that_cannot_work_are_refused_at_build() {
    let (builder, _) = server(&["udp://127.0.0.1:0"]);
    let mut config = starling::EndpointConfig::default();
    config.protocol.slots = 65;
    let error = builder.config(config.clone()).build();
    let error = error.expect_err("65 slots");
    assert!(matches!(error, Error::Config(_)), "{error}");
    for address in far_addresses() {
        let channel = Channel::builder(&address).endpoint_config(config.clone());
        let error = channel.lazy().expect_err("65 slots");
        assert!(matches!(error, Error::Config(_)), "{error}");
    }
}

#[test]
fn an_endpoint_that_serves_nothing_has_no_services() {
    for address in far_addresses() {
        let gate = std::sync::Arc::default();
        let builder = Endpoint::builder().reach(&address);
        let builder = builder.add_service(TestServer::new(Service(gate)));
        let error = builder.build().expect_err("nobody can reach it");
        assert!(matches!(error, Error::ServesNothing), "{error}");
    }
}

#[test]
fn a_steered_server_without_worker_methods_is_refused_at_build() {
    struct Inline;
    impl Hello for Inline {
        fn greet(
            &self,
            _: starling::Request<'_, HelloRequest>,
            _: HelloReplyMut<'_>,
        ) -> Result<(), starling::Status> {
            Ok(())
        }
    }
    let builder = Server::builder()
        .bind("udp://127.0.0.1:0")
        .expect("a free port")
        .add_service(HelloServer::new(Inline));
    let error = builder.steered().build().expect_err("no method in workers");
    assert!(matches!(error, Error::NothingToSteer), "{error}");
}
