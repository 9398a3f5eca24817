//! `starling inspect` from outside, over `udp` and `shm`, and the page of `starling serve --metrics`.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::{Serve, run, shm, starling, text};
use serde_json::Value;

/// Runs `starling inspect`. Returns its exit status, its output and its error text.
fn inspect(arguments: &[&str]) -> (i32, String, String) {
    let output = run(&[&["inspect"][..], arguments].concat());
    let code = output.status.code().expect("it ended by itself");
    (code, text(&output.stdout), text(&output.stderr))
}

fn serve(name: &str) -> Serve {
    let addresses = ["udp://127.0.0.1:0", &shm(name)];
    let more = [
        "--records",
        "3",
        "--workers",
        "2",
        "--metrics",
        "127.0.0.1:0",
    ];
    Serve::start("kv", &addresses, &more)
}

#[test]
fn a_look_shows_threads_sessions_and_calls() {
    let serve = serve("inspect");
    for address in &serve.addresses {
        let called = run(&["call", address, "kv.Kv/Scan", "{\"limit\": 2}"]);
        assert!(called.status.success(), "{}", text(&called.stderr));
        let (code, shown, error) = inspect(&[address, "--sessions"]);
        assert_eq!((code, &*error), (0, ""), "{shown}");
        for part in [
            "\nthreads\n",
            "\nwhat clients have it hold\n",
            "open sessions",
            "\ncalls\n",
            "\nsessions\n",
            "kv.Kv/Scan",
            address,
            "0 0 + 0",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        let (code, shown, _) = inspect(&[address, "--json", "--sessions"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!((code, &shown["has_metrics"]), (0, &Value::Bool(true)));
        let threads = shown["threads"].as_array().expect("a list");
        let own = |thread: &&Value| thread["address"] == **address;
        let thread = threads.iter().find(own).expect("it serves there");
        assert_eq!(
            (&thread["role"], &thread["answered"]),
            (&"server".into(), &true.into())
        );
        // This very look has a session.
        let sessions = thread["server_session_list"].as_array().expect("a list");
        assert!(
            sessions
                .iter()
                .any(|session| session["credits"].as_u64() > Some(0)),
            "{thread}"
        );
        let calls = shown["calls"].as_array().expect("a list");
        let scan = |call: &&Value| call["method"] == "kv.Kv/Scan" && call["address"] == **address;
        let scan = calls.iter().find(scan).expect("it was called");
        assert_eq!(scan["codes"]["OK"], 1);
    }
}

#[test]
fn a_watch_looks_again_and_shows_rates() {
    let serve = serve("inspect-watch");
    let arguments = [
        "inspect",
        &serve.addresses[1],
        "--watch",
        "--interval",
        "20ms",
    ];
    let mut watch = starling(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test");
    let output = BufReader::new(watch.stdout.take().expect("it is piped"));
    let lines = output.lines().map_while(Result::ok);
    // Its own looks are calls, whose rate the second look has.
    let is_rated = |line: &String| {
        let mut words = line.split_whitespace();
        line.contains("Introspection/GetProcess") && words.nth(4).is_some_and(|rate| rate != "-")
    };
    let rated = lines.take(10_000).find(is_rated);
    watch.kill().expect("it runs");
    watch.wait().expect("it was killed");
    assert!(rated.is_some());
}

#[test]
fn whatever_else_happens_has_an_exit_status_of_its_own() {
    for (arguments, status, error) in [
        (&["udp://127.0.0.1:1"][..], 78, "UNAVAILABLE: "),
        (&["nonsense"], 2, "write udp://HOST:PORT"),
        (
            &["udp://127.0.0.1:1", "--interval", "5"],
            2,
            "a number and a unit",
        ),
    ] {
        let (code, output, text) = inspect(arguments);
        assert_eq!((code, &*output), (status, ""), "{arguments:?}: {text}");
        assert!(text.contains(error), "{arguments:?}: {text}");
    }
    let (code, help, _) = inspect(&["--help"]);
    assert_eq!(code, 0);
    for part in [
        "--sessions",
        "--watch",
        "Exit status:",
        "starling inspect udp://",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn a_server_shows_its_metrics() {
    let mut serve = serve("inspect-page");
    let url = serve.line();
    let url = url
        .strip_prefix("metrics at http://")
        .expect("after the addresses");
    let address = url.strip_suffix("/metrics").expect("a page");
    let mut connection = TcpStream::connect(address).expect("the page");
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("a request");
    let mut page = String::new();
    connection.read_to_string(&mut page).expect("an answer");
    let address = &serve.addresses[0];
    let line = format!("starling_endpoint_turns_total{{address=\"{address}\",role=\"server\"");
    assert!(
        page.starts_with("HTTP/1.1 200") && page.contains(&line),
        "{page}"
    );
    let taken = run(&["serve", "kv", "--metrics", "nonsense"]);
    assert!(text(&taken.stderr).contains("show metrics at http://nonsense/metrics"));
}
