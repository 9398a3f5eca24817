//! The honest client beside a hostile one, and what it sees of the server.

use std::time::{Duration, Instant};

use starling::introspection::{BudgetView, GetProcessRequest, IntrospectionClient, Process};
use starling::{Channel, EndpointConfig, Response, Status};
use starling_test_protos::target::{Blob, TargetClient};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::common::LONG;

/// One in so many calls has 64 KiB, and 1 MiB.
const MEDIUM: u64 = 16;
const LARGE: u64 = 128;

/// A client that makes one call after the other, without deadlines.
pub(crate) struct Honest {
    runtime: Runtime,
    target: TargetClient<Channel>,
    introspection: IntrospectionClient<Channel>,
    calls: u64,
}

/// All settings are the defaults, but for the time after which the server counts as dead: a machine may be too
/// busy to run it for a while.
fn patient() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.protocol.peer_timeout_ns = LONG.as_nanos() as u64;
    config.protocol.connect_timeout_ns = LONG.as_nanos() as u64;
    config.protocol.response_retention_ns = 2 * LONG.as_nanos() as u64;
    config
}

impl Honest {
    pub(crate) fn new(address: &str) -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let channel = Channel::builder(address).endpoint_config(patient());
        let channel = channel.lazy().expect("a channel");
        Self {
            runtime: runtime.enable_all().build().expect("a runtime"),
            target: TargetClient::new(channel.clone()),
            introspection: IntrospectionClient::new(channel),
            calls: 0,
        }
    }

    /// Makes a call, checks its answer, and returns what it took; nothing of a large one.
    pub(crate) fn call(&mut self) -> Option<Duration> {
        self.calls += 1;
        let length = match self.calls {
            calls if calls.is_multiple_of(LARGE) => 1 << 20,
            calls if calls.is_multiple_of(MEDIUM) => 64 << 10,
            _ => 32,
        };
        let mut bytes = vec![self.calls as u8; length];
        bytes[..8].copy_from_slice(&self.calls.to_le_bytes());
        let request = Blob::new().with_bytes(&bytes);
        let begun = Instant::now();
        let answer = self.wait(async |honest| honest.target.echo(&request).await);
        let answer = answer.unwrap_or_else(|status| panic!("an honest call failed: {status}"));
        assert!(answer.message().bytes() == bytes, "another answer");
        (length == 32).then(|| begun.elapsed())
    }

    /// Waits for a call, but not for ever.
    fn wait<T>(&self, call: impl AsyncFnOnce(&Self) -> Result<T, Status>) -> Result<T, Status> {
        let call = async { timeout(LONG, call(self)).await };
        self.runtime.block_on(call).expect("a call was lost")
    }

    fn process(&self) -> Response<Process> {
        let request = GetProcessRequest::new();
        let process = self.wait(async |honest| honest.introspection.get_process(&request).await);
        process.unwrap_or_else(|status| panic!("an honest call failed: {status}"))
    }

    /// How much of each of its budgets the server's clients hold, as a share of what they may.
    pub(crate) fn shares_held(&self) -> Vec<(String, f64)> {
        let process = self.process();
        let threads = process.message().threads();
        let of_servers = threads.iter().filter(|thread| thread.role() == "server");
        let budgets = of_servers.flat_map(|thread| thread.budgets().iter());
        let share = |held: u64, most: u64| held as f64 / most as f64;
        let held = |budget: BudgetView<'_>| {
            Some((
                budget.what().to_owned(),
                share(budget.held_opt()?, budget.all_peers()),
            ))
        };
        budgets.filter_map(held).collect()
    }

    /// What the server holds now.
    pub(crate) fn held(&self, pid: u32) -> Held {
        let process = self.process();
        let mut held = Held {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
                as u64,
            ..Held::default()
        };
        for thread in process
            .message()
            .threads()
            .iter()
            .filter(|thread| thread.role() == "server")
        {
            assert!(thread.answered(), "it answers this call");
            held.sessions += thread.server_sessions();
            held.requests += thread.requests_pending();
            held.streams += thread.streams();
            held.reassembling += thread.reassembling_bytes();
            held.retained += thread.retained_bytes();
        }
        held
    }
}

/// What a server holds for its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    sessions: u64,
    /// Those that wait outside their handlers.
    requests: u64,
    streams: u64,
    reassembling: u64,
    retained: u64,
    descriptors: u64,
}

impl Held {
    /// Whether it is no more than before.
    pub(crate) fn is_within(&self, before: &Self) -> bool {
        self.sessions <= before.sessions
            && self.requests <= before.requests
            && self.streams <= before.streams
            && self.reassembling <= before.reassembling
            && self.retained <= before.retained
            && self.descriptors <= before.descriptors
    }
}

/// A figure of a process's memory in `/proc`, in bytes: `VmRSS`, or `VmHWM`, the most that it was.
pub(crate) fn process_memory(pid: u32, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|number| number.parse::<u64>().ok())
        .expect("kilobytes")
        << 10
}

/// A quantile of times, as text.
pub(crate) fn quantile(times: &mut [Duration], of_100: usize) -> String {
    times.sort_unstable();
    let at = (times.len() * of_100 / 100).min(times.len() - 1);
    format!("{:.2} ms", times[at].as_secs_f64() * 1e3)
}
