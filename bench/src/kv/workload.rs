//! YCSB's workloads: mixes of operations.

use std::fmt;
use std::str::FromStr;

use super::random::Random;

/// The kinds of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads one record.
    Get,
    /// Overwrites a record.
    Update,
    /// Writes a new record.
    Insert,
    /// Reads several records in order.
    Scan,
    /// Removes a record.
    Delete,
    /// Reads several records by their keys.
    MultiGet,
}

/// A mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// YCSB A, "update heavy": half reads, half updates.
    A,
    /// YCSB B, "read heavy": 95 % reads, 5 % updates.
    B,
    /// YCSB C: reads only.
    C,
    /// YCSB E, "short ranges": 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Not of YCSB: every method of the service, a sixth of the operations for each kind.
    All,
}

impl Workload {
    /// YCSB's workloads, in their order.
    pub const YCSB: [Self; 4] = [Self::A, Self::B, Self::C, Self::E];

    /// Its letter; `all` for [`Workload::All`].
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::E => "E",
            Self::All => "all",
        }
    }

    /// What it does, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::A => "50% get, 50% put",
            Self::B => "95% get, 5% put",
            Self::C => "100% get",
            Self::E => "95% scan, 5% insert",
            Self::All => "every method",
        }
    }

    /// The kinds with their cumulative shares, in percent: the last is 100.
    fn shares(self) -> &'static [(u64, Kind)] {
        match self {
            Self::A => &[(50, Kind::Get), (100, Kind::Update)],
            Self::B => &[(95, Kind::Get), (100, Kind::Update)],
            Self::C => &[(100, Kind::Get)],
            Self::E => &[(95, Kind::Scan), (100, Kind::Insert)],
            Self::All => &[
                (17, Kind::Get),
                (34, Kind::Update),
                (50, Kind::Insert),
                (67, Kind::Scan),
                (84, Kind::Delete),
                (100, Kind::MultiGet),
            ],
        }
    }

    /// Draws the kind of the next operation.
    #[inline]
    pub fn draw(self, random: &mut Random) -> Kind {
        let percent = random.below(100);
        let shares = self.shares();
        shares
            .iter()
            .find(|(below, _)| percent < *below)
            .map(|&(_, kind)| kind)
            .expect("the last share is 100 percent")
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::YCSB
            .into_iter()
            .chain([Self::All])
            .find(|workload| workload.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| "no workload has this name; the workloads are A, B, C, E and all".into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_kinds_of_operation_have_the_documented_shares() {
        for (workload, kind, percent) in [
            (Workload::A, Kind::Get, 50.0),
            (Workload::A, Kind::Update, 50.0),
            (Workload::B, Kind::Get, 95.0),
            (Workload::B, Kind::Update, 5.0),
            (Workload::C, Kind::Get, 100.0),
            (Workload::E, Kind::Scan, 95.0),
            (Workload::E, Kind::Insert, 5.0),
            (Workload::All, Kind::Delete, 17.0),
        ] {
            let mut random = Random::new(5);
            let mut counts: HashMap<Kind, u32> = HashMap::new();
            for _ in 0..100_000 {
                *counts.entry(workload.draw(&mut random)).or_default() += 1;
            }
            let actual = f64::from(counts[&kind]) / 1000.0;
            assert!(
                (actual - percent).abs() < 0.5,
                "{workload}, {kind:?}: {actual} %"
            );
        }
    }

    #[test]
    fn a_workload_is_found_by_its_name() {
        assert_eq!("a".parse(), Ok(Workload::A));
        assert_eq!("all".parse(), Ok(Workload::All));
        assert!("D".parse::<Workload>().is_err());
    }
}
