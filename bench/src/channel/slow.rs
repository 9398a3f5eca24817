//! Many slow calls at once through one channel, and small calls behind them.
//!
//! ```text
//!  alone:    small small small small ...
//!  together: 1,000 slow calls ───────────── 100 ms ─────────────▶ all answered
//!              └ small small small small ... (one after the other, in the same thread)
//! ```
//!
//! The slow calls run in workers, one for each. A small call is the echo, with an inline handler.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use starling::Channel;
use starling_sample_services::api::bench::EchoClient;
use starling_sample_services::api::slow::{Pause, SlowClient};
use starling_sample_services::slow::PAUSE;

use super::{CHANNEL, check, request, server};
use crate::benchmark::{Benchmark, Context};
use crate::device::failed;
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::metric::{Metric, Sample};

/// Slow calls at once.
const CALLS: usize = server::WORKERS;

pub(super) fn benchmark(scheme: &'static str) -> Benchmark {
    Benchmark::new(scheme, CHANNEL, format!("slow={CALLS}"), move |context| {
        measure(context, scheme)
    })
}

fn measure(context: &Context, scheme: &'static str) -> Result<Sample, BenchError> {
    let server = context
        .launcher
        .start(server::ROLE, &[scheme, server::SLOW])?;
    let channel = Channel::lazy(server.address()).map_err(failed)?;
    let mut client = Client {
        echo: EchoClient::new(channel.clone()),
        slow: SlowClient::new(channel),
        scheme,
        number: 0,
    };
    // The first slow calls open sessions.
    client.together(&mut Latencies::new())?;
    let (mut alone, mut behind) = (Latencies::new(), Latencies::new());
    let mut slowest_ns = Vec::new();
    let begun = Instant::now();
    while slowest_ns.is_empty() || begun.elapsed().as_secs_f64() < context.seconds {
        let before = Instant::now();
        starling::block_on(client.small_while(&mut alone, || before.elapsed() < PAUSE))?;
        slowest_ns.push(client.together(&mut behind)?.as_nanos() as f64);
    }
    let (p99, alone) = (
        behind.percentile(99.0) as f64,
        alone.percentile(99.0) as f64,
    );
    Ok(vec![
        (Metric::P50, behind.percentile(50.0) as f64),
        (Metric::P99, p99),
        (Metric::OfAlone, p99 / alone),
        (Metric::Slowest, slowest_ns.into_iter().fold(0.0, f64::max)),
    ])
}

struct Client {
    echo: EchoClient<Channel>,
    slow: SlowClient<Channel>,
    scheme: &'static str,
    number: u64,
}

impl Client {
    /// All slow calls, and small ones until these have ended. Returns how long that took.
    fn together(&mut self, latencies: &mut Latencies) -> Result<Duration, BenchError> {
        let begun = Instant::now();
        let calls: Vec<_> = (0..CALLS).map(|_| self.slow.call(&Pause::new())).collect();
        let took = Cell::new(None);
        let slow = async {
            let answers = join_all(calls).await;
            took.set(Some(begun.elapsed()));
            answers.into_iter().try_for_each(|answer| answer.map(drop))
        };
        let small = self.small_while(latencies, || took.get().is_none());
        let (slow, small) = starling::block_on(join(slow, small));
        slow.map_err(failed)?;
        small?;
        Ok(took.get().unwrap_or_default())
    }

    /// One small call after the other.
    async fn small_while(
        &mut self,
        latencies: &mut Latencies,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), BenchError> {
        while goes_on() {
            self.number += 1;
            let begun = Instant::now();
            let answer = self
                .echo
                .call(&request(self.number))
                .await
                .map_err(failed)?;
            latencies.record(begun.elapsed().as_nanos() as u64);
            check(CHANNEL, self.scheme, self.number, answer.message().data())?;
        }
        Ok(())
    }
}
