//! The text for Prometheus.

use starling::Channel;
use starling_test_protos::test::TestClient;

use crate::common::{payload, serve};
use crate::parser::parse;

#[test]
fn the_text_can_be_parsed_and_its_histograms_are_sound() {
    starling::metrics::enable();
    let (server, _) = serve("mem://metrics-text");
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    for size in [0, 10, 100, 5000] {
        client
            .echo(&payload(&vec![1; size]))
            .wait()
            .expect("an echo");
        client
            .work(&payload(&vec![1; size]))
            .wait()
            .expect("an echo");
    }
    let page = parse(&starling::metrics::prometheus());
    let mut checked = 0;
    for (name, count) in &page.samples {
        let Some((family, labels)) = name.split_once("_count{") else {
            continue;
        };
        if page.types.get(family).map(String::as_str) != Some("histogram") {
            continue;
        }
        let labels = labels.trim_end_matches('}');
        let bucket =
            |bound: &str| page.samples[&format!("{family}_bucket{{{labels},le=\"{bound}\"}}")];
        assert_eq!(bucket("+Inf"), *count, "{name}");
        let prefix = format!("{family}_bucket{{{labels},le=\"");
        let mut bounds: Vec<(f64, f64)> = (page.samples.iter())
            .filter_map(|(own, value)| {
                let bound = own.strip_prefix(&prefix)?.trim_end_matches("\"}");
                Some((bound.parse().unwrap_or(f64::INFINITY), *value))
            })
            .collect();
        bounds.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(
            bounds.len() > 10 && bounds.is_sorted_by(|one, other| one.1 <= other.1),
            "{name}"
        );
        assert!(
            page.samples
                .contains_key(&format!("{family}_sum{{{labels}}}"))
        );
        checked += 1;
    }
    assert!(checked >= 6, "{checked} histograms");
    let of_thread = |metric: &str| {
        let prefix = format!("{metric}{{address=\"mem://metrics-text\",role=\"server\"");
        let found = page
            .samples
            .iter()
            .find(|(name, _)| name.starts_with(&prefix));
        found.map(|(_, value)| *value)
    };
    assert!(of_thread("starling_endpoint_requests_total") >= Some(8.0));
    assert!(of_thread("starling_protocol_requests_received_total") >= Some(8.0));
    assert!(of_thread("starling_device_rx_queue_total") >= Some(1.0));
}

#[test]
fn no_content_of_messages_is_in_the_text() {
    starling::metrics::enable();
    let (server, _) = serve("mem://metrics-secret");
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let options = starling::CallOptions::default().metadata("token", "hunter2");
    let options = options.expect("a key");
    client
        .echo_with(&payload(b"a secret message"), &options)
        .wait()
        .expect("an echo");
    let text = starling::metrics::prometheus();
    assert!(text.contains("test.Test/Echo"));
    for secret in ["secret message", "hunter2", "token"] {
        assert!(!text.contains(secret), "{secret}");
    }
}
