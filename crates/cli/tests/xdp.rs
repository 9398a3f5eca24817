//! `starling serve` and `starling call` over AF_XDP, between two network namespaces.

mod common;

use common::{Serve, run, run_limited, text};
use starling_netns::{Pair, inside};

/// Two namespaces, having said so where there can be none or no AF_XDP in them.
fn pair(test: &str) -> Option<Pair> {
    let pair = Pair::new().and_then(|pair| {
        let output = inside(&pair.b, || run(&["doctor", "xdp", "--look"]));
        match output.status.success() {
            true => Ok(pair),
            false => Err(text(&output.stdout)),
        }
    });
    if let Err(problem) = &pair {
        println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
    }
    pair.ok()
}

#[test]
fn a_call_goes_over_af_xdp_or_to_a_server_on_it() {
    let Some(pair) = pair("a_call_goes_over_af_xdp_or_to_a_server_on_it") else {
        return;
    };
    let more = ["--workers", "2", "--steered", "--records", "3"];
    let serve = inside(&pair.b, || {
        Serve::start("kv", &["xdp://vb/0.0.0.0:0"], &more)
    });
    assert_eq!(serve.modes, ["(driver mode)"]);
    let there = serve.addresses[0].strip_prefix("xdp://vb/").unwrap();
    for address in [format!("xdp://va/{there}"), format!("udp://{there}")] {
        let call = |more: &[&str]| {
            let arguments = [&["call", &address], more].concat();
            let output = inside(&pair.a, || run(&arguments));
            let said = text(&output.stderr);
            assert!(output.status.success(), "{address} {more:?}: {said}");
            text(&output.stdout)
        };
        assert!(call(&[]).starts_with("kv.Kv\n"), "{address}");
        let scanned = call(&["kv.Kv/Scan", r#"{"limit": 10}"#]);
        assert_eq!(scanned.matches("\"key\"").count(), 3, "{scanned}");
    }
}

#[test]
fn more_workers_than_a_queue_steers_to_are_an_error_before_anything_is_served() {
    let test = "more_workers_than_a_queue_steers_to_are_an_error_before_anything_is_served";
    let Some(pair) = pair(test) else {
        return;
    };
    let arguments = ["--workers", "64", "--steered"];
    let arguments = [
        &["serve", "kv", "--address", "xdp://vb/0.0.0.0:0"][..],
        &arguments,
    ]
    .concat();
    let output = inside(&pair.b, || run(&arguments));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert!(said.contains("64 workers are too many"), "{said}");
    assert!(!said.contains("finishing calls"), "{said}");
}

#[test]
fn nothing_listens_if_workers_cannot_have_sockets() {
    let Some(pair) = pair("nothing_listens_if_workers_cannot_have_sockets") else {
        return;
    };
    let arguments = ["serve", "kv", "--address", "xdp://vb/0.0.0.0:0"];
    let arguments = [&arguments[..], &["--workers", "63", "--steered"]].concat();
    // Enough for the device, not for two files of each worker.
    let output = inside(&pair.b, || run_limited("ulimit -n 100", &arguments));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert!(said.contains("Too many open files"), "{said}");
}
