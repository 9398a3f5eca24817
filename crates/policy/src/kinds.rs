//! The table of the kinds of policies that are built in. A new one is its file in `engines`, and a line here.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::engine::PolicyEngine;
use crate::engines::{
    access_control, circuit_breaker, fault, metrics, null, rate_limit, retry, small_first, timeout,
    tracing,
};
use crate::spec::SpecError;

/// A kind of policies.
#[derive(Debug)]
pub struct Kind {
    /// As operators write it.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Its settings, as an operator begins with.
    pub example: &'static str,
    build: fn(Value) -> Result<Box<dyn PolicyEngine>, SpecError>,
}

/// All that are built in, by name.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "access-control",
        summary: "lets calls pass by the values of their requests, and refuses the others",
        example: r#"{"deny": "request.customerName in ['Mallory', 'Trudy']"}"#,
        build: |settings| build(settings, access_control::AccessControl::new),
    },
    Kind {
        name: "circuit-breaker",
        summary: "after failures in a row, refuses calls for a while, then tries one",
        example: r#"{"failures": 5, "pause": "1s"}"#,
        build: |settings| build(settings, circuit_breaker::CircuitBreaker::new),
    },
    Kind {
        name: "fault",
        summary: "has a share of calls fail, or arrive later",
        example: r#"{"fail": 0.01, "code": "UNAVAILABLE", "delay": 0.1, "by": "10ms"}"#,
        build: |settings| build(settings, fault::Fault::new),
    },
    Kind {
        name: "metrics",
        summary: "counts calls, errors, latencies and sizes, by application, server and method",
        example: r#"{"series": 256}"#,
        build: |settings| build(settings, metrics::Metrics::new),
    },
    Kind {
        name: "null",
        summary: "lets all calls pass: what an engine costs by itself",
        example: "{}",
        build: |settings| build(settings, null::Null::new),
    },
    Kind {
        name: "rate-limit",
        summary: "lets so many calls a second pass (token bucket); others wait in a queue, then are refused",
        example: r#"{"rate": 10000, "burst": 100, "queue": 1000}"#,
        build: |settings| build(settings, rate_limit::RateLimit::new),
    },
    Kind {
        name: "retry",
        summary: "makes calls again that have failed, within a budget",
        example: r#"{"attempts": 3, "codes": ["UNAVAILABLE"], "budget": 0.1}"#,
        build: |settings| build(settings, retry::Retry::new),
    },
    Kind {
        name: "small-first",
        summary: "lets small requests of all applications pass before large ones",
        example: r#"{"small": 1024}"#,
        build: |settings| build(settings, small_first::SmallFirst::new),
    },
    Kind {
        name: "timeout",
        summary: "gives calls a deadline, if theirs is later or missing",
        example: r#"{"at_most": "1s"}"#,
        build: |settings| build(settings, timeout::Timeout::new),
    },
    Kind {
        name: "tracing",
        summary: "records a share of calls as spans, and hands on W3C trace context",
        example: r#"{"share": 0.01, "follow": 1}"#,
        build: |settings| build(settings, tracing::Tracing::new),
    },
];

impl Kind {
    /// The kind with this name, if it is built in.
    pub fn find(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// An engine with these settings.
    ///
    /// # Errors
    /// If they are not settings of this kind.
    pub fn build(&self, settings: &Value) -> Result<Box<dyn PolicyEngine>, SpecError> {
        (self.build)(settings.clone())
    }
}

fn build<S: DeserializeOwned, E: PolicyEngine + 'static>(
    settings: Value,
    new: fn(S) -> Result<E, String>,
) -> Result<Box<dyn PolicyEngine>, SpecError> {
    let settings = match settings {
        Value::Null => Value::Object(serde_json::Map::new()),
        settings => settings,
    };
    let settings = serde_path_to_error::deserialize(settings).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => "settings".to_owned(),
            path => format!("settings.{path}"),
        };
        SpecError::Settings {
            path,
            problem: error.into_inner().to_string(),
        }
    })?;
    let engine = new(settings).map_err(|problem| SpecError::Settings {
        path: "settings".to_owned(),
        problem,
    })?;
    Ok(Box::new(engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_order_and_their_examples_are_settings() {
        assert!(KINDS.is_sorted_by_key(|kind| kind.name));
        for kind in KINDS {
            let settings = serde_json::from_str(kind.example).expect(kind.name);
            if let Err(error) = kind.build(&settings) {
                panic!("{}: {error}", kind.name);
            }
            let unknown = serde_json::json!({ "no_such": 1 });
            let error = kind.build(&unknown).err().expect(kind.name).to_string();
            assert!(error.contains("no_such"), "{error}");
        }
    }

    #[test]
    fn each_kind_has_a_page() {
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policies");
        let read = |name: &str| {
            let path = format!("{pages}/{name}.md");
            std::fs::read_to_string(&path).expect(&path)
        };
        let index = read("README");
        for Kind { name, example, .. } in KINDS {
            let page = read(name);
            assert!(page.starts_with(&format!("# {name}\n")), "{name}");
            assert!(page.contains("starling ctl attach "), "{name}");
            assert!(index.contains(&format!("[{name}]({name}.md)")), "{name}");
            let settings: Value = serde_json::from_str(example).expect(name);
            for setting in settings.as_object().expect(name).keys() {
                assert!(
                    page.contains(&format!("| `{setting}` |")),
                    "{name}: {setting}"
                );
            }
        }
    }
}
