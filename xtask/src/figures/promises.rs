//! `figures/promises.toml`: the promises, their bounds, and the rows and commands that show them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Promises {
    #[serde(rename = "command")]
    pub(super) commands: Vec<Measurement>,
    #[serde(rename = "promise")]
    pub(super) promises: Vec<Promise>,
}

/// A command that measures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measurement {
    pub(super) id: String,
    /// As typed, without `--json`.
    pub(super) run: String,
    /// How often it runs; each run gives one value of each promise.
    #[serde(default = "once")]
    runs: usize,
    /// In place of that: a run with each of these seeds.
    #[serde(default)]
    seeds: Vec<u64>,
    /// The figures do not depend on the machine.
    #[serde(default)]
    pub(super) simulated: bool,
}

fn once() -> usize {
    1
}

impl Measurement {
    /// The further arguments of each run.
    pub(super) fn arguments_of_runs(&self, repetitions: Option<usize>) -> Vec<Vec<String>> {
        if !self.seeds.is_empty() {
            let with = |seed: &u64| vec!["--seed".to_owned(), seed.to_string()];
            return self.seeds.iter().map(with).collect();
        }
        let runs = match self.simulated {
            // Every run is the same.
            true => 1,
            false => repetitions.unwrap_or(self.runs),
        };
        vec![Vec::new(); runs]
    }

    /// As the document shows it.
    pub(super) fn shown(&self) -> String {
        match (self.seeds.as_slice(), self.runs) {
            ([], 1) => format!("`{}`", self.run),
            ([], runs) => format!("`{}`, {runs} runs", self.run),
            (seeds, _) => {
                let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
                format!("`{} --seed N`, N = {}", self.run, seeds.join(", "))
            }
        }
    }
}

/// One case of one promise.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Promise {
    pub(super) id: String,
    /// The table that it stands in.
    pub(super) section: String,
    pub(super) what: String,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
    /// Of the figure and its bounds: `ns`, `per_s`, `bytes_per_s`, `B`, `%`, `x`, or as shown.
    pub(super) unit: String,
    /// The cores' placement that the figure is of, for people.
    #[serde(default)]
    pub(super) placement: String,
    /// The id of its command.
    pub(super) command: String,
    /// The row that has the figure. `None`: a person reads it.
    pub(super) value: Option<Select>,
    /// The row by whose figure this one is divided.
    of: Option<Select>,
    #[serde(default)]
    pub(super) note: String,
}

/// A selection of rows: each key must have this value, in which one `*` stands for anything.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Select {
    /// How several rows become one value.
    fold: Option<Fold>,
    #[serde(flatten)]
    keys: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fold {
    Least,
    Most,
}

/// The median of several runs, and how far they lay apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) runs: usize,
}

/// One line of `--json`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    keys: BTreeMap<String, String>,
    value: f64,
    /// Over the repetitions within the run, if it says so.
    spread: Option<(f64, f64)>,
}

impl Row {
    /// `None`: it is no row.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let Value::Object(object) = serde_json::from_str(line).ok()? else {
            return None;
        };
        let number = |key: &str| object.get(key).and_then(Value::as_f64);
        let texts = object.iter().filter_map(|(key, value)| {
            let text = value.as_str()?;
            Some((key.clone(), text.to_owned()))
        });
        Some(Self {
            keys: texts.collect(),
            value: number("value")?,
            spread: number("min").zip(number("max")),
        })
    }

    /// Instructions of an RPC.
    pub(super) fn of_count((case, count): &(&'static str, u64)) -> Self {
        let key = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        Self {
            keys: [key("suite", "instructions"), key("case", case)].into(),
            value: *count as f64,
            spread: None,
        }
    }
}

impl Select {
    fn selects(&self, row: &Row) -> bool {
        self.keys.iter().all(|(key, pattern)| {
            let value = row.keys.get(key).map_or("", String::as_str);
            pattern.split('|').any(|pattern| matches(pattern, value))
        })
    }

    /// Value and spread of the rows selected; `None` if there is none, or several without a fold.
    fn value(&self, rows: &[Row]) -> Option<(f64, Option<(f64, f64)>)> {
        let rows: Vec<&Row> = rows.iter().filter(|row| self.selects(row)).collect();
        let values = rows.iter().map(|row| row.value);
        match (self.fold, rows.as_slice()) {
            (_, []) => None,
            (Some(Fold::Least), _) => Some((values.fold(f64::INFINITY, f64::min), None)),
            (Some(Fold::Most), _) => Some((values.fold(f64::NEG_INFINITY, f64::max), None)),
            (None, [row]) => Some((row.value, row.spread)),
            (None, _) => None,
        }
    }
}

/// Whether a value matches a pattern with at most one `*`.
fn matches(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => value == pattern,
        Some((start, end)) => {
            value.len() >= start.len() + end.len()
                && value.starts_with(start)
                && value.ends_with(end)
        }
    }
}

impl Promises {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| format!("figures/promises.toml: {error}"))
    }
}

impl Promise {
    /// The figure over several runs. Those without its rows, as of another placement, do not count.
    pub(super) fn evaluate(&self, runs: &[Vec<Row>]) -> Option<Figure> {
        let evaluated = runs.iter().filter_map(|rows| self.of_one_run(rows));
        let figures: Vec<(f64, Option<(f64, f64)>)> = evaluated.collect();
        let mut values: Vec<f64> = figures.iter().map(|(value, _)| *value).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = match figures.as_slice() {
            [] => return None,
            [(value, spread)] => spread.unwrap_or((*value, *value)),
            _ => (values[0], values[values.len() - 1]),
        };
        let (below, above) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Figure {
            median: f64::midpoint(below, above),
            low,
            high,
            runs: values.len(),
        })
    }

    /// Figures of one run are compared with others of that run only.
    fn of_one_run(&self, rows: &[Row]) -> Option<(f64, Option<(f64, f64)>)> {
        let (value, spread) = self.value.as_ref()?.value(rows)?;
        let Some(of) = &self.of else {
            return Some((value, spread));
        };
        let (of, _) = of.value(rows)?;
        let scale = if self.unit == "%" { 100.0 } else { 1.0 };
        (of != 0.0).then(|| (value / of * scale, None))
    }

    /// Whether a figure is within the bounds; `None` if there are none.
    pub(super) fn holds(&self, figure: f64) -> Option<bool> {
        if self.at_most.is_none() && self.at_least.is_none() {
            return None;
        }
        let below = self.at_most.is_none_or(|most| figure <= most);
        let above = self.at_least.is_none_or(|least| figure >= least);
        Some(below && above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lines: &[&str]) -> Vec<Row> {
        lines.iter().map(|line| Row::parse(line).unwrap()).collect()
    }

    fn promise(rest: &str) -> Promise {
        let text = format!(
            "id = \"a\"\nsection = \"s\"\nwhat = \"w\"\nunit = \"x\"\ncommand = \"c\"\n{rest}"
        );
        toml::from_str(&text).unwrap()
    }

    const RAW: &str = r#"{"system": "raw", "case": "", "metric": "p50", "value": 100, "min": 90}"#;

    fn ours(value: u32) -> String {
        format!(
            r#"{{"system": "starling", "case": "", "metric": "p50", "value": {value}, "min": 1, "max": 999}}"#
        )
    }

    #[test]
    fn a_ratio_is_of_figures_of_one_run_and_the_median_is_over_runs() {
        let promise = promise(
            "value = { system = \"starling\", metric = \"p50\" }\nof = { system = \"raw\" }\nat_most = 1.2",
        );
        let runs: Vec<_> = [110, 130, 120]
            .map(|value| rows(&[RAW, &ours(value)]))
            .into();
        let figure = promise.evaluate(&runs).unwrap();
        let expected = Figure {
            median: 1.2,
            low: 1.1,
            high: 1.3,
            runs: 3,
        };
        assert_eq!(figure, expected);
        assert_eq!(promise.holds(figure.median), Some(true));
        assert_eq!(promise.holds(figure.high), Some(false));
        assert_eq!(promise.evaluate(&[rows(&[RAW])]), None);
    }

    #[test]
    fn one_run_without_a_ratio_has_the_spread_of_its_repetitions() {
        let promise = promise("value = { system = \"starling\" }");
        let figure = promise.evaluate(&[rows(&[RAW, &ours(5)])]).unwrap();
        assert_eq!((figure.low, figure.high), (1.0, 999.0));
        assert_eq!(promise.holds(5.0), None);
    }

    #[test]
    fn several_rows_need_a_fold() {
        let both = rows(&[RAW, &ours(5)]);
        let figure = |rest: &str| promise(rest).evaluate(std::slice::from_ref(&both));
        assert_eq!(figure("value = { metric = \"p50\" }"), None);
        let least = figure("value = { metric = \"p*\", fold = \"least\" }").unwrap();
        assert_eq!(least.median, 5.0);
        let most = figure("value = { metric = \"*0\", fold = \"most\" }").unwrap();
        assert_eq!(most.median, 100.0);
    }

    #[test]
    fn each_seed_is_a_run() {
        let text = "id = \"b\"\nrun = \"starling sim run b\"\nseeds = [1, 3]\nsimulated = true";
        let command: Measurement = toml::from_str(text).unwrap();
        assert_eq!(
            command.arguments_of_runs(None),
            [["--seed", "1"], ["--seed", "3"]]
        );
        assert_eq!(command.shown(), "`starling sim run b --seed N`, N = 1, 3");
    }
}
