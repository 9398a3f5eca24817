//! The settings of an endpoint that the suites change; all others have their defaults. Client and
//! server have the same settings: the server's process gets them as an argument.

use starling_endpoint::EndpointConfig;
use starling_proto::Congestion;

/// A common-case optimisation that can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    /// No rate update for a short RTT on an uncongested session.
    TimelyBypass,
    /// No pacing on an uncongested session.
    PacingBypass,
    /// A slot's response is built in the buffer of its last one.
    PreallocatedResponses,
    /// Handlers read small requests where they were received.
    ZeroCopyRequests,
    /// One reading of the clock for all datagrams of a burst.
    BatchedTimestamps,
    /// Congestion control itself: not an optimisation, but its absence shows its cost.
    CongestionControl,
}

impl Factor {
    pub(super) const ALL: [Self; 6] = [
        Self::TimelyBypass,
        Self::PacingBypass,
        Self::PreallocatedResponses,
        Self::ZeroCopyRequests,
        Self::BatchedTimestamps,
        Self::CongestionControl,
    ];

    /// Its name in cases and arguments.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TimelyBypass => "timely_bypass",
            Self::PacingBypass => "pacing_bypass",
            Self::PreallocatedResponses => "preallocated_responses",
            Self::ZeroCopyRequests => "zero_copy_requests",
            Self::BatchedTimestamps => "batched_timestamps",
            Self::CongestionControl => "congestion_control",
        }
    }

    fn turn_off(self, config: &mut EndpointConfig) {
        let protocol = &mut config.protocol;
        match self {
            Self::TimelyBypass => protocol.factors.timely_bypass = false,
            Self::PacingBypass => protocol.factors.pacing_bypass = false,
            Self::PreallocatedResponses => protocol.factors.preallocated_responses = false,
            Self::ZeroCopyRequests => protocol.factors.zero_copy_requests = false,
            Self::BatchedTimestamps => config.batched_timestamps = false,
            Self::CongestionControl => protocol.congestion = Congestion::Off,
        }
    }
}

/// The settings of one benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Requests outstanding on a session.
    pub(super) slots: u16,
    /// Packets outstanding on a session.
    pub(super) credits: u16,
    /// The optimisation that is off.
    pub(super) off: Option<Factor>,
}

impl Default for Settings {
    /// The defaults.
    fn default() -> Self {
        let config = EndpointConfig::default().protocol;
        Self {
            slots: config.slots,
            credits: config.credits,
            off: None,
        }
    }
}

impl Settings {
    /// For one session with all requests in flight: the most slots, and a credit for each.
    pub(super) fn one_session() -> Self {
        Self {
            slots: 64,
            credits: 64,
            off: None,
        }
    }

    pub(super) fn config(self) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.protocol.slots = self.slots;
        config.protocol.credits = self.credits;
        if let Some(factor) = self.off {
            factor.turn_off(&mut config);
        }
        config
    }

    /// As an argument of a process: `slots,credits,off`.
    pub(super) fn to_argument(self) -> String {
        let off = self.off.map_or("nothing", Factor::name);
        format!("{},{},{off}", self.slots, self.credits)
    }

    /// The inverse of [`Self::to_argument`].
    pub(super) fn from_argument(argument: &str) -> Option<Self> {
        let mut parts = argument.split(',');
        let (slots, credits, off) = (parts.next()?, parts.next()?, parts.next()?);
        let off = match off {
            "nothing" => None,
            name => Some(Factor::ALL.into_iter().find(|f| f.name() == name)?),
        };
        Some(Self {
            slots: slots.parse().ok()?,
            credits: credits.parse().ok()?,
            off,
        })
        .filter(|_| parts.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_way_through_an_argument() {
        let factors = Factor::ALL.map(|off| Settings {
            off: Some(off),
            ..Settings::one_session()
        });
        for settings in factors.into_iter().chain([Settings::default()]) {
            let argument = settings.to_argument();
            assert_eq!(Settings::from_argument(&argument), Some(settings));
        }
        for wrong in [
            "",
            "8,32",
            "8,32,everything",
            "8,32,nothing,more",
            "x,32,nothing",
        ] {
            assert_eq!(Settings::from_argument(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_factor_changes_the_configuration_differently() {
        let base = Settings::default().config();
        assert_eq!(base, EndpointConfig::default());
        let changed = Factor::ALL.map(|off| {
            let off = Some(off);
            Settings {
                off,
                ..Settings::default()
            }
            .config()
        });
        for (index, config) in changed.iter().enumerate() {
            assert_ne!(*config, base);
            assert!(!changed[..index].contains(config));
        }
    }
}
