//! The managed plane at an application: how it finds the service, calls through it and is called through it.
//!
//! ```text
//!  Channel ─▶ shm://NAME?target=udp://host:port ─▶ service ─▶ udp://host:port
//!  Server ◀── shm://NAME.app-PID-N ◀────────────── service ◀─ clients of udp://0.0.0.0:9000
//!     └─ Publish, Hold ─▶ shm://NAME.control
//! ```
//!
//! To an application the service is a peer over shared memory, and all else is as on the direct plane.

#[rustfmt::skip]
mod generated;
mod listener;

use starling_message::MethodDescriptor;

use crate::address::{Address, AddressError};
use crate::error::Error;

pub use generated::*;
pub(crate) use listener::ManagedListener;

/// The environment variable that names the service.
const VARIABLE: &str = "STARLING_SERVICE";

/// The scheme of addresses within one process. They need no service.
const WITHIN: &str = "mem";

/// Whether an application's calls pass a service, as its builder says.
#[derive(Clone, Debug, Default)]
pub(crate) enum Management {
    /// As the environment says.
    #[default]
    Environment,
    /// By this service.
    By(String),
    /// By none.
    Direct,
}

impl Management {
    /// The service that reaches an address, if one does.
    pub(crate) fn service_for(&self, address: &Address) -> Option<String> {
        if address.scheme() == WITHIN {
            return None;
        }
        match self {
            Self::Direct => None,
            Self::By(name) => Some(name.clone()),
            Self::Environment => std::env::var(VARIABLE).ok().filter(|name| !name.is_empty()),
        }
    }

    /// The address by which an endpoint reaches another: itself, or the service's with it as the target.
    pub(crate) fn via(&self, address: Address) -> Result<Address, Error> {
        match self.service_for(&address) {
            None => Ok(address),
            Some(name) => {
                let own = service_address(&name, "")?;
                let joint = if own.as_str().contains('?') { '&' } else { '?' };
                Ok(Address::parse(&format!("{own}{joint}target={address}"))?)
            }
        }
    }
}

/// The method that tells whether the service has a session with an address's target.
pub fn reach_method() -> &'static MethodDescriptor {
    &TARGET_SERVICE.methods[0]
}

/// Where the service with this name is controlled.
///
/// # Errors
/// If no service can have the name.
pub fn control_address(service: &str) -> Result<String, Error> {
    Ok(service_address(service, ".control")?.to_string())
}

/// Whether a session with this address is one with a service, for another server.
pub(crate) fn has_target(address: &Address) -> bool {
    let options = address.as_str().split_once('?').map(|(_, options)| options);
    address.scheme() == "shm" && options.is_some_and(|options| options.contains("target="))
}

/// An address of the service with this name: behind the name may be of which user it is, `NAME?users=UID`.
fn service_address(name: &str, rest: &str) -> Result<Address, AddressError> {
    let (name, options) = match name.split_once('?') {
        Some((name, options)) => (name, format!("?{options}")),
        None => (name, String::new()),
    };
    Address::parse(&format!("shm://{name}{rest}{options}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_reaches_all_but_this_process() {
        let by = Management::By("mesh".to_owned());
        let via = |management: &Management, text: &str| {
            let address = Address::parse(text).expect(text);
            management.via(address).map(|via| via.as_str().to_owned())
        };
        let found = via(&by, "udp://10.0.0.7:9000").expect("a name");
        assert_eq!(found, "shm://mesh?target=udp://10.0.0.7:9000");
        let found = via(&by, "shm://kv?users=any").expect("a name");
        assert_eq!(found, "shm://mesh?target=shm://kv?users=any");
        let other_user = Management::By("mesh?users=998".to_owned());
        let found = via(&other_user, "udp://10.0.0.7:9000").expect("a name");
        assert_eq!(found, "shm://mesh?users=998&target=udp://10.0.0.7:9000");
        let control = control_address("mesh?users=998").expect("a name");
        assert_eq!(control, "shm://mesh.control?users=998");
        assert_eq!(via(&by, "mem://kv").expect("as it is"), "mem://kv");
        assert_eq!(
            via(&Management::Direct, "shm://kv").expect("as it is"),
            "shm://kv"
        );
        let error = via(&Management::By("a/b".to_owned()), "shm://kv").expect_err("no name");
        assert!(error.to_string().contains("shm://a/b"), "{error}");
    }
}
