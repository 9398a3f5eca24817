//! The memory of an idle session: how much the anonymous memory of a client's and of a server's
//! process grows with sessions that are opened and used once.
//!
//! ```text
//!  this process             client's process                    server's process
//!    start ───────────────▶  60 sessions, 60 calls in flight ──▶
//!          ◀─────── ready ─  stops
//!    read /proc/PID/smaps_rollup
//!    "open" ──────────────▶  more sessions, a call each ───────▶
//!          ◀──────── open ─  stops
//!    read again: the difference is the sessions'
//! ```
//!
//! The first sessions make the endpoint allocate every buffer of a busy endpoint beforehand.
//! Anonymous memory is heap and stacks. Rings in shared memory are not part of it: they belong to
//! the pair of processes, whatever the number of its sessions. The processes are new, so sessions
//! cannot reuse memory that an earlier measurement freed.

use std::io::BufRead;

use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;

use super::caller::{Caller, start_server};
use super::load;
use super::settings::Settings;
use crate::benchmark::{Context, Network};
use crate::device::Device;
use crate::error::BenchError;
use crate::floor::{BusyWait, IN_FLIGHT, Period};
use crate::metric::{Metric, Sample};
use crate::process::announce;

/// Role of the client's process; its arguments are the scheme, [`BusyWait::name`], the server's
/// address and the number of sessions.
pub(super) const ROLE: &str = "starling-sessions";

/// The request to the client's process, and its answer.
const OPEN: &str = "open";

/// How long the first sessions are used, in seconds.
const WARM_UP_SECONDS: f64 = 0.05;

/// The process whose memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    /// Its name in cases.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Bytes of memory that a session costs one side, over `sessions` of them.
pub(super) fn of_session<I: Device>(
    context: &Context,
    sessions: usize,
    side: Side,
) -> Result<Sample, BenchError> {
    let server = start_server::<I>(context, Settings::default())?;
    let arguments = [
        I::SCHEME,
        BusyWait::on(context.cores).name(),
        server.address(),
        &sessions.to_string(),
    ];
    let mut client = context.launcher.start_client(ROLE, &arguments)?;
    let pid = match side {
        Side::Client => client.pid(),
        Side::Server => server.pid(),
    };
    let before = anonymous_bytes(pid)?;
    client.write_line(OPEN)?;
    let answer = client.read_line()?;
    if answer != OPEN {
        return Err(client.unexpected(&answer));
    }
    let grown = anonymous_bytes(pid)?.saturating_sub(before);
    Ok(vec![(Metric::Memory, grown as f64 / sessions as f64)])
}

/// The client's process.
pub(super) fn hold(arguments: &[String]) -> Result<(), BenchError> {
    let parsed = match arguments {
        [scheme, wait, address, sessions] => BusyWait::from_name(wait)
            .zip(sessions.parse().ok())
            .map(|(wait, sessions)| (scheme.as_str(), wait, address, sessions)),
        _ => None,
    };
    match parsed {
        Some((UdpIo::SCHEME, wait, address, sessions)) => hold_on::<UdpIo>(wait, address, sessions),
        Some((ShmIo::SCHEME, wait, address, sessions)) => hold_on::<ShmIo>(wait, address, sessions),
        _ => Err(BenchError::BadRoleArguments {
            role: ROLE.into(),
            why: "expected a scheme, `spin` or `yield`, an address, and a number".into(),
        }),
    }
}

fn hold_on<I: Device>(wait: BusyWait, address: &str, sessions: usize) -> Result<(), BenchError> {
    let mut caller = Caller::<I>::new(Settings::default(), wait, Network::Loopback.client())?;
    let first = load::open(&mut caller, address, IN_FLIGHT as usize)?;
    load::start(&mut caller, first, 1)?;
    load::run(&mut caller, Period::seconds(WARM_UP_SECONDS))?;
    announce(address)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::io("reading standard input"))?;
        if line == OPEN {
            load::open(&mut caller, address, sessions)?;
            println!("{OPEN}");
        }
    }
    Ok(())
}

/// Anonymous memory of a process.
pub(crate) fn anonymous_bytes(pid: u32) -> Result<u64, BenchError> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).map_err(BenchError::io(format!("reading {path}")))?;
    parse_anonymous(&text).ok_or_else(|| {
        let error = std::io::ErrorKind::InvalidData.into();
        BenchError::io(format!("finding `Anonymous` in {path}"))(error)
    })
}

fn parse_anonymous(rollup: &str) -> Option<u64> {
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_read_from_smaps_rollup() {
        let text = "Rss:  900 kB\nAnonymous:           12 kB\nSwap: 0 kB\n";
        assert_eq!(parse_anonymous(text), Some(12 * 1024));
        assert_eq!(parse_anonymous("Rss: 900 kB\n"), None);
        assert!(anonymous_bytes(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn the_role_refuses_arguments_without_a_number_of_sessions() {
        assert!(hold(&[]).is_err());
        let arguments = ["udp", "spin", "udp://127.0.0.1:1", "some"].map(String::from);
        assert!(hold(&arguments).is_err());
    }
}
