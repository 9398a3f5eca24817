//! Looking for one planted bug: programs that run until one of them has found it or the time is over.

use std::io::{BufRead, BufReader, Read};

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Build;

/// A test program that takes longer than this hangs: without a bug it takes seconds.
const TESTS_HANG: Duration = Duration::from_secs(180);
/// A hunt that runs on so long after its time hangs.
const HUNT_HANGS: Duration = Duration::from_secs(60);
/// How often a program is looked at that prints nothing.
const GLANCE: Duration = Duration::from_millis(500);

/// How to look for bugs.
pub(super) struct Look<'a> {
    pub(super) build: &'a Build,
    /// The time for each bug.
    pub(super) longest: Duration,
    pub(super) tests: bool,
    pub(super) hunt: bool,
    /// Threads of a hunt; one for each core unless set.
    pub(super) threads: Option<u32>,
    /// Set when the looking is to end.
    pub(super) stop: &'a AtomicBool,
}

/// What became of a bug.
pub(super) enum Found {
    By { what: String, after: Duration },
    Nothing { after: Duration },
    Stopped,
}

/// How a program ended.
enum End {
    /// It said this, which means that it has found the bug.
    Said(String),
    /// By itself; whether with success.
    Exit(bool),
    Hangs,
    Stopped,
}

impl Look<'_> {
    pub(super) fn for_bug(&self, number: usize) -> Found {
        let begin = Instant::now();
        let found = |what: String| Found::By {
            what,
            after: begin.elapsed(),
        };
        let tests = self.build.tests.iter().filter(|_| self.tests);
        for program in tests {
            let mut command = self.build.command(program, number);
            match self.watch(&mut command, TESTS_HANG, said_by_test) {
                End::Said(name) => return found(format!("test {name}")),
                End::Exit(true) => {}
                End::Exit(false) => return found("a test program that ends".into()),
                End::Hangs => return found("a test that hangs".into()),
                End::Stopped => return Found::Stopped,
            }
        }
        if self.hunt {
            let left = self.longest.saturating_sub(begin.elapsed());
            match self.hunt(number, left) {
                End::Said(promise) => return found(format!("hunt: {promise}")),
                End::Exit(true) => {}
                End::Exit(false) => return found("a hunt that ends".into()),
                End::Hangs => return found("a hunt that hangs".into()),
                End::Stopped => return Found::Stopped,
            }
        }
        Found::Nothing {
            after: begin.elapsed(),
        }
    }

    fn hunt(&self, number: usize, time: Duration) -> End {
        let mut command = self.build.command(&self.build.hunt, number);
        let minutes = (time.as_secs_f64() / 60.0).to_string();
        command.args(["sim", "hunt", "--minutes", &minutes]);
        if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        self.watch(&mut command, time + HUNT_HANGS, said_by_hunt)
    }

    /// Runs a program until it ends, has said what `said` looks for, or `longest` is over.
    fn watch(
        &self,
        command: &mut Command,
        longest: Duration,
        said: fn(&str) -> Option<String>,
    ) -> End {
        let end = Instant::now() + longest;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program was built");
        let (lines, said_lines) = channel();
        follow(child.stdout.take().expect("piped"), lines.clone());
        follow(child.stderr.take().expect("piped"), lines);
        let said = self.wait(&said_lines, end, said);
        if said.is_some() {
            let _ = child.kill();
        }
        let status = child.wait();
        said.unwrap_or_else(|| End::Exit(status.is_ok_and(|status| status.success())))
    }

    /// `None`: the program has ended.
    fn wait(
        &self,
        lines: &Receiver<String>,
        end: Instant,
        said: fn(&str) -> Option<String>,
    ) -> Option<End> {
        loop {
            match lines.recv_timeout(GLANCE) {
                Ok(line) => {
                    if let Some(said) = said(&line) {
                        return Some(End::Said(said));
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => {
                    return Some(End::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > end => return Some(End::Hangs),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// Sends each line of an output.
fn follow(output: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
        for bytes in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&bytes).into_owned();
            if lines.send(line).is_err() {
                break;
            }
        }
    });
}

/// The name of a test that fails.
fn said_by_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.to_owned())
}

/// The promise that a hunt says is broken.
fn said_by_hunt(line: &str) -> Option<String> {
    let (seed, promise) = line.split_once(" breaks a promise: ")?;
    let promise = promise.strip_suffix("; shrinking it").unwrap_or(promise);
    let short: String = promise.chars().take(100).collect();
    Some(format!("{short} ({seed})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_say_is_understood() {
        let said = said_by_test("test pair::a ... FAILED");
        assert_eq!(said.as_deref(), Some("pair::a"));
        assert_eq!(said_by_test("test pair::a ... ok"), None);
        let said = said_by_hunt("seed 7 breaks a promise: content: no; shrinking it");
        assert_eq!(said.as_deref(), Some("content: no (seed 7)"));
        assert_eq!(said_by_hunt("hunting from seed 7"), None);
    }
}
