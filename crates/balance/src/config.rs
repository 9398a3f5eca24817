//! gRPC's service config: what a client does with the calls of each method, and with its channel.
//!
//! It is JSON, by `grpc/service_config/service_config.proto`, or made by a program. What cannot be honoured is
//! an error that names the field, never ignored, with one exception. As in gRPC, of the policies in
//! `loadBalancingConfig` the first that is known counts, so that one text serves clients of several
//! versions.
//!
//! ```text
//!  {"loadBalancingConfig": [..],           policy, outlier detection, subset
//!   "methodConfig": [{"name": [..], ..}],  timeout, waitForReady, sizes, retries or hedging
//!   "retryThrottling": {..},
//!   "healthCheckConfig": {..}}
//! ```

mod balancing;
mod json;
mod methods;
mod unique_keys;

use std::collections::HashMap;
use std::time::Duration;

use crate::hedge::HedgingPolicy;
use crate::policy::LoadBalancing;
use crate::retry::RetryPolicy;
use crate::throttle::Throttling;

/// The longest text of a service config, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The most names of methods in a service config.
const MAX_NAMES: usize = 1 << 14;

/// Why a service config cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service config{}{field}: {problem}", if field.is_empty() { "" } else { "'s " })]
pub struct ServiceConfigError {
    /// Where it is wrong: `methodConfig[2].retryPolicy.maxAttempts`. Empty: as a whole.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

/// How often a call is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Attempts {
    /// Once.
    #[default]
    Once,
    /// Again when it fails.
    Retry(RetryPolicy),
    /// Again although it has not failed yet.
    Hedge(HedgingPolicy),
}

/// What a client does with the calls of a method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MethodConfig {
    /// The most time that a call may take. One that the caller sets counts if it is shorter.
    pub timeout: Option<Duration>,
    /// Whether calls wait while no backend can be reached, unless the caller says otherwise.
    pub wait_for_ready: Option<bool>,
    /// The most bytes of a request's message. One that the caller sets counts if it is lower.
    pub max_request_bytes: Option<u32>,
    /// The most bytes of a response's message. One that the caller sets counts if it is lower.
    pub max_response_bytes: Option<u32>,
    /// How often a call is made.
    pub attempts: Attempts,
}

impl MethodConfig {
    /// Calls that are made once, without a timeout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls take so long at most.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Calls wait while no backend can be reached, or do not.
    #[must_use]
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = Some(wait);
        self
    }

    /// Requests and responses have so many bytes at most.
    #[must_use]
    pub fn max_bytes(mut self, request: u32, response: u32) -> Self {
        self.max_request_bytes = Some(request);
        self.max_response_bytes = Some(response);
        self
    }

    /// Calls that fail are made again. In place of hedging.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.attempts = Attempts::Retry(policy);
        self
    }

    /// Calls that take long are made once more. In place of retries.
    #[must_use]
    pub fn hedge(mut self, policy: HedgingPolicy) -> Self {
        self.attempts = Attempts::Hedge(policy);
        self
    }
}

/// What a client does with its calls: gRPC's service config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceConfig {
    load_balancing: Option<LoadBalancing>,
    /// By `/service/method`, `/service/`, and "" for all.
    methods: HashMap<Box<str>, MethodConfig>,
    /// Of idempotent methods whose entries say nothing of it.
    idempotent: Attempts,
    throttling: Option<Throttling>,
    health_check: Option<String>,
}

impl ServiceConfig {
    /// A config that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a config.
    ///
    /// # Errors
    /// If it is no JSON, has more than 1 MiB or 2^14 names of methods, or has a field that cannot be honoured.
    pub fn from_json(text: &str) -> Result<Self, ServiceConfigError> {
        let whole = |problem: String| ServiceConfigError {
            field: String::new(),
            problem,
        };
        if text.len() > MAX_BYTES {
            let bytes = text.len();
            return Err(whole(format!(
                "text has {bytes} bytes, at most {MAX_BYTES} are read"
            )));
        }
        let value = unique_keys::from_str(text).map_err(|error| whole(error.to_string()))?;
        let mut root = json::Object::root(value)?;
        let mut config = Self::default();
        let deprecated = root.take("loadBalancingPolicy");
        config.load_balancing = match root.take("loadBalancingConfig") {
            Some(list) => Some(balancing::parse(list)?),
            // The older field counts only without the newer one.
            None => deprecated.map(balancing::parse_name).transpose()?.flatten(),
        };
        if let Some(list) = root.take("methodConfig") {
            config.methods = methods::parse(list)?;
        }
        config.throttling = root
            .take("retryThrottling")
            .map(methods::parse_throttling)
            .transpose()?;
        if let Some(check) = root.take("healthCheckConfig") {
            let mut check = check.into_object()?;
            let service = check.take("serviceName");
            config.health_check = service.map(json::Field::into_string).transpose()?;
            check.finish()?;
        }
        root.finish()?;
        Ok(config)
    }

    /// Divides calls in this way.
    #[must_use]
    pub fn load_balancing(mut self, load_balancing: LoadBalancing) -> Self {
        self.load_balancing = Some(load_balancing);
        self
    }

    /// Sets what is done with the calls of a method (`pkg.Service/Method`), of all others of a service
    /// (`pkg.Service`), or of all others (an empty name).
    #[must_use]
    pub fn method(mut self, name: &str, config: MethodConfig) -> Self {
        let name = name.strip_prefix('/').unwrap_or(name);
        let key = match (name.is_empty(), name.contains('/')) {
            (true, _) => String::new(),
            (false, true) => format!("/{name}"),
            (false, false) => format!("/{name}/"),
        };
        self.methods.insert(key.into(), config);
        self
    }

    /// Makes calls that fail again if their methods are idempotent by their `.proto` files (`option
    /// idempotency_level`), and have no retries or hedging of their own. JSON has no word for this.
    #[must_use]
    pub fn retry_idempotent(mut self, policy: RetryPolicy) -> Self {
        self.idempotent = Attempts::Retry(policy);
        self
    }

    /// Has a channel on which much fails make no second attempts.
    #[must_use]
    pub fn throttling(mut self, throttling: Throttling) -> Self {
        self.throttling = Some(throttling);
        self
    }

    /// Has backends get calls only while they say that this service is healthy; an empty name is the server as
    /// a whole.
    #[must_use]
    pub fn health_check(mut self, service: impl Into<String>) -> Self {
        self.health_check = Some(service.into());
        self
    }

    /// How calls are divided, if the config says so.
    pub fn balancing(&self) -> Option<&LoadBalancing> {
        self.load_balancing.as_ref()
    }

    /// What is done with the calls of the method with this path (`/pkg.Service/Method`): the closest entry
    /// counts, as a whole.
    pub fn of_method(&self, path: &str) -> Option<&MethodConfig> {
        let service = || path.rfind('/').map(|slash| &path[..=slash]);
        self.methods
            .get(path)
            .or_else(|| self.methods.get(service()?))
            .or_else(|| self.methods.get(""))
    }

    /// How often a call of the method with this path is made.
    pub fn attempts_of(&self, path: &str, is_idempotent: bool) -> &Attempts {
        match self.of_method(path).map(|method| &method.attempts) {
            None | Some(Attempts::Once) if is_idempotent => &self.idempotent,
            None => &Attempts::Once,
            Some(attempts) => attempts,
        }
    }

    /// Whether it says anything about calls.
    pub fn has_methods(&self) -> bool {
        !self.methods.is_empty() || self.idempotent != Attempts::Once
    }

    /// The settings of throttling.
    pub fn retry_throttling(&self) -> Option<Throttling> {
        self.throttling
    }

    /// The service whose health is watched.
    pub fn health_service(&self) -> Option<&str> {
        self.health_check.as_deref()
    }
}

#[cfg(test)]
mod tests;
