//! Small calls of one application beside large ones of another, in one service (mRPC, table 4): 32 bytes, one at a
//! time, beside 64 requests of 32 KiB at once; with the policy `small-first` and without, in turns.

use std::thread::sleep;
use std::time::{Duration, Instant};

use starling::Channel;
use starling_sample_services::api::bench::{EchoClient, Payload};

use super::load::{Load, ask};
use super::{BULK_ROLE, MANAGED, Operator, median};
use crate::benchmark::{Benchmark, Context};
use crate::channel::{check, request};
use crate::device::failed;
use crate::error::BenchError;
use crate::managed::{ECHO_ROLE, start_service};
use crate::metric::{Metric, Sample};

/// Requests at once, and their sizes.
pub(super) const IN_FLIGHT: usize = 64;
const BYTES: usize = 32 << 10;

const TURN: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_millis(5);

const POLICY: &str = r#"{"name": "measured", "kind": "small-first"}"#;

pub(super) fn benchmark() -> Benchmark {
    Benchmark::new("udp", MANAGED, "small-first", measure)
}

/// Callers of large requests.
pub(super) fn load(service: &str, server: &str) -> Result<Load, BenchError> {
    let channel = Channel::builder(server).managed_by(service).lazy();
    let client = EchoClient::new(channel.map_err(failed)?);
    let payload = Payload::new().with_data(&vec![7; BYTES]);
    Load::start(IN_FLIGHT, move |_| {
        let (client, payload) = (client.clone(), payload.clone());
        async move {
            client.sink(&payload).await.map_err(failed)?;
            Ok(true)
        }
    })
}

fn measure(context: &Context) -> Result<Sample, BenchError> {
    let service = start_service(&context.launcher, context.cores)?;
    let operator = Operator::of(&service)?;
    let [server, bulk_server] =
        [(); 2].map(|()| context.launcher.start(ECHO_ROLE, &[service.address()]));
    let (server, bulk_server) = (server?, bulk_server?);
    let arguments = [service.address(), bulk_server.address()];
    let mut bulk = context.launcher.start_client(BULK_ROLE, &arguments)?;
    let channel = Channel::builder(server.address()).managed_by(service.address());
    let client = EchoClient::new(channel.lazy().map_err(failed)?);
    let mut number = 0;
    let until = Instant::now() + Duration::from_secs_f64(context.seconds);
    let (mut latencies_ns, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    while ratios.len() < 5 || Instant::now() < until {
        let mut rates = [0.0; 2];
        for with in [[false, true], [true, false]][ratios.len() % 2] {
            if with {
                operator.attach(POLICY)?;
            }
            sleep(SETTLE);
            ask(&mut bulk)?;
            let begun = Instant::now();
            while begun.elapsed() < TURN {
                number += 1;
                let called = Instant::now();
                let answer = client.call(&request(number)).wait().map_err(failed)?;
                check(MANAGED, "udp", number, answer.message().data())?;
                latencies_ns[usize::from(with)].push(called.elapsed().as_nanos() as f64);
            }
            rates[usize::from(with)] =
                ask(&mut bulk)?.passed as f64 / begun.elapsed().as_secs_f64();
            if with {
                operator.detach("measured")?;
            }
        }
        ratios.push(rates[1] / rates[0] * 100.0);
    }
    let [without, with] = latencies_ns.map(p99);
    Ok(vec![
        (Metric::P99, with),
        (Metric::TailOfPlain, with / without),
        (Metric::OfPlain, median(ratios)),
    ])
}

fn p99(mut latencies_ns: Vec<f64>) -> f64 {
    latencies_ns.sort_by(f64::total_cmp);
    let at = latencies_ns.len() * 99 / 100;
    latencies_ns.get(at).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_99th_of_100() {
        assert_eq!(p99((0..100).map(f64::from).collect()), 99.0);
        assert_eq!(p99(Vec::new()), 0.0);
    }
}
