//! Randomness of the operating system.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::ServiceError;

/// So many random bytes.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], ServiceError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(ServiceError::system("read the system's randomness", error)),
        }
    }
    Ok(bytes)
}
