//! The figures of one system in one workload.

use starling_bench::kv::{RunFigures, Workload};

/// Operations in flight, on every system alike.
pub(super) const IN_FLIGHT: u32 = 64;

/// The figures of a run.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) scheme: &'static str,
    pub(super) system: &'static str,
    pub(super) workload: Workload,
    pub(super) figures: RunFigures,
    /// Processor time of the server during the run.
    pub(super) server_cpu_ns: u64,
}

impl Outcome {
    /// Processor time of both sides for one call, in ns.
    pub(super) fn cpu_per_call_ns(&self) -> f64 {
        let cpu_ns = self.figures.client_cpu_ns + self.server_cpu_ns;
        cpu_ns as f64 / self.figures.calls.max(1) as f64
    }
}
