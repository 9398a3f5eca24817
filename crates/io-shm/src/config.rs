//! Settings, and the reasons for their defaults.

use starling_io::{Fault, IoError};

use crate::ring::{LINE, max_datagram_for};

/// The smallest ring, in bytes per direction.
pub(crate) const MIN_RING_BYTES: usize = 64 << 10;

/// The largest ring, in bytes per direction.
pub(crate) const MAX_RING_BYTES: usize = 64 << 20;

/// The smallest that [`ShmConfig::max_datagram`] may be, in bytes.
pub(crate) const MIN_DATAGRAM: usize = 256;

/// Settings of a [`ShmIo`](crate::ShmIo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Size of the ring of each direction of a connection that this device opens, in bytes: a
    /// power of two from 64 KiB to 64 MiB.
    ///
    /// Default: 512 KiB. Both rings then stay in a core's second-level cache or close to it, and
    /// a ring holds eight datagrams of the default largest size, enough for both cores to work at
    /// once. Larger rings are slower, not faster: every pass misses the cache.
    pub ring_bytes: usize,
    /// The largest ring, in bytes per direction, that a connecting peer may bring along: it
    /// bounds the memory that a peer can make this process map.
    ///
    /// Default: 16 MiB.
    pub max_accepted_ring_bytes: usize,
    /// The largest datagram this device sends, in bytes, from 256. A connection takes at most a
    /// quarter of its ring.
    ///
    /// Default: 65,536.
    pub max_datagram: usize,
    /// The most peers at once, opened and accepted together.
    ///
    /// Default: 1,024. Each costs a file descriptor, and memory as far as its rings were used.
    pub max_peers: usize,
    /// Talk to processes of other users as well. Without it a peer must run as this process's
    /// user or as root.
    ///
    /// Default: false. A peer can read and change what is in the rings shared with it, and
    /// nothing else. But any process on the host may take a name.
    pub allow_other_users: bool,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 512 << 10,
            max_accepted_ring_bytes: 16 << 20,
            max_datagram: 64 << 10,
            max_peers: 1024,
            allow_other_users: false,
        }
    }
}

impl ShmConfig {
    /// Refuses invalid settings.
    pub(crate) fn check(&self, attempt: &str) -> Result<(), IoError> {
        let wrong = |problem: String, remedy: &str| {
            Err(IoError::new(Fault::Caller, attempt, problem, remedy))
        };
        let page = rustix::param::page_size();
        if !valid_ring_bytes(self.ring_bytes, MAX_RING_BYTES) {
            return wrong(
                format!("ring_bytes is {}", self.ring_bytes),
                "set a power of two from 64 KiB to 64 MiB, at least a page",
            );
        }
        if self.max_accepted_ring_bytes < MIN_RING_BYTES.max(page)
            || self.max_accepted_ring_bytes > MAX_RING_BYTES
        {
            return wrong(
                format!(
                    "max_accepted_ring_bytes is {}",
                    self.max_accepted_ring_bytes
                ),
                "set 64 KiB to 64 MiB",
            );
        }
        if self.max_datagram < MIN_DATAGRAM || self.max_datagram > max_datagram_for(MAX_RING_BYTES)
        {
            return wrong(
                format!("max_datagram is {}", self.max_datagram),
                "set 256 bytes to 16 MiB, and ring_bytes to at least four times as much",
            );
        }
        if self.max_peers == 0 || self.max_peers > 1 << 16 {
            return wrong(
                format!("max_peers is {}", self.max_peers),
                "set 1 to 65,536",
            );
        }
        Ok(())
    }

    /// The largest datagram on a connection with rings of `ring_bytes`.
    pub(crate) fn max_datagram_on(&self, ring_bytes: usize) -> usize {
        self.max_datagram.min(max_datagram_for(ring_bytes))
    }
}

/// Whether a ring may have this size.
pub(crate) fn valid_ring_bytes(ring_bytes: usize, most: usize) -> bool {
    ring_bytes.is_power_of_two()
        && ring_bytes >= MIN_RING_BYTES
        && ring_bytes <= most
        && ring_bytes.is_multiple_of(rustix::param::page_size().max(LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_bad_settings_are_refused() {
        assert!(ShmConfig::default().check("bind").is_ok());
        let with = |change: fn(&mut ShmConfig)| {
            let mut config = ShmConfig::default();
            change(&mut config);
            config.check("bind shm://x").unwrap_err().fault
        };
        assert_eq!(with(|c| c.ring_bytes = 0), Fault::Caller);
        assert_eq!(with(|c| c.ring_bytes = 100_000), Fault::Caller);
        assert_eq!(with(|c| c.ring_bytes = 1 << 40), Fault::Caller);
        assert_eq!(with(|c| c.max_accepted_ring_bytes = 0), Fault::Caller);
        assert_eq!(with(|c| c.max_datagram = 255), Fault::Caller);
        assert_eq!(with(|c| c.max_datagram = usize::MAX), Fault::Caller);
        assert_eq!(with(|c| c.max_peers = 0), Fault::Caller);
    }

    #[test]
    fn a_datagram_is_at_most_a_quarter_of_the_ring() {
        let config = ShmConfig::default();
        assert_eq!(config.max_datagram_on(64 << 10), 16 << 10);
        assert_eq!(config.max_datagram_on(512 << 10), 64 << 10);
    }
}
