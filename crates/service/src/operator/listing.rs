//! What a service has counted, in the messages of a listing.

use starling::managed::{DatapathMut, PluginsMut, PolicyStateMut, QuotaNumbersMut, QuotaUseMut};
use starling_plugin_host::{Plugin, Plugins};

use crate::account::{Account, DatapathCounts, SharedCount};
use crate::attached::AttachedPolicy;
use crate::quota::{Holder, Quota};
use crate::runtime::Counts;

pub(super) fn fill_policy(mut policy: PolicyStateMut<'_>, of: &AttachedPolicy, counts: Counts) {
    policy.set_policy(&of.spec.to_json());
    policy.set_passed(counts.passed);
    policy.set_delayed(counts.delayed);
    policy.set_refused(counts.refused);
    policy.set_held(counts.held as u64);
    policy.set_failure(match &of.engine.lock_soon() {
        Some(engine) => engine.engine.failure().unwrap_or_default(),
        None => "it does not return",
    });
}

/// Some plug-ins, among all.
pub(super) fn fill_plugins(mut response: PluginsMut<'_>, some: &[Plugin], all: &Plugins) {
    for of in some {
        let mut plugins = response.plugins_mut();
        let mut plugin = plugins.push_default();
        plugin.set_file(&of.file.to_string_lossy());
        plugin.set_name(&of.name);
        plugin.set_version(&of.version);
        for own in &of.kinds {
            let mut kinds = plugin.kinds_mut();
            let mut kind = kinds.push_default();
            kind.set_name(&own.name);
            kind.set_summary(&own.summary);
            kind.set_example(&own.example);
            kind.set_state_version(own.state_version.into());
            let newest = all.find(&own.name);
            kind.set_is_superseded(newest.is_some_and(|newest| !newest.is_of(of)));
        }
    }
}

pub(super) fn fill_counts(mut datapath: DatapathMut<'_>, counts: &DatapathCounts) {
    datapath.set_id(counts.id);
    datapath.set_calls(counts.calls as u64);
    datapath.set_in_flight(counts.in_flight as u64);
    datapath.set_memory(counts.memory as u64);
    datapath.set_request_bytes(counts.request_bytes as u64);
    datapath.set_response_bytes(counts.response_bytes as u64);
}

pub(super) fn fill_account(mut of: QuotaUseMut<'_>, account: &Account) {
    let owner = &account.owner;
    of.set_of(match owner.holder {
        Holder::Application => "application",
        Holder::User => "user",
    });
    of.set_side(owner.side.name());
    if let Some(process) = owner.process {
        of.set_process(process);
    }
    if let Some(user) = owner.user {
        of.set_user(user);
    }
    of.set_program(&owner.program);
    let fill = |mut numbers: QuotaNumbersMut<'_>, of: [usize; 3]| {
        let [calls, datapaths, memory] = of.map(|number| number as u64);
        numbers.set_calls(calls);
        numbers.set_datapaths(datapaths);
        numbers.set_memory(memory);
    };
    let used = [&account.calls, &account.datapaths, &account.memory];
    fill(of.used_mut(), used.map(SharedCount::get));
    let Quota {
        calls,
        datapaths,
        memory,
    } = account.quota;
    fill(of.quota_mut(), [calls, datapaths, memory]);
    of.set_refused(account.refused.get() as u64);
}
