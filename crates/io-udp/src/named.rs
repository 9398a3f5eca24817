//! Opens the device by its address.

use starling_io::{Device, HostPort, IoError, PacketIo};

use crate::{UdpConfig, UdpIo};

impl Device for UdpIo {
    const SCHEME: &'static str = "udp";
    const FORM: &'static str = "udp://HOST:PORT";

    fn check(address: &str) -> Result<(), IoError> {
        HostPort::parse(Self::SCHEME, address).map(drop)
    }

    fn bind(address: &str, threads: usize) -> Result<Vec<(String, Self)>, IoError> {
        let open = |address: &str| {
            let config = UdpConfig {
                reuse_port: threads > 1,
                ..UdpConfig::default()
            };
            Self::bind(address, config)
        };
        let mut devices = vec![open(address)?];
        // With port 0, the others need the port that the first one got.
        let bound = devices[0].local_address();
        for _ in 1..threads {
            devices.push(open(&bound)?);
        }
        let named = devices.into_iter().map(|device| (bound.clone(), device));
        Ok(named.collect())
    }

    fn client(_: &str) -> Result<Self, IoError> {
        Self::client(UdpConfig::default())
    }

    fn has_host_name(address: &str) -> bool {
        HostPort::parse(Self::SCHEME, address).is_ok_and(|address| address.is_host_name())
    }

    fn resolve(address: &str) -> Result<Vec<String>, IoError> {
        let found = HostPort::parse(Self::SCHEME, address)?.resolve()?;
        Ok(found.iter().map(|ip| format!("udp://{ip}")).collect())
    }
}
