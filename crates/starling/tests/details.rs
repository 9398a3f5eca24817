//! Details of a status, between handlers and callers, over all devices that need no root.

mod common;

use std::time::Duration;

use common::any_addresses;
use starling::details::{
    BadRequest, DETAILS_KEY, DetailsError, ErrorInfo, RetryInfo, StatusDetails,
};
use starling::{
    Channel, Code, Endpoint, InterceptedCall, InterceptedResponse, Interceptor, Metadata, Next,
    Status, well_known,
};
use starling_test_protos::test::TestClient;

fn info(reason: &str) -> ErrorInfo {
    let mut info = ErrorInfo::new().with_reason(reason).with_domain("test");
    info.metadata_mut().insert("limit", "7");
    info
}

/// Refuses all calls, with two details.
struct Refuses;

fn refused() -> Result<Status, DetailsError> {
    let delay = well_known::Duration::try_from(Duration::from_millis(1500)).expect("in range");
    let mut retry = RetryInfo::new();
    retry.set_retry_delay(delay.view());
    let mut metadata = Metadata::new();
    metadata.insert("other", "kept")?;
    Status::resource_exhausted("no more of it")
        .with_metadata(metadata)
        .with_detail(&info("OUT_OF_QUOTA"))?
        .with_detail(&retry)
}

impl Interceptor for Refuses {
    async fn intercept(
        &self,
        _: InterceptedCall,
        _: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        Err(refused().expect("the details are short"))
    }
}

fn check(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let metadata = status.metadata().expect("some");
    assert_eq!(metadata.value("other"), Some(&b"kept"[..]));
    assert_eq!(
        status.detail().expect("well formed"),
        Some(info("OUT_OF_QUOTA"))
    );
    let retry = status
        .detail::<RetryInfo>()
        .expect("well formed")
        .expect("one");
    let (seconds, nanos) = (retry.retry_delay().seconds(), retry.retry_delay().nanos());
    assert_eq!((seconds, nanos), (1, 500_000_000));
    assert_eq!(status.detail::<BadRequest>().expect("well formed"), None);
    assert_eq!(status.details().expect("well formed").len(), 2);
}

#[test]
fn details_arrive_with_the_status_and_other_metadata() {
    for address in any_addresses() {
        let (builder, _gate) = common::server(&[&address]);
        let server = builder
            .interceptor(Refuses)
            .build()
            .expect("a server")
            .spawn();
        let server = server.expect("threads");
        let message = common::payload(b"x");
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        for call in [
            client.echo(&message),
            client.work(&message),
            client.wait(&message),
        ] {
            check(&call.wait().expect_err("it is refused"));
        }
        let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
        let client = TestClient::new(endpoint.channel(server.address()).expect("a channel"));
        let result = endpoint
            .block_on(client.echo(&message))
            .expect("the device works");
        check(&result.expect_err("it is refused"));
    }
}

#[test]
fn a_status_without_details_has_none() {
    let status = Status::not_found("it");
    assert!(status.details().expect("none").is_empty());
    assert_eq!(status.detail::<ErrorInfo>().expect("none"), None);
}

#[test]
fn details_that_do_not_fit_are_refused_and_nothing_is_lost() {
    let mut status = Status::internal("many");
    let mut added = 0;
    let refused = loop {
        match status.clone().with_detail(&info(&"x".repeat(1000))) {
            Ok(more) => status = more,
            Err(error) => break error,
        }
        added += 1;
        assert!(added < 100, "8 KiB have no room for so many");
    };
    assert!(matches!(refused, DetailsError::TooLarge(_)), "{refused}");
    assert_eq!(status.details().expect("well formed").len(), added);
    assert!(added >= 6, "{added}");
}

#[test]
fn malformed_details_are_an_error_and_not_a_panic() {
    let mut bytes = refused()
        .expect("short")
        .metadata()
        .expect("some")
        .value(DETAILS_KEY)
        .expect("details")
        .to_vec();
    for cut in 0..bytes.len() {
        read(&bytes[..cut]);
    }
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            bytes[at] ^= flip;
            read(&bytes);
            bytes[at] ^= flip;
        }
    }
    let status = with_details(&[0xff; 100]);
    let error = status.details().expect_err("no message begins so");
    assert!(matches!(error, DetailsError::Malformed(_)), "{error}");
}

fn with_details(bytes: &[u8]) -> Status {
    let mut metadata = Metadata::new();
    metadata.insert(DETAILS_KEY, bytes).expect("short");
    Status::unknown("from a peer").with_metadata(metadata)
}

/// Whatever it says, it is bounded, and one of these two.
fn read(bytes: &[u8]) {
    let status = with_details(bytes);
    match status.details() {
        Ok(details) => assert!(details.len() <= bytes.len()),
        Err(error) => assert!(matches!(error, DetailsError::Malformed(_)), "{error}"),
    }
    if let Ok(Some(found)) = status.detail::<ErrorInfo>() {
        assert!(found.reason().len() <= bytes.len());
    }
}
