//! Policies in a file, and the settings of a service: YAML, of which JSON is a part.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use starling_service::{Identities, PolicySpec, parse_identities, parse_policies};

use super::quotas::QuotaSettings;
use crate::error::CliError;

/// The longest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// What `starling ctl apply` reads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    policies: Vec<Value>,
}

/// What `starling service run --config` reads. What is not there is as without a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServiceFile {
    pub(crate) name: Option<String>,
    pub(crate) any_user: Option<bool>,
    pub(crate) metrics: Option<String>,
    pub(crate) otlp: Option<String>,
    pub(crate) runtimes: Option<usize>,
    #[serde(default)]
    pub(crate) cores: Vec<usize>,
    /// Runtimes for the applications of identities.
    #[serde(default)]
    pub(crate) dedicated: BTreeMap<String, usize>,
    #[serde(default)]
    pub(crate) quotas: QuotaSettings,
    #[serde(default)]
    identities: Option<Value>,
    #[serde(default)]
    policies: Vec<Value>,
    /// `.proto` files, from the directory of this one.
    #[serde(default)]
    schemas: Vec<PathBuf>,
    /// Libraries, by paths from the root.
    #[serde(default)]
    pub(crate) plugins: Vec<PathBuf>,
}

impl ServiceFile {
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        parse(path, &read(path)?)
    }

    /// The schemas in the files that it names, in compact form.
    pub(crate) fn schemas(&self, path: &Path) -> Result<Vec<Vec<u8>>, CliError> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut schemas = Vec::new();
        for file in &self.schemas {
            let read = super::schema::of_file(&directory.join(file), &[])?;
            schemas.extend(read.iter().map(|schema| schema.to_bytes()));
        }
        Ok(schemas)
    }

    pub(crate) fn identities(&self, path: &Path) -> Result<Identities, CliError> {
        let Some(identities) = &self.identities else {
            return Ok(Identities::new());
        };
        parse_identities(&identities.to_string())
            .map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
    }

    pub(crate) fn policies(&self, path: &Path) -> Result<Vec<PolicySpec>, CliError> {
        check(path, &self.policies)
    }
}

/// The policies of a file, as a list in JSON, checked.
pub(super) fn read_policies(path: &Path) -> Result<String, CliError> {
    let file: PolicyFile = parse(path, &read(path)?)?;
    check(path, &file.policies)?;
    Ok(Value::Array(file.policies).to_string())
}

fn check(path: &Path, policies: &[Value]) -> Result<Vec<PolicySpec>, CliError> {
    let list = Value::Array(policies.to_vec()).to_string();
    parse_policies(&list).map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path, text: &str) -> Result<T, CliError> {
    serde_saphyr::from_str(text)
        .map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
}

fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().take(MAX_BYTES).read_to_string(&mut text),
        false => std::fs::File::open(path)
            .and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)),
    };
    let read = read.map_err(|source| CliError::File {
        path: path.to_owned(),
        source,
    })?;
    match (read as u64) < MAX_BYTES {
        true => Ok(text),
        false => Err(CliError::Usage(format!(
            "{}: longer than {} MiB",
            path.display(),
            MAX_BYTES >> 20
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(text: &str) -> Result<Vec<PolicySpec>, String> {
        let path = Path::new("f.yaml");
        let file = parse::<PolicyFile>(path, text);
        file.and_then(|file| check(path, &file.policies))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn policies_are_read_from_yaml_and_from_json() {
        let yaml = "
policies:
  - name: limit            # a comment
    kind: rate-limit
    for: {program: search}
    settings: {rate: 100, burst: 7}
";
        let json = r#"{"policies": [{"name": "limit", "kind": "rate-limit", "for": {"program": "search"},
            "settings": {"rate": 100, "burst": 7}}]}"#;
        let read = policies(yaml).expect("YAML");
        assert_eq!(read[0].name, "limit");
        assert_eq!(policies(json), Ok(read));
        assert_eq!(policies("policies: []"), Ok(Vec::new()));
    }

    #[test]
    fn errors_name_the_file_and_what_is_wrong() {
        for (text, expected) in [
            ("", "f.yaml: unexpected end"),
            ("policies: [", "f.yaml: "),
            ("policy: []", "policy"),
            (
                "policies: [{name: a, kind: a b}]",
                "policy 1 of the list: kind: \"a b\"",
            ),
            (
                "policies: [{name: a, kind: timeout, settings: {at_most: 5}}]",
                "settings.at_most",
            ),
            ("policies: &a [*a]", "f.yaml: "),
        ] {
            let error = policies(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let deep = format!("policies: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(policies(&deep).is_err());
    }
}
