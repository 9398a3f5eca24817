//! Listings for programs.

use serde_json::{Value, json};
use starling::managed::{DatapathView, ListingView, QuotaNumbersView, QuotaUseView};

pub(super) fn listing(listing: ListingView<'_>) -> Value {
    let policies = listing.policies().iter().map(|policy| {
        let spec: Value = serde_json::from_str(policy.policy()).unwrap_or_default();
        json!({
            "policy": spec,
            "passed": policy.passed(),
            "delayed": policy.delayed(),
            "refused": policy.refused(),
            "held": policy.held(),
            "failure": Some(policy.failure()).filter(|failure| !failure.is_empty()),
        })
    });
    let datapath = |datapath: DatapathView<'_>| {
        json!({
            "side": datapath.side(),
            "process": datapath.process_opt(),
            "user": datapath.user_opt(),
            "program": datapath.program(),
            "server": datapath.server(),
            "state": datapath.state(),
            "id": datapath.id(),
            "runtime": datapath.runtime(),
            "calls": datapath.calls(),
            "in_flight": datapath.in_flight(),
            "memory": datapath.memory(),
            "request_bytes": datapath.request_bytes(),
            "response_bytes": datapath.response_bytes(),
            "identities": datapath.identities().iter().collect::<Vec<_>>(),
            "policies": datapath.policies().iter().collect::<Vec<_>>(),
        })
    };
    let numbers = |of: QuotaNumbersView<'_>| {
        json!({
            "calls": of.calls(),
            "datapaths": of.datapaths(),
            "memory": of.memory(),
        })
    };
    let quota = |quota: QuotaUseView<'_>| {
        json!({
            "of": quota.of(),
            "side": quota.side(),
            "process": quota.process_opt(),
            "user": quota.user_opt(),
            "program": quota.program(),
            "used": numbers(quota.used()),
            "quota": numbers(quota.quota()),
            "refused": quota.refused(),
        })
    };
    let runtimes = listing.runtimes().iter().map(|runtime| {
        json!({
            "applications": runtime.applications(),
            "datapaths": runtime.datapaths(),
            "busy_ns": runtime.busy_ns(),
        })
    });
    json!({
        "policies": policies.collect::<Vec<_>>(),
        "runtimes": runtimes.collect::<Vec<_>>(),
        "datapaths": listing.datapaths().iter().map(datapath).collect::<Vec<_>>(),
        "quotas": listing.quotas().iter().map(quota).collect::<Vec<_>>(),
        "refused": numbers(listing.refused()),
    })
}
