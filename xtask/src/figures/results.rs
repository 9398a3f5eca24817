//! `figures/results.json`: the last result of each promise, with when and where it was measured.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::promises::Figure;

/// The whole file, by the promises' ids.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Results(BTreeMap<String, Measured>);

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) figure: Figure,
    /// The day: `2026-11-22`.
    pub(super) date: String,
    /// Empty if it does not depend on the machine.
    pub(super) machine: String,
}

impl Measured {
    pub(super) fn new(figure: Figure, date: &str, machine: String) -> Self {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        Self {
            figure: Figure {
                median: rounded(figure.median),
                low: rounded(figure.low),
                high: rounded(figure.high),
                runs: figure.runs,
            },
            date: date.to_owned(),
            machine,
        }
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |key: &str| value.get(key)?.as_f64();
        let text = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
        Some(Self {
            figure: Figure {
                median: number("median")?,
                low: number("low")?,
                high: number("high")?,
                runs: value.get("runs")?.as_u64()? as usize,
            },
            date: text("measured")?,
            machine: text("machine")?,
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "median": self.figure.median,
            "low": self.figure.low,
            "high": self.figure.high,
            "runs": self.figure.runs,
            "measured": self.date,
            "machine": self.machine,
        })
    }
}

impl Results {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fault = |what: &str| format!("figures/results.json: {what}");
        let value: Value = serde_json::from_str(text).map_err(|error| fault(&error.to_string()))?;
        let object = value.as_object().ok_or_else(|| fault("no object"))?;
        let entries = object.iter().map(|(id, value)| {
            let measured = Measured::from_json(value);
            let measured = measured.ok_or_else(|| fault(&format!("{id} is no result")))?;
            Ok((id.clone(), measured))
        });
        entries.collect::<Result<_, String>>().map(Self)
    }

    /// One result a line, in the order of the ids, so that changes are easy to read.
    pub(super) fn to_json(&self) -> String {
        let line =
            |(id, measured): (&String, &Measured)| format!("  {id:?}: {}", measured.to_json());
        let lines: Vec<String> = self.0.iter().map(line).collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }

    pub(super) fn insert(&mut self, id: &str, measured: Measured) {
        self.0.insert(id.to_owned(), measured);
    }

    pub(super) fn get(&self, id: &str) -> Option<&Measured> {
        self.0.get(id)
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The machines, each with the first and the last day that something was measured on it.
    pub(super) fn machines(&self) -> BTreeMap<&str, (&str, &str)> {
        let mut machines: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
        for Measured { date, machine, .. } in self.0.values() {
            let days = machines.entry(machine).or_insert((date, date));
            *days = (days.0.min(date), days.1.max(date));
        }
        machines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_survive_the_file() {
        let figure = Figure {
            median: 1.041_26,
            low: 1.0,
            high: 1.11,
            runs: 3,
        };
        let mut results = Results::default();
        results.insert("b", Measured::new(figure, "2026-11-22", "m".into()));
        results.insert("a", Measured::new(figure, "2026-11-21", "m".into()));
        let text = results.to_json();
        assert_eq!(Results::parse(&text), Ok(Results(results.0.clone())));
        assert!(text.starts_with("{\n  \"a\": {"), "{text}");
        assert_eq!(results.get("a").unwrap().figure.median, 1.0413);
        assert_eq!(results.machines()["m"], ("2026-11-21", "2026-11-22"));
        assert!(Results::parse("{\"a\": {}}").is_err());
    }
}
