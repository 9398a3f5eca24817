//! Helpers that run the command, and a server that the command started.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod managed;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// The time after which a wait fails its test.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command.
pub(crate) fn starling(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.args(arguments);
    command
}

/// Runs the command to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let output = starling(arguments).stdin(Stdio::null()).output();
    output.expect("the binary was built for this test")
}

/// Runs the command to its end, in a shell that has set `limit`.
pub(crate) fn run_limited(limit: &str, arguments: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]);
    shell.arg(env!("CARGO_BIN_EXE_starling")).args(arguments);
    shell.stdin(Stdio::null()).output().unwrap()
}

/// Runs the command to its end with something on its standard input.
pub(crate) fn run_with_input(arguments: &[&str], input: &str) -> Output {
    let mut command = starling(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A shared-memory address that no other process uses.
pub(crate) fn shm(name: &str) -> String {
    format!("shm://starling-cli-{name}-{}", std::process::id())
}

/// A `starling serve`, which is killed when this is dropped.
pub(crate) struct Serve {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    pub(crate) addresses: Vec<String>,
    /// The text behind each address: the XDP mode, or nothing.
    pub(crate) modes: Vec<String>,
}

impl Serve {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(service: &str, addresses: &[&str], more: &[&str]) -> Self {
        let mut arguments = vec!["serve", service, "--idle", "block"];
        for address in addresses {
            arguments.extend(["--address", address]);
        }
        arguments.extend(more);
        let mut command = starling(&arguments);
        Self::of(
            command.stdout(Stdio::piped()).spawn().unwrap(),
            addresses.len(),
        )
    }

    /// A process that serves at so many addresses, once it listens. Its output is piped.
    pub(crate) fn of(mut child: Child, addresses: usize) -> Self {
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut serve = Self {
            child,
            output: Some(output),
            addresses: Vec::new(),
            modes: Vec::new(),
        };
        for _ in 0..addresses {
            let line = serve.line();
            let listening = line.strip_prefix("listening on ").expect(&line);
            let (address, mode) = listening.split_once(' ').unwrap_or((listening, ""));
            serve.addresses.push(address.to_owned());
            serve.modes.push(mode.to_owned());
        }
        serve
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.output.as_mut().expect("no hang_up before");
        output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Closes the reading end of the server's output.
    pub(crate) fn hang_up(&mut self) {
        self.output = None;
    }

    /// Sends it a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
