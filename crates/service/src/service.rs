//! The service as a whole.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use starling::ServerHandle;
use starling::metrics::MetricsPage;
use starling_endpoint::EndpointConfig;
use starling_io::{Fault, IoError, MonotonicClock};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_plugin_host::Plugins;
use starling_policy::{Identities, PolicySpec};

use crate::control;
use crate::error::ServiceError;
use crate::link::EndpointLink;
use crate::operator::{Operations, PolicyBuilder};
use crate::quota::Quotas;
use crate::runtime::{Command, Configured, Runtime, RuntimeHandle};
use crate::schemas::Schemas;
use crate::spans::{Destination, Exporter};

/// The name of a service that was given none.
const DEFAULT_NAME: &str = "starling";

/// The settings of a [`Service`].
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Its name: applications find it by `STARLING_SERVICE=NAME`. Default: `starling`.
    pub name: String,
    /// Takes applications of all users. Default: only of the service's own, and of root.
    pub any_user: bool,
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
    handle: RuntimeHandle,
    thread: Option<JoinHandle<Result<(), ServiceError>>>,
    exporter: Option<Exporter>,
}

impl Service {
    /// Starts a service.
    ///
    /// # Errors
    /// If another process has the name, or the host refuses what the service needs.
    pub fn start(config: ServiceConfig) -> Result<Self, ServiceError> {
        config.quotas.check()?;
        let identities = Configured::new(&config.identities)?;
        let clock = MonotonicClock::new();
        let device = ShmConfig {
            allow_other_users: config.any_user,
            takes_targets: true,
            ..ShmConfig::default()
        };
        let io = ShmIo::bind(&format!("shm://{}", config.name), device)?;
        let link = EndpointLink::new(io, clock.clone(), &config.endpoint)?;
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
        let plugins = Plugins::new(clock.clone());
        for file in &config.plugins {
            plugins.add(file)?;
        }
        let builder = PolicyBuilder {
            plugins,
            schemas: Arc::clone(&schemas),
            identities: config.identities,
            spans: spans.clone(),
        };
        let policies = builder.build(&config.policies, &[], None)?;
        let mut runtime = Runtime::new(Box::new(link), clock, config.endpoint, schemas)?;
        runtime.admit_by(config.quotas, identities);
        if let Some(spans) = spans {
            runtime.export_spans(spans);
        }
        // No call passes before them.
        runtime.begin_with(policies);
        let handle = runtime.handle();
        let thread = std::thread::Builder::new()
            .name("starling-runtime".into())
            .spawn(move || runtime.run())
            .map_err(|error| {
                let remedy = "raise the limit of threads";
                IoError::from_os(Fault::Host, "start a runtime", error, remedy)
            })?;
        // It is stopped if it cannot be controlled.
        let mut service = Self {
            control: None,
            page: None,
            handle: handle.clone(),
            thread: Some(thread),
            exporter,
        };
        let operations = Arc::new(Operations::new(handle.clone(), config.policies, builder));
        if let Some(address) = &config.metrics {
            let operations = Arc::clone(&operations);
            let text = move || operations.metrics_text().map_err(|error| error.to_string());
            service.page = Some(starling::metrics::serve_text(address, text)?);
        }
        let control = control::serve(&config.name, config.any_user, handle, operations)?;
        service.control = Some(control);
        Ok(service)
    }

    /// Where it shows what policies have counted, with the port that port 0 became.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.page.as_ref().map(MetricsPage::address)
    }

    /// Whether it has not ended by itself.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Waits until the service ends by itself.
    ///
    /// # Errors
    /// Why it has ended.
    pub fn wait(mut self) -> Result<(), ServiceError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), ServiceError> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.handle.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // What it died of was printed.
            let _ = thread.join();
        }
        // Nothing is recorded any more: it sends what is left.
        drop(self.exporter.take());
    }
}
