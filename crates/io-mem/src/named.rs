//! Opens the device by its address.

use starling_io::{Device, IoError};

use crate::MemIo;
use crate::device::name_in;

impl Device for MemIo {
    const SCHEME: &'static str = "mem";
    const FORM: &'static str = "mem://NAME";

    fn check(address: &str) -> Result<(), IoError> {
        name_in(address).map(drop)
    }

    /// A name has one device, whatever `threads` is.
    fn bind(address: &str, _threads: usize) -> Result<Vec<(String, Self)>, IoError> {
        Ok(vec![(address.to_owned(), Self::bind(address)?)])
    }

    fn client(_: &str) -> Result<Self, IoError> {
        Ok(Self::client())
    }
}
