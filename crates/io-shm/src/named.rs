//! Opens the device by its address.

use starling_io::{Device, Fault, IoError};

use crate::ShmIo;
use crate::address::ShmAddress;

impl Device for ShmIo {
    const SCHEME: &'static str = "shm";
    const FORM: &'static str = "shm://NAME";

    fn check(address: &str) -> Result<(), IoError> {
        ShmAddress::parse(address).map(drop)
    }

    /// A name has one device, whatever `threads` is.
    fn bind(address: &str, _threads: usize) -> Result<Vec<(String, Self)>, IoError> {
        let ShmAddress {
            bare,
            settings,
            target,
        } = ShmAddress::parse(address)?;
        if target.is_some() {
            return Err(IoError::new(
                Fault::Caller,
                format!("bind {address}"),
                "a target is for those who connect",
                format!("bind {bare}"),
            ));
        }
        let device = Self::bind(bare, settings.config())?;
        Ok(vec![(bare.to_owned(), device)])
    }

    fn client(address: &str) -> Result<Self, IoError> {
        Self::client(ShmAddress::parse(address)?.settings.config())
    }

    /// With the same settings.
    fn reaches(own: &str, wanted: &str) -> bool {
        let settings = |address| ShmAddress::parse(address).map(|address| address.settings);
        match (settings(own), settings(wanted)) {
            (Ok(own), Ok(wanted)) => own == wanted,
            _ => false,
        }
    }
}
