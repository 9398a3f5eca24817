//! The placement of the two cores of a measurement: how far apart they are.

/// The distance of two cores at the moment, measured by the round trips of a cache line.
///
/// A hypervisor may move a virtual machine's cores within seconds, between cores that share a cache
/// and cores that do not. Every shared-memory figure changes with it by a factor of three to five,
/// so figures of different placements never go into one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// A round trip of at most 130 ns, before and after the measurement.
    Near,
    /// A round trip of at least 300 ns, before and after.
    Far,
    /// Anything else; above all a change of placement during the measurement.
    Mixed,
}

/// The longest round trip, in ns, of two cores that are near.
const MAX_NEAR_NS: f64 = 130.0;

/// The shortest round trip, in ns, of two cores that are far apart.
const MIN_FAR_NS: f64 = 300.0;

impl Placement {
    /// The placement that a round trip before and one after a measurement show.
    pub fn of(before_ns: f64, after_ns: f64) -> Self {
        if before_ns.max(after_ns) <= MAX_NEAR_NS {
            Self::Near
        } else if before_ns.min(after_ns) >= MIN_FAR_NS {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_placement_is_neither_near_nor_far() {
        assert_eq!(Placement::of(120.0, 130.0), Placement::Near);
        assert_eq!(Placement::of(300.0, 570.0), Placement::Far);
        assert_eq!(Placement::of(120.0, 570.0), Placement::Mixed);
        assert_eq!(Placement::of(200.0, 200.0), Placement::Mixed);
    }
}
