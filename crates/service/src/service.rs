//! The service as a whole.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use starling::ServerHandle;
use starling::metrics::MetricsPage;
use starling_endpoint::EndpointConfig;
use starling_io::{Fault, IoError, MonotonicClock};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_plugin_host::Plugins;
use starling_policy::{Identities, PolicySpec};

use crate::acceptor::Acceptor;
use crate::error::ServiceError;
use crate::link::{EndpointLink, Link};
use crate::operator::{Operations, PolicyBuilder};
use crate::quota::Quotas;
use crate::runtime::{Configured, Runtime};
use crate::schemas::Schemas;
use crate::shared::Shared;
use crate::spans::{Destination, Exporter};
use crate::{attached, control};

/// The name of a service that was given none.
const DEFAULT_NAME: &str = "starling";

/// Runtimes of one service, at most.
const MAX_RUNTIMES: usize = 64;

/// The settings of a [`Service`].
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Its name: applications find it by `STARLING_SERVICE=NAME`. Default: `starling`.
    pub name: String,
    /// Takes applications of all users. Default: only of the service's own, and of root.
    pub any_user: bool,
    /// Threads that drive the datapaths of applications, at most: an application is in one of them. While one has time
    /// for all, the others sleep. From 1 to 64. Default: 1.
    pub runtimes: usize,
    /// Identities whose applications have a runtime to themselves, with its number. One at least is for all others.
    pub dedicated: Vec<(String, usize)>,
    /// The cores on which they run: the n-th on the n-th of them, from the first again when there are fewer. Empty, the
    /// default: on all.
    pub cores: Vec<usize>,
    /// The policies that it begins with.
    pub policies: Vec<PolicySpec>,
    /// Libraries with kinds of policies, by paths from the root.
    pub plugins: Vec<PathBuf>,
    /// Schemas in compact form, of methods whose requests policies look into.
    pub schemas: Vec<Vec<u8>>,
    /// Shows what policies have counted at `http://ADDRESS/metrics`, to whoever can connect there. Default: nowhere.
    pub metrics: Option<String>,
    /// Sends the spans that policies record to this collector, by OTLP over HTTP: `http://HOST:4318`. Default: policies
    /// that record spans are refused.
    pub otlp: Option<String>,
    /// The names that scopes of policies may have for applications.
    pub identities: Identities,
    /// How much applications and users may have of it.
    pub quotas: Quotas,
    /// The endpoints of the service.
    pub endpoint: EndpointConfig,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            any_user: false,
            runtimes: 1,
            dedicated: Vec::new(),
            cores: Vec::new(),
            policies: Vec::new(),
            plugins: Vec::new(),
            schemas: Vec::new(),
            metrics: None,
            otlp: None,
            identities: Identities::new(),
            quotas: Quotas::default(),
            endpoint: EndpointConfig::default(),
        }
    }
}

/// A service that runs. It ends when it is dropped.
#[derive(Debug)]
pub struct Service {
    control: Option<ServerHandle>,
    page: Option<MetricsPage>,
    runtimes: Vec<JoinHandle<Result<(), ServiceError>>>,
    shared: Arc<Shared>,
    exporter: Option<Exporter>,
}

impl Service {
    /// Starts a service.
    ///
    /// # Errors
    /// If another process has the name, or the host refuses what the service needs.
    pub fn start(config: ServiceConfig) -> Result<Self, ServiceError> {
        config.quotas.check()?;
        check_runtimes(&config)?;
        let clock = MonotonicClock::new();
        let exporter = config.otlp.as_deref().map(|collector| {
            let destination = Destination::parse(collector)?;
            Exporter::start(destination, &config.name, clock.clone())
        });
        let exporter = exporter.transpose()?;
        let spans = exporter.as_ref().map(Exporter::queue);
        let schemas = Arc::new(Schemas::default());
        for schema in &config.schemas {
            schemas.add(schema)?;
        }
        let mut shared = Shared::new(
            config.runtimes,
            config.dedicated.clone(),
            config.quotas,
            Arc::clone(&schemas),
            clock.clone(),
            config.endpoint.clone(),
        );
        shared.identities = Configured::new(&config.identities)?;
        shared.spans.clone_from(&spans);
        let shared = Arc::new(shared);
        let plugins = Plugins::new(clock.clone());
        for file in &config.plugins {
            plugins.add(file)?;
        }
        let builder = PolicyBuilder {
            plugins,
            schemas,
            identities: config.identities.clone(),
            spans,
        };
        let policies = builder.build(&config.policies, &[], None)?;
        let (policies, _) = attached::replace(&[], policies).expect("they have no predecessors");
        let mut runtimes = open_runtimes(&config, &clock, &shared)?;
        // No call passes before them.
        for runtime in &mut runtimes {
            runtime.set_policies(policies.clone());
        }
        shared.set_runtimes(runtimes.iter().map(Runtime::handle).collect());
        // Those that run are stopped if the rest of the service cannot begin.
        let mut service = Self {
            control: None,
            page: None,
            runtimes: Vec::new(),
            shared: Arc::clone(&shared),
            exporter,
        };
        for (number, runtime) in runtimes.into_iter().enumerate() {
            let core = config.cores.get(number % config.cores.len().max(1));
            let thread = spawn(runtime, core.copied(), Arc::clone(&shared))?;
            service.runtimes.push(thread);
        }
        let operations = Arc::new(Operations::new(Arc::clone(&shared), policies, builder));
        if let Some(address) = &config.metrics {
            let operations = Arc::clone(&operations);
            let text = move || operations.metrics_text().map_err(|error| error.to_string());
            service.page = Some(starling::metrics::serve_text(address, text)?);
        }
        let control = control::serve(&config.name, config.any_user, shared, operations)?;
        service.control = Some(control);
        Ok(service)
    }

    /// Where it shows what policies have counted, with the port that port 0 became.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.page.as_ref().map(MetricsPage::address)
    }

    /// Whether none of its runtimes has ended by itself.
    pub fn is_running(&self) -> bool {
        !self.runtimes.iter().any(JoinHandle::is_finished)
    }

    /// Waits until the service ends by itself.
    ///
    /// # Errors
    /// Why it has ended.
    pub fn wait(mut self) -> Result<(), ServiceError> {
        // One that ends, for whatever reason, stops the others.
        let results = self.runtimes.drain(..).map(JoinHandle::join);
        let results: Vec<_> = results.collect();
        for result in results {
            match result {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    }
}

/// Refuses what cannot be.
fn check_runtimes(config: &ServiceConfig) -> Result<(), ServiceError> {
    let (runtimes, cores) = (config.runtimes, &config.cores);
    if !(1..=MAX_RUNTIMES).contains(&runtimes) {
        return Err(ServiceError::Runtimes { runtimes });
    }
    for (identity, runtime) in &config.dedicated {
        let problem = match config.identities.contains_key(identity) {
            false => "no such identity is configured".to_owned(),
            true if *runtime >= runtimes => format!("there are {runtimes} runtimes, from 0 on"),
            true if *runtime == 0 => {
                "the first one is for those whose process is not to be seen: write 1 at least"
                    .to_owned()
            }
            true => continue,
        };
        return Err(ServiceError::Dedicated {
            identity: identity.clone(),
            runtime: *runtime,
            problem,
        });
    }
    let own = sched_getaffinity(None);
    let own = own.map_err(|error| ServiceError::system("see the cores of this process", error))?;
    let is_own = |core: &usize| *core < CpuSet::MAX_CPU && own.is_set(*core);
    match cores.iter().find(|core| !is_own(core)) {
        None => Ok(()),
        Some(core) => Err(ServiceError::Core {
            core: *core,
            cores: (0..CpuSet::MAX_CPU).filter(is_own).collect(),
        }),
    }
}

/// The runtimes of a service, which share the place where applications connect.
fn open_runtimes(
    config: &ServiceConfig,
    clock: &MonotonicClock,
    shared: &Arc<Shared>,
) -> Result<Vec<Runtime>, ServiceError> {
    let device = ShmConfig {
        allow_other_users: config.any_user,
        takes_targets: true,
        // Their pages would count for no application.
        heap_bytes: 0,
        ..ShmConfig::default()
    };
    let mut device = ShmIo::bind(&format!("shm://{}", config.name), device)?;
    // Within one runtime they share its link.
    if config.runtimes > 1 {
        let mut acceptor = Acceptor {
            queues: device.accept_queues(),
            clock: clock.clone(),
            config: config.endpoint.clone(),
            shared: Arc::clone(shared),
            links: HashMap::new(),
        };
        device.assign_by(move |process| acceptor.queue_of(process));
    }
    let link = EndpointLink::new(device, clock.clone(), &config.endpoint)?;
    let mut frontend: Option<Box<dyn Link>> = Some(Box::new(link));
    let open = |number| Runtime::new(number, frontend.take(), Arc::clone(shared));
    (0..config.runtimes).map(open).collect()
}

/// Stops all runtimes when it is dropped.
struct StopAll(Arc<Shared>);

impl Drop for StopAll {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Starts a runtime, on a core. When it ends, all do.
fn spawn(
    mut runtime: Runtime,
    core: Option<usize>,
    shared: Arc<Shared>,
) -> Result<JoinHandle<Result<(), ServiceError>>, ServiceError> {
    let run = move || {
        // Whatever ends it, also a panic.
        let _stop = StopAll(shared);
        let pinned = core.map_or(Ok(()), |core| {
            let mut set = CpuSet::new();
            set.set(core);
            sched_setaffinity(None, &set)
        });
        let pinned =
            pinned.map_err(|error| ServiceError::system("pin a runtime to its core", error));
        pinned.and_then(|()| runtime.run())
    };
    let thread = std::thread::Builder::new().name("starling-runtime".into());
    thread.spawn(run).map_err(|error| {
        let remedy = "raise the limit of threads";
        IoError::from_os(Fault::Host, "start a runtime", error, remedy).into()
    })
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stop();
        for runtime in self.runtimes.drain(..) {
            // What it died of was printed.
            let _ = runtime.join();
        }
        // Nothing is recorded any more: it sends what is left.
        drop(self.exporter.take());
    }
}
