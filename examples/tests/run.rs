//! Runs every example and checks what it prints.

use std::path::PathBuf;
use std::process::Command;

fn run(example: &str) -> String {
    let test = std::env::current_exe().expect("this test has a path");
    let profile: PathBuf = test
        .ancestors()
        .nth(2)
        .expect("it is in target/PROFILE/deps")
        .into();
    let path = profile.join("examples").join(example);
    assert!(
        path.exists(),
        "{} is not built: run `cargo test -p starling-examples`",
        path.display()
    );
    let output = Command::new(path).output().expect("it can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn hello_prints_a_greeting() {
    assert_eq!(run("hello"), "Hello, world!\n");
}

#[test]
fn worker_prints_its_counts_and_a_status() {
    assert_eq!(
        run("worker"),
        "2262 primes below 20000\n\
         1941 primes from 20000 to 40000\n\
         OUT_OF_RANGE: numbers up to a million\n"
    );
}

#[test]
fn nested_prints_the_sum_of_its_calls() {
    assert_eq!(
        run("nested"),
        "1229 primes below 10000, counted by two others\n"
    );
}

#[test]
fn threads_prints_how_many_calls_it_made() {
    assert_eq!(
        run("threads"),
        "8 threads made 800 calls and got 21600 characters\n"
    );
}

#[test]
fn tokio_prints_a_greeting_for_each_task() {
    assert_eq!(
        run("tokio"),
        "Hello, Ada!\nHello, Grace!\nHello, Barbara!\n"
    );
}

#[test]
fn token_prints_a_refusal_and_a_greeting() {
    assert_eq!(
        run("token"),
        "UNAUTHENTICATED: /hello.Hello/Greet needs the metadata `token`\nHello, world!\n"
    );
}

#[test]
fn chat_prints_what_each_member_hears() {
    assert_eq!(
        run("chat"),
        "Ada hears Grace: hello\n\
         Ada hears Barbara: hello\n\
         Ada hears Ada: shall we?\n\
         Grace hears Barbara: hello\n\
         Grace hears Ada: shall we?\n\
         Barbara hears Ada: shall we?\n"
    );
}

#[test]
fn metrics_prints_the_calls_by_status() {
    assert_eq!(
        run("metrics"),
        "Hello, Ada!\nHello, Grace!\nINVALID_ARGUMENT: everybody has a name\nHello, Barbara!\n\
         OK: 3 calls\nINVALID_ARGUMENT: 1 calls\n\
         Client: 4 calls, 1 failed\nServer: 4 calls, 1 failed\n"
    );
}

#[test]
fn balanced_prints_three_greetings_and_that_no_call_failed() {
    assert_eq!(
        run("balanced"),
        "first: Hello, world!\n\
         second: Hello, world!\n\
         third: Hello, world!\n\
         no call failed while a server was shut down\n"
    );
}
