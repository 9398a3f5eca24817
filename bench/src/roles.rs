//! The roles that this package's processes have: servers and load generators.

use crate::breakdown;
use crate::channel;
use crate::endpoint;
use crate::error::BenchError;
use crate::floor::{tcp, udp, xdp};
use crate::kv::starling_roles;
use crate::managed;
use crate::observe;
use crate::policies;
use crate::process::begin_server;
use crate::slo;
use crate::streams;

/// Runs the process of a role that this package has, until its standard input ends. `None`: the
/// role is not one of them.
pub fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    let server: fn(&[String]) -> Result<(), BenchError> = match role {
        udp::ROLE => udp::serve,
        tcp::ROLE => tcp::serve,
        xdp::ROLE => xdp::serve,
        _ => {
            return breakdown::serve(role, arguments)
                .or_else(|| endpoint::serve(role, arguments))
                .or_else(|| slo::serve(role, arguments))
                .or_else(|| channel::serve(role, arguments))
                .or_else(|| streams::serve(role, arguments))
                .or_else(|| observe::serve(role, arguments))
                .or_else(|| managed::serve(role, arguments))
                .or_else(|| policies::serve(role, arguments))
                .or_else(|| starling_roles::serve(role, arguments));
        }
    };
    Some(begin_server(role, arguments).and_then(|rest| server(&rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_role_is_left_to_other_packages() {
        assert!(serve("unknown", &[]).is_none());
    }
}
