//! Server and load generator processes: this program, started again in a role.
//!
//! ```text
//!  client process                        server process
//!    Launcher::start ──── spawn ───────▶  ROLE CORE ARGS...
//!         │                               pin to CORE, listen
//!         │ ◀──── "ready ADDRESS\n" ────  announce()          (its standard output)
//!         ⋮                               serve
//!    drop: closes the pipe ────────────▶  end of file on standard input: exit
//! ```
//!
//! A server ends when its standard input does, so it cannot outlive its client, however the client
//! ends.
//!
//! A load generator is such a process on the client's core. Its standard input carries requests for
//! runs, and its standard output their results, a line each.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use starling_netns::Pair;

use crate::error::BenchError;
use crate::pin::{Cores, pin_thread};

/// How long to wait for a line of a process. Loading a million records takes a second or two.
const LINE_TIMEOUT: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// The longest line, in bytes, that is read from a process.
const MAX_LINE: u64 = 1 << 20;

/// How long a process may take to end before it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts this program in a role.
#[derive(Clone, Debug)]
pub struct Launcher {
    program: PathBuf,
    leading: Vec<String>,
    cores: Cores,
    namespace: Option<Arc<Pair>>,
}

impl Launcher {
    /// A launcher of `program` with `leading` before the role's own arguments.
    pub fn new(program: PathBuf, leading: &[&str], cores: Cores) -> Self {
        Self {
            program,
            leading: leading.iter().map(ToString::to_string).collect(),
            cores,
            namespace: None,
        }
    }

    /// The same, but servers start in the namespace `b` of a pair.
    pub(crate) fn with_servers_in(self, pair: Arc<Pair>) -> Self {
        Self {
            namespace: Some(pair),
            ..self
        }
    }

    /// The pair whose namespace `b` servers start in, if they do.
    pub(crate) fn pair(&self) -> Option<&Arc<Pair>> {
        self.namespace.as_ref()
    }

    /// Starts a server on the server's core and waits until it is ready.
    pub fn start(&self, role: &str, arguments: &[&str]) -> Result<RoleProcess, BenchError> {
        self.start_on(self.cores.server, role, arguments)
    }

    /// Starts a load generator on the client's core and waits until it is ready.
    pub fn start_client(&self, role: &str, arguments: &[&str]) -> Result<RoleProcess, BenchError> {
        self.start_on(self.cores.client, role, arguments)
    }

    fn start_on(
        &self,
        core: usize,
        role: &str,
        arguments: &[&str],
    ) -> Result<RoleProcess, BenchError> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.leading)
            .arg(role)
            .arg(core.to_string())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let spawned = match &self.namespace {
            Some(pair) => starling_netns::inside(&pair.b, || command.spawn()),
            None => command.spawn(),
        };
        let mut child = spawned.map_err(BenchError::io(format!("starting the server `{role}`")))?;
        let output = child.stdout.take().expect("the child's output is piped");
        // From here on, dropping `process` ends the child, whatever it prints.
        let mut process = RoleProcess {
            role: role.to_string(),
            child,
            output: BufReader::new(output),
            address: String::new(),
        };
        process.address = process.read_ready()?;
        Ok(process)
    }
}

/// A running server or load generator. Dropping it ends the process and waits for its end.
#[derive(Debug)]
pub struct RoleProcess {
    role: String,
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl RoleProcess {
    /// Waits for `ready ADDRESS`.
    fn read_ready(&mut self) -> Result<String, BenchError> {
        let line = self.read_line()?;
        match line.strip_prefix("ready ") {
            Some(address) => Ok(address.to_string()),
            None => Err(self.unexpected(&line)),
        }
    }

    /// Writes one line to its standard input.
    pub fn write_line(&mut self, line: &str) -> Result<(), BenchError> {
        let input = self.child.stdin.as_mut();
        let input = input.expect("the child's input is piped, and open until the drop");
        writeln!(input, "{line}").map_err(BenchError::io(format!("writing to `{}`", self.role)))
    }

    /// The next line of its standard output.
    pub fn read_line(&mut self) -> Result<String, BenchError> {
        let doing = format!("reading from `{}`", self.role);
        if self.output.buffer().is_empty() {
            let mut descriptors = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            let readable = poll(&mut descriptors, Some(&LINE_TIMEOUT))
                .map_err(|e| BenchError::io(&doing)(e.into()))?;
            if readable == 0 {
                return Err(self.unexpected("it printed nothing for a minute"));
            }
        }
        let mut line = String::new();
        // Processes write whole lines; one that is too long is cut off.
        (&mut self.output)
            .take(MAX_LINE)
            .read_line(&mut line)
            .map_err(BenchError::io(doing))?;
        if line.is_empty() {
            return Err(self.unexpected("it ended; its message is above"));
        }
        Ok(line.trim_end().to_string())
    }

    /// The error of a process that ended, or printed an unexpected line.
    pub(crate) fn unexpected(&self, said: &str) -> BenchError {
        BenchError::Process {
            role: self.role.clone(),
            said: said.to_string(),
        }
    }

    /// The address that it announced, in its own notation.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time since its start, user and system together, in ns, with that of the processes that it has started;
    /// in steps of the kernel's tick (10 ms). 0 if it has ended.
    pub fn cpu_ns(&self) -> u64 {
        let ticks = rustix::param::clock_ticks_per_second();
        let own = self.pid();
        let of = |stat: &str| {
            let (pid, parent) = family_of(stat)?;
            (pid == own || parent == own).then(|| cpu_ns_of(stat, ticks))?
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = processes.filter_map(|of| std::fs::read_to_string(of.path().join("stat")).ok());
        stats.filter_map(|stat| of(&stat)).sum()
    }

    fn end(&mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < deadline {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        // Nothing can be done about a child that cannot be killed.
        let _ = self.end();
    }
}

/// The process of a `/proc/PID/stat` line, and the one that has started it.
fn family_of(stat: &str) -> Option<(u32, u32)> {
    let (pid, _) = stat.split_once(' ')?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    let parent = after_name.split(' ').nth(1)?;
    Some((pid.parse().ok()?, parent.parse().ok()?))
}

/// Fields 14 and 15 of a `/proc/PID/stat` line, in ns. The second field is the program's name in
/// parentheses, with any characters inside, so fields are counted from its end.
fn cpu_ns_of(stat: &str, ticks_per_second: u64) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * (1_000_000_000 / ticks_per_second))
}

/// The first call of a server process: pins it, and ends it once its standard input ends.
/// `arguments` follow the role; the first is the core. Returns the rest.
pub fn begin_server(role: &str, arguments: &[String]) -> Result<Vec<String>, BenchError> {
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(|| {
            // An error ends the server just as the end of the input does.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::process::exit(0);
        })
        .map_err(BenchError::io("starting a thread"))?;
    begin_client(role, arguments)
}

/// The first call of a load generator: pins it. `arguments` follow the role; the first is the core.
/// Returns the rest.
pub fn begin_client(role: &str, arguments: &[String]) -> Result<Vec<String>, BenchError> {
    let bad = || BenchError::BadRoleArguments {
        role: role.to_string(),
        why: "the first is the number of a core".to_string(),
    };
    let (core, rest) = arguments.split_first().ok_or_else(bad)?;
    pin_thread(core.parse().map_err(|_| bad())?)?;
    Ok(rest.to_vec())
}

/// Tells the parent that this process listens at, or has connected to, `address`.
pub fn announce(address: &str) -> Result<(), BenchError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "ready {address}")
        .and_then(|()| stdout.flush())
        .map_err(BenchError::io("writing to the client"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launcher {
        Launcher::new(
            "/bin/sh".into(),
            &["-c", script],
            Cores {
                client: 0,
                server: 7,
            },
        )
    }

    #[test]
    fn a_server_gets_its_core_and_announces_its_address() {
        let server = shell("echo ready udp://here:$1; cat")
            .start("role", &[])
            .unwrap();
        assert_eq!(server.address(), "udp://here:7");
    }

    #[test]
    fn dropping_a_server_ends_it() {
        let server = shell("echo ready x; cat").start("role", &[]).unwrap();
        let stat = format!("/proc/{}/stat", server.pid());
        assert!(std::fs::exists(&stat).unwrap());
        drop(server);
        assert!(!std::fs::exists(&stat).unwrap());
    }

    #[test]
    fn a_server_that_ends_or_prints_an_unexpected_line_is_an_error() {
        let ended = shell("exit 3").start("gone", &[]).unwrap_err();
        assert!(ended.to_string().contains("`gone` failed: it ended"));
        let chatty = shell("echo hello; cat").start("chatty", &[]).unwrap_err();
        assert!(chatty.to_string().contains("hello"));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let launcher = Launcher::new(
            "/nonexistent/program".into(),
            &[],
            Cores {
                client: 0,
                server: 0,
            },
        );
        let error = launcher.start("role", &[]).unwrap_err();
        assert!(error.to_string().starts_with("starting the server `role`"));
    }

    #[test]
    fn processor_time_is_found_behind_any_program_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 7 8";
        assert_eq!(cpu_ns_of(stat, 100), Some(2_000_000_000));
        assert_eq!(cpu_ns_of("garbage", 100), None);
        assert_eq!(family_of("7 (a) b) S 5 7"), Some((7, 5)));
        assert_eq!(family_of("garbage"), None);
    }
}
