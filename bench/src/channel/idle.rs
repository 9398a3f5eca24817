//! What connected channels cost that nobody uses: the processor time of a process that only holds
//! them. The process counts its own time, to the nanosecond.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use starling::{Channel, block_on};

use super::{CHANNEL, server};
use crate::benchmark::{Benchmark, Context};
use crate::callers::own_cpu_ns;
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::announce;

/// Role of the process with the channels. Its arguments: the server's address, and whether each
/// channel has an endpoint of its own. A line of its input says for how many ms to count.
pub(super) const ROLE: &str = "starling-idle-channels";

/// Channels.
const CHANNELS: usize = 100;

/// So many times longer than other benchmarks: keepalives go out twice a second.
const LONGER: f64 = 10.0;

/// The arguments for whose endpoint a channel has.
const SHARED: &str = "shared";
const OWN: &str = "own";

pub(super) fn benchmarks(scheme: &'static str) -> [Benchmark; 2] {
    let benchmark = |whose: &'static str, case: String| {
        Benchmark::new(scheme, CHANNEL, case, move |context| {
            measure(context, scheme, whose)
        })
        .in_any_placement()
    };
    [
        benchmark(SHARED, format!("idle={CHANNELS}")),
        benchmark(OWN, format!("idle={CHANNELS} own endpoints")),
    ]
}

fn measure(
    context: &Context,
    scheme: &'static str,
    whose: &'static str,
) -> Result<Sample, BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let mut idle = (context.launcher).start_client(ROLE, &[server.address(), whose])?;
    let milliseconds = (context.seconds * LONGER * 1000.0).ceil();
    idle.write_line(&milliseconds.to_string())?;
    let used_ns = idle.read_line()?;
    let used_ns: f64 = used_ns.parse().map_err(|_| idle.unexpected(&used_ns))?;
    let percent = used_ns / (milliseconds * 1e6) * 100.0;
    Ok(vec![(Metric::OfCore, percent)])
}

/// The process with the channels.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let bad = |why: &str| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: why.into(),
    };
    let [address, whose] = arguments else {
        return Err(bad("expected an address, and `shared` or `own`"));
    };
    let mut channels = Vec::new();
    for _ in 0..CHANNELS {
        let mut builder = Channel::builder(address);
        if whose == OWN {
            builder = builder.own_endpoint();
        }
        channels.push(block_on(builder.connect()).map_err(failed)?);
    }
    announce(address)?;
    for line in stdin().lock().lines() {
        let line = line.map_err(BenchError::io("reading from the benchmark"))?;
        let milliseconds = line.parse().map_err(|_| bad("a line is a number of ms"))?;
        let before_ns = own_cpu_ns();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let used_ns = own_cpu_ns() - before_ns;
        writeln!(stdout(), "{used_ns}").map_err(BenchError::io("writing to the benchmark"))?;
    }
    drop(channels);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_wants_an_address_and_whose_endpoint() {
        let error = serve(&["udp://127.0.0.1:1".into()]).unwrap_err();
        assert!(error.to_string().contains(ROLE), "{error}");
    }
}
