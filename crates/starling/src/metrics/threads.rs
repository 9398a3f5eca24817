//! The counters of threads as metrics.

use std::fmt::{self, Write};

use starling_metrics::{Kind, TextWriter};

use crate::stats::ThreadStats;
use crate::threads::{ThreadReport, ThreadRole, wait_for_all};
use crate::wait::is_in_turn;

/// The counters of a thread that runs an endpoint.
#[derive(Clone, Debug)]
pub struct ThreadCounters {
    /// Its number in this process.
    pub number: u64,
    /// `server`, `channels` or `endpoint`.
    pub role: &'static str,
    /// Its counters.
    pub stats: ThreadStats,
}

/// The counters of all threads of this process that run endpoints: servers' dispatch threads, what makes the
/// calls of channels, and endpoints of the program's own. Waits for them, at most for half a second; those of a
/// thread that does not answer are missing. In a dispatch thread, all of them are.
pub fn threads() -> Vec<ThreadCounters> {
    if is_in_turn() {
        // This thread would have to answer.
        return Vec::new();
    }
    let counters = |(number, role, report): (u64, ThreadRole, ThreadReport)| ThreadCounters {
        number,
        role: role.name(),
        stats: report.stats,
    };
    wait_for_all().into_iter().map(counters).collect()
}

/// A count with its name, of one of the three parts of a thread's counters.
type Counts = Vec<(&'static str, u64)>;

/// Writes the counters of all threads that answer.
pub(super) fn write<W: Write>(out: &mut TextWriter<W>) -> fmt::Result {
    let threads: Vec<_> = (threads().into_iter())
        .map(|thread| (thread.number.to_string(), thread.role, thread.stats))
        .collect();
    type Part = (&'static str, &'static str, fn(&ThreadStats) -> Counts);
    let parts: [Part; 3] = [
        ("endpoint", "starling::Stats", |it| {
            it.endpoint.counts().to_vec()
        }),
        ("protocol", "starling::ProtocolStats", |it| {
            it.protocol.counts().to_vec()
        }),
        ("device", "starling::DeviceReport", |it| {
            it.device.counts.clone()
        }),
    ];
    for (part, documentation, counts) in parts {
        let of_threads: Vec<_> = threads.iter().map(|(_, _, stats)| counts(stats)).collect();
        let mut names: Vec<_> = of_threads.iter().flatten().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let metric = format!("starling_{part}_{name}_total");
            let help = format!("The count {name} of {documentation}.");
            out.family(&metric, &help, Kind::Counter)?;
            for ((number, role, stats), counts) in threads.iter().zip(&of_threads) {
                let Some((_, count)) = counts.iter().find(|(own, _)| *own == name) else {
                    continue;
                };
                let labels = [
                    ("address", &*stats.address),
                    ("role", role),
                    ("thread", number),
                ];
                out.sample(&metric, &labels, count)?;
            }
        }
    }
    Ok(())
}
