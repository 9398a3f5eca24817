//! The server's process: two methods with inline handlers, in an endpoint that is polled without
//! end.

use starling_endpoint::{Handler, MethodId};
use starling_io_shm::ShmIo;
use starling_io_tcp::TcpIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use super::settings::Settings;
use crate::device::{Device, Raw, endpoint, failed};
use crate::error::BenchError;
use crate::floor::{BusyWait, SMALL_BYTES};
use crate::process::announce;

/// Role of the server; its arguments are the scheme, [`BusyWait::name`], the settings, and the
/// host.
pub(super) const ROLE: &str = "starling-server";

/// Answers with the request.
pub(super) const ECHO: MethodId = MethodId(1);

/// Receives a message of any size, and answers with 32 bytes: see [`receipt`].
pub(super) const SINK: MethodId = MethodId(2);

/// The answer to a large request: its length, then its first and its last byte.
pub(super) fn receipt(length: usize, first: u8, last: u8) -> [u8; SMALL_BYTES] {
    let mut receipt = [0; SMALL_BYTES];
    receipt[..8].copy_from_slice(&(length as u64).to_le_bytes());
    receipt[8] = first;
    receipt[9] = last;
    receipt
}

/// The server.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let parsed = match arguments {
        [scheme, wait, settings, host] => BusyWait::from_name(wait)
            .zip(Settings::from_argument(settings))
            .map(|(wait, settings)| (scheme.as_str(), wait, settings, host)),
        _ => None,
    };
    match parsed {
        Some((UdpIo::SCHEME, wait, settings, host)) => serve_on::<UdpIo>(wait, settings, host),
        Some((ShmIo::SCHEME, wait, settings, host)) => serve_on::<ShmIo>(wait, settings, host),
        Some((TcpIo::SCHEME, wait, settings, host)) => serve_on::<TcpIo>(wait, settings, host),
        Some((XdpIo::SCHEME, wait, settings, host)) => serve_on::<XdpIo>(wait, settings, host),
        _ => Err(BenchError::BadRoleArguments {
            role: ROLE.into(),
            why: "expected a scheme, `spin` or `yield`, SLOTS,CREDITS,OFF, and a host".into(),
        }),
    }
}

fn serve_on<I: Device>(wait: BusyWait, settings: Settings, host: &str) -> Result<(), BenchError> {
    let mut endpoint = endpoint::<I>(I::server(host), settings.config())?;
    register(&mut endpoint);
    announce(&endpoint.local_address())?;
    loop {
        endpoint.poll().map_err(failed)?;
        wait.pause();
    }
}

/// Registers both methods.
pub(super) fn register<I: Device>(endpoint: &mut Raw<I>) {
    endpoint.register(
        ECHO,
        Handler::inline(|_, request, mut reply| {
            reply.buffer().extend_from_slice(request.body());
            reply.ok();
        }),
    );
    endpoint.register(
        SINK,
        Handler::inline(|_, request, mut reply| {
            let body = request.body();
            if let (Some(&first), Some(&last)) = (body.first(), body.last()) {
                let receipt = receipt(body.len(), first, last);
                reply.buffer().extend_from_slice(&receipt);
            }
            reply.ok();
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_refuses_arguments_without_scheme_wait_settings_and_host() {
        assert!(serve(&[]).is_err());
        for arguments in [
            ["rdma", "spin", "8,32,nothing", "127.0.0.1"],
            ["udp", "sleep", "8,32,nothing", "127.0.0.1"],
            ["udp", "spin", "8", "127.0.0.1"],
        ] {
            let error = serve(&arguments.map(String::from)).unwrap_err();
            assert!(error.to_string().contains("starling-server"), "{error}");
        }
    }
}
