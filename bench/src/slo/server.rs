//! The server's process: one endpoint, and workers that sleep for the time that a request asks for.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_endpoint::{EndpointConfig, Idle, MethodId, WorkerConfig, WorkerReply, WorkerRequest};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use super::{FLOWS, Policy, WORKERS};
use crate::device::{Device, endpoint, failed};
use crate::error::BenchError;
use crate::process::announce;

/// Role of the server; its arguments are the scheme, the policy, and the host.
pub(super) const ROLE: &str = "starling-slo-server";

/// Holds a worker for a number of ns (8 bytes), and answers with the time that it took, ns.
pub(super) const HOLD: MethodId = MethodId(1);

/// The most requests of a flow at the server: more than it has when the tail latency becomes too long.
const SLOTS: u16 = 64;

/// The configuration of both sides. All threads of a side share one core, so none may spin.
pub(super) fn config() -> EndpointConfig {
    let mut config = EndpointConfig {
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    config.protocol.slots = SLOTS;
    config
}

/// The server.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let parsed = match arguments {
        [scheme, policy, host] => {
            Policy::find(policy).map(|policy| (scheme.as_str(), policy, host))
        }
        _ => None,
    };
    match parsed {
        Some((UdpIo::SCHEME, policy, host)) => serve_on::<UdpIo>(policy, host),
        Some((ShmIo::SCHEME, policy, host)) => serve_on::<ShmIo>(policy, host),
        Some((XdpIo::SCHEME, policy, host)) => serve_on::<XdpIo>(policy, host),
        _ => Err(BenchError::BadRoleArguments {
            role: ROLE.into(),
            why: "expected a scheme, QUEUESxWORKERS or `steered`, and a host".into(),
        }),
    }
}

fn serve_on<I: Device>(policy: Policy, host: &str) -> Result<(), BenchError> {
    // Threads inherit it: all sleeps end on time.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
        .map_err(|error| BenchError::io("setting the timer slack")(error.into()))?;
    let mut endpoint = endpoint::<I>(I::server(host), config())?;
    endpoint.register_worker(HOLD, Arc::new(hold));
    let mut config = WorkerConfig::new(WORKERS, FLOWS * usize::from(SLOTS));
    config.idle = Idle::Block;
    (config.model, config.steered) = (policy.model, policy.steered);
    endpoint.start_workers(&config).map_err(failed)?;
    announce(&endpoint.local_address())?;
    endpoint.run_until(|_| false).map_err(failed)
}

pub(super) fn hold(request: &mut WorkerRequest, reply: &mut WorkerReply) {
    let begin = Instant::now();
    // A body that is no number is answered at once, which the client reports as wrong.
    if let Ok(asked) = request.body().try_into() {
        std::thread::sleep(Duration::from_nanos(u64::from_le_bytes(asked)));
    }
    let held = begin.elapsed().as_nanos() as u64;
    reply.buffer().extend_from_slice(&held.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_takes_a_scheme_a_policy_and_a_host() {
        assert!(serve(&[]).is_err());
        for arguments in [["rdma", "1x16", "127.0.0.1"], ["udp", "2x8", "127.0.0.1"]] {
            let error = serve(&arguments.map(String::from)).unwrap_err();
            assert!(error.to_string().contains(ROLE), "{error}");
        }
    }
}
