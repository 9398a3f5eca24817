//! The memory of idle streams at each end, and the client's processor time: how much the anonymous
//! memory of a process grows with streams that are opened and used once, as in the suite `sessions`.
//!
//! ```text
//!  this process             client's process                        server's process
//!    start ───────────────▶  a few streams, an item each way ──────▶
//!          ◀─────── ready ─  stops
//!    read /proc/PID/smaps_rollup
//!    "open" ──────────────▶  10,000 streams, an item each way ─────▶
//!          ◀──────── open ─  stops
//!    read again: the difference is the streams'
//!    "MS" ────────────────▶  sleeps for so many ms
//!          ◀── CPU TIME ns ─
//! ```
//!
//! The first streams open sessions and have the endpoints allocate what does not depend on the number of
//! streams. They stay open, so that no memory of theirs is used again.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use starling::{Channel, StreamReceiver, StreamSender};
use starling_sample_services::api::bench::{EchoClient, Payload};

use super::{CHANNEL, server};
use crate::benchmark::{Benchmark, Context};
use crate::callers::own_cpu_ns;
use crate::channel::request;
use crate::device::failed;
use crate::endpoint::memory::{Side, anonymous_bytes};
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::announce;

/// Role of the process with the streams; its argument is the server's address.
pub(super) const ROLE: &str = "starling-idle-streams";

/// Idle streams.
const STREAMS: usize = 10_000;

/// Streams before them.
const FIRST: usize = 100;

/// Streams whose items are on their way at once.
const AT_ONCE: usize = 50;

/// The request for the idle streams, and its answer.
const OPEN: &str = "open";

/// Idle streams are watched so many times longer than others: the little that they do is rare.
const LONGER: f64 = 10.0;

pub(super) fn benchmarks(scheme: &'static str) -> [Benchmark; 2] {
    [Side::Client, Side::Server].map(|side| {
        let case = format!("idle-streams={STREAMS} {}", side.name());
        Benchmark::new(scheme, CHANNEL, case, move |context| {
            measure(context, scheme, side)
        })
        .in_any_placement()
    })
}

fn measure(context: &Context, scheme: &'static str, side: Side) -> Result<Sample, BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let mut client = (context.launcher).start_client(ROLE, &[server.address()])?;
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
    let mut sample = vec![(Metric::Memory, grown as f64 / STREAMS as f64)];
    if side == Side::Client {
        let milliseconds = (context.seconds * LONGER * 1000.0).ceil();
        client.write_line(&milliseconds.to_string())?;
        let used_ns = client.read_line()?;
        let used_ns: f64 = used_ns.parse().map_err(|_| client.unexpected(&used_ns))?;
        sample.push((Metric::OfCore, used_ns / (milliseconds * 1e6) * 100.0));
    }
    Ok(sample)
}

/// The process with the streams.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let bad = |why: &str| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: why.into(),
    };
    let [address] = arguments else {
        return Err(bad("expected an address"));
    };
    let client = EchoClient::new(Channel::lazy(address).map_err(failed)?);
    let mut streams = Vec::with_capacity(FIRST + STREAMS);
    open(&client, FIRST, &mut streams)?;
    announce(address)?;
    for line in stdin().lock().lines() {
        let line = line.map_err(BenchError::io("reading from the benchmark"))?;
        let answer = if line == OPEN {
            open(&client, STREAMS, &mut streams)?;
            line
        } else {
            let milliseconds = line
                .parse()
                .map_err(|_| bad("a line is `open` or a number of ms"))?;
            let before_ns = own_cpu_ns();
            std::thread::sleep(Duration::from_millis(milliseconds));
            (own_cpu_ns() - before_ns).to_string()
        };
        writeln!(stdout(), "{answer}").map_err(BenchError::io("writing to the benchmark"))?;
    }
    Ok(())
}

type Stream = (StreamSender<Payload>, StreamReceiver<Payload>);

/// Opens streams, with an item each way on each.
fn open(
    client: &EchoClient<Channel>,
    count: usize,
    streams: &mut Vec<Stream>,
) -> Result<(), BenchError> {
    let end = streams.len() + count;
    while streams.len() < end {
        let begin = streams.len();
        let more = AT_ONCE.min(end - begin);
        streams.extend((0..more).map(|_| client.exchange()));
        for (there, _) in &mut streams[begin..] {
            there.send_wait(&request(begin as u64)).map_err(failed)?;
        }
        for (_, back) in &mut streams[begin..] {
            back.wait().map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use starling::Server;
    use starling_sample_services::echo;

    use super::*;

    #[test]
    fn as_many_streams_are_opened_as_asked_for() {
        let builder = Server::builder().bind("udp://127.0.0.1:0").unwrap();
        let server = builder.add_service(echo::server()).build().unwrap();
        let server = server.spawn().unwrap();
        let client = EchoClient::new(Channel::lazy(server.address()).unwrap());
        let mut streams = Vec::new();
        open(&client, AT_ONCE + 1, &mut streams).unwrap();
        open(&client, 1, &mut streams).unwrap();
        assert_eq!(streams.len(), AT_ONCE + 2);
    }

    #[test]
    fn the_role_wants_an_address() {
        let error = serve(&[]).unwrap_err();
        assert!(error.to_string().contains(ROLE), "{error}");
    }
}
