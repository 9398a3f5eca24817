//! What a runtime tells its operator.

use std::sync::Arc;

use starling_io::Clock;

use super::Runtime;
use super::policies::Counts;
use super::routes::{Route, RouteState};
use crate::account::DatapathCounts;

/// What goes on in a runtime.
#[derive(Debug)]
pub(crate) struct Report {
    /// Of policies, by name, in the order in which calls pass them.
    pub(crate) counts: Vec<(String, Counts)>,
    pub(crate) datapaths: Vec<DatapathReport>,
    /// Applications.
    pub(crate) applications: usize,
    /// How long there was work so far.
    pub(crate) busy_ns: u64,
}

/// The way of one application's calls.
#[derive(Debug)]
pub(crate) struct DatapathReport {
    pub(crate) side: &'static str,
    pub(crate) process: Option<u32>,
    pub(crate) user: Option<u32>,
    pub(crate) program: String,
    pub(crate) server: String,
    pub(crate) state: &'static str,
    pub(crate) identities: Vec<Arc<str>>,
    pub(crate) policies: Vec<String>,
    pub(crate) counts: DatapathCounts,
}

impl Runtime {
    pub(super) fn report(&mut self) -> Report {
        let busy_ns = self.load.busy_ns(self.clock.now_ns());
        let datapath = |route: &Route| {
            let (identity, of) = (&route.identity, &route.identity.datapath);
            DatapathReport {
                side: of.side.name(),
                process: identity.process,
                user: identity.user,
                program: of.program.clone(),
                server: of.server.clone(),
                state: name_of(&route.state),
                identities: identity.names.clone(),
                policies: self.policies.names(&route.chain),
                counts: route.share.counts(),
            }
        };
        Report {
            counts: self.policies.counts(),
            datapaths: self.routes.iter().map(datapath).collect(),
            applications: self.processes().len(),
            busy_ns,
        }
    }
}

fn name_of(state: &RouteState) -> &'static str {
    match state {
        RouteState::Idle => "idle",
        RouteState::Resolving => "resolving",
        RouteState::Connecting(_) => "connecting",
        RouteState::Open(_) => "open",
        RouteState::Down { .. } => "down",
        RouteState::Leaving => "leaving",
    }
}
