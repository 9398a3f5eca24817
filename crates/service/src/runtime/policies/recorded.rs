//! What policies record of calls: their ends, the counts for the operator, the spans for a collector.

use std::sync::Arc;

use starling_endpoint::{Code, MethodId};
use starling_policy::PolicyEnd;

use super::{Counts, Policies, Runtime};
use crate::datapath::Passed;
use crate::shared::Shared;
use crate::spans::RecordedSpan;

impl Policies {
    /// What all have done so far, in order.
    pub(in crate::runtime) fn counts(&self) -> Vec<(String, Counts)> {
        let attached = self.order.iter().filter_map(|of| self.get(*of));
        attached
            .map(|attached| (attached.spec.name.clone(), attached.counts))
            .collect()
    }

    /// A call is over, or an attempt: those that it has passed beyond the first ones hear of it.
    pub(super) fn end(
        &self,
        passed: &Passed,
        beyond: usize,
        method: MethodId,
        code: Code,
        shared: &Shared,
    ) {
        for (step, since_ns) in passed.reversed(beyond) {
            let attached = self.get(step.policy).filter(|it| it.hears_ends);
            let Some(attached) = attached else {
                continue;
            };
            let end = PolicyEnd {
                now_ns: self.now_ns,
                call: passed.call,
                method,
                code,
                datapath: &step.datapath,
                since_ns,
                request_bytes: passed.request_bytes,
                response_bytes: passed.response_bytes,
            };
            let span = {
                let engine = &mut attached.engine.lock().engine;
                if attached.applies_to(method) {
                    engine.on_end(&end);
                }
                engine.end_span(&end)
            };
            if let (Some(span), Some(spans)) = (span, &shared.spans) {
                spans.push(RecordedSpan {
                    span,
                    policy: attached.spec.name.clone(),
                    path: shared.paths.get(method),
                    method,
                    datapath: Arc::clone(&step.datapath),
                    code,
                    began_ns: since_ns,
                    ended_ns: self.now_ns,
                });
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
            self.policies.end(passed, 0, method, code, &self.shared);
        }
    }
}
