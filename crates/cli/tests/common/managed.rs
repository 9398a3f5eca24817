//! A service that the command started, and the command as its operator.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use super::{Serve, run, run_with_input, starling, text};

/// A `starling service run`, which is killed when this is dropped.
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) child: Child,
    /// The line that says where its metrics are, if they are anywhere.
    pub(crate) page: String,
}

impl Service {
    pub(crate) fn start(name: &str, more: &[&str]) -> Self {
        let name = format!("ctl-{name}-{}", std::process::id());
        let run = ["service", "run", "--idle", "block", "--name", &name];
        let mut command = starling(&[&run[..], more].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (mut line, mut page) = (String::new(), String::new());
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("service {name}\n"));
        if more.contains(&"--config") {
            // Both lines come at once.
            page = String::from_utf8(output.buffer().to_vec()).unwrap();
        }
        Self { name, child, page }
    }

    /// Runs `starling ctl` on it. Returns its exit status, its output and its error text.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> (i32, String, String) {
        parts(&run(
            &[&["ctl", "--service", &self.name], arguments].concat()
        ))
    }

    /// Runs it, and returns its output.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let (code, said, error) = self.ctl(arguments);
        assert_eq!((code, &*error), (0, ""), "{arguments:?}");
        said
    }

    pub(crate) fn apply(&self, file: &str, more: &[&str]) -> (i32, String, String) {
        let apply = ["ctl", "--service", &self.name, "apply", "-f", "-"];
        parts(&run_with_input(&[&apply[..], more].concat(), file))
    }

    pub(crate) fn list(&self) -> Value {
        serde_json::from_str(&self.done(&["list", "--json"])).unwrap()
    }

    /// A server that the service listens for.
    pub(crate) fn serve_kv(&self) -> Serve {
        let serve = ["serve", "kv", "--records", "0"];
        let mut command = starling(&[&serve[..], &["--address", "udp://127.0.0.1:0"]].concat());
        let command = command.env("STARLING_SERVICE", &self.name);
        Serve::of(command.stdout(Stdio::piped()).spawn().unwrap(), 1)
    }

    /// Makes a call through the service. Returns its exit status and its error text.
    pub(crate) fn call(&self, server: &Serve) -> (i32, String) {
        let scan = [
            "call",
            &server.addresses[0],
            "kv.Kv/Scan",
            r#"{"limit": 3}"#,
        ];
        let mut command = starling(&scan);
        let (code, _, error) = parts(
            &command
                .env("STARLING_SERVICE", &self.name)
                .output()
                .unwrap(),
        );
        (code, error)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn parts(output: &Output) -> (i32, String, String) {
    let code = output.status.code().expect("it ended by itself");
    (code, text(&output.stdout), text(&output.stderr))
}

pub(crate) fn kv() -> Serve {
    Serve::start("kv", &["udp://127.0.0.1:0"], &["--records", "0"])
}
