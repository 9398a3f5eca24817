//! What the operator of the service does: `starling.control.Operator`, beside what applications ask.
//!
//! All changes come down to one: a list takes the place of the list of policies, whole or not at all.

mod adapters;
mod builder;
mod listing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use starling::managed::{
    AdapterUpgrade, AdaptersMut, AdaptersUpgradedMut, KnownMethodsMut, ListRequest, ListingMut,
    MetricsRequest, MetricsTextMut, MoveRequest, MovedMut, Operator, PluginAddition, PluginsMut,
    PolicyChange, PolicyChangesMut, SchemaAddition,
};
use starling::{Request, Status};
use starling_policy::{PolicySpec, SpecError, parse_list};

use self::listing::{fill_account, fill_counts, fill_plugins, fill_policy};
use crate::attached::{self, AttachedPolicy, Engine};
use crate::metrics::PolicyMetrics;
use crate::runtime::{Command, Counts, Report};
use crate::shared::Shared;
use crate::{ROOT, metrics};

pub(crate) use self::builder::PolicyBuilder;

/// A runtime that does not answer in this time has failed.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// One that does not answer in this time may be blocked.
const BLOCKED_TIME: Duration = Duration::from_secs(2);

pub(crate) struct Operations {
    shared: Arc<Shared>,
    answer_time: Duration,
    /// Those that are attached, in order.
    policies: Mutex<Vec<AttachedPolicy>>,
    builder: PolicyBuilder,
}

impl Operations {
    /// With the policies that the runtimes have.
    pub(crate) fn new(
        shared: Arc<Shared>,
        policies: Vec<AttachedPolicy>,
        builder: PolicyBuilder,
    ) -> Self {
        let operations = Self {
            shared,
            answer_time: ANSWER_TIME,
            policies: Mutex::new(policies),
            builder,
        };
        operations.learn_scopes(&operations.policies.lock());
        operations
    }

    /// What policies have counted, as text.
    pub(crate) fn metrics_text(&self) -> Result<String, Status> {
        let counts = summed(self.ask_all(|reply| Command::Counts { reply })?);
        let policies = self.attached()?.clone();
        let of = |AttachedPolicy { spec, engine, .. }: AttachedPolicy| {
            let mut series = Vec::new();
            // One that blocks counts nothing.
            let engine = engine.lock_soon();
            let failure = |engine: &Engine| engine.engine.failure().is_some();
            let has_failed = engine.as_deref().is_none_or(failure);
            engine.inspect(|engine| engine.engine.series(&mut series));
            let named = series.into_iter().map(|series| {
                let labels = series.labels.as_ref();
                let path = labels.and_then(|labels| self.shared.paths.get(labels.method));
                (series, path)
            });
            PolicyMetrics {
                counts: counts.get(&spec.name).copied().unwrap_or_default(),
                series: named.collect(),
                has_failed,
                spec,
            }
        };
        let report: Vec<_> = policies.into_iter().map(of).collect();
        let spans = self.builder.spans.as_ref().map(|spans| spans.counts());
        Ok(metrics::text(&report, spans, self.builder.plugins.faults()))
    }

    /// Asks all runtimes, and waits for their answers, which are in their order.
    fn ask_all<T>(
        &self,
        mut command: impl FnMut(mpsc::SyncSender<T>) -> Command,
    ) -> Result<Vec<T>, Status> {
        let asked = self.shared.runtimes().iter().map(|runtime| {
            let (sender, receiver) = mpsc::sync_channel(1);
            runtime.send(command(sender));
            receiver
        });
        let asked: Vec<_> = asked.collect();
        let began = Instant::now();
        let left = |time: Duration| (began + time).saturating_duration_since(Instant::now());
        let answer = |receiver: mpsc::Receiver<T>| {
            let first = left(self.answer_time.min(BLOCKED_TIME));
            if let Ok(answer) = receiver.recv_timeout(first) {
                return Ok(answer);
            }
            self.check_blocked()?;
            let answer = receiver.recv_timeout(left(self.answer_time));
            answer.map_err(|_| Status::unavailable("the service's runtime does not answer"))
        };
        asked.into_iter().map(answer).collect()
    }

    /// The policies that are attached, unless another change of them does not end.
    fn attached(&self) -> Result<MutexGuard<'_, Vec<AttachedPolicy>>, Status> {
        if let Some(attached) = self
            .policies
            .try_lock_for(self.answer_time.max(BLOCKED_TIME))
        {
            return Ok(attached);
        }
        self.check_blocked()?;
        Err(Status::unavailable(
            "another change of the policies does not end",
        ))
    }

    /// Whether a runtime waits for a plug-in, which nobody can interrupt.
    fn check_blocked(&self) -> Result<(), Status> {
        let Some(by) = self.builder.plugins.blocking() else {
            return Ok(());
        };
        tracing::error!("the service's runtime does not answer: {by}");
        let text = format!("the service's runtime does not answer: {by}");
        Err(Status::unavailable(text))
    }

    fn learn_scopes(&self, policies: &[AttachedPolicy]) {
        let scopes = policies.iter().map(|policy| &policy.spec.scope);
        self.shared.paths.set_scoped(scopes);
    }

    /// Changes the list of policies. `change` returns the policy that gets a new engine in any case. Returns what
    /// changes, a line each.
    fn replace(
        &self,
        change: impl FnOnce(&mut Vec<PolicySpec>) -> Result<Option<String>, Status>,
        dry_run: bool,
    ) -> Result<Vec<String>, Status> {
        let mut attached = self.attached()?;
        let before: Vec<_> = attached.iter().map(|policy| policy.spec.clone()).collect();
        let mut wanted = before.clone();
        let upgrades = change(&mut wanted)?;
        let changes = differences(&before, &wanted, upgrades.as_deref());
        let built = self.builder.build(&wanted, &before, upgrades.as_deref())?;
        if dry_run || changes.is_empty() {
            return Ok(changes);
        }
        let _unmoved = self.shared.changing.lock();
        let (next, replaced) = attached::replace(&attached, built).map_err(|not| {
            let text = format!("{}: {}; nothing has changed", not.name, not.problem);
            Status::failed_precondition(text)
        })?;
        let before = std::mem::replace(&mut *attached, next.clone());
        self.learn_scopes(&next);
        let list = |reply| Command::SetPolicies {
            list: next.clone(),
            reply,
        };
        // They take the lists in the order in which they get them, however late.
        let taken = self.ask_all(list);
        // Here, and not in a runtime: to drop the engine of a plug-in may take long.
        drop((before, replaced));
        taken.map_err(|_| {
            Status::unavailable(
                "the policies are others from now on, but a runtime of the service does not answer: calls that are in \
                 it pass them when it goes on",
            )
        })?;
        Ok(changes)
    }

    /// Has an application go on in another runtime. Returns how many of its datapaths do.
    fn move_to_runtime(&self, process: u32, to: u32) -> Result<usize, Status> {
        let runtimes = self.shared.runtimes().len();
        let wanted = usize::try_from(to).ok().filter(|to| *to < runtimes);
        let Some(to) = wanted else {
            let text = format!(
                "runtime {to}: there are {runtimes}, from 0 on: `runtimes` in the service's file"
            );
            return Err(Status::invalid_argument(text));
        };
        let _unchanged = self.shared.changing.lock();
        if !self.shared.placement.set(process, to) {
            let text = format!("process {process}: the service has no such application");
            return Err(Status::not_found(text));
        }
        // Also those that are on their way.
        let moved = self.ask_all(|reply| Command::Move { process, to, reply })?;
        let moved: Option<Vec<usize>> = moved.into_iter().collect();
        let moved = moved.ok_or_else(|| {
            self.shared.placement.set(process, 0);
            Status::failed_precondition(format!(
                "process {process}: it connected when the service had no descriptors for a link of its own, and stays \
                 in runtime 0 until it connects again"
            ))
        })?;
        Ok(moved.into_iter().sum())
    }

    fn attach_policy(&self, json: &str, dry_run: bool) -> Result<Vec<String>, Status> {
        let spec = parse(json)?;
        let attach = |list: &mut Vec<PolicySpec>| {
            if position(list, &spec.name).is_ok() {
                let text = format!("a policy is named {:?} already: configure it", spec.name);
                return Err(Status::already_exists(text));
            }
            list.push(spec);
            Ok(None)
        };
        self.replace(attach, dry_run)
    }

    fn configure_policy(&self, json: &str, dry_run: bool) -> Result<Vec<String>, Status> {
        let spec = parse(json)?;
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
        self.replace(configure, dry_run)
    }

    fn upgrade_policy(&self, name: &str, dry_run: bool) -> Result<Vec<String>, Status> {
        let upgrade = |list: &mut Vec<PolicySpec>| {
            position(list, name)?;
            Ok(Some(name.to_owned()))
        };
        self.replace(upgrade, dry_run)
    }

    fn detach_policy(&self, name: &str, dry_run: bool) -> Result<Vec<String>, Status> {
        let detach = |list: &mut Vec<PolicySpec>| {
            let at = position(list, name)?;
            list.remove(at);
            Ok(None)
        };
        self.replace(detach, dry_run)
    }

    fn apply_list(&self, json: &str, dry_run: bool) -> Result<Vec<String>, Status> {
        let wanted = parse_list(json);
        let wanted = wanted.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let apply = |list: &mut Vec<PolicySpec>| {
            *list = wanted;
            Ok(None)
        };
        self.replace(apply, dry_run)
    }

    /// Makes a change that the operator asks for, and says what it was.
    fn answer(
        &self,
        request: &Request<'_, PolicyChange>,
        mut response: PolicyChangesMut<'_>,
        change: Change,
    ) -> Result<(), Status> {
        check_operator(request)?;
        let asked = request.message();
        for change in change(self, asked.what(), asked.dry_run())? {
            response.changes_mut().push(&change);
        }
        Ok(())
    }
}

/// What policies have done in all runtimes, by name.
fn summed(of_runtimes: Vec<Vec<(String, Counts)>>) -> HashMap<String, Counts> {
    let mut sums: HashMap<String, Counts> = HashMap::new();
    for (name, counts) in of_runtimes.into_iter().flatten() {
        sums.entry(name).or_default().add(counts);
    }
    sums
}

/// A change of the policies: what of them, and whether only to say what would change. Returns what changes.
type Change = fn(&Operations, &str, bool) -> Result<Vec<String>, Status>;

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

impl Operator for Operations {
    fn list(
        &self,
        request: Request<'_, ListRequest>,
        mut response: ListingMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let reports: Vec<Report> = self.ask_all(|reply| Command::Report { reply })?;
        let (mut counts, mut datapaths) = (Vec::new(), Vec::new());
        for (runtime, report) in reports.into_iter().enumerate() {
            let mut runtimes = response.runtimes_mut();
            let mut of = runtimes.push_default();
            of.set_applications(report.applications as u32);
            of.set_datapaths(report.datapaths.len() as u32);
            of.set_busy_ns(report.busy_ns);
            counts.push(report.counts);
            let own = report.datapaths.into_iter();
            datapaths.extend(own.map(|datapath| (runtime as u32, datapath)));
        }
        let counts = summed(counts);
        for policy in self.attached()?.iter() {
            let counts = counts.get(&policy.spec.name).copied().unwrap_or_default();
            fill_policy(response.policies_mut().push_default(), policy, counts);
        }
        for (runtime, of) in datapaths {
            let mut datapaths = response.datapaths_mut();
            let mut datapath = datapaths.push_default();
            datapath.set_side(of.side);
            datapath.set_runtime(runtime);
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
        let (accounts, counts) = {
            let accounts = self.shared.accounts.lock();
            (accounts.all(), accounts.refused)
        };
        for account in accounts {
            fill_account(response.quotas_mut().push_default(), &account);
        }
        let mut refused = response.refused_mut();
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
        self.answer(&request, response, Self::attach_policy)
    }

    fn metrics(
        &self,
        request: Request<'_, MetricsRequest>,
        mut response: MetricsTextMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        response.set_text(&self.metrics_text()?);
        Ok(())
    }

    fn configure(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        self.answer(&request, response, Self::configure_policy)
    }

    fn upgrade(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        self.answer(&request, response, Self::upgrade_policy)
    }

    fn detach(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        self.answer(&request, response, Self::detach_policy)
    }

    fn apply(
        &self,
        request: Request<'_, PolicyChange>,
        response: PolicyChangesMut<'_>,
    ) -> Result<(), Status> {
        self.answer(&request, response, Self::apply_list)
    }

    fn move_application(
        &self,
        request: Request<'_, MoveRequest>,
        mut response: MovedMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let asked = request.message();
        let moved = self.move_to_runtime(asked.process(), asked.runtime())?;
        response.set_datapaths(moved as u32);
        Ok(())
    }

    fn list_adapters(
        &self,
        request: Request<'_, ListRequest>,
        response: AdaptersMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        self.fill_adapters(response)
    }

    fn upgrade_adapters(
        &self,
        request: Request<'_, AdapterUpgrade>,
        response: AdaptersUpgradedMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let asked = request.message();
        let (kind, process) = (asked.kind(), asked.process_opt());
        self.upgrade_adapters_of(kind, process, asked.settings(), response)
    }

    fn add_schema(
        &self,
        request: Request<'_, SchemaAddition>,
        response: KnownMethodsMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let added = self.builder.schemas.add(request.message().schema())?;
        fill_methods(response, &added);
        Ok(())
    }

    fn list_schemas(
        &self,
        request: Request<'_, ListRequest>,
        response: KnownMethodsMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        fill_methods(response, &self.builder.schemas.paths());
        Ok(())
    }

    fn add_plugin(
        &self,
        request: Request<'_, PluginAddition>,
        response: PluginsMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let plugins = &self.builder.plugins;
        let added = plugins.add(Path::new(request.message().file()));
        let added = added.map_err(|error| Status::failed_precondition(error.to_string()))?;
        fill_plugins(response, &[added], plugins);
        Ok(())
    }

    fn list_plugins(
        &self,
        request: Request<'_, ListRequest>,
        response: PluginsMut<'_>,
    ) -> Result<(), Status> {
        check_operator(&request)?;
        let plugins = &self.builder.plugins;
        fill_plugins(response, &plugins.list(), plugins);
        Ok(())
    }
}

fn fill_methods(mut response: KnownMethodsMut<'_>, paths: &[String]) {
    for path in paths {
        response.methods_mut().push(path);
    }
}
