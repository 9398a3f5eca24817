//! `starling serve`: what it says, and when.

mod common;

use common::text;

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
