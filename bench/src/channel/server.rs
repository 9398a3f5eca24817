//! The server's process: the echo of the sample services, with all settings as they are by default;
//! for slow calls with as many workers as there are calls.

use starling::Server;
use starling_sample_services::{echo, slow};

use crate::device::failed;
use crate::error::BenchError;
use crate::process::announce;

/// Role of the server; its arguments are the scheme, and perhaps [`SLOW`].
pub(crate) const ROLE: &str = "starling-channel";

/// The argument of a server that also has slow calls.
pub(super) const SLOW: &str = "slow";

/// Slow calls that the server runs at once.
pub(super) const WORKERS: usize = 1000;

/// The server.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let (address, is_slow) = match arguments {
        [scheme] => (address(scheme), false),
        [scheme, slow] if slow == SLOW => (address(scheme), true),
        _ => (None, false),
    };
    let address = address.ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected `udp` or `shm`, then perhaps `slow`".into(),
    })?;
    let builder = Server::builder().bind(&address).map_err(failed)?;
    let mut builder = builder
        .add_service(echo::server())
        .add_service(echo::nested_server());
    if is_slow {
        builder = builder.add_service(slow::server()).workers(WORKERS);
    }
    let server = builder.build();
    let server = server.map_err(failed)?.spawn().map_err(failed)?;
    announce(server.address())?;
    server.wait().map(drop).map_err(failed)
}

/// The address to bind.
pub(crate) fn address(scheme: &str) -> Option<String> {
    match scheme {
        "udp" => Some("udp://127.0.0.1:0".into()),
        "shm" => Some(format!("shm://starling-bench-{}", std::process::id())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_wants_a_scheme() {
        for arguments in [&[][..], &["rdma".to_string()]] {
            let error = serve(arguments).unwrap_err();
            assert!(error.to_string().contains(ROLE), "{error}");
        }
    }
}
