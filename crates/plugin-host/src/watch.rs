//! Calls of plug-ins that are not over. None can be interrupted: what blocks is named.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// No call is running.
const NONE: u64 = u64::MAX;

/// The call that an engine makes now.
#[derive(Debug)]
pub(crate) struct Running {
    /// The engine, for the operator.
    name: String,
    /// When it began, in nanoseconds of the service's clock.
    since_ns: AtomicU64,
}

impl Running {
    pub(crate) fn begin(&self, now_ns: u64) {
        self.since_ns.store(now_ns, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.since_ns.store(NONE, Ordering::Relaxed);
    }
}

/// Those of all engines that are there.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Vec<Weak<Running>>>);

impl Watch {
    /// That of a new engine.
    pub(crate) fn add(&self, name: String) -> Arc<Running> {
        let running = Arc::new(Running {
            name,
            since_ns: AtomicU64::new(NONE),
        });
        let mut all = self.0.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&running));
        running
    }

    /// The engines that are in one call for longer than this, and for how long.
    pub(crate) fn longer_than(&self, bound_ns: u64, now_ns: u64) -> Vec<(String, u64)> {
        let all = self.0.lock();
        let running = all.iter().filter_map(Weak::upgrade);
        let long = running.filter_map(|running| {
            let since_ns = running.since_ns.load(Ordering::Relaxed);
            let for_ns = now_ns.saturating_sub(since_ns);
            (for_ns > bound_ns).then(|| (running.name.clone(), for_ns))
        });
        long.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_are_not_over_are_named() {
        let watch = Watch::default();
        let [one, other] = ["one", "other"].map(|name| watch.add(name.to_owned()));
        assert_eq!(watch.longer_than(0, 1000), []);
        one.begin(100);
        other.begin(900);
        assert_eq!(watch.longer_than(500, 1000), [("one".to_owned(), 900)]);
        one.end();
        assert_eq!(watch.longer_than(500, 1000), []);
        drop(other);
        let third = watch.add("third".to_owned());
        assert_eq!(watch.0.lock().len(), 2);
        drop((one, third));
    }
}
