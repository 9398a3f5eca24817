//! Identities: names that the operator of a service gives to applications, for the scopes of policies.
//!
//! ```json
//! {"frontend": {"user": 1000, "exe": "/usr/bin/frontend"}}
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::spec::{PolicySpec, SpecError, check_name, check_program};

/// Identities of a service, at most.
const MAX_IDENTITIES: usize = 256;

/// Who has an identity: those for whom all that is given holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentitySpec {
    /// The user, as the kernel says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The program's name, as `ps` shows it. A process gives itself any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The file that the process runs, as the kernel says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<PathBuf>,
}

/// All identities of a service, by name.
pub type Identities = BTreeMap<String, IdentitySpec>;

/// Reads identities and checks them.
///
/// # Errors
/// What is wrong with which of them.
pub fn parse_identities(json: &str) -> Result<Identities, SpecError> {
    let value: Value = serde_json::from_str(json).map_err(|error| SpecError::NoJson {
        problem: error.to_string(),
    })?;
    let identities: Identities = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner().to_string();
        wrong(&path, problem)
    })?;
    if identities.len() > MAX_IDENTITIES {
        return Err(SpecError::Policy {
            path: "identities".to_owned(),
            problem: format!("more than {MAX_IDENTITIES}"),
        });
    }
    for (name, identity) in &identities {
        check(name, identity).map_err(|problem| wrong(name, problem))?;
    }
    Ok(identities)
}

fn wrong(path: &str, problem: String) -> SpecError {
    SpecError::Policy {
        path: format!("identities.{path}"),
        problem,
    }
}

fn check(name: &str, identity: &IdentitySpec) -> Result<(), String> {
    check_name(name)?;
    check_program(identity.program.as_deref().unwrap_or(""))?;
    if *identity == IdentitySpec::default() {
        return Err("everybody has it: write user, program or exe".to_owned());
    }
    match &identity.exe {
        Some(exe) if !exe.is_absolute() => Err(format!(
            "exe: {:?} is no path from the root: write /usr/bin/NAME",
            exe.display()
        )),
        _ => Ok(()),
    }
}

/// Whether there are all identities that policies name.
///
/// # Errors
/// The first that there is not.
pub fn check_identities(list: &[PolicySpec], identities: &Identities) -> Result<(), SpecError> {
    let named = |spec: &PolicySpec| Some((spec.name.clone(), spec.scope.identity.clone()?));
    let unknown = list
        .iter()
        .filter_map(named)
        .find(|(_, identity)| !identities.contains_key(identity));
    let Some((policy, identity)) = unknown else {
        return Ok(());
    };
    let names: Vec<&str> = identities.keys().map(String::as_str).collect();
    Err(SpecError::UnknownIdentity {
        policy,
        identity,
        known: match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_and_errors_say_where() {
        let json = r#"{"front":{"user":7,"exe":"/usr/bin/front"},"old":{"program":"oldd"}}"#;
        let identities = parse_identities(json).expect("identities");
        assert_eq!(identities["front"].user, Some(7));
        assert_eq!(serde_json::to_string(&identities).expect("JSON"), json);
        for (json, expected) in [
            ("[]", "invalid type"),
            (r#"{"a":{}}"#, "identities.a: everybody has it"),
            (r#"{"a b":{"user":1}}"#, "is no name"),
            (
                r#"{"a":{"exe":"front"}}"#,
                "identities.a: exe: \"front\" is no path",
            ),
            (
                r#"{"a":{"program":"0123456789abcdef"}}"#,
                "identities.a: \"0123456789abcdef\" has more than 15",
            ),
            (r#"{"a":{"user":"me"}}"#, "identities.a.user: invalid type"),
            (r#"{"a":{"uid":1}}"#, "unknown field `uid`"),
        ] {
            let error = parse_identities(json).expect_err(json).to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn a_policy_for_an_identity_that_there_is_not_is_found() {
        let policy = r#"{"name":"p","kind":"null","for":{"identity":"front"}}"#;
        let list = [PolicySpec::parse(policy).expect("a policy")];
        let mut identities = Identities::new();
        let error = check_identities(&list, &identities)
            .expect_err("none")
            .to_string();
        assert!(error.starts_with("p: for.identity: \"front\""), "{error}");
        assert!(error.contains("there are none"), "{error}");
        identities.insert("back".to_owned(), IdentitySpec::default());
        let error = check_identities(&list, &identities)
            .expect_err("another")
            .to_string();
        assert!(error.contains("there are back"), "{error}");
        identities.insert("front".to_owned(), IdentitySpec::default());
        assert_eq!(check_identities(&list, &identities), Ok(()));
    }
}
