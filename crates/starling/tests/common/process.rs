//! Processes that tests kill, stop and continue: the test itself, run again for one of its functions.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::server;

const SERVE: &str = "STARLING_TEST_SERVE";

/// In a process that is to: serves until its standard input is closed, which happens however the
/// test ends.
pub(crate) fn serve_if_told() {
    let Some(address) = std::env::var_os(SERVE) else {
        return;
    };
    let (builder, _) = server(&[address.to_str().expect("text")]);
    let server = builder.build().expect("a server").spawn().expect("threads");
    println!("\nserving {}", server.address());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// One of them, which is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    /// Of a server, as it tells it.
    pub(crate) address: String,
}

impl Process {
    /// Runs a function of this very test, with the address in that variable.
    pub(crate) fn run(test: &str, variable: &str, address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test has a path"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(variable, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be run again");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self {
            child,
            output: output.lines(),
            address: address.to_owned(),
        }
    }

    /// A server. The test has a function `serve_in_this_process`, which does [`serve_if_told`].
    pub(crate) fn serve(address: &str) -> Self {
        let mut process = Self::run("serve_in_this_process", SERVE, address);
        process.address = process.said("serving ");
        process
    }

    /// What comes after the word on the next line that begins with it, or with "failed".
    pub(crate) fn said(&mut self, word: &str) -> String {
        (self.output.by_ref().map_while(Result::ok))
            .find_map(|line| {
                assert!(!line.starts_with("failed"), "{line}");
                line.strip_prefix(word).map(str::to_owned)
            })
            .expect("it says so")
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("it listens");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
