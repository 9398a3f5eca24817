//! `starling serve` from outside: its errors before it listens, and the counts that it prints.

mod common;

use common::{Serve, run, text};

#[test]
fn a_server_that_cannot_start_its_workers_does_not_listen() {
    // The limit leaves room for the stacks of some workers only. They are large: what is left, less than one, is
    // enough for what a thread that has begun needs besides.
    let output = common::run_limited(
        "ulimit -v 1000000 && export RUST_MIN_STACK=67108864",
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
fn a_server_prints_its_counts_at_sigusr1_and_at_its_end() {
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

/// A datagram with one empty frame of this kind, as a source without a session sends it. PROTOCOL.md
/// has the preamble and the frame header.
fn datagram_of_unknown_peer(kind: u8) -> [u8; 24] {
    let mut datagram = [0; 24];
    (datagram[0], datagram[1], datagram[8]) = (0x5a, 3, kind);
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
    // The server reads the datagrams above before those of this call.
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
    // A server that ends because of this may take a moment to do so.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let output = run(&["call", &address, "kv.Kv/Scan", r#"{"limit": 10}"#]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serve.signal("TERM");
    assert_eq!(serve.wait().code(), Some(0));
}
