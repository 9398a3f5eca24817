//! Makes engines for policies, and checks them by what the service knows: plug-ins, schemas, identities, who takes
//! spans.

use std::sync::Arc;

use starling::Status;
use starling_plugin_host::Plugins;
use starling_policy::{Identities, PolicyEngine, PolicySpec, check_identities, check_list};

use super::wrong;
use crate::attached::Built;
use crate::schemas::Schemas;
use crate::secrets::random_bytes;
use crate::spans::SpanQueue;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct PolicyBuilder {
    pub(crate) plugins: Plugins,
    pub(crate) schemas: Arc<Schemas>,
    /// Those that policies may name.
    pub(crate) identities: Identities,
    /// Where spans go, if they go anywhere.
    pub(crate) spans: Option<Arc<SpanQueue>>,
}

impl PolicyBuilder {
    /// Engines for a list of policies, if it can be one, in place of those that are attached. `upgrades`: the policy
    /// that gets a new one in any case.
    ///
    /// # Errors
    /// What is wrong with which policy.
    pub(crate) fn build(
        &self,
        list: &[PolicySpec],
        attached: &[PolicySpec],
        upgrades: Option<&str>,
    ) -> Result<Vec<Built>, Status> {
        check_list(list).map_err(wrong)?;
        check_identities(list, &self.identities).map_err(wrong)?;
        let build = |spec: &PolicySpec| {
            let upgrades = upgrades == Some(&spec.name);
            if attached.contains(spec) && !upgrades {
                // A plug-in is not asked for another engine, which could fail although nobody changes its policy.
                return Ok(Built {
                    spec: spec.clone(),
                    engine: None,
                });
            }
            let built = self.plugins.build(spec);
            let mut engine = built
                .map_err(|error| Status::invalid_argument(format!("{}: {error}", spec.name)))?;
            if engine.reads_messages() {
                self.check_methods(spec, engine.as_ref())?;
            }
            if engine.records_spans() && self.spans.is_none() {
                return Err(Status::failed_precondition(format!(
                    "{}: nobody would see its spans: start the service with `otlp: http://HOST:4318`, the address of \
                     a collector, in the file of --config",
                    spec.name
                )));
            }
            let random = random_bytes().map_err(|error| Status::internal(error.to_string()))?;
            engine.seed(u64::from_ne_bytes(random));
            Ok(Built {
                spec: spec.clone(),
                engine: Some(engine),
            })
        };
        list.iter().map(build).collect()
    }

    /// Whether a policy can look into the requests of all methods of its scope.
    fn check_methods(&self, spec: &PolicySpec, engine: &dyn PolicyEngine) -> Result<(), Status> {
        let name = &spec.name;
        for path in &spec.scope.methods {
            let Some(method) = self.schemas.find(&format!("/{path}")) else {
                return Err(Status::failed_precondition(format!(
                    "{name}: no schema of {path} is known: add it by `starling ctl schema add`, from its .proto file \
                     or from a server that has it"
                )));
            };
            if method.is_streaming() {
                return Err(Status::failed_precondition(format!(
                    "{name}: {path} is a streaming method, whose items policies cannot read"
                )));
            }
            let checked = engine.check_method(&method);
            checked.map_err(|problem| {
                Status::invalid_argument(format!("{name}: {path}: {problem}"))
            })?;
        }
        Ok(())
    }
}
