//! What a service has counted, in the messages of a listing.

use starling::managed::{DatapathMut, QuotaNumbersMut, QuotaUseMut};

use crate::account::{Account, DatapathCounts, SharedCount};
use crate::quota::{Holder, Quota};

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
