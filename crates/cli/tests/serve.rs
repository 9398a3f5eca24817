//! `starling serve`: what it says, and when.

mod common;

use common::{Serve, run, text};

#[test]
fn nothing_listens_if_there_cannot_be_so_many_workers() {
    // Room for the stacks of some of them.
    let output = common::run_limited(
        "ulimit -v 1000000",
        &[
            "serve",
            "kv",
            "--address",
            "udp://127.0.0.1:0",
            "--workers",
            "1024",
        ],
    );
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert!(said.contains("start worker threads"), "{said}");
}

#[test]
fn a_server_says_what_it_has_done_when_asked_and_at_the_end() {
    let mut serve = Serve::start("kv", &["udp://127.0.0.1:0"], &["--records", "3"]);
    let address = serve.addresses[0].clone();
    assert_eq!(serve.modes, [""]);
    let call = || {
        let output = run(&["call", &address, "kv.Kv/Scan", r#"{"limit": 10}"#]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    let counts = |serve: &mut Serve, name: &str| -> u64 {
        assert_eq!(serve.line(), address);
        let lines = [serve.line(), serve.line(), serve.line()].join(", ");
        let [_, count] = lines.split_once(name).expect(&lines).into();
        let digits = count.trim_start().split(',').next().expect("a count");
        digits.parse().expect(&lines)
    };
    call();
    serve.signal("USR1");
    let first = counts(&mut serve, " requests ");
    assert!(first > 0, "{first}");
    call();
    serve.signal("TERM");
    assert_eq!(serve.wait().code(), Some(0));
    assert_eq!(counts(&mut serve, " requests "), 2 * first);
}

/// A datagram with one empty frame of a kind, from a source that no session is open with: see
/// PROTOCOL.md, sections of the preamble and of the frame header.
fn datagram_of_unknown_peer(kind: u8) -> [u8; 24] {
    let mut datagram = [0; 24];
    (datagram[0], datagram[1], datagram[8]) = (0x5a, 1, kind);
    datagram
}

#[test]
fn dropped_frames_are_among_the_printed_counts() {
    const CANCEL: u8 = 7;
    const CONNECT: u8 = 9;
    let mut serve = Serve::start("kv", &["udp://127.0.0.1:0"], &["--records", "3"]);
    let address = serve.addresses[0].clone();
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = address.strip_prefix("udp://").expect(&address);
    for kind in [CONNECT, CANCEL, CANCEL] {
        let datagram = datagram_of_unknown_peer(kind);
        client.send_to(&datagram, server).unwrap();
    }
    // The server reads what came before this call first.
    let output = run(&["call", &address, "kv.Kv/Scan", r#"{"limit": 1}"#]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serve.signal("TERM");
    assert_eq!(serve.wait().code(), Some(0));
    assert_eq!(serve.line(), address);
    let [_, protocol, _] = [serve.line(), serve.line(), serve.line()];
    for count in ["frames_malformed 1", "frames_stale 2"] {
        let mut counts = protocol.trim_start_matches("  protocol: ").split(", ");
        assert!(
            counts.any(|printed| printed == count),
            "{count}: {protocol}"
        );
    }
}

#[test]
fn a_server_goes_on_after_the_reader_of_its_output_is_gone() {
    let mut serve = Serve::start("kv", &["udp://127.0.0.1:0"], &["--records", "3"]);
    let address = serve.addresses[0].clone();
    serve.hang_up();
    serve.signal("USR1");
    // It may take a moment to end, if it does.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let output = run(&["call", &address, "kv.Kv/Scan", r#"{"limit": 10}"#]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serve.signal("TERM");
    assert_eq!(serve.wait().code(), Some(0));
}
