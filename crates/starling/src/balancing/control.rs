//! The task in the background of a balanced channel: it keeps backends connected, watches how they do, and
//! publishes a snapshot when that changes.
//!
//! ```text
//!           a call                         no call for long
//!  idle ─────────────▶ active ─────────────────────────────▶ idle
//!                       │  ▲  list: resolver, subset
//!                       ▼  │  each backend: connects, fails, is ejected, is replaced when it is old
//!                    snapshot: readiness of each, a picker
//! ```
//!
//! It runs when it is notified (a state or a health changed, a call waits) and when a time comes.

mod first;
mod list;
mod times;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use starling_balance::{Backends, Outliers, Picker, Policy, Readiness, View};
use starling_endpoint::{Code, Status};

use super::backend::Backend;
use super::background::Notifier;
use super::balancer::{Balancer, Snapshot, random};
use super::readiness::Listed;
use super::resolver::ResolverSignals;
use super::settings::Balancing;
use crate::executor::Executor;

use first::First;
use times::Times;

/// Calls wait although a backend seems to be ready: they are looked at again after this.
const AGAIN_NS: u64 = 1_000_000;
/// Backends whose failures a status quotes.
const QUOTED: usize = 3;

/// What the task knows.
pub(super) struct Control {
    is_active: bool,
    /// As resolved, before a subset is chosen.
    backends: Backends,
    /// Those that are used, in the order of the list.
    listed: Vec<Listed>,
    /// Something was answered.
    is_answered: bool,
    /// Why the last answer was not good.
    answer_failure: Option<Status>,
    /// While a resolver is asked.
    signals: Option<Arc<ResolverSignals>>,
    /// Chooses the subset, and the order of `pick_first`.
    seed: u64,
    last_id: u64,
    first: First,
    outliers: Outliers,
    times: Times,
    version: u64,
    /// As published.
    published: Vec<(u64, Readiness)>,
}

impl Control {
    /// The resolver's answers are needed no more.
    pub(super) fn stop_asking(&mut self) {
        if let Some(signals) = self.signals.take() {
            signals.close();
        }
    }

    pub(super) fn new(settings: &Balancing) -> Self {
        Self {
            is_active: false,
            backends: Backends::default(),
            listed: Vec::new(),
            is_answered: false,
            answer_failure: None,
            signals: None,
            seed: random().next_u64(),
            last_id: 0,
            first: First::default(),
            outliers: Outliers::default(),
            times: Times::new(settings),
            version: 0,
            published: Vec::new(),
        }
    }
}

/// Runs until the channel is gone.
pub(super) async fn run(
    balancer: Weak<Balancer>,
    notifier: Arc<Notifier>,
    executor: Arc<Executor>,
) {
    loop {
        let Some(strong) = balancer.upgrade() else {
            return;
        };
        let next_ns = strong.maintain();
        let now_ns = strong.now_ns();
        drop(strong);
        let limit = next_ns.map(|next_ns| Duration::from_nanos(next_ns.saturating_sub(now_ns)));
        notifier.wait(&executor, limit).await;
    }
}

impl Balancer {
    /// Does what is to be done now. Returns when there is more to do at the latest.
    fn maintain(&self) -> Option<u64> {
        let now = self.now_ns();
        let mut guard = self.control.lock();
        let control = &mut *guard;
        let is_wanted = self.take_wanted() || !self.queue.is_empty();
        if !control.is_active && is_wanted {
            self.activate(control);
        }
        if control.is_active {
            self.connect(control, now);
            self.replace_old(control, now);
            self.sweep(control, now);
            self.publish(control, now);
        }
        let version = control.version;
        drop(guard);
        // Without the lock: what is sent may end at once, in code of the caller's.
        let is_stale = self.dispatch_queued(version);
        let mut guard = self.control.lock();
        let control = &mut *guard;
        if control.is_active && self.is_idle(control, now) {
            self.deactivate(control);
        }
        let deadline = self.queue.earliest().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // A deadline has to have passed when its call is looked at.
            now.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
                .saturating_add(AGAIN_NS)
        });
        let again = is_stale.then_some(now + AGAIN_NS);
        let listed = control.listed.iter();
        let reopening = listed.filter_map(|listed| listed.failure.as_ref().map(|it| it.1));
        // A time that is past waits for others to begin first: their time is `first.next()`.
        let reopening = reopening.filter(|at| *at > now);
        let times = match control.is_active {
            true => [control.times.next(), control.first.next()],
            false => [None, None],
        };
        let all = times.into_iter().flatten().chain(deadline).chain(again);
        all.chain(reopening).min()
    }

    /// Has the backends connect, and looks at how they are.
    fn connect(&self, control: &mut Control, now: u64) {
        let picks_first = matches!(self.settings.policy.policy(), Policy::PickFirst { .. });
        if !picks_first {
            for index in 0..control.listed.len() {
                self.begin_backend(control, index, now);
            }
        }
        let mut has_failed = false;
        for listed in &mut control.listed {
            has_failed |= listed.update(now);
        }
        if picks_first {
            self.connect_first(control, now);
        }
        if has_failed && let Some(signals) = &control.signals {
            signals.request();
        }
    }

    /// Begins a backend, unless it was or it is not time to try again.
    fn begin_backend(&self, control: &mut Control, index: usize, now: u64) {
        let listed = &control.listed[index];
        let must_wait = listed
            .failure
            .as_ref()
            .is_some_and(|(_, until)| now < *until);
        if listed.backend.is_none() && !must_wait {
            let begun = self.make_backend(control, index);
            control.listed[index].handle_begun(now, begun);
        }
    }

    fn make_backend(&self, control: &mut Control, index: usize) -> Result<Arc<Backend>, Status> {
        let listed = &control.listed[index];
        let transport = crate::Address::parse(&listed.resolved.address)
            .map_err(crate::Error::from)
            .and_then(|address| self.open(&address))
            .map_err(|error| Status::unavailable(error.to_string()))?;
        control.last_id += 1;
        let service = self.settings.health.as_deref();
        let weighting = match self.settings.policy.policy() {
            Policy::WeightedRoundRobin(weighting) => Some((weighting, self.clock())),
            _ => None,
        };
        let backend = Backend::new(
            control.last_id,
            listed,
            transport,
            &self.this,
            &self.waker(),
            service,
            weighting,
        );
        self.remember(&backend);
        Ok(backend)
    }

    /// Publishes a snapshot if the last one is out of date.
    fn publish(&self, control: &mut Control, now: u64) {
        let id = |listed: &Listed| listed.backend.as_ref().map_or(0, |backend| backend.id);
        let current = control.listed.iter().map(|it| (id(it), it.readiness));
        let current: Vec<(u64, Readiness)> = current.collect();
        let is_due = control.times.weights_are_due(now);
        if current == control.published && control.version > 0 && !is_due {
            return;
        }
        control.published = current;
        // Those without a backend yet stand at the end: they are never picked, and calls wait for them.
        let begun = control.listed.iter().filter(|it| it.backend.is_some());
        let rest = control.listed.iter().filter(|it| it.backend.is_none());
        let view = |listed: &'_ Listed| (listed.readiness, listed.backend.clone());
        let views: Vec<_> = begun.chain(rest).map(view).collect();
        let backends: Vec<Arc<Backend>> = views.iter().filter_map(|it| it.1.clone()).collect();
        let begun = views.iter().take(backends.len());
        let is_ready = begun.map(|it| it.0 == Readiness::Ready).collect();
        let views = views.iter().map(|(readiness, backend)| View {
            key: backend.as_ref().map_or("", |backend| backend.key()),
            readiness: *readiness,
            weight: backend.as_ref().map_or(0.0, |backend| backend.weight(now)),
        });
        let policy = self.settings.policy.policy();
        let picker = Picker::new(policy, &views.collect::<Vec<_>>(), &mut random());
        let loops = backends.iter().map(|it| it.transport.loop_id());
        let is_one_loop = loops.clone().max() == loops.min();
        control.version += 1;
        let snapshot = Arc::new(Snapshot {
            version: control.version,
            is_idle: false,
            is_starting: !control.is_answered && control.answer_failure.is_none(),
            failure: self.failure(control, &picker),
            is_one_loop,
            picker,
            backends,
            is_ready,
        });
        let former = std::mem::replace(&mut *self.snapshot.write(), snapshot);
        // Without the lock: it may be the last reference to a backend.
        drop(former);
    }

    /// Why calls cannot be made, if they cannot.
    fn failure(&self, control: &Control, picker: &Picker) -> Status {
        let name = &self.settings.name;
        if picker.readiness() != Readiness::Failed {
            return Status::unavailable(format!("no backend of {name} can take the call now"));
        }
        if control.listed.is_empty() {
            return match &control.answer_failure {
                // Its code is the resolver's, and says nothing of a server.
                Some(failure) => Status::unavailable(match failure.code() {
                    Code::Unavailable => format!("resolve {name}: {}", failure.message()),
                    _ => format!("resolve {name}: {failure}"),
                }),
                None => Status::unavailable(format!("{name} has no backends")),
            };
        }
        let quoted = control.listed.iter().take(QUOTED);
        let mut reasons: Vec<String> = quoted.map(Listed::reason).collect();
        let more = control.listed.len().saturating_sub(QUOTED);
        if more > 0 {
            reasons.push(format!("and {more} more"));
        }
        let reasons = reasons.join("; ");
        Status::unavailable(format!(
            "no backend of {name} can take the call, it did not run: {reasons}"
        ))
    }
}
