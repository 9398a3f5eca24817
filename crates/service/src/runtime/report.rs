//! What a runtime tells its operator.

use std::sync::Arc;

use starling_policy::{PolicySpec, Series};

use super::Runtime;
use super::accounts::Refused;
use super::policies::Counts;
use super::routes::{Route, RouteState};
use crate::account::{Account, DatapathCounts};

/// What goes on in a runtime.
#[derive(Debug)]
pub(crate) struct Report {
    /// In the order in which calls pass them.
    pub(crate) policies: Vec<PolicyReport>,
    pub(crate) datapaths: Vec<DatapathReport>,
    /// Of applications, then of users.
    pub(crate) accounts: Vec<Arc<Account>>,
    /// What was beyond a quota so far.
    pub(crate) refused: Refused,
}

/// A policy with what it has done.
#[derive(Debug)]
pub(crate) struct PolicyReport {
    pub(crate) spec: PolicySpec,
    pub(crate) counts: Counts,
    /// Why its engine does not work any more, if it has failed.
    pub(crate) failure: Option<String>,
}

/// A policy with what it has done, and its series with the methods' names.
#[derive(Debug)]
pub(crate) struct PolicyMetrics {
    pub(crate) spec: PolicySpec,
    pub(crate) counts: Counts,
    pub(crate) has_failed: bool,
    pub(crate) series: Vec<(Series, Option<Arc<str>>)>,
}

/// What the policies of a runtime have counted, in the order in which calls pass them.
pub(crate) type MetricsReport = Vec<PolicyMetrics>;

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
    pub(super) fn report(&self) -> Report {
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
            policies: self.policies.report(),
            datapaths: self.routes.iter().map(datapath).collect(),
            accounts: self.accounts.all(),
            refused: self.accounts.refused,
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
