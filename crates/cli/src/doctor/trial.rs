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

/// Makes calls between this process and another over `plane`; those over AF_XDP go from a network
/// namespace to another, over a veth pair that is made for them.
///
/// # Errors
/// If nothing can be tried at all. That calls fail is a finding.
pub(super) fn of(plane: &str) -> Result<Finding, CliError> {
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
    Ok(match rows {
        Err(error) => Finding::bad(
            format!("a call failed: {error}"),
            "do as it says; a firewall on the loopback interface is another possible cause",
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
    })
}
