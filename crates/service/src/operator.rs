//! What the operator of the service does: `starling.control.Operator`, beside what applications ask.
//!
//! All changes come down to one: a list takes the place of the list of policies. The runtime takes all of it, or
//! nothing.

use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;
use starling::managed::{
    DatapathMut, ListRequest, ListingMut, Operator, PolicyChange, PolicyChangesMut,
    QuotaNumbersMut, QuotaUseMut,
};
use starling::{Request, Status};
use starling_policy::{
    Identities, PolicySpec, SpecError, check_identities, check_list, parse_list,
};

use crate::ROOT;
use crate::account::{Account, Count, DatapathCounts};
use crate::quota::{Holder, Quota};
use crate::runtime::{Built, Command, Report, RuntimeHandle};

/// A runtime that does not answer in this time has failed.
const ANSWER_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Operations {
    runtime: RuntimeHandle,
    /// Those that are attached, in order.
    policies: Mutex<Vec<PolicySpec>>,
    /// Those that policies may name.
    identities: Identities,
}

impl Operations {
    /// With the policies that the runtime has.
    pub(crate) fn new(
        runtime: RuntimeHandle,
        policies: Vec<PolicySpec>,
        identities: Identities,
    ) -> Self {
        Self {
            runtime,
            policies: Mutex::new(policies),
            identities,
        }
    }

    /// Asks the runtime, and waits for its answer.
    fn ask<T>(&self, command: impl FnOnce(mpsc::SyncSender<T>) -> Command) -> Result<T, Status> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.send(command(sender));
        let answer = receiver.recv_timeout(ANSWER_TIME);
        answer.map_err(|_| Status::unavailable("the service's runtime does not answer"))
    }

    /// Changes the list of policies. `change` returns the policy that gets a new engine in any case. Returns what
    /// changes, a line each.
    fn replace(
        &self,
        change: impl FnOnce(&mut Vec<PolicySpec>) -> Result<Option<String>, Status>,
        dry_run: bool,
    ) -> Result<Vec<String>, Status> {
        let mut attached = self.policies.lock();
        let mut wanted = attached.clone();
        let upgrades = change(&mut wanted)?;
        check_identities(&wanted, &self.identities).map_err(wrong)?;
        let changes = differences(&attached, &wanted, upgrades.as_deref());
        if dry_run || changes.is_empty() {
            return Ok(changes);
        }
        let list = build(&wanted, &self.identities, upgrades.as_deref())?;
        let set = |reply| Command::SetPolicies { list, reply };
        self.ask(set)?.map_err(|(name, error)| {
            Status::failed_precondition(format!("{name}: {error}; nothing has changed"))
        })?;
        *attached = wanted;
        Ok(changes)
    }
}

/// Engines for a list of policies, if it can be one. `upgrades`: see [`Built`].
pub(crate) fn build(
    list: &[PolicySpec],
    identities: &Identities,
    upgrades: Option<&str>,
) -> Result<Vec<Built>, Status> {
    check_list(list).map_err(wrong)?;
    check_identities(list, identities).map_err(wrong)?;
    let build = |spec: &PolicySpec| {
        Ok(Built {
            spec: spec.clone(),
            engine: spec.build().map_err(wrong)?,
            upgrades: upgrades == Some(&spec.name),
        })
    };
    list.iter().map(build).collect()
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn wrong(error: SpecError) -> Status {
    Status::invalid_argument(error.to_string())
}

/// What changes from one list to another.
fn differences(before: &[PolicySpec], after: &[PolicySpec], upgrades: Option<&str>) -> Vec<String> {
    let find = |list: &'_ [PolicySpec], name: &str| {
        let mut list = list.iter();
        list.find(|spec| spec.name == name).cloned()
    };
    let gone = before
        .iter()
        .filter(|spec| find(after, &spec.name).is_none());
    let mut changes: Vec<_> = gone.map(|spec| format!("detach {}", spec.name)).collect();
    for spec in after {
        let old = find(before, &spec.name);
        match old.filter(|old| old.kind == spec.kind) {
            None => changes.push(format!("attach {}", spec.to_json())),
            Some(old) if old != *spec => changes.push(format!("configure {}", spec.to_json())),
            Some(_) if upgrades == Some(&spec.name) => {
                changes.push(format!("upgrade {}", spec.name));
            }
            Some(_) => {}
        }
    }
    let order = |list: &[PolicySpec], other: &[PolicySpec]| {
        let both = list.iter().filter(|spec| find(other, &spec.name).is_some());
        both.map(|spec| spec.name.clone()).collect::<Vec<_>>()
    };
    let (old, new) = (order(before, after), order(after, before));
    if old != new {
        changes.push(format!("order {}", new.join(", ")));
    }
    changes
}

fn position(list: &[PolicySpec], name: &str) -> Result<usize, Status> {
    let found = list.iter().position(|spec| spec.name == name);
    found.ok_or_else(|| {
        let names: Vec<_> = list.iter().map(|spec| spec.name.as_str()).collect();
        let have = match names.is_empty() {
            true => "there are none".to_owned(),
            false => format!("there are {}", names.join(", ")),
        };
        Status::not_found(format!("no policy is named {name:?}: {have}"))
    })
}

fn parse(text: &str) -> Result<PolicySpec, Status> {
    PolicySpec::parse(text).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Only the service's own user, and root.
fn check_operator<M: starling::Message>(request: &Request<'_, M>) -> Result<(), Status> {
    let user = request.peer().process().and_then(|process| process.uid);
    let own = rustix::process::geteuid().as_raw();
    match user {
        Some(user) if user == own || user == ROOT => Ok(()),
        _ => Err(Status::permission_denied(
            "policies are the operator's: call as the user of the service, or as root",
        )),
    }
}

fn fill(mut response: PolicyChangesMut<'_>, changes: Vec<String>) {
    for change in &changes {
        response.changes_mut().push(change);
    }
}

fn fill_counts(mut datapath: DatapathMut<'_>, counts: &DatapathCounts) {
    datapath.set_id(counts.id);
    datapath.set_calls(counts.calls as u64);
    datapath.set_in_flight(counts.in_flight as u64);
    datapath.set_memory(counts.memory as u64);
    datapath.set_request_bytes(counts.request_bytes as u64);
    datapath.set_response_bytes(counts.response_bytes as u64);
}

fn fill_account(mut of: QuotaUseMut<'_>, account: &Account) {
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
    fill(of.used_mut(), used.map(Count::get));
    let Quota {
        calls,
        datapaths,
        memory,
    } = account.quota;
    fill(of.quota_mut(), [calls, datapaths, memory]);
    of.set_refused(account.refused.get() as u64);
}

impl Operator for Operations {
    fn list(
        &self,
        request: Request<'_, ListRequest>,
        mut response: ListingMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let report: Report = self.ask(|reply| Command::Report { reply })?;
        for (spec, counts) in report.policies {
            let mut policies = response.policies_mut();
            let mut policy = policies.push_default();
            policy.set_policy(&spec.to_json());
            policy.set_passed(counts.passed);
            policy.set_delayed(counts.delayed);
            policy.set_refused(counts.refused);
            policy.set_held(counts.held as u64);
        }
        for of in report.datapaths {
            let mut datapaths = response.datapaths_mut();
            let mut datapath = datapaths.push_default();
            datapath.set_side(of.side);
            if let Some(process) = of.process {
                datapath.set_process(process);
            }
            if let Some(user) = of.user {
                datapath.set_user(user);
            }
            datapath.set_program(&of.program);
            datapath.set_server(&of.server);
            datapath.set_state(of.state);
            for name in &of.identities {
                datapath.identities_mut().push(name);
            }
            for name in &of.policies {
                datapath.policies_mut().push(name);
            }
            fill_counts(datapath, &of.counts);
        }
        for account in report.accounts {
            fill_account(response.quotas_mut().push_default(), &account);
        }
        let (mut refused, counts) = (response.refused_mut(), report.refused);
        refused.set_calls(counts.calls);
        refused.set_datapaths(counts.datapaths);
        refused.set_memory(counts.memory);
        Ok(())
    }

    fn attach(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let spec = parse(request.message().what())?;
        let attach = |list: &mut Vec<PolicySpec>| {
            if position(list, &spec.name).is_ok() {
                let text = format!("a policy is named {:?} already: configure it", spec.name);
                return Err(Status::already_exists(text));
            }
            list.push(spec);
            Ok(None)
        };
        fill(response, self.replace(attach, request.message().dry_run())?);
        Ok(())
    }

    fn configure(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let spec = parse(request.message().what())?;
        let configure = |list: &mut Vec<PolicySpec>| {
            let at = position(list, &spec.name)?;
            if list[at].kind != spec.kind {
                let text = format!(
                    "{} is a {}, and cannot become a {}: detach it, and attach another",
                    spec.name, list[at].kind, spec.kind
                );
                return Err(Status::failed_precondition(text));
            }
            list[at] = spec;
            Ok(None)
        };
        fill(
            response,
            self.replace(configure, request.message().dry_run())?,
        );
        Ok(())
    }

    fn upgrade(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let name = request.message().what();
        let upgrade = |list: &mut Vec<PolicySpec>| {
            position(list, name)?;
            Ok(Some(name.to_owned()))
        };
        fill(
            response,
            self.replace(upgrade, request.message().dry_run())?,
        );
        Ok(())
    }

    fn detach(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let name = request.message().what();
        let detach = |list: &mut Vec<PolicySpec>| {
            let at = position(list, name)?;
            list.remove(at);
            Ok(None)
        };
        fill(response, self.replace(detach, request.message().dry_run())?);
        Ok(())
    }

    fn apply(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let wanted = parse_list(request.message().what());
        let wanted = wanted.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let apply = |list: &mut Vec<PolicySpec>| {
            *list = wanted;
            Ok(None)
        };
        fill(response, self.replace(apply, request.message().dry_run())?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(json: &str) -> Vec<PolicySpec> {
        parse_list(json).expect("policies")
    }

    #[test]
    fn differences_say_what_a_list_changes() {
        let one = list(
            r#"[{"name":"a","kind":"null"},{"name":"b","kind":"rate-limit"},{"name":"c","kind":"null"}]"#,
        );
        assert_eq!(differences(&one, &one, None), [""; 0]);
        assert_eq!(differences(&one, &one, Some("b")), ["upgrade b"]);
        let other = list(
            r#"[{"name":"b","kind":"rate-limit","settings":{"rate":1.0}},
                {"name":"a","kind":"null"},{"name":"d","kind":"null"}]"#,
        );
        let expected = [
            "detach c",
            r#"configure {"name":"b","kind":"rate-limit","settings":{"rate":1.0}}"#,
            r#"attach {"name":"d","kind":"null"}"#,
            "order b, a",
        ];
        assert_eq!(differences(&one, &other, None), expected);
        let kinds = list(r#"[{"name":"a","kind":"rate-limit"}]"#);
        let expected = [
            "detach b",
            "detach c",
            r#"attach {"name":"a","kind":"rate-limit"}"#,
        ];
        assert_eq!(differences(&one, &kinds, None), expected);
    }
}
