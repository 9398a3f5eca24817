//! What policies record of calls: their ends, and the counts for the operator.

use starling_endpoint::{Code, MethodId};
use starling_policy::PolicyEnd;

use super::{Attached, Policies, Runtime};
use crate::datapath::Passed;
use crate::runtime::report::{MetricsReport, PolicyMetrics};

impl Policies {
    /// What all have counted. The counts themselves are read elsewhere.
    pub(in crate::runtime) fn metrics(&self) -> MetricsReport {
        let of = |attached: &Attached| {
            let mut series = Vec::new();
            attached.engine.series(&mut series);
            let named = series.into_iter().map(|series| {
                let labels = series.labels.as_ref();
                let path = labels.and_then(|labels| self.paths.get(labels.method));
                (series, path)
            });
            PolicyMetrics {
                spec: attached.spec.clone(),
                counts: attached.counts,
                series: named.collect(),
            }
        };
        let attached = self.order.iter().map(|of| &self.table[of.place as usize]);
        attached.map(of).collect()
    }

    /// The policies are others.
    pub(super) fn learn_scopes(&mut self) {
        let scopes = self.table.iter().map(|(_, attached)| &attached.spec.scope);
        self.paths.set_scoped(scopes);
    }

    /// A call is over: those that it has passed hear of it.
    fn end(&mut self, passed: &Passed, method: MethodId, code: Code) {
        for step in passed.reversed() {
            let attached = self.table.get_mut(step.policy.place as usize);
            let Some(attached) = attached.filter(|attached| attached.id == step.policy.id) else {
                continue;
            };
            let end = PolicyEnd {
                now_ns: self.now_ns,
                call: passed.call,
                method,
                code,
                datapath: &step.datapath,
                since_ns: passed.since_ns,
                request_bytes: passed.request_bytes,
                response_bytes: passed.response_bytes,
            };
            if attached.applies_to(method) {
                attached.engine.on_end(&end);
            }
        }
    }
}

impl Runtime {
    /// Policies hear of the end of a call that they let pass.
    pub(in crate::runtime) fn end_of_policies(
        &mut self,
        passed: &Passed,
        method: MethodId,
        code: Code,
    ) {
        if !passed.is_empty() {
            self.policies.end(passed, method, code);
        }
    }
}
