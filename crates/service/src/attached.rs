//! The policies that are attached, which all runtimes of a service share: each has one engine, whatever runtimes its
//! calls are in. So a limit is one for all of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use starling_policy::{PolicyEngine, PolicySpec};

use crate::datapath::PolicyId;

/// Numbers the policies of this process, and their scopes.
static POLICIES: AtomicU32 = AtomicU32::new(0);

/// An engine whose call takes longer than this is blocked: that of a plug-in may be.
const SOON: Duration = Duration::from_secs(2);

/// An engine, and which one of its policy's it is: runtimes that have not heard of it yet do not ask it.
pub(crate) struct Engine {
    pub(crate) engine: Box<dyn PolicyEngine>,
    pub(crate) version: u64,
}

/// A policy's engine. Another one may take its place.
pub(crate) struct SharedEngine {
    engine: Mutex<Engine>,
    /// Requests that it holds, in all runtimes.
    held: AtomicUsize,
}

impl SharedEngine {
    pub(crate) fn new(engine: Box<dyn PolicyEngine>) -> Arc<Self> {
        Arc::new(Self {
            engine: Mutex::new(Engine { engine, version: 0 }),
            held: AtomicUsize::new(0),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// Not for a runtime. None: the engine is blocked.
    pub(crate) fn lock_soon(&self) -> Option<MutexGuard<'_, Engine>> {
        self.engine.try_lock_for(SOON)
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
    /// That of the engine for these settings.
    pub(crate) version: u64,
    /// Another number when the scope is another one: whose calls may run more than once is not known any more then.
    pub(crate) scope_id: u32,
}

impl fmt::Debug for AttachedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// A policy that is to be attached.
pub(crate) struct Built {
    pub(crate) spec: PolicySpec,
    /// Takes its predecessor's place. None: the policy is attached, and does not change.
    pub(crate) engine: Option<Box<dyn PolicyEngine>>,
}

impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// Engines whose places others have taken.
pub(crate) type ReplacedEngines = Vec<Box<dyn PolicyEngine>>;

/// Why a policy cannot take its predecessor's place.
#[derive(Debug)]
pub(crate) struct NotReplaced {
    pub(crate) name: String,
    pub(crate) problem: String,
}

/// The list that takes another one's place. Policies of the same name and kind go on with their state, those that have
/// changed by new engines, from now on and in all runtimes. Returns the engines that were replaced, too: nobody waits
/// while they are dropped.
///
/// # Errors
/// If one cannot go on with the state of its predecessor. Nothing has changed then.
pub(crate) fn replace(
    list: &[AttachedPolicy],
    by: Vec<Built>,
) -> Result<(Vec<AttachedPolicy>, ReplacedEngines), NotReplaced> {
    let mut next: Vec<AttachedPolicy> = Vec::new();
    // Each engine is locked from its last word to the first one of its successor: no call is counted by neither.
    let mut changing = Vec::new();
    for Built { spec, engine } in by {
        let is_of =
            |old: &&AttachedPolicy| old.spec.name == spec.name && old.spec.kind == spec.kind;
        let failed = |problem: String| NotReplaced {
            name: spec.name.clone(),
            problem,
        };
        let policy = match (list.iter().find(is_of), engine) {
            (Some(old), None) => old.clone(),
            (Some(old), Some(mut engine)) => {
                let locked = old.engine.lock_soon();
                let locked = locked.ok_or_else(|| failed("it does not return".to_owned()))?;
                let restored = engine.restore(&mut locked.engine.save().reader());
                restored.map_err(|error| failed(error.to_string()))?;
                let version = locked.version + 1;
                changing.push((locked, Engine { engine, version }));
                AttachedPolicy {
                    id: old.id,
                    scope_id: match old.spec.scope == spec.scope {
                        true => old.scope_id,
                        false => next_number(),
                    },
                    spec,
                    engine: Arc::clone(&old.engine),
                    version,
                }
            }
            (None, engine) => AttachedPolicy {
                id: free_id(list, &next),
                scope_id: next_number(),
                spec,
                engine: SharedEngine::new(engine.expect("one for each that is not attached")),
                version: 0,
            },
        };
        next.push(policy);
    }
    let replaced = changing
        .into_iter()
        .map(|(mut place, engine)| std::mem::replace(&mut *place, engine).engine);
    let replaced = replaced.collect();
    Ok((next, replaced))
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
        id: next_number(),
    }
}

fn next_number() -> u32 {
    POLICIES.fetch_add(1, Ordering::Relaxed)
}
