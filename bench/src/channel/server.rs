//! The server's process: the echo of the sample services, with all settings as they are by default.

use starling::Server;
use starling_sample_services::echo;

use crate::device::failed;
use crate::error::BenchError;
use crate::process::announce;

/// Role of the server; its argument is the scheme.
pub(super) const ROLE: &str = "starling-channel";

/// The server.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let address = match arguments {
        [scheme] => address(scheme),
        _ => None,
    };
    let address = address.ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected `udp` or `shm`".into(),
    })?;
    let builder = Server::builder().bind(&address).map_err(failed)?;
    let server = builder.add_service(echo::server()).build();
    let server = server.map_err(failed)?.spawn().map_err(failed)?;
    announce(server.address())?;
    server.wait().map(drop).map_err(failed)
}

/// The address to bind.
fn address(scheme: &str) -> Option<String> {
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
