//! Calls over a plane, for a tenth of a second: what the suite `rtt` measures.

use starling_bench::contest::{self, Network, Plan};
use starling_bench::pin::{Cores, pin_thread};
use starling_bench::process::Launcher;
use starling_bench::row::Metric;
use starling_bench::{Context, Suite, endpoint, table, veth};

use super::report::Finding;
use crate::error::CliError;
use crate::role;

/// How long calls are made, in seconds.
const SECONDS: f64 = 0.1;

/// What came of it.
pub(super) enum Trial {
    /// Calls were made, and this was seen.
    Made(Finding),
    /// None could be made, which says nothing of the plane.
    NotMade(Finding),
}

/// Makes calls between this process and another over `plane`; those over AF_XDP go from a network
/// namespace to another, over a veth pair that is made for them.
///
/// # Errors
/// If nothing can be tried at all. That calls fail is a finding.
pub(super) fn of(plane: &str) -> Result<Trial, CliError> {
    if plane == "xdp"
        && let Err(problem) = veth::prepare()
    {
        return Ok(Trial::NotMade(Finding::note(
            format!(
                "not tried: calls between network namespaces need root and iproute2 ({})",
                problem.trim_end()
            ),
            "to see calls go through, run `starling doctor xdp` as root, with `ip` of iproute2",
        )));
    }
    let suite = Suite::Rtt;
    let mut contestants = match plane {
        "xdp" => veth::contestants(suite),
        _ => endpoint::contestants(suite),
    };
    contestants.retain(|contestant| contestant.plane == plane && contestant.system == "starling");
    let place = match plane {
        "xdp" => " over a veth pair",
        _ => "",
    };
    let cores = Cores::of_this_process()?;
    let program = std::env::current_exe().map_err(CliError::OwnPath)?;
    let context = Context {
        launcher: Launcher::new(program, &[role::NAME], cores),
        cores,
        seconds: SECONDS,
        network: Network::Loopback,
    };
    let plan = Plan {
        rounds: 1,
        only: vec![],
    };
    // The thread is left on its core: nothing else is done here.
    pin_thread(cores.client)?;
    let rows = contest::run(suite.name(), contestants, &plan, &context, &mut |_| ());
    Ok(Trial::Made(match rows {
        Err(error) => Finding::bad(
            format!("a call failed: {error}"),
            match plane {
                "udp" => {
                    "do as it says; a firewall on the loopback interface is another possible cause"
                }
                _ => "do as it says",
            },
        ),
        Ok(rows) => {
            let p50 = rows
                .iter()
                .find(|row| row.system == "starling" && row.metric == Metric::P50)
                .map_or(0.0, |row| row.value);
            let p50 = table::human(Metric::P50, p50);
            Finding::ok(format!(
                "a call of 32 bytes took {p50} between two processes{place}"
            ))
        }
    }))
}
