//! A broken promise, with everything needed to find the cause.

use std::fmt;

use super::{PlantedBug, RunPlan};
use crate::check::Violation;
use crate::trace::{Entry, EntryKind};

/// Entries of the trace that a failure keeps.
pub(super) const KEPT_ENTRIES: usize = 80;

/// A run in which a promise was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The plan of the run.
    pub plan: RunPlan,
    /// The deliberate bug in it.
    pub planted_bug: Option<PlantedBug>,
    /// The promise.
    pub violation: Violation,
    /// When, in virtual time.
    pub at_ns: u64,
    /// The last events.
    pub recent: Vec<Entry>,
}

impl Failure {
    /// The command that runs the same again.
    pub fn replay_command(&self) -> String {
        let mut command = format!("starling sim run random --seed {}", self.plan.seed);
        if let Some(subset) = &self.plan.subset {
            command += &format!(" --only {subset}");
        }
        if let Some(planted_bug) = self.planted_bug {
            command += &format!(" --plant {}", planted_bug.name());
        }
        command
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "VIOLATION at {} us: {}",
            self.at_ns / 1000,
            self.violation
        )?;
        writeln!(f, "replay: {}", self.replay_command())?;
        write!(f, "{}", self.plan)?;
        writeln!(f, "the last {} events:", self.recent.len())?;
        for entry in &self.recent {
            writeln!(f, "{entry}{}", Frame(entry))?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// The first frame of a datagram in words, as PROTOCOL.md lays it out.
struct Frame<'a>(&'a Entry);

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KINDS: [&str; 20] = [
            "?",
            "Request",
            "Response",
            "RequestFragment",
            "ResponseFragment",
            "CreditReturn",
            "RequestForResponse",
            "Cancel",
            "Reject",
            "Connect",
            "Challenge",
            "Accept",
            "Refuse",
            "Close",
            "Closed",
            "Reset",
            "Ping",
            "Pong",
            "Credit",
            "CreditAck",
        ];
        let (EntryKind::Delivered(record) | EntryKind::Dropped(_, record)) = &self.0.what else {
            return Ok(());
        };
        let Some(header) = record.head().get(8..24) else {
            return Ok(());
        };
        let kind = KINDS.get(usize::from(header[0] & 0x1f)).unwrap_or(&"?");
        let session = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let number = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
        write!(
            f,
            " {kind} slot {} session {session:#x} number {number}",
            header[1]
        )
    }
}
