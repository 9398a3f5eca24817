//! The text for Prometheus, read as its parser reads it.

use std::collections::HashMap;

/// The samples of a text, by name with labels, and the types of its metrics.
pub(crate) struct Page {
    pub(crate) samples: HashMap<String, f64>,
    pub(crate) types: HashMap<String, String>,
}

/// Parses a text. Panics where Prometheus would refuse it.
pub(crate) fn parse(text: &str) -> Page {
    let (mut samples, mut types) = (HashMap::new(), HashMap::<String, String>::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, family, "its help comes first");
            assert!(
                types.insert(name.into(), kind.into()).is_none(),
                "{name} twice"
            );
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().expect("a name").into();
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let bare = name.split('{').next().expect("a name");
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(bare.chars().all(is_name), "{line}");
        let of_family = match types[&family].as_str() {
            "histogram" => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|end| bare == format!("{family}{end}")),
            _ => bare == family,
        };
        assert!(of_family, "{line} is among the samples of {family}");
        let value: f64 = value.parse().expect("a number");
        assert!(
            samples.insert(name.to_owned(), value).is_none(),
            "{name} twice"
        );
    }
    Page { samples, types }
}
