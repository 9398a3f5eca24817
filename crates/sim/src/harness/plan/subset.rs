//! A subset of a plan's entries. Seed and subset determine a shrunk plan, so a command with both
//! replays its run.

use std::fmt;
use std::str::FromStr;

use super::RunPlan;

/// The lists that a plan is shrunk by, by name.
const LISTS: [&str; 8] = [
    "rules", "hosts", "cables", "injected", "calls", "streams", "closes", "attacks",
];

/// The text of an empty subset.
const NOTHING: &str = "nothing";

/// Entries that are left, by their places in the lists of the whole plan:
/// `calls=0,3-7/rules=1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset {
    /// Places in increasing order, for each of [`LISTS`].
    places: [Vec<usize>; LISTS.len()],
}

impl Subset {
    /// All of a plan.
    pub fn whole(plan: &RunPlan) -> Self {
        Self {
            places: lens(plan).map(|len| (0..len).collect()),
        }
    }

    /// Whether `plan` has all these places; if not, the error names its entries.
    pub fn check(&self, plan: &RunPlan) -> Result<(), String> {
        let lens = lens(plan);
        let beyond = |&list: &usize| {
            self.places[list]
                .last()
                .is_some_and(|&last| last >= lens[list])
        };
        let Some(list) = (0..LISTS.len()).find(beyond) else {
            return Ok(());
        };
        let has = LISTS.iter().zip(lens).map(|(name, len)| match len {
            0 => format!("no {name}"),
            _ => format!("{name}=0-{}", len - 1),
        });
        Err(format!(
            "seed {} does not have all of {}: it has {}",
            plan.seed,
            LISTS[list],
            has.collect::<Vec<_>>().join(", ")
        ))
    }

    /// How many lists there are.
    pub(crate) const LISTS: usize = LISTS.len();

    /// The entries of one list.
    pub(crate) fn list(&mut self, list: usize) -> &mut Vec<usize> {
        &mut self.places[list]
    }

    /// Entries, all lists together.
    pub fn len(&self) -> usize {
        self.places.iter().map(Vec::len).sum()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same entries by their places in the plan of which `base` is a subset.
    pub(crate) fn within(&self, base: &Self) -> Self {
        let outer = |list: usize| {
            let places = self.places[list].iter();
            places.filter_map(move |&place| base.places[list].get(place).copied())
        };
        Self {
            places: std::array::from_fn(|list| outer(list).collect()),
        }
    }

    /// `plan` with these entries only. Places that it does not have are ignored.
    pub fn of(&self, plan: &RunPlan) -> RunPlan {
        fn take<T: Clone>(list: &mut Vec<T>, places: &[usize]) {
            *list = places
                .iter()
                .filter_map(|&place| list.get(place).cloned())
                .collect();
        }
        let mut rest = plan.clone();
        let [
            rules,
            hosts,
            cables,
            injected,
            calls,
            streams,
            closes,
            attacks,
        ] = &self.places;
        take(&mut rest.rules, rules);
        take(&mut rest.host_faults, hosts);
        take(&mut rest.outages, cables);
        take(&mut rest.injected, injected);
        take(&mut rest.calls, calls);
        take(&mut rest.streams, streams);
        take(&mut rest.closes, closes);
        take(&mut rest.attacks, attacks);
        rest.subset = Some(self.clone());
        rest
    }
}

/// How many entries each list has.
fn lens(plan: &RunPlan) -> [usize; LISTS.len()] {
    [
        plan.rules.len(),
        plan.host_faults.len(),
        plan.outages.len(),
        plan.injected.len(),
        plan.calls.len(),
        plan.streams.len(),
        plan.closes.len(),
        plan.attacks.len(),
    ]
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for (name, places) in LISTS.iter().zip(&self.places) {
            let mut ranges: Vec<(usize, usize)> = Vec::new();
            for &place in places {
                match ranges.last_mut() {
                    Some((_, last)) if *last + 1 == place => *last = place,
                    _ => ranges.push((place, place)),
                }
            }
            let range = |&(first, last): &(usize, usize)| match last - first {
                0 => first.to_string(),
                _ => format!("{first}-{last}"),
            };
            let ranges: Vec<String> = ranges.iter().map(range).collect();
            if !ranges.is_empty() {
                words.push(format!("{name}={}", ranges.join(",")));
            }
        }
        if words.is_empty() {
            words.push(NOTHING.to_owned());
        }
        f.write_str(&words.join("/"))
    }
}

impl FromStr for Subset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut subset = Self::default();
        for word in text.split('/').filter(|word| *word != NOTHING) {
            let (name, ranges) = word.split_once('=').ok_or_else(|| explain(word))?;
            let list = LISTS.iter().position(|list| *list == name);
            let list = list.ok_or_else(|| explain(word))?;
            for range in ranges.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let number = |text: &str| text.parse::<u16>().map_err(|_| explain(word));
                subset.places[list].extend(number(first)?.into()..=usize::from(number(last)?));
            }
            subset.places[list].sort_unstable();
            subset.places[list].dedup();
        }
        Ok(subset)
    }
}

fn explain(word: &str) -> String {
    format!(
        "`{word}` is not of the form LIST=PLACES, as in rules=1/calls=0,3-7; lists are {}",
        LISTS.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_is_parsed_as_it_is_printed() {
        for text in [
            "nothing",
            "calls=0,3-7",
            "rules=1/hosts=0-1/injected=4/calls=2",
        ] {
            let subset: Subset = text.parse().unwrap();
            assert_eq!(subset.to_string(), text);
        }
        let subset: Subset = "calls=7,3,4/calls=5".parse().unwrap();
        assert_eq!(subset.to_string(), "calls=3-5,7");
        for text in ["", "calls", "call=1", "calls=x", "calls=1-", "calls=-1"] {
            assert!(text.parse::<Subset>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_full_subset_is_the_whole_scenario_and_a_smaller_one_leaves_entries_out() {
        let plan = (0..).map(RunPlan::from_seed).find(|s| s.rules.len() > 2);
        let plan = plan.expect("some have rules");
        let whole = Subset::whole(&plan).of(&plan);
        assert_eq!((&whole.rules, &whole.calls), (&plan.rules, &plan.calls));
        let subset: Subset = "rules=1/calls=0,9999".parse().unwrap();
        let rest = subset.of(&plan);
        assert_eq!(rest.rules, plan.rules[1..2]);
        assert_eq!(rest.calls, plan.calls[..1]);
        assert!(rest.host_faults.is_empty());
        assert_eq!(rest.subset, Some(subset.clone()));
        assert_eq!(Subset::whole(&plan).check(&plan), Ok(()));
        let said = subset.check(&plan).unwrap_err();
        let last = plan.calls.len() - 1;
        assert!(said.contains("not have all of calls"), "{said}");
        assert!(said.contains(&format!("calls=0-{last}")), "{said}");
        let base: Subset = "rules=0,2,5/calls=4".parse().unwrap();
        let inner: Subset = "rules=1-2/calls=0".parse().unwrap();
        assert_eq!(inner.within(&base).to_string(), "rules=2,5/calls=4");
    }
}
