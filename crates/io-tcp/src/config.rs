//! Settings of the device.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use starling_io::{Fault, IoError};

use crate::frame::MAX_DATAGRAM;

/// The smallest that [`TcpConfig::max_datagram`] may be, in bytes.
const MIN_MAX_DATAGRAM: usize = 512;
/// The most that [`TcpConfig::max_peers`] may be.
const MOST_PEERS: usize = 1 << 16;

/// Settings of a [`TcpIo`](crate::TcpIo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// The most peers at once, opened and accepted together.
    ///
    /// Default: 4,096. Each costs a file descriptor, and up to 256 KiB: what of a datagram has arrived, and what
    /// waits to be sent. A device that accepts peers leaves a quarter of the process's descriptors to others.
    ///
    /// When a peer connects and no place is free, the one goes that has been silent for longest, of those that
    /// have not sent a datagram since they connected, or since the device's user closed them.
    pub max_peers: usize,
    /// The most accepted peers at once from one host: an IPv4 address, or 64 bits of an IPv6 address.
    ///
    /// Default: 2,048, so that no host alone keeps all others out; half of the places where these are fewer.
    pub max_peers_of_one: usize,
    /// How long an accepted peer may be silent before it is disconnected.
    ///
    /// Default: 10 s.
    pub silent_timeout: Duration,
    /// The largest datagram, in bytes, from 512 to 65,559.
    ///
    /// Default: 65,536.
    pub max_datagram: usize,
    /// Share the port with other sockets that also ask for it; the kernel spreads connections over them. Off by
    /// default.
    pub reuse_port: bool,
    /// So many devices of this process, with this one, share the descriptors for peers.
    ///
    /// Default: 1. A server has one device for each thread.
    pub sharing: usize,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            max_peers: 4096,
            max_peers_of_one: 2048,
            silent_timeout: Duration::from_secs(10),
            max_datagram: 64 << 10,
            reuse_port: false,
            sharing: 1,
        }
    }
}

/// How many peers a device has at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersBudget {
    /// Accepted peers of one host.
    pub places_of_one: usize,
    /// Peers.
    pub places: usize,
}

impl PeersBudget {
    /// That of a device with this configuration. One that accepts peers leaves a quarter of the process's files to
    /// others.
    pub(crate) fn new(config: &TcpConfig, accepts: bool) -> Self {
        let files = getrlimit(Resource::Nofile).current.filter(|_| accepts);
        let own = files.map_or(usize::MAX, |files| {
            usize::try_from(files - files / 4).unwrap_or(usize::MAX) / config.sharing.max(1)
        });
        let places = config.max_peers.min(own);
        let of_one = match places == config.max_peers {
            true => config.max_peers_of_one,
            false => config.max_peers_of_one.min(places.div_ceil(2)),
        };
        Self {
            places_of_one: of_one.min(places),
            places,
        }
    }
}

impl TcpConfig {
    /// What peers can take of a server with this configuration in a process with this one's limit of descriptors.
    pub fn peers_budget(&self) -> PeersBudget {
        PeersBudget::new(self, true)
    }

    /// Refuses invalid settings.
    pub(crate) fn check(&self, attempt: &str) -> Result<(), IoError> {
        let wrong = |problem: String, remedy: &str| {
            Err(IoError::new(Fault::Caller, attempt, problem, remedy))
        };
        if !(MIN_MAX_DATAGRAM..=MAX_DATAGRAM).contains(&self.max_datagram) {
            return wrong(
                format!("max_datagram is {}", self.max_datagram),
                "set 512 to 65,559 bytes",
            );
        }
        for (name, peers) in [
            ("max_peers", self.max_peers),
            ("max_peers_of_one", self.max_peers_of_one),
        ] {
            if !(1..=MOST_PEERS).contains(&peers) {
                return wrong(format!("{name} is {peers}"), "set 1 to 65,536");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_bad_settings_are_refused() {
        assert!(TcpConfig::default().check("bind").is_ok());
        let with = |change: fn(&mut TcpConfig)| {
            let mut config = TcpConfig::default();
            change(&mut config);
            config.check("bind tcp://x").unwrap_err().fault
        };
        assert_eq!(with(|c| c.max_datagram = 511), Fault::Caller);
        assert_eq!(with(|c| c.max_datagram = 65_560), Fault::Caller);
        assert_eq!(with(|c| c.max_peers = 0), Fault::Caller);
        assert_eq!(with(|c| c.max_peers_of_one = 1 << 17), Fault::Caller);
    }
}
