//! Policies as they are written on a command line.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use starling_service::PolicySpec;

use super::Edit;
use crate::error::CliError;

#[derive(Debug, Args)]
#[command(next_help_heading = "Scope: the calls that pass the policy (all, unless set)")]
pub(super) struct ScopeArguments {
    /// The calls that applications make, or those that come for them.
    #[arg(long, value_enum)]
    side: Option<SideName>,
    /// Calls of those only who have this identity, which is in the service's file.
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Calls of this program only, by the name that `ps` shows.
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Calls of this process only.
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Calls of this user only.
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Calls to this address only, as callers write it.
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// Calls of this method only: pkg.Service/Method. May be repeated.
    #[arg(long = "method", value_name = "METHOD")]
    methods: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SideName {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum OnFailureName {
    Refuse,
    Pass,
}

impl OnFailureName {
    fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Pass => "pass",
        }
    }
}

impl ScopeArguments {
    /// The fields that were given.
    fn fields(&self) -> Map<String, Value> {
        let side = self.side.map(|side| match side {
            SideName::Client => "client",
            SideName::Server => "server",
        });
        let methods = (!self.methods.is_empty()).then_some(&self.methods);
        let fields = [
            ("side", side.map(|side| json!(side))),
            (
                "identity",
                self.identity.as_ref().map(|identity| json!(identity)),
            ),
            (
                "program",
                self.program.as_ref().map(|program| json!(program)),
            ),
            ("process", self.process.map(|process| json!(process))),
            ("user", self.user.map(|user| json!(user))),
            ("server", self.server.as_ref().map(|server| json!(server))),
            ("methods", methods.map(|methods| json!(methods))),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        given.collect()
    }
}

/// A setting: a key, and JSON or a text.
pub(super) fn parse_setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
    Ok((key.to_owned(), value))
}

/// A new policy.
pub(super) fn new(name: &str, kind: &str, edit: &Edit) -> Result<PolicySpec, CliError> {
    let settings: Map<String, Value> = edit.settings.iter().cloned().collect();
    let mut policy = json!({
        "name": name,
        "kind": kind,
        "for": edit.scope.fields(),
        "settings": settings,
    });
    set_on_failure(&mut policy, edit);
    parse(&policy)
}

fn set_on_failure(policy: &mut Value, edit: &Edit) {
    if let Some(name) = edit.on_failure {
        policy["on_failure"] = json!(name.name());
    }
}

/// A policy with what was given changed.
pub(super) fn edited(spec: PolicySpec, edit: &Edit) -> Result<PolicySpec, CliError> {
    let mut policy: Value = serde_json::from_str(&spec.to_json()).unwrap_or_default();
    let mut change = |part: &str, fields: Map<String, Value>| {
        if !policy[part].is_object() {
            policy[part] = json!({});
        }
        for (key, value) in fields {
            policy[part][key] = value;
        }
    };
    change("settings", edit.settings.iter().cloned().collect());
    change("for", edit.scope.fields());
    set_on_failure(&mut policy, edit);
    parse(&policy)
}

fn parse(policy: &Value) -> Result<PolicySpec, CliError> {
    PolicySpec::parse(&policy.to_string()).map_err(|error| CliError::Usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        edit: Edit,
    }

    fn edit(line: &[&str]) -> Edit {
        let line = [&["test"], line].concat();
        Line::try_parse_from(line).expect("a command line").edit
    }

    #[test]
    fn policies_are_written_and_changed_on_a_command_line() {
        let first = edit(&["rate=100", "--program", "search", "--method", "a.A/B"]);
        let spec = new("limit", "rate-limit", &first).expect("a policy");
        let expected = [
            r#"{"name":"limit","kind":"rate-limit","#,
            r#""for":{"side":"client","program":"search","methods":["a.A/B"]},"settings":{"rate":100}}"#,
        ];
        let expected = expected.concat();
        assert_eq!(spec.to_json(), expected);
        let second = edit(&["burst=7", "--side", "server"]);
        let expected = expected
            .replace("client", "server")
            .replace(r#"{"rate":100}"#, r#"{"burst":7,"rate":100}"#);
        assert_eq!(edited(spec, &second).expect("a policy").to_json(), expected);
    }

    #[test]
    fn a_policy_of_a_plugin_says_what_it_does_when_it_has_failed() {
        let pass = edit(&["key=x", "--on-failure", "pass"]);
        let spec = new("numbers", "number", &pass).expect("a policy");
        assert!(
            spec.to_json()
                .ends_with(r#""settings":{"key":"x"},"on_failure":"pass"}"#)
        );
        let spec = edited(spec, &edit(&["--on-failure", "refuse"])).expect("a policy");
        assert!(spec.to_json().ends_with(r#""settings":{"key":"x"}}"#));
        let error =
            new("few", "rate-limit", &edit(&["--on-failure", "pass"])).expect_err("built in");
        assert!(
            error
                .to_string()
                .starts_with("on_failure: rate-limit is built in"),
            "{error}"
        );
    }

    #[test]
    fn settings_are_json_or_text() {
        let parse = |text| parse_setting(text).expect("a setting").1;
        assert_eq!(parse("a=1"), json!(1));
        assert_eq!(parse("a=10ms"), json!("10ms"));
        assert_eq!(parse("a=[\"x\"]"), json!(["x"]));
        assert!(parse_setting("a").is_err());
        let error = new("n", "timeout", &edit(&["at_most=soon"])).expect_err("no duration");
        assert!(
            error.to_string().contains("settings.at_most: \"soon\""),
            "{error}"
        );
    }
}
