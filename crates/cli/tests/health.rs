//! `starling health` from outside, over `udp` and `shm`.

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use common::{Serve, run, shm, starling, text};
use serde_json::{Value, json};

/// Runs `starling health`. Returns its exit status, its output and its error text.
fn health(arguments: &[&str]) -> (i32, String, String) {
    let output = run(&[&["health"][..], arguments].concat());
    let code = output.status.code().expect("it ended by itself");
    (code, text(&output.stdout), text(&output.stderr))
}

fn serve(name: &str) -> Serve {
    let addresses = ["udp://127.0.0.1:0", &shm(name)];
    Serve::start("kv", &addresses, &["--records", "0"])
}

#[test]
fn a_server_and_its_services_are_serving() {
    let serve = serve("health");
    for address in &serve.addresses {
        let (code, said, error) = health(&[address]);
        assert_eq!((code, &*said, &*error), (0, "SERVING\n", ""));
        let (code, said, _) = health(&[address, "--service", "kv.Kv", "--json"]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let expected = json!({"service": "kv.Kv", "status": "SERVING"});
        assert_eq!((code, said), (0, expected));
        // A watch that ends by itself.
        let (code, said, error) = health(&[address, "--watch", "--timeout", "300ms"]);
        assert_eq!((code, &*said, &*error), (0, "SERVING\n", ""));
    }
}

#[test]
fn whatever_else_a_server_says_or_does_has_an_exit_status_of_its_own() {
    let serve = serve("health-else");
    let address = &*serve.addresses[0];
    let unknown = [address, "--service", "kv.Kw"];
    let watch = ["--watch", "--timeout", "300ms"];
    for (arguments, status, said, error) in [
        (
            &unknown[..],
            69,
            "",
            "NOT_FOUND: the server knows no service \"kv.Kw\"",
        ),
        (
            &[&unknown[..], &watch].concat(),
            1,
            "SERVICE_UNKNOWN\n",
            "kv.Kw: SERVICE_UNKNOWN; it should not be called now",
        ),
        (&["udp://127.0.0.1:1"], 78, "", "UNAVAILABLE: "),
        (&["udp://127.0.0.1:1", "--watch"], 78, "", "UNAVAILABLE: "),
        (&["nonsense"], 2, "", "write udp://HOST:PORT"),
        (&[address, "--timeout", "5"], 2, "", "a number and a unit"),
    ] {
        let (code, output, text) = health(arguments);
        assert_eq!((code, &*output), (status, said), "{arguments:?}: {text}");
        assert!(text.contains(error), "{arguments:?}: {text}");
    }
}

/// A `starling health --watch`, which is killed when this is dropped.
struct Watch(Child, Lines<BufReader<ChildStdout>>);

impl Watch {
    fn start(address: &str) -> Self {
        let mut command = starling(&["health", address, "--watch", "--json"]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output.lines())
    }

    /// The next status that it prints.
    fn next(&mut self) -> Option<String> {
        let line = self.1.next()?.unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        Some(line["status"].as_str()?.to_owned())
    }

    fn exit_status(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_watch_sees_a_server_shut_down() {
    for index in 0..2 {
        let mut serve = serve("health-watch");
        let mut watch = Watch::start(&serve.addresses[index]);
        assert_eq!(watch.next().as_deref(), Some("SERVING"));
        serve.signal("TERM");
        assert_eq!(watch.next().as_deref(), Some("NOT_SERVING"));
        assert_eq!(watch.next(), None);
        assert_eq!(watch.exit_status(), Some(78));
        assert_eq!(serve.wait().code(), Some(0));
    }
}

#[test]
fn the_help_teaches_with_examples() {
    let (code, help, _) = health(&["--help"]);
    assert_eq!(code, 0);
    for part in ["--service <NAME>", "Exit status:", "starling health udp://"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
