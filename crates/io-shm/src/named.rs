//! Opens the device by its address.

use starling_io::{Device, IoError};

use crate::{ShmConfig, ShmIo, check_address};

impl Device for ShmIo {
    const SCHEME: &'static str = "shm";
    const FORM: &'static str = "shm://NAME";

    fn check(address: &str) -> Result<(), IoError> {
        check_address(address)
    }

    /// A name has one device, whatever `threads` is.
    fn bind(address: &str, _threads: usize) -> Result<Vec<(String, Self)>, IoError> {
        let device = Self::bind(address, ShmConfig::default())?;
        Ok(vec![(address.to_owned(), device)])
    }

    fn client(_: &str) -> Result<Self, IoError> {
        Self::client(ShmConfig::default())
    }
}
