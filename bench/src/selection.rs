//! Which benchmarks of a suite to run: `--only`.

use std::str::FromStr;

use crate::benchmark::Benchmark;

/// A selection by `system`, `system/scheme`, or `system/scheme/` and the beginning of the case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    system: String,
    scheme: Option<String>,
    case: String,
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/');
        let (system, scheme, case) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if [Some(system), scheme, case].contains(&Some("")) {
            return Err(
                "expected SYSTEM, SYSTEM/SCHEME or SYSTEM/SCHEME/CASE, such as raw, starling/udp or \
                 starling/shm/batch=3"
                    .into(),
            );
        }
        Ok(Self {
            system: system.into(),
            scheme: scheme.map(Into::into),
            case: case.unwrap_or("").into(),
        })
    }
}

impl Selection {
    /// Whether this selects `benchmark`.
    pub fn selects(&self, benchmark: &Benchmark) -> bool {
        self.system == benchmark.system
            && self
                .scheme
                .as_ref()
                .is_none_or(|scheme| scheme == benchmark.scheme)
            && benchmark.case.starts_with(&self.case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_selected_by_system_scheme_and_beginning_of_the_case() {
        let selects = |text: &str, scheme, case| {
            let benchmark = Benchmark::new(scheme, "tonic", case, |_| Ok(vec![]));
            text.parse::<Selection>().unwrap().selects(&benchmark)
        };
        assert!(selects("tonic", "udp", "batch=11"));
        assert!(!selects("raw", "udp", "batch=11"));
        assert!(!selects("tonic/grpc", "udp", "batch=11"));
        assert!(!selects("tonic/udp/batch=3", "udp", "batch=11"));
        assert!(selects("tonic/udp/batch=3", "udp", "batch=3 more"));
    }

    #[test]
    fn a_selection_with_an_empty_part_is_refused() {
        for text in ["", "/udp", "raw/", "a/b/"] {
            assert!(text.parse::<Selection>().is_err(), "{text}");
        }
    }
}
