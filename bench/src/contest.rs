//! Contestants, taken in rounds, and the figures that come of it.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::BenchError;
use crate::floor::cache_line;
use crate::pin::Cores;
use crate::process::Launcher;
use crate::row::{Metric, Row};

/// The figures of one contestant in one round.
pub type Sample = Vec<(Metric, f64)>;

/// What a contestant is given for one round.
#[derive(Clone, Debug)]
pub struct Context {
    /// Starts servers.
    pub launcher: Launcher,
    /// The cores; the calling thread is on the client's already.
    pub cores: Cores,
    /// How long to measure, in seconds, after a warm-up of a tenth of that.
    pub seconds: f64,
    /// What the two sides are joined by.
    pub network: Network,
}

/// What the two sides of a contestant are joined by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Both are on this host.
    #[default]
    Loopback,
    /// Each is in a network namespace of its own: see [`crate::veth`].
    Veth,
}

impl Network {
    /// The client's IPv4 address.
    pub fn client(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Veth => starling_netns::IPV4[0],
        }
    }

    /// The server's IPv4 address.
    pub fn server(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Veth => starling_netns::IPV4[1],
        }
    }
}

/// Measures one round.
pub type Measure = Box<dyn FnMut(&Context) -> Result<Sample, BenchError>>;

/// One system on one plane in one case. Its function starts the server, measures, and leaves
/// nothing running.
pub struct Contestant {
    /// See [`Row::plane`].
    pub plane: &'static str,
    /// See [`Row::system`].
    pub system: &'static str,
    /// See [`Row::case`], without the mode.
    pub case: String,
    /// Measures one round.
    pub measure: Measure,
    /// Whether its figures depend on how far the two cores are apart: see [`Mode`].
    pub by_mode: bool,
}

impl Contestant {
    /// A contestant from its three names and its function.
    pub fn new(
        plane: &'static str,
        system: &'static str,
        case: impl Into<String>,
        measure: impl FnMut(&Context) -> Result<Sample, BenchError> + 'static,
    ) -> Self {
        Self {
            plane,
            system,
            case: case.into(),
            measure: Box::new(measure),
            by_mode: plane == "shm",
        }
    }

    /// The same, but its figures do not depend on the machine's mode.
    #[must_use]
    pub fn in_any_mode(self) -> Self {
        Self {
            by_mode: false,
            ..self
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.system, self.plane)?;
        if !self.case.is_empty() {
            write!(f, " {}", self.case)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contestant({self})")
    }
}

/// How far apart two cores are at the moment, told by a cache line that goes back and forth.
///
/// A virtual machine's cores may be moved, within seconds, between neighbours that share a cache
/// and strangers that do not. Every shared-memory figure moves with it by a factor of three to
/// five, so figures of different modes are never put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// A round trip of at most 130 ns, before and after the measurement.
    Near,
    /// A round trip of at least 300 ns, before and after.
    Far,
    /// Anything else; above all a change of mode during the measurement.
    Mixed,
}

/// The longest round trip, in ns, of two cores that are near.
const NEAR_AT_MOST_NS: f64 = 130.0;

/// The shortest round trip, in ns, of two cores that are far apart.
const FAR_AT_LEAST_NS: f64 = 300.0;

impl Mode {
    /// The mode that a round trip before and one after a measurement tell.
    pub fn of(before_ns: f64, after_ns: f64) -> Self {
        if before_ns.max(after_ns) <= NEAR_AT_MOST_NS {
            Self::Near
        } else if before_ns.min(after_ns) >= FAR_AT_LEAST_NS {
            Self::Far
        } else {
            Self::Mixed
        }
    }

    /// Its name in a case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Mixed => "mixed",
        }
    }
}

/// A selection by `system`, `system/plane`, or `system/plane/` and how the case begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Only {
    system: String,
    plane: Option<String>,
    case: String,
}

impl std::str::FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '/');
        let (system, plane, case) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if [Some(system), plane, case].contains(&Some("")) {
            return Err(
                "expected SYSTEM, SYSTEM/PLANE or SYSTEM/PLANE/CASE, such as raw, starling/udp or \
                 starling/shm/batch=3"
                    .into(),
            );
        }
        Ok(Self {
            system: system.into(),
            plane: plane.map(Into::into),
            case: case.unwrap_or("").into(),
        })
    }
}

impl Only {
    fn selects(&self, contestant: &Contestant) -> bool {
        self.system == contestant.system
            && self
                .plane
                .as_ref()
                .is_none_or(|plane| plane == contestant.plane)
            && contestant.case.starts_with(&self.case)
    }
}

/// Where a contest stands, told before each turn.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Turns done.
    pub done: usize,
    /// Turns in all.
    pub total: usize,
    /// Whose turn it is.
    pub now: String,
}

/// What is to be measured, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds; at least one is run.
    pub rounds: usize,
    /// Contestants wanted; empty: all.
    pub only: Vec<Only>,
}

/// Takes contestants in rounds and returns their figures, in their order.
///
/// Beside each measurement that depends on it (those on the plane `shm` do) the cache-line round trip is taken, just before and
/// just after; it decides the mode under which the figures are filed, and is itself filed as a row
/// of system `raw` whose case ends with `ping-pong`.
pub fn run(
    bench: &'static str,
    mut contestants: Vec<Contestant>,
    plan: &Plan,
    context: &Context,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Row>, BenchError> {
    let there_is = || {
        let names: Vec<String> = contestants.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    let nothing = BenchError::NothingSelected {
        suite: bench,
        there_is: there_is(),
    };
    contestants.retain(|c| plan.only.is_empty() || plan.only.iter().any(|only| only.selects(c)));
    if contestants.is_empty() {
        return Err(nothing);
    }
    let rounds = plan.rounds.max(1);
    let total = rounds * contestants.len();
    let mut figures: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for turn in 0..total {
        let index = turn % contestants.len();
        let contestant = &mut contestants[index];
        progress(Progress {
            done: turn,
            total,
            now: contestant.to_string(),
        });
        let mut take = |mode, beside, metric, value| {
            let key = Key {
                contestant: index,
                mode,
                beside,
                metric,
            };
            figures.entry(key).or_default().push(value);
        };
        if contestant.by_mode {
            let before_ns = cache_line::round_trip_ns(context.cores)?;
            let sample = (contestant.measure)(context)?;
            let after_ns = cache_line::round_trip_ns(context.cores)?;
            let mode = Some(Mode::of(before_ns, after_ns));
            for (metric, value) in sample {
                take(mode, false, metric, value);
            }
            take(mode, true, Metric::P50, (before_ns + after_ns) / 2.0);
        } else {
            for (metric, value) in (contestant.measure)(context)? {
                take(None, false, metric, value);
            }
        }
    }
    Ok(figures
        .into_iter()
        .map(|(key, values)| key.row(bench, &contestants[key.contestant], values))
        .collect())
}

/// What figures of several rounds must have in common to be put together. Its order is that of
/// the rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    contestant: usize,
    mode: Option<Mode>,
    /// The cache-line round trip beside the contestant, not the contestant.
    beside: bool,
    metric: Metric,
}

impl Key {
    fn row(self, bench: &'static str, contestant: &Contestant, mut values: Vec<f64>) -> Row {
        values.sort_by(f64::total_cmp);
        let mut case: Vec<&str> = Vec::new();
        if !contestant.case.is_empty() {
            case.push(&contestant.case);
        }
        case.extend(self.mode.map(Mode::name));
        if self.beside {
            case.push(contestant.system);
            case.push("ping-pong");
        }
        Row {
            bench,
            plane: contestant.plane,
            system: if self.beside {
                "raw"
            } else {
                contestant.system
            },
            case: case.join(" "),
            metric: self.metric,
            value: median(&values),
            low: values[0],
            high: values[values.len() - 1],
            rounds: values.len(),
        }
    }
}

/// The median of values in order; the mean of the two in the middle if their number is even.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    fn context() -> Context {
        let cores = Cores::of_this_process().unwrap();
        Context {
            launcher: Launcher::new("/nonexistent".into(), &[], cores),
            cores,
            seconds: 0.001,
            network: Network::Loopback,
        }
    }

    fn constant(plane: &'static str, system: &'static str, values: &[f64]) -> Contestant {
        let mut values: std::vec::IntoIter<f64> = Vec::from(values).into_iter();
        Contestant::new(plane, system, "", move |_| {
            Ok(vec![(Metric::Rate, values.next().unwrap())])
        })
    }

    #[test]
    fn contestants_take_turns() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let contestants = ["a", "b"]
            .map(|name| {
                let order = Rc::clone(&order);
                Contestant::new("udp", name, "", move |_| {
                    order.borrow_mut().push(name);
                    Ok(vec![(Metric::Rate, 1.0)])
                })
            })
            .into();
        let plan = Plan {
            rounds: 3,
            only: vec![],
        };
        let mut told = Vec::new();
        run("rate", contestants, &plan, &context(), &mut |p| {
            told.push((p.done, p.total))
        })
        .unwrap();
        assert_eq!(*order.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(told.first(), Some(&(0, 6)));
        assert_eq!(told.last(), Some(&(5, 6)));
    }

    #[test]
    fn a_row_is_the_median_of_its_rounds() {
        let plan = Plan {
            rounds: 3,
            only: vec![],
        };
        let rows = run(
            "rate",
            vec![constant("udp", "raw", &[5.0, 100.0, 7.0])],
            &plan,
            &context(),
            &mut |_| (),
        )
        .unwrap();
        let [row] = &rows[..] else {
            panic!("one row expected, got {rows:?}")
        };
        assert_eq!(
            (row.value, row.low, row.high, row.rounds),
            (7.0, 5.0, 100.0, 3)
        );
        assert_eq!(
            (row.plane, row.system, row.case.as_str()),
            ("udp", "raw", "")
        );
    }

    #[test]
    fn only_selects_by_system_and_plane() {
        let contestants = || {
            vec![
                constant("udp", "raw", &[1.0]),
                constant("grpc", "raw", &[2.0]),
                Contestant {
                    case: "batch=3 more".into(),
                    ..constant("udp", "tonic", &[3.0])
                },
                Contestant {
                    case: "batch=11".into(),
                    ..constant("udp", "tonic", &[4.0])
                },
            ]
        };
        let values = |only: &[&str]| -> Vec<f64> {
            let plan = Plan {
                rounds: 1,
                only: only.iter().map(|text| text.parse().unwrap()).collect(),
            };
            run("rate", contestants(), &plan, &context(), &mut |_| ())
                .unwrap()
                .iter()
                .map(|row| row.value)
                .collect()
        };
        assert_eq!(values(&["raw"]), [1.0, 2.0]);
        assert_eq!(values(&["raw/grpc", "tonic"]), [2.0, 3.0, 4.0]);
        assert_eq!(values(&["tonic/udp/batch=3"]), [3.0]);
    }

    #[test]
    fn a_selection_of_nothing_names_what_there_is() {
        let plan = Plan {
            rounds: 1,
            only: vec!["nobody/udp".parse().unwrap()],
        };
        let error = run(
            "rate",
            vec![constant("udp", "raw", &[1.0])],
            &plan,
            &context(),
            &mut |_| (),
        )
        .unwrap_err();
        assert!(error.to_string().contains("raw/udp"), "{error}");
        assert!("/udp".parse::<Only>().is_err());
        assert!("raw/".parse::<Only>().is_err());
        assert!("a/b/".parse::<Only>().is_err());
    }

    #[test]
    fn modes_are_told_apart_and_a_change_is_neither() {
        assert_eq!(Mode::of(120.0, 130.0), Mode::Near);
        assert_eq!(Mode::of(300.0, 570.0), Mode::Far);
        assert_eq!(Mode::of(120.0, 570.0), Mode::Mixed);
        assert_eq!(Mode::of(200.0, 200.0), Mode::Mixed);
    }

    #[test]
    fn shared_memory_rows_carry_their_mode_and_a_ping_pong_beside() {
        let key = Key {
            contestant: 0,
            mode: Some(Mode::Near),
            beside: true,
            metric: Metric::P50,
        };
        let mut contestant = constant("shm", "starling", &[]);
        contestant.case = "batch=3".into();
        let row = key.row("rate", &contestant, vec![120.0]);
        assert_eq!(
            (row.system, row.case.as_str()),
            ("raw", "batch=3 near starling ping-pong")
        );
        let row = Key {
            beside: false,
            ..key
        }
        .row("rate", &contestant, vec![1.0]);
        assert_eq!(
            (row.system, row.case.as_str()),
            ("starling", "batch=3 near")
        );
    }

    #[test]
    fn an_even_number_of_rounds_takes_the_mean_of_the_middle() {
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
