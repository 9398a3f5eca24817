//! Opens the device by its address.

use starling_io::{Device, IoError};

use crate::{MAX_WORKERS, XdpAddress, XdpConfig, XdpIo};

impl Device for XdpIo {
    const SCHEME: &'static str = "xdp";
    const FORM: &'static str = "xdp://IFNAME/HOST:PORT";
    const MAX_STEERED_WORKERS: usize = MAX_WORKERS;

    fn check(address: &str) -> Result<(), IoError> {
        XdpAddress::parse(address).map(drop)
    }

    /// One queue of the interface for each thread, counted from the address's own.
    fn bind(address: &str, threads: usize) -> Result<Vec<(String, Self)>, IoError> {
        let first = XdpAddress::parse(address)?;
        let queue = first.queue().unwrap_or(0);
        let mut bound = None;
        let mut devices = Vec::new();
        for thread in 0..threads {
            // The first one has the address as it was written.
            let own = match thread {
                0 => first.clone(),
                _ => first.on_queue(queue.saturating_add(thread as u32)),
            };
            // The others need the port that the first one got.
            let own = bound.map_or(own.clone(), |bound| own.at(bound)).to_string();
            let config = XdpConfig {
                reuse_port: threads > 1,
                ..XdpConfig::default()
            };
            let device = Self::bind(&own, config)?;
            bound = Some(device.local_socket_address());
            devices.push((own, device));
        }
        Ok(devices)
    }

    fn client(address: &str) -> Result<Self, IoError> {
        Self::client(address, XdpConfig::default())
    }

    /// Any queue of an interface reaches the peers of another, unless the address names a queue.
    fn reaches(own: &str, wanted: &str) -> bool {
        let (Ok(own), Ok(wanted)) = (XdpAddress::parse(own), XdpAddress::parse(wanted)) else {
            return false;
        };
        let is_ipv6 = |address: &XdpAddress| address.host().host().contains(':');
        own.interface() == wanted.interface()
            && is_ipv6(&own) == is_ipv6(&wanted)
            && (wanted.queue()).is_none_or(|queue| queue == own.queue().unwrap_or(0))
    }

    fn has_host_name(address: &str) -> bool {
        XdpAddress::parse(address).is_ok_and(|address| address.host().is_host_name())
    }

    fn resolve(address: &str) -> Result<Vec<String>, IoError> {
        let address = XdpAddress::parse(address)?;
        let found = address.host().resolve()?;
        Ok(found.iter().map(|ip| address.at(*ip).to_string()).collect())
    }
}
