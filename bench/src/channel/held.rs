//! What a driver that stands still costs the other callers.
//!
//! ```text
//!  4 threads:   call call call ...                  call ...
//!  the driver:  turn turn turn [a waker: 10 ms] turn turn
//!                               └ nobody else can take the role
//! ```
//!
//! Ten times a second a call is left whose waker sleeps for 10 ms. Whoever drives runs it, and keeps
//! the role meanwhile, as a driver does that the kernel has taken off its core.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;

use starling::Channel;
use starling_sample_services::api::bench::EchoClient;

use super::{CHANNEL, ChannelStub, request, server};
use crate::benchmark::{Benchmark, Context};
use crate::callers;
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};

/// Threads that call.
const THREADS: usize = 4;

/// From one stop to the next.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn benchmarks(scheme: &'static str) -> [Benchmark; 2] {
    [0, 10].map(|milliseconds| {
        let case = format!("held={milliseconds}ms");
        Benchmark::new(scheme, CHANNEL, case, move |context| {
            measure(context, scheme, Duration::from_millis(milliseconds))
        })
    })
}

/// A waker that keeps whoever drives.
struct Hold(Duration);

impl Wake for Hold {
    fn wake(self: Arc<Self>) {
        std::thread::sleep(self.0);
    }
}

fn measure(context: &Context, scheme: &'static str, hold: Duration) -> Result<Sample, BenchError> {
    let server = context.launcher.start(server::ROLE, &[scheme])?;
    let channel = Channel::lazy(server.address()).map_err(failed)?;
    let stub = ChannelStub {
        client: EchoClient::new(channel),
        scheme,
    };
    let ended = AtomicBool::new(false);
    let run = std::thread::scope(|scope| {
        scope.spawn(|| hold_again_and_again(&stub.client, hold, &ended));
        let run = callers::threads(THREADS, Duration::from_secs_f64(context.seconds), &stub);
        ended.store(true, Ordering::Relaxed);
        run
    })?;
    let mut sample = run.latencies.sample();
    let calls = run.latencies.count() as f64;
    sample.push((Metric::Rate, calls / run.elapsed.as_secs_f64()));
    Ok(sample)
}

fn hold_again_and_again(client: &EchoClient<Channel>, hold: Duration, ended: &AtomicBool) {
    let waker = Waker::from(Arc::new(Hold(hold)));
    while !ended.load(Ordering::Relaxed) {
        let mut call = pin!(client.call(&request(0)));
        let _ = call.as_mut().poll(&mut TaskContext::from_waker(&waker));
        std::thread::sleep(PAUSE);
    }
}
