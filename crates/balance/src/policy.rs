//! The load balancing policies and their settings (gRPC A24; the proposals that the parts name).

use std::time::Duration;

/// How the calls of a channel are divided among its backends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadBalancing {
    pub(crate) policy: Policy,
    pub(crate) outliers: Option<OutlierDetection>,
    pub(crate) subset: Option<u32>,
}

/// Which backend gets a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// The first one that works, until it fails; in the order of the list, or at random.
    PickFirst {
        /// Whether the list is shuffled first.
        shuffle: bool,
    },
    /// One after the other.
    RoundRobin,
    /// Of so many that are drawn at random, the one with the fewest calls outstanding.
    LeastRequest {
        /// 2 to 10.
        choices: u32,
    },
    /// As often as its load reports say that it can take.
    WeightedRoundRobin(Weighting),
    /// The one whose place on a ring is the next one behind the call's.
    RingHash(RingHash),
}

impl Default for Policy {
    fn default() -> Self {
        Self::PickFirst { shuffle: false }
    }
}

/// How load reports become weights (gRPC A58).
#[derive(Clone, Debug, PartialEq)]
pub struct Weighting {
    /// A backend has to report for so long before its weight counts.
    pub(crate) blackout_ns: u64,
    /// A weight counts for so long after its report.
    pub(crate) expiration_ns: u64,
    /// How often the weights are looked at.
    pub(crate) update_ns: u64,
    pub(crate) error_utilization_penalty: f64,
}

impl Default for Weighting {
    fn default() -> Self {
        Self {
            blackout_ns: 10_000_000_000,
            expiration_ns: 180_000_000_000,
            update_ns: 1_000_000_000,
            error_utilization_penalty: 1.0,
        }
    }
}

impl Weighting {
    /// A backend has to report for so long before its weight counts: 10 s unless set.
    #[must_use]
    pub fn blackout(mut self, period: Duration) -> Self {
        self.blackout_ns = nanos(period);
        self
    }

    /// A weight counts for so long after its last report: 3 minutes unless set.
    #[must_use]
    pub fn expiration(mut self, period: Duration) -> Self {
        self.expiration_ns = nanos(period);
        self
    }

    /// How often weights are looked at: each second unless set, at most ten times a second.
    #[must_use]
    pub fn update(mut self, period: Duration) -> Self {
        self.update_ns = nanos(period).max(100_000_000);
        self
    }

    /// How often weights are looked at, in nanoseconds.
    pub fn update_ns(&self) -> u64 {
        self.update_ns
    }
}

/// The ring of `ring_hash` (gRPC A42, A76).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingHash {
    /// The key of the metadata whose value says where on the ring a call is.
    pub(crate) header: String,
    pub(crate) min_size: usize,
    pub(crate) max_size: usize,
}

impl RingHash {
    /// The most places of a ring, whatever is asked for.
    pub const MAX_SIZE: usize = 4096;

    /// A ring on which calls are placed by the value that their metadata have under this key, in lower case as
    /// all keys are. Calls without it go anywhere.
    pub fn by_metadata(key: impl Into<String>) -> Self {
        Self {
            header: key.into().to_ascii_lowercase(),
            min_size: 1024,
            max_size: Self::MAX_SIZE,
        }
    }

    /// The least and the most places, both at most 4096.
    #[must_use]
    pub fn size(mut self, min: usize, max: usize) -> Self {
        self.max_size = max.clamp(1, Self::MAX_SIZE);
        self.min_size = min.clamp(1, self.max_size);
        self
    }

    /// The key of the metadata.
    pub fn key(&self) -> &str {
        &self.header
    }
}

/// When backends that fail more than the others get no calls for a while (gRPC A50).
#[derive(Clone, Debug, PartialEq)]
pub struct OutlierDetection {
    pub(crate) interval_ns: u64,
    pub(crate) base_ejection_ns: u64,
    /// None: 300 s, or the base if that is longer.
    pub(crate) max_ejection_ns: Option<u64>,
    pub(crate) max_ejection_percent: u32,
    pub(crate) success_rate: Option<SuccessRate>,
    pub(crate) failure_percentage: Option<FailurePercentage>,
}

impl Default for OutlierDetection {
    /// Ejects nobody: it has no criterion yet.
    fn default() -> Self {
        Self {
            interval_ns: 10_000_000_000,
            base_ejection_ns: 30_000_000_000,
            max_ejection_ns: None,
            max_ejection_percent: 10,
            success_rate: None,
            failure_percentage: None,
        }
    }
}

impl OutlierDetection {
    /// How often backends are looked at: every 10 s unless set, at most a hundred times a second.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval_ns = nanos(interval).max(10_000_000);
        self
    }

    /// For how long a backend is out, times the number of times that it was: 30 s unless set, and at most
    /// `max`.
    #[must_use]
    pub fn ejection_time(mut self, base: Duration, max: Duration) -> Self {
        self.base_ejection_ns = nanos(base);
        self.max_ejection_ns = Some(nanos(max));
        self
    }

    /// No backend is ejected while so many percent are: 10 unless set, at most 100. One may always be, unless
    /// this is 0.
    #[must_use]
    pub fn max_ejection_percent(mut self, percent: u32) -> Self {
        self.max_ejection_percent = percent.min(100);
        self
    }

    /// Ejects backends whose share of successes is far below the mean of all.
    #[must_use]
    pub fn by_success_rate(mut self, criterion: SuccessRate) -> Self {
        self.success_rate = Some(criterion);
        self
    }

    /// Ejects backends of whose calls more than a share fails.
    #[must_use]
    pub fn by_failure_percentage(mut self, criterion: FailurePercentage) -> Self {
        self.failure_percentage = Some(criterion);
        self
    }

    /// How often backends are looked at, in nanoseconds.
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Whether any backend can be ejected.
    pub fn is_active(&self) -> bool {
        self.success_rate.is_some() || self.failure_percentage.is_some()
    }
}

/// Ejects a backend whose share of successes is below the mean less a multiple of the standard deviation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuccessRate {
    /// The multiple, in thousandths: 1900 unless set.
    pub stdev_factor: u32,
    /// With what chance a backend that meets the criterion is ejected, in percent: 100 unless set.
    pub enforcement_percentage: u32,
    /// Backends that need to have enough calls: 5 unless set.
    pub minimum_hosts: u32,
    /// Calls in an interval that are enough: 100 unless set.
    pub request_volume: u32,
}

impl Default for SuccessRate {
    fn default() -> Self {
        Self {
            stdev_factor: 1900,
            enforcement_percentage: 100,
            minimum_hosts: 5,
            request_volume: 100,
        }
    }
}

/// Ejects a backend of whose calls more than so many percent fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePercentage {
    /// In percent: 85 unless set.
    pub threshold: u32,
    /// With what chance a backend that meets the criterion is ejected, in percent: 100 unless set.
    pub enforcement_percentage: u32,
    /// Backends that need to have enough calls: 5 unless set.
    pub minimum_hosts: u32,
    /// Calls in an interval that are enough: 50 unless set.
    pub request_volume: u32,
}

impl Default for FailurePercentage {
    fn default() -> Self {
        Self {
            threshold: 85,
            enforcement_percentage: 100,
            minimum_hosts: 5,
            request_volume: 50,
        }
    }
}

impl LoadBalancing {
    fn of(policy: Policy) -> Self {
        Self {
            policy,
            outliers: None,
            subset: None,
        }
    }

    /// All calls go to the first backend of the list that works.
    pub fn pick_first() -> Self {
        Self::of(Policy::PickFirst { shuffle: false })
    }

    /// All calls go to one backend, drawn at random.
    pub fn pick_first_shuffled() -> Self {
        Self::of(Policy::PickFirst { shuffle: true })
    }

    /// Calls go to the backends one after the other.
    pub fn round_robin() -> Self {
        Self::of(Policy::RoundRobin)
    }

    /// Of two backends that are drawn at random, the one with fewer calls outstanding gets a call ("the power
    /// of two choices": Mitzenmacher, 2001).
    pub fn least_request() -> Self {
        Self::least_request_of(2)
    }

    /// The same of another number of backends, 2 to 10; others are taken for the nearest of these.
    pub fn least_request_of(choices: u32) -> Self {
        let choices = choices.clamp(2, 10);
        Self::of(Policy::LeastRequest { choices })
    }

    /// Backends get as many calls as their load reports ([`LoadReport`](crate::LoadReport)) say that they can
    /// take.
    pub fn weighted_round_robin(weighting: Weighting) -> Self {
        Self::of(Policy::WeightedRoundRobin(weighting))
    }

    /// Calls of one key go to one backend, as long as it works.
    pub fn ring_hash(ring: RingHash) -> Self {
        Self::of(Policy::RingHash(ring))
    }

    /// Takes backends that fail more than the others out for a while.
    #[must_use]
    pub fn outlier_detection(mut self, settings: OutlierDetection) -> Self {
        self.outliers = Some(settings);
        self
    }

    /// Uses so many of the backends, at least one; which, is another choice for each channel (gRPC A68).
    #[must_use]
    pub fn subset_size(mut self, backends: u32) -> Self {
        self.subset = Some(backends.max(1));
        self
    }

    /// Which backend gets a call.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The settings of outlier detection, if it can eject a backend.
    pub fn outliers(&self) -> Option<&OutlierDetection> {
        self.outliers
            .as_ref()
            .filter(|settings| settings.is_active())
    }

    /// How many of the backends are used; `None`: all.
    pub fn subset(&self) -> Option<usize> {
        self.subset.map(|size| size as usize)
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
