//! Processes that tests kill, stop and continue. Each runs one function of the test binary itself.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use starling::EndpointConfig;

use super::server;

const SERVE: &str = "STARLING_TEST_SERVE";

/// In a process of [`Process::serve`]: serves until its standard input is closed, which happens
/// however the test ends. Elsewhere it does nothing.
pub(crate) fn serve_if_told(config: EndpointConfig) {
    let Some(address) = std::env::var_os(SERVE) else {
        return;
    };
    let (builder, _) = server(&[address.to_str().expect("text")]);
    let server = builder.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    println!("\nserving {}", server.address());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// A process that is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    /// The server's address, if it is a server.
    pub(crate) address: String,
}

impl Process {
    /// Runs a function of this test binary, with the address in an environment variable.
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

    /// Starts a server. The test has a function `serve_in_this_process` that calls [`serve_if_told`].
    pub(crate) fn serve(address: &str) -> Self {
        let mut process = Self::run("serve_in_this_process", SERVE, address);
        process.address = process.next("serving ");
        process
    }

    /// The rest of the next output line that begins with `word`. Panics at a line that begins with
    /// "failed".
    pub(crate) fn next(&mut self, word: &str) -> String {
        (self.output.by_ref().map_while(Result::ok))
            .find_map(|line| {
                assert!(!line.starts_with("failed"), "{line}");
                line.strip_prefix(word).map(str::to_owned)
            })
            .expect("the process prints it")
    }

    pub(crate) fn send(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("the process reads");
    }

    /// Closes its standard input and waits for its end: a server shuts down.
    pub(crate) fn end(&mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it is a child of this process");
        assert!(status.success(), "{status}");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
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
