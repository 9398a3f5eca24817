//! What cannot be started says why, and leaves nothing behind.

use starling_otlp::{Otlp, OtlpError};

#[test]
fn what_is_no_address_of_a_collector_is_refused() {
    for address in [
        "localhost:4317",
        "https://127.0.0.1:4317",
        "udp://127.0.0.1:4317",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:no",
        "http://[::1]:99999",
        "http://",
        "/",
        "",
    ] {
        let error = Otlp::builder(address).start().expect_err("it is refused");
        assert!(
            matches!(error, OtlpError::Address { .. }),
            "{address}: {error}"
        );
        assert!(error.to_string().contains("http://HOST:4317"), "{error}");
    }
}

#[tokio::test]
async fn a_second_export_is_refused_in_a_task_too() {
    let first = Otlp::builder("http://[::1]:4317")
        .start()
        .expect("the first");
    let second = Otlp::builder("http://localhost").start();
    assert!(matches!(second, Err(OtlpError::TracerIsSet)), "{second:?}");
    drop(first);
}
