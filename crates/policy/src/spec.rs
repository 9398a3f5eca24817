//! A policy as operators write it, in JSON: name, kind, scope, settings.
//!
//! ```json
//! {"name": "searches", "kind": "rate-limit", "for": {"program": "frontend", "methods": ["hotel.Search/Nearby"]},
//!  "settings": {"rate": 10000}}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;
use starling_call::MethodId;
use starling_message::method_id;

use crate::engine::{PolicyEngine, Retries};
use crate::kinds::{KINDS, Kind};

/// The longest name.
const MAX_NAME: usize = 60;
/// Policies of a service, at most.
const MAX_POLICIES: usize = 256;
/// The longest name of a program, by the kernel.
const MAX_PROGRAM: usize = 15;
/// Methods of a scope, at most.
const MAX_METHODS: usize = 1024;

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// By which operators change it and take it away: letters, digits, dots, dashes and underscores.
    pub name: String,
    /// One of [`KINDS`](crate::KINDS), or of a plug-in.
    pub kind: String,
    /// The calls that pass it. Default: all that applications make.
    #[serde(default, rename = "for", skip_serializing_if = "Scope::is_all")]
    pub scope: Scope,
    /// Those of the kind.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub settings: Value,
    /// What becomes of requests once an engine has failed. Only those of plug-ins do.
    #[serde(default, skip_serializing_if = "OnFailure::is_refuse")]
    pub on_failure: OnFailure,
}

/// What a policy does when its engine has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It refuses all.
    #[default]
    Refuse,
    /// It lets all pass.
    Pass,
}

impl OnFailure {
    fn is_refuse(&self) -> bool {
        *self == Self::Refuse
    }
}

/// Which end of calls a policy stands at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The calls that applications make.
    #[default]
    Client,
    /// The calls that come for applications.
    Server,
}

impl Side {
    /// As operators write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Which calls pass a policy: those for which all that is given holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Which end of calls it stands at.
    #[serde(default)]
    pub side: Side,
    /// One of the identities that the service is configured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The program of the application, by the name that `ps` shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The process of the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// The user of the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The address of the server: as callers write it, or of the side `server`, at which the service listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Some methods only: `kv.Kv/Get`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
}

impl Scope {
    fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// The ids of its methods. Empty: all.
    pub fn method_ids(&self) -> Vec<MethodId> {
        let id = |path: &String| MethodId(method_id(&format!("/{path}")));
        let ids = self.methods.iter().map(id);
        ids.collect()
    }
}

impl PolicySpec {
    /// Reads a policy and checks all of it, its settings included if its kind is built in: those of a plug-in's kinds
    /// are checked when its engine is built.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(json: &str) -> Result<Self, SpecError> {
        let value = serde_json::from_str(json).map_err(|error| SpecError::NoJson {
            problem: error.to_string(),
        })?;
        Self::from_value(value)
    }

    fn from_value(value: Value) -> Result<Self, SpecError> {
        let spec: Self = serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            SpecError::Policy {
                path: if path == "." {
                    "policy".to_owned()
                } else {
                    path
                },
                problem: error.into_inner().to_string(),
            }
        })?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), SpecError> {
        let wrong = |path: &str, problem: String| SpecError::Policy {
            path: path.to_owned(),
            problem,
        };
        check_name(&self.name).map_err(|problem| wrong("name", problem))?;
        let program = self.scope.program.as_deref().unwrap_or("");
        check_program(program).map_err(|problem| wrong("for.program", problem))?;
        if self.scope.methods.len() > MAX_METHODS {
            return Err(wrong(
                "for.methods",
                format!("more than {MAX_METHODS} methods"),
            ));
        }
        let is_path = |path: &str| {
            path.split_once('/').is_some_and(|(service, method)| {
                !service.is_empty() && !method.is_empty() && !method.contains('/')
            })
        };
        if let Some(path) = self.scope.methods.iter().find(|path| !is_path(path)) {
            return Err(wrong(
                "for.methods",
                format!("{path:?} is no method: write kv.Kv/Get"),
            ));
        }
        check_name(&self.kind).map_err(|problem| wrong("kind", problem))?;
        let Some(kind) = Kind::find(&self.kind) else {
            return Ok(());
        };
        if self.on_failure == OnFailure::Pass {
            let problem = format!("{} is built in, and does not fail: leave it out", self.kind);
            return Err(wrong("on_failure", problem));
        }
        let engine = kind.build(&self.settings)?;
        let nameless = |problem: &str| wrong("for.methods", format!("{} {problem}", self.kind));
        if !self.scope.methods.is_empty() {
            return Ok(());
        }
        if engine.reads_messages() {
            return Err(nameless(
                "looks into requests: name the methods, whose messages it is to read",
            ));
        }
        if engine.retries() == Retries::All {
            return Err(nameless(
                "makes calls again that may have run: name the methods that may run more than once",
            ));
        }
        Ok(())
    }

    /// An engine for it, if its kind is built in.
    ///
    /// # Errors
    /// If it is not, or these are no settings of it.
    pub fn build(&self) -> Result<Box<dyn PolicyEngine>, SpecError> {
        let kind = Kind::find(&self.kind);
        kind.ok_or_else(|| SpecError::unknown_kind(&self.kind, &[]))?
            .build(&self.settings)
    }

    /// As it is read by [`PolicySpec::parse`].
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether operators may give something this name.
///
/// # Errors
/// Why not.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_name) {
        true => Ok(()),
        false => Err(format!(
            "{name:?} is no name: write 1 to {MAX_NAME} letters, digits, dots, dashes and underscores"
        )),
    }
}

/// Whether the kernel has programs of this name.
pub(crate) fn check_program(program: &str) -> Result<(), String> {
    match program.len() <= MAX_PROGRAM {
        true => Ok(()),
        false => Err(format!(
            "{program:?} has more than {MAX_PROGRAM} bytes: write what `ps` shows, the kernel cuts names"
        )),
    }
}

/// Reads a list of policies, in the order in which calls pass them.
///
/// # Errors
/// What is wrong with which of them.
pub fn parse_list(json: &str) -> Result<Vec<PolicySpec>, SpecError> {
    let values: Vec<Value> = serde_json::from_str(json).map_err(|error| SpecError::NoJson {
        problem: error.to_string(),
    })?;
    let mut specs: Vec<PolicySpec> = Vec::new();
    for (number, value) in values.into_iter().enumerate() {
        let spec = PolicySpec::from_value(value).map_err(|error| SpecError::InList {
            number: number + 1,
            error: Box::new(error),
        })?;
        specs.push(spec);
    }
    check_list(&specs)?;
    Ok(specs)
}

/// Whether policies can stand beside each other in a service.
///
/// # Errors
/// If there are too many, two have the same name, or one cannot be.
pub fn check_list(list: &[PolicySpec]) -> Result<(), SpecError> {
    list.iter().try_for_each(PolicySpec::check)?;
    if list.len() > MAX_POLICIES {
        return Err(SpecError::TooMany);
    }
    let mut names: Vec<&str> = list.iter().map(|spec| spec.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(SpecError::Twice {
            name: pair[0].to_owned(),
        }),
    }
}

/// Why something is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// It cannot be read at all.
    #[error("it is no JSON of a policy: {problem}")]
    NoJson {
        /// What the parser says.
        problem: String,
    },
    /// A field is wrong.
    #[error("{path}: {problem}")]
    Policy {
        /// Which.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting is wrong.
    #[error("{path}: {problem}")]
    Settings {
        /// Which.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no such kind.
    #[error("kind: {kind:?} is no kind of policies: there are {known}")]
    UnknownKind {
        /// As it was written.
        kind: String,
        /// Those that there are.
        known: String,
    },
    /// One of a list.
    #[error("policy {number} of the list: {error}")]
    InList {
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        error: Box<SpecError>,
    },
    /// A list has two of the same name.
    #[error("there are two policies of the name {name:?}: give each its own")]
    Twice {
        /// The name.
        name: String,
    },
    /// A scope names an identity that the service is not configured with.
    #[error(
        "{policy}: for.identity: {identity:?} is not configured in the service's file: there are {known}"
    )]
    UnknownIdentity {
        /// The policy.
        policy: String,
        /// As it was written.
        identity: String,
        /// Those that there are.
        known: String,
    },
    /// The list is too long.
    #[error("more than {MAX_POLICIES} policies")]
    TooMany,
}

impl SpecError {
    /// [`SpecError::UnknownKind`], where plug-ins have these kinds beside those that are built in.
    pub fn unknown_kind(kind: &str, of_plugins: &[String]) -> Self {
        let built_in = KINDS.iter().map(|kind| kind.name);
        let known: Vec<_> = built_in
            .chain(of_plugins.iter().map(String::as_str))
            .collect();
        Self::UnknownKind {
            kind: kind.to_owned(),
            known: known.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> String {
        PolicySpec::parse(json).expect_err(json).to_string()
    }

    #[test]
    fn a_policy_is_written_as_it_was_read() {
        let full = [
            r#"{"name":"searches","kind":"rate-limit","for":{"side":"server","identity":"s","program":"search","#,
            r#""process":7,"user":8,"server":"udp://h:1","methods":["hotel.Search/Nearby"]},"#,
            r#""settings":{"rate":10}}"#,
        ];
        let full = &*full.concat();
        let spec = PolicySpec::parse(full).expect("a policy");
        assert_eq!(spec.to_json(), full);
        let id = MethodId(method_id("/hotel.Search/Nearby"));
        assert_eq!(spec.scope.method_ids(), [id]);
        let short = r#"{"name":"n","kind":"null"}"#;
        let spec = PolicySpec::parse(short).expect("a policy");
        assert_eq!(
            (spec.to_json().as_str(), spec.scope.side),
            (short, Side::Client)
        );
    }

    #[test]
    fn errors_say_where_and_what() {
        for (json, expected) in [
            ("{", "no JSON"),
            ("{}", "missing field `name`"),
            (r#"{"name":"","kind":"null"}"#, "name: \"\" is no name"),
            (r#"{"name":"a b","kind":"null"}"#, "is no name"),
            (r#"{"name":"a","kind":"a b"}"#, "kind: \"a b\" is no name"),
            (
                r#"{"name":"a","kind":"null","on_failure":"pass"}"#,
                "on_failure: null is built in",
            ),
            (
                r#"{"name":"a","kind":"header","on_failure":"hang"}"#,
                "on_failure: unknown variant",
            ),
            (
                r#"{"name":"a","kind":"access-control","settings":{"deny":"true"}}"#,
                "for.methods: access-control looks into requests",
            ),
            (
                r#"{"name":"a","kind":"retry","settings":{"idempotent":true}}"#,
                "for.methods: retry makes calls again that may have run",
            ),
            (
                r#"{"name":"a","kind":"null","fro":{}}"#,
                "unknown field `fro`",
            ),
            (
                r#"{"name":"a","kind":"null","for":{"side":"left"}}"#,
                "for.side: unknown variant",
            ),
            (
                r#"{"name":"a","kind":"null","for":{"methods":["Get"]}}"#,
                "write kv.Kv/Get",
            ),
            (
                r#"{"name":"a","kind":"null","for":{"program":"0123456789abcdef"}}"#,
                "the kernel cuts names",
            ),
            (
                r#"{"name":"a","kind":"rate-limit","settings":{"rate":"x"}}"#,
                "settings.rate: ",
            ),
            (
                r#"{"name":"a","kind":"rate-limit","settings":{"rate":0}}"#,
                "settings: rate is 0",
            ),
            (
                r#"{"name":"a","kind":"fault","settings":{"fail":2}}"#,
                "settings.fail: 2 is no share",
            ),
            (
                r#"{"name":"a","kind":"timeout","settings":{"at_most":"1h"}}"#,
                "settings.at_most: ",
            ),
        ] {
            let error = error(json);
            assert!(error.contains(expected), "{json}: {error}");
        }
        let twice = parse_list(r#"[{"name":"a","kind":"null"},{"name":"a","kind":"null"}]"#);
        assert!(
            twice
                .expect_err("twice")
                .to_string()
                .contains("two policies")
        );
        let second = parse_list(r#"[{"name":"a","kind":"null"},{"name":"b","kind":""}]"#);
        let second = second.expect_err("the second").to_string();
        assert!(
            second.starts_with("policy 2 of the list: kind: "),
            "{second}"
        );
        let many: Vec<_> = (0..300)
            .map(|n| format!(r#"{{"name":"n{n}","kind":"null"}}"#))
            .collect();
        assert_eq!(
            parse_list(&format!("[{}]", many.join(","))),
            Err(SpecError::TooMany)
        );
    }

    #[test]
    fn a_kind_of_a_plugin_is_taken_as_it_is_written() {
        let json = r#"{"name":"a","kind":"header","settings":{"any":1},"on_failure":"pass"}"#;
        let spec = PolicySpec::parse(json).expect("a policy");
        assert_eq!(
            (spec.to_json().as_str(), spec.on_failure),
            (json, OnFailure::Pass)
        );
        let error = spec.build().err().expect("it is not built in").to_string();
        assert!(error.ends_with("timeout, tracing"), "{error}");
        let error = SpecError::unknown_kind("nul", &["header".to_owned()]).to_string();
        assert!(
            error.contains("null, ") && error.ends_with("tracing, header"),
            "{error}"
        );
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        bolero::check!().with_type::<String>().for_each(|text| {
            if let Ok(spec) = PolicySpec::parse(text) {
                assert_eq!(PolicySpec::parse(&spec.to_json()), Ok(spec));
            }
            let _ = parse_list(text);
        });
    }
}
