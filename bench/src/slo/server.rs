//! The server's process: one endpoint, and workers that sleep for as long as a request says.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_endpoint::{EndpointConfig, Idle, MethodId, WorkerConfig, WorkerReply, WorkerRequest};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use super::{FLOWS, System, WORKERS};
use crate::device::{Device, endpoint, failed};
use crate::error::BenchError;
use crate::process::announce;

/// Role of the server; its arguments are the device, the system, and the host.
pub(super) const ROLE: &str = "starling-slo-server";

/// Holds a worker for so many ns (8 bytes), and answers with how many it were.
pub(super) const HOLD: MethodId = MethodId(1);

/// Requests that a flow may have with the server: more than come before the tail is too long.
const SLOTS: u16 = 64;

/// What both sides are configured with. All threads of a side have one core, so that none spins.
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
        [scheme, system, host] => {
            System::find(system).map(|system| (scheme.as_str(), system, host))
        }
        _ => None,
    };
    match parsed {
        Some((UdpIo::SCHEME, system, host)) => serve_on::<UdpIo>(system, host),
        Some((ShmIo::SCHEME, system, host)) => serve_on::<ShmIo>(system, host),
        Some((XdpIo::SCHEME, system, host)) => serve_on::<XdpIo>(system, host),
        _ => Err(BenchError::BadRoleArguments {
            role: ROLE.into(),
            why: "expected a scheme, QUEUESxWORKERS or `steered`, and a host".into(),
        }),
    }
}

fn serve_on<I: Device>(system: System, host: &str) -> Result<(), BenchError> {
    // Threads begin with what the one that starts them has: all sleeps end on time.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
        .map_err(|error| BenchError::io("setting the timer slack")(error.into()))?;
    let mut endpoint = endpoint::<I>(I::server(host), config())?;
    endpoint.register_worker(HOLD, Arc::new(hold));
    let mut config = WorkerConfig::new(WORKERS, FLOWS * usize::from(SLOTS));
    config.idle = Idle::Block;
    (config.mode, config.steered) = (system.mode, system.steered);
    endpoint.start_workers(&config).map_err(failed)?;
    announce(&endpoint.local_address())?;
    endpoint.run_until(|_| false).map_err(failed)
}

pub(super) fn hold(request: &mut WorkerRequest, reply: &mut WorkerReply) {
    let begin = Instant::now();
    // What is no number is answered at once, which the client takes for wrong.
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
    fn the_role_wants_a_plane_a_system_and_a_host() {
        assert!(serve(&[]).is_err());
        for arguments in [["rdma", "1x16", "127.0.0.1"], ["udp", "2x8", "127.0.0.1"]] {
            let error = serve(&arguments.map(String::from)).unwrap_err();
            assert!(error.to_string().contains(ROLE), "{error}");
        }
    }
}
