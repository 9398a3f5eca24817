//! Every limit and every timer of an endpoint's protocol, with its default and the reason for it.

use std::fmt;

use crate::wire::MIN_DATAGRAM;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// The longest time in a configuration: 36 years. Sums of a few such times and a clock's reading stay
/// far below the largest number.
const MAX_NS: u64 = 1 << 60;

/// Which congestion control the client side of sessions runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// None: credits alone bound what is outstanding.
    Off,
    /// Timely (SIGCOMM 2015): a rate from round-trip times.
    Timely,
    /// DCTCP (SIGCOMM 2010): a window from the marks of congested queues (ECN), with a bound on
    /// delay for networks that mark nothing.
    Dctcp,
}

/// The common-case optimisations of eRPC (NSDI'19, section 5.2.2, table 3), each of which can be
/// turned off to see what it is worth. All on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factors {
    /// No rate update for a short RTT on a session at full rate.
    pub timely_bypass: bool,
    /// No pacing for a session at full rate.
    pub pacing_bypass: bool,
    /// A slot keeps the buffer of its last response for the next one.
    pub preallocated_responses: bool,
    /// Single-packet requests are handed over in the receive buffer.
    pub zero_copy_requests: bool,
}

impl Default for Factors {
    fn default() -> Self {
        Self {
            timely_bypass: true,
            pacing_bypass: true,
            preallocated_responses: true,
            zero_copy_requests: true,
        }
    }
}

/// Configuration of an endpoint's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests outstanding on a session, 1 to 64; further ones queue. Default 32, as many as credits; eRPC has
    /// 8. Slots take memory only once they are used, and callers that share a session fill many.
    pub slots: u16,
    /// Packets outstanding on a session, 1 to 1024. Default 32: 100 Gb/s times 6 us in packets
    /// of 2 KiB, rounded up.
    pub credits: u16,
    /// Largest message sent or accepted, in bytes. The prefix that the layer above puts before the
    /// body does not count ([`crate::Prefix`]). Default 64 MiB, at most 1 GiB. Streams send small items
    /// together, up to 60 KiB: with less than that at either end they fail with RESOURCE_EXHAUSTED.
    pub max_message: u32,
    /// Requests queued behind the slots of one session. Default 65,536.
    pub max_queued: usize,
    /// Sessions of each kind (client, server). Default 65,536, at most 2^24 - 1.
    pub max_sessions: usize,
    /// Sessions with the same peer that a session may grow to, itself included, while requests wait
    /// for slow ones. 1: it does not grow. Default 512: with 32 slots each, 16,384 requests at once.
    /// Each stream has a slot, also at rest, and one slot in 64 stays free of them.
    pub group_sessions: u16,
    /// Sessions that one client endpoint may have with this server. Default: all that there can be. Several channels of
    /// a client share them: each has as many streams as its own sessions have slots for.
    pub max_sessions_per_client: usize,
    /// Memory for messages that are being reassembled, all sessions together, in bytes.
    /// Default 512 MiB; no less than `max_message` and the largest [`crate::Prefix`].
    pub reassembly_bytes: usize,
    /// Memory for responses that do not fit a slot's own buffer of 512 bytes and are not acknowledged
    /// yet, all sessions together, in bytes. While a new one does not fit, the client that holds the most
    /// loses its oldest one. Default 576 MiB: eight of the largest, which one session may have, and one
    /// more. No less than `max_message` and the largest [`crate::Prefix`].
    pub retained_bytes: usize,
    /// Datagrams that the device's receive queue holds. Credits granted to others never exceed
    /// it times `overcommit`.
    pub rx_queue_datagrams: usize,
    /// Bytes that the device's receive queue holds: bounds the fragments outstanding on a session.
    pub rx_queue_bytes: usize,
    /// How many credits are granted for a place in the receive queue. Default 8: sessions are
    /// mostly idle and frames are bundled, and a queue that does overflow costs a retransmission.
    pub overcommit: usize,
    /// The device loses nothing and the kernel proves its peers (shared memory, TCP): the server asks
    /// for no cookie.
    pub reliable: bool,
    /// Shortest retransmission timeout. Default 2 ms: above the wake-up of a sleeping thread. If it
    /// is below the time that a packet waits in queues, requests are sent again that are on their
    /// way: none runs twice, but the repeats make the queues longer.
    pub rto_min_ns: u64,
    /// Longest retransmission timeout, and the interval at which a long-running request is sent
    /// again. Default 50 ms. It must stay above the longest round trip with full queues: the timeout
    /// follows the round-trip time up to here and no further. If it is below, every request is
    /// repeated, as with `rto_min_ns`.
    pub rto_max_ns: u64,
    /// A peer that answers no ping for this long is dead. Default 2 s.
    pub peer_timeout_ns: u64,
    /// A client pings a peer that is silent for this long, or up to an eighth less: those that are silent since about
    /// the same time together. Default 500 ms.
    pub keepalive_ns: u64,
    /// A session that is not open after this time fails. Default 2 s.
    pub connect_timeout_ns: u64,
    /// A large response that is not acknowledged is kept this long. Default 10 s; it must exceed
    /// `peer_timeout_ns`.
    pub response_retention_ns: u64,
    /// Congestion control. Default DCTCP.
    pub congestion: Congestion,
    /// Rate of the link, the rate that an uncongested session starts at. Default 100 Gb/s.
    pub link_rate_bps: u64,
    /// Optimisations that can be turned off.
    pub factors: Factors,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slots: 32,
            credits: 32,
            max_message: 64 << 20,
            max_queued: 1 << 16,
            max_sessions: 1 << 16,
            group_sessions: 512,
            max_sessions_per_client: crate::SessionId::MAX_INDEX,
            reassembly_bytes: 512 << 20,
            retained_bytes: 576 << 20,
            rx_queue_datagrams: 4096,
            rx_queue_bytes: 4 << 20,
            overcommit: 8,
            reliable: false,
            rto_min_ns: 2 * MS,
            rto_max_ns: 50 * MS,
            peer_timeout_ns: 2000 * MS,
            keepalive_ns: 500 * MS,
            connect_timeout_ns: 2000 * MS,
            response_retention_ns: 10_000 * MS,
            congestion: Congestion::Dctcp,
            link_rate_bps: 100_000_000_000,
            factors: Factors::default(),
        }
    }
}

/// A configuration that cannot work. The caller is at fault.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, it must be {must}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// The values that are allowed.
    pub must: &'static str,
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Config {
    /// The most bytes of a message, including its prefix.
    pub(crate) fn max_total(&self) -> u32 {
        self.max_message
            .saturating_add(u32::from(crate::Prefix::MAX))
    }

    /// Checks that an endpoint can have this configuration.
    ///
    /// # Errors
    /// The first field that must be changed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let checks = self.check_sizes().into_iter().chain(self.check_times());
        for (field, value, good, must) in checks {
            if !good {
                return Err(ConfigError { field, value, must });
            }
        }
        Ok(())
    }

    fn check_sizes(&self) -> [Check; 10] {
        [
            (
                "slots",
                u64::from(self.slots),
                (1..=64).contains(&self.slots),
                "1 to 64",
            ),
            (
                "credits",
                u64::from(self.credits),
                (1..=1024).contains(&self.credits),
                "1 to 1024",
            ),
            (
                "max_message",
                u64::from(self.max_message),
                self.max_message as usize >= MIN_DATAGRAM && self.max_message <= 1 << 30,
                "512 bytes to 1 GiB",
            ),
            (
                "max_sessions",
                self.max_sessions as u64,
                (1..=crate::SessionId::MAX_INDEX).contains(&self.max_sessions),
                "1 to 2^24 - 1",
            ),
            (
                "group_sessions",
                u64::from(self.group_sessions),
                self.group_sessions >= 1,
                "at least 1",
            ),
            (
                "max_sessions_per_client",
                self.max_sessions_per_client as u64,
                self.max_sessions_per_client >= 1,
                "at least 1",
            ),
            (
                "reassembly_bytes",
                self.reassembly_bytes as u64,
                self.reassembly_bytes >= self.max_total() as usize,
                "at least max_message and 16 KiB",
            ),
            (
                "retained_bytes",
                self.retained_bytes as u64,
                self.retained_bytes >= self.max_message as usize + usize::from(crate::Prefix::MAX),
                "at least max_message and 16 KiB",
            ),
            (
                "rx_queue_datagrams",
                self.rx_queue_datagrams as u64,
                self.rx_queue_datagrams >= 1,
                "at least 1",
            ),
            (
                "overcommit",
                self.overcommit as u64,
                (1..=1024).contains(&self.overcommit),
                "1 to 1024",
            ),
        ]
    }

    /// What the sessions of a server take at most, in bytes: their slots, each with a response that is too small for
    /// [`Config::retained_bytes`]. Slots get memory when they are used.
    pub fn session_bytes(&self) -> usize {
        self.max_sessions * self.bytes_of_session()
    }

    /// What one of them takes at most.
    pub fn bytes_of_session(&self) -> usize {
        crate::server::most_session_bytes(self.slots.into())
    }

    fn check_times(&self) -> [Check; 7] {
        [
            (
                "rto_min_ns",
                self.rto_min_ns,
                self.rto_min_ns >= 1000 && self.rto_min_ns <= self.rto_max_ns,
                "at least 1 us and at most rto_max_ns",
            ),
            (
                "rto_max_ns",
                self.rto_max_ns,
                self.rto_max_ns <= MAX_NS,
                "at most 2^60, 36 years",
            ),
            (
                "peer_timeout_ns",
                self.peer_timeout_ns,
                self.peer_timeout_ns <= MAX_NS,
                "at most 2^60, 36 years",
            ),
            (
                "keepalive_ns",
                self.keepalive_ns,
                self.keepalive_ns >= MS && self.keepalive_ns < self.peer_timeout_ns,
                "at least 1 ms and below peer_timeout_ns",
            ),
            (
                "connect_timeout_ns",
                self.connect_timeout_ns,
                (MS..=MAX_NS).contains(&self.connect_timeout_ns),
                "1 ms to 2^60 ns, 36 years",
            ),
            (
                "response_retention_ns",
                self.response_retention_ns,
                self.response_retention_ns > self.peer_timeout_ns
                    && self.response_retention_ns <= MAX_NS,
                "above peer_timeout_ns and at most 2^60, 36 years",
            ),
            (
                "link_rate_bps",
                self.link_rate_bps,
                self.link_rate_bps >= 1_000_000,
                "at least 1 Mb/s",
            ),
        ]
    }
}

/// A field, its value, whether that is good, and what the value must be.
type Check = (&'static str, u64, bool, &'static str);

/// The numbers that an endpoint must draw at random each time it starts.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// Key of the tokens: what this incarnation of the endpoint is called, by each peer otherwise.
    pub token_key: [u8; 16],
    /// Key of the cookies.
    pub cookie_key: [u8; 16],
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_errors_name_the_field() {
        assert_eq!(Config::default().check(), Ok(()));
        let bad = Config {
            slots: 65,
            ..Config::default()
        };
        let error = bad.check().unwrap_err();
        assert_eq!(error.to_string(), "slots is 65, it must be 1 to 64");
    }

    #[test]
    fn no_time_is_so_long_that_sums_overflow() {
        type Change = fn(&mut Config);
        let changes: [(&str, Change); 4] = [
            ("rto_max_ns", |config| config.rto_max_ns = u64::MAX),
            ("peer_timeout_ns", |config| {
                config.peer_timeout_ns = u64::MAX - 1;
                config.response_retention_ns = u64::MAX;
            }),
            ("connect_timeout_ns", |config| {
                config.connect_timeout_ns = u64::MAX;
            }),
            ("response_retention_ns", |config| {
                config.response_retention_ns = u64::MAX;
            }),
        ];
        for (field, change) in changes {
            let mut config = Config::default();
            change(&mut config);
            assert_eq!(config.check().unwrap_err().field, field);
        }
    }
}
