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
        let lines = [serve.line(), serve.line()].join(", ");
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

#[test]
fn a_server_serves_although_nobody_hears_what_it_says() {
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
