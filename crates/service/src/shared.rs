//! What all runtimes of a service share.

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use starling_endpoint::EndpointConfig;
use starling_io::{Clock, MonotonicClock};

use crate::adapter::AdapterSettings;
use crate::directory::Directory;
use crate::placement::Placement;
use crate::quota::Quotas;
use crate::runtime::{Accounts, Command, Configured, Paths, RuntimeHandle};
use crate::schemas::Schemas;
use crate::spans::SpanQueue;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Known methods, by which policies read messages.
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) identities: Configured,
    pub(crate) accounts: Mutex<Accounts>,
    /// The methods' names, for what policies record.
    pub(crate) paths: Paths,
    pub(crate) directory: Directory,
    pub(crate) placement: Placement,
    /// Where spans go.
    pub(crate) spans: Option<Arc<SpanQueue>>,
    /// Held while policies or adapters change, and while applications move: a request passes the same policies in both
    /// runtimes, and an adapter is replaced in one.
    pub(crate) changing: Mutex<()>,
    pub(crate) clock: MonotonicClock,
    /// That of endpoints.
    pub(crate) config: EndpointConfig,
    /// Of adapters, by the kind of their device, unless an application has its own.
    adapters: Mutex<HashMap<&'static str, Arc<AdapterSettings>>>,
    /// Tells answers of servers from others.
    pub(crate) answers: RandomState,
    /// Makes a secret number of each peer, see [`translate`](crate::forwarded::translate).
    pub(crate) stream_keys: RandomState,
    runtimes: OnceLock<Vec<RuntimeHandle>>,
}

impl Shared {
    pub(crate) fn new(
        runtimes: usize,
        dedicated: Vec<(String, usize)>,
        quotas: Quotas,
        schemas: Arc<Schemas>,
        clock: MonotonicClock,
        config: EndpointConfig,
    ) -> Self {
        Self {
            schemas,
            identities: Configured::default(),
            accounts: Mutex::new(Accounts::new(quotas, runtimes > 1)),
            paths: Paths::default(),
            directory: Directory::default(),
            placement: Placement::new(runtimes, dedicated),
            spans: None,
            changing: Mutex::default(),
            clock,
            config,
            adapters: Mutex::default(),
            answers: RandomState::new(),
            stream_keys: RandomState::new(),
            runtimes: OnceLock::new(),
        }
    }

    /// The runtimes, before one of them begins.
    pub(crate) fn set_runtimes(&self, runtimes: Vec<RuntimeHandle>) {
        self.runtimes.set(runtimes).expect("a service begins once");
    }

    /// The runtime of an application.
    pub(crate) fn runtime_of(&self, process: u32, user: Option<u32>) -> usize {
        let identities = || self.identities.of_process(process, user);
        (self.placement).runtime_of(Some(process), self.clock.now_ns(), identities)
    }

    /// The settings with which adapters of a kind begin.
    pub(crate) fn adapter_settings(&self, kind: &'static str) -> Arc<AdapterSettings> {
        Arc::clone(self.adapters.lock().entry(kind).or_default())
    }

    pub(crate) fn set_adapter_settings(&self, kind: &'static str, settings: Arc<AdapterSettings>) {
        self.adapters.lock().insert(kind, settings);
    }

    /// Ends all runtimes.
    pub(crate) fn stop(&self) {
        for runtime in self.runtimes() {
            runtime.send(Command::Stop);
        }
    }

    pub(crate) fn runtimes(&self) -> &[RuntimeHandle] {
        self.runtimes.get().map_or(&[], Vec::as_slice)
    }
}
