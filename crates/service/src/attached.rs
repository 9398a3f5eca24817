//! The policies that are attached, which all runtimes of a service share: each has one engine, whatever runtimes its
//! calls are in. So a limit is one for all of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use starling_policy::{PolicyEngine, PolicySpec, RestoreError};

use crate::datapath::PolicyId;

/// Numbers the policies of this process.
static POLICIES: AtomicU32 = AtomicU32::new(0);

/// A policy's engine. Another one may take its place.
pub(crate) struct SharedEngine {
    engine: Mutex<Box<dyn PolicyEngine>>,
    /// Requests that it holds, in all runtimes.
    held: AtomicUsize,
}

impl SharedEngine {
    pub(crate) fn new(engine: Box<dyn PolicyEngine>) -> Arc<Self> {
        Arc::new(Self {
            engine: Mutex::new(engine),
            held: AtomicUsize::new(0),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<dyn PolicyEngine>> {
        self.engine.lock()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn hold(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn let_go(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A policy that is attached.
#[derive(Clone)]
pub(crate) struct AttachedPolicy {
    pub(crate) id: PolicyId,
    pub(crate) spec: PolicySpec,
    pub(crate) engine: Arc<SharedEngine>,
}

impl fmt::Debug for AttachedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// A policy that is to be attached, with a new engine.
pub(crate) struct Built {
    pub(crate) spec: PolicySpec,
    pub(crate) engine: Box<dyn PolicyEngine>,
    /// The engine takes its predecessor's place, also if the policy has not changed.
    pub(crate) upgrades: bool,
}

impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// Why a policy cannot take its predecessor's place.
#[derive(Debug)]
pub(crate) struct NotReplaced {
    pub(crate) name: String,
    pub(crate) error: RestoreError,
}

/// The list that takes another one's place. Policies of the same name and kind go on with their state, those that have
/// changed by new engines, from now on and in all runtimes.
///
/// # Errors
/// If one cannot go on with the state of its predecessor. Nothing has changed then.
pub(crate) fn replace(
    list: &[AttachedPolicy],
    by: Vec<Built>,
) -> Result<Vec<AttachedPolicy>, NotReplaced> {
    let mut next: Vec<AttachedPolicy> = Vec::new();
    // Each engine is locked from its last word to the first one of its successor: no call is counted by neither.
    let mut changing = Vec::new();
    for mut built in by {
        let is_of = |old: &&AttachedPolicy| {
            old.spec.name == built.spec.name && old.spec.kind == built.spec.kind
        };
        let Some(old) = list.iter().find(is_of) else {
            next.push(AttachedPolicy {
                id: free_id(list, &next),
                spec: built.spec,
                engine: SharedEngine::new(built.engine),
            });
            continue;
        };
        if built.upgrades || old.spec != built.spec {
            let engine = old.engine.lock();
            let restored = built.engine.restore(&mut engine.save().reader());
            restored.map_err(|error| NotReplaced {
                name: built.spec.name.clone(),
                error,
            })?;
            changing.push((engine, built.engine));
        }
        next.push(AttachedPolicy {
            id: old.id,
            spec: built.spec,
            engine: Arc::clone(&old.engine),
        });
    }
    for (mut place, engine) in changing {
        *place = engine;
    }
    Ok(next)
}

/// A place that none of these has, with a new id.
fn free_id(list: &[AttachedPolicy], next: &[AttachedPolicy]) -> PolicyId {
    let is_used = |place: &u32| {
        list.iter()
            .chain(next)
            .any(|policy| policy.id.place == *place)
    };
    let place = (0..).find(|place| !is_used(place));
    PolicyId {
        place: place.expect("there are fewer policies"),
        id: POLICIES.fetch_add(1, Ordering::Relaxed),
    }
}
