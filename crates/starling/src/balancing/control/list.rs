//! Which backends a channel has: from its list or its resolver, less those that a subset leaves out; and none
//! while it is idle.

use std::collections::HashMap;
use std::sync::Arc;

use starling_balance::{Policy, Random, Resolved, subset};
use starling_endpoint::Status;

use super::super::balancer::{Balancer, Snapshot};
use super::super::readiness::Listed;
use super::super::resolver::{ResolverSignals, ask};
use super::super::settings::Source;
use super::Control;
use crate::address::Address;

fn check(address: &str) -> Result<(), String> {
    Address::parse(address)
        .map(drop)
        .map_err(|error| error.to_string())
}

impl Balancer {
    /// The channel is used.
    pub(super) fn activate(&self, control: &mut Control) {
        control.is_active = true;
        control.force_publish();
        control.times.begin(self.now_ns(), self.started());
        match &self.settings.source {
            Source::List(addresses) => {
                let answer = addresses.iter().map(|it| Resolved::from(it.as_str()));
                // The builder has checked them.
                let _ = control.backends.update(answer, check);
                control.is_answered = true;
                self.choose(control);
            }
            Source::Resolver(resolver) => {
                let signals = Arc::<ResolverSignals>::default();
                control.signals = Some(Arc::clone(&signals));
                let (weak, resolver) = (self.this.clone(), Arc::clone(resolver));
                let driver = Arc::downgrade(self.notifier.driver());
                self.notifier.driver().spawn(Box::new(move |executor| {
                    Box::pin(ask(weak, signals, resolver, executor, driver))
                }));
            }
        }
    }

    /// The channel has had no calls for long: closes its connections.
    pub(super) fn deactivate(&self, control: &mut Control) {
        control.is_active = false;
        control.stop_asking();
        control.is_answered = false;
        control.answer_failure = None;
        for mut listed in std::mem::take(&mut control.listed) {
            listed.give_up();
        }
        control.published.clear();
        control.version += 1;
        let idle = Arc::new(Snapshot::idle(control.version));
        let former = std::mem::replace(&mut *self.snapshot.write(), idle);
        drop(former);
        // A call that came meanwhile waits by an older snapshot: it is looked at by this one.
        self.notifier.notify();
    }

    /// Takes in an answer of the resolver. Returns whether it can be used.
    pub(in super::super) fn handle_answer(
        &self,
        signals: &Arc<ResolverSignals>,
        answer: Result<Vec<Resolved>, Status>,
    ) -> bool {
        let mut control = self.control.lock();
        let control = &mut *control;
        if !control
            .signals
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, signals))
        {
            return true;
        }
        let name = &self.settings.name;
        let mut next = control.backends.clone();
        let checked = answer.and_then(|answer| {
            let (change, rejected) = next.update(answer, check);
            if !rejected.is_empty() {
                tracing::warn!(
                    "the resolver of {name} named backends that are left out: {rejected}"
                );
            }
            match (next.list().is_empty(), rejected.is_empty()) {
                (false, _) => Ok(change),
                (true, true) => Err(Status::unavailable("the resolver named no backend")),
                (true, false) => {
                    let text = format!("the resolver named no usable backend: {rejected}");
                    Err(Status::unavailable(text))
                }
            }
        });
        let is_good = checked.is_ok();
        match checked {
            Ok(change) => {
                control.answer_failure = None;
                if !change.is_empty() || !control.is_answered {
                    control.backends = next;
                    self.choose(control);
                }
                control.is_answered = true;
            }
            Err(failure) => {
                if control.answer_failure.as_ref() != Some(&failure) {
                    tracing::warn!("resolve {name}: {failure}; the backends stay as they are");
                }
                control.answer_failure = Some(failure);
            }
        }
        control.force_publish();
        self.notifier.notify();
        is_good
    }

    /// Takes in which of the resolved backends are used.
    fn choose(&self, control: &mut Control) {
        let resolved = control.backends.list();
        let mut chosen: Vec<(u64, Resolved)> = match self.settings.policy.subset() {
            None => resolved.to_vec(),
            Some(size) => {
                let key = |it: &Resolved| it.hash_key.clone().unwrap_or(it.address.clone());
                let keys: Vec<String> = resolved.iter().map(|(_, it)| key(it)).collect();
                let indices = subset(&keys, size, control.seed).into_iter();
                indices.map(|index| resolved[index].clone()).collect()
            }
        };
        if let Policy::PickFirst { shuffle: true } = self.settings.policy.policy() {
            // A backend keeps its place among the others while the list changes.
            let place = |id: u64| Random::new(control.seed ^ id).next_u64();
            chosen.sort_by_cached_key(|(id, _)| place(*id));
        }
        let former = std::mem::take(&mut control.listed);
        let mut former: HashMap<u64, Listed> = former.into_iter().map(|it| (it.id, it)).collect();
        control.listed = (chosen.into_iter())
            .map(|(id, resolved)| match former.remove(&id) {
                Some(kept) if kept.resolved == resolved => kept,
                // It has another key for hashing.
                Some(mut other) => {
                    other.give_up();
                    Listed::new(id, resolved)
                }
                None => Listed::new(id, resolved),
            })
            .collect();
        // Calls that are out keep their backends.
        former.into_values().for_each(|mut gone| gone.give_up());
    }
}

impl Control {
    /// Has the next snapshot published although no backend has changed.
    fn force_publish(&mut self) {
        self.published = vec![(u64::MAX, starling_balance::Readiness::Failed)];
    }
}
