//! What policies record of calls: their ends, the counts for the operator, the spans for a collector.

use std::sync::Arc;

use starling_endpoint::{Code, MethodId};
use starling_policy::PolicyEnd;

use super::{Attached, Policies, Runtime};
use crate::datapath::Passed;
use crate::runtime::report::{MetricsReport, PolicyMetrics, PolicyReport};
use crate::spans::{RecordedSpan, SpanQueue};

impl Policies {
    /// What all have done so far, in order.
    pub(in crate::runtime) fn report(&self) -> Vec<PolicyReport> {
        let attached = self.order.iter().map(|of| &self.table[of.place as usize]);
        let of = |attached: &Attached| PolicyReport {
            spec: attached.spec.clone(),
            counts: attached.counts,
            failure: attached.engine.failure().map(str::to_owned),
        };
        attached.map(of).collect()
    }

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
                has_failed: attached.engine.failure().is_some(),
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
            if let Some(span) = attached.engine.end_span(&end)
                && let Some(spans) = &self.spans
            {
                spans.push(RecordedSpan {
                    span,
                    policy: attached.spec.name.clone(),
                    path: self.paths.get(method),
                    method,
                    datapath: Arc::clone(&step.datapath),
                    code,
                    began_ns: passed.since_ns,
                    ended_ns: self.now_ns,
                });
            }
        }
    }
}

impl Runtime {
    /// Where the spans go that policies record.
    pub(crate) fn export_spans(&mut self, spans: Arc<SpanQueue>) {
        self.policies.spans = Some(spans);
    }

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
