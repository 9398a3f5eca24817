//! `starling doctor` from outside: its findings, its verdicts and its exit status.

use std::process::{Command, Output};

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.arg("doctor").args(arguments);
    command
}

fn doctor(arguments: &[&str]) -> Output {
    let output = command(arguments).output();
    output.expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn calls_are_made_over_devices_that_need_no_privileges() {
    let output = doctor(&["udp", "tcp", "shm", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is one JSON object"))
        .collect();
    for device in ["udp", "tcp", "shm"] {
        let of_device = found.iter().filter(|finding| finding["about"] == device);
        let mut what = of_device.map(|finding| finding["what"].as_str().expect("a text"));
        assert!(
            what.any(|what| what.contains("a call of 32 bytes took")),
            "{found:?}"
        );
    }
    assert!(
        found.iter().all(|finding| finding["about"] != "xdp"),
        "{found:?}"
    );
}

#[test]
fn every_finding_that_is_not_ok_says_what_to_do() {
    let output = doctor(&["--look", "--json"]);
    for line in text(&output.stdout).lines() {
        let finding: Value = serde_json::from_str(line).expect("JSON");
        let level = finding["level"].as_str().expect("a level");
        assert!(["ok", "note", "bad"].contains(&level), "{line}");
        assert_eq!(finding["advice"].is_null(), level == "ok", "{line}");
    }
}

#[test]
fn the_text_has_a_verdict_for_each_device() {
    let output = doctor(&["--look"]);
    let found = text(&output.stdout);
    for device in ["host\n", "server\n", "udp: ", "tcp: ", "shm: ", "xdp: "] {
        assert!(found.contains(device), "{device} is not in\n{found}");
    }
}

#[test]
fn an_unknown_device_is_a_wrong_command_line() {
    let output = doctor(&["rdma"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("udp, tcp, shm, xdp"));
}

/// A device needs fewer capabilities than calls between network namespaces do.
#[test]
fn calls_over_af_xdp_that_cannot_be_tried_are_no_verdict() {
    let test = "calls_over_af_xdp_that_cannot_be_tried_are_no_verdict";
    if !doctor(&["xdp", "--look"]).status.success() {
        println!("skipped: {test} needs root and AF_XDP");
        return;
    }
    let limited = || {
        remove_capability_from_bounding_set(CapabilitySet::SYS_ADMIN).expect("root");
        doctor(&["xdp"])
    };
    let limited = std::thread::scope(|scope| scope.spawn(limited).join().expect("no panic"));
    let without_ip = command(&["xdp"]).env("PATH", "/nonexistent").output();
    for output in [limited, without_ip.expect("it was built")] {
        let found = text(&output.stdout);
        assert!(output.status.success(), "{found}");
        assert!(found.contains("note  not tried: calls between"), "{found}");
        assert!(found.contains("root, with `ip` of iproute2"), "{found}");
        assert!(found.contains("xdp: should work"), "{found}");
    }
}
