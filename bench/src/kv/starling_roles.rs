//! `kv.Kv` over Starling as the processes of a server and of load generators, with default settings:
//! idle threads spin for a moment and then sleep.

use starling::Server;

use super::drive::{Settings, drive};
use super::starling::{ChannelClient, LocalClient};
use crate::device::failed;
use crate::error::BenchError;
use crate::process::{announce, begin_client, begin_server};
use starling_sample_services::kv;

/// Role of the server; its arguments are an address to bind, the number of its initial records, and perhaps the name
/// of the service that it is called through.
pub const KV_SERVER: &str = "starling-kv";

/// Role of the load generator on a [`Channel`](starling::Channel) in a tokio runtime of one thread. The
/// arguments of load generators are the server's address and [`Settings`].
pub const KV_CHANNEL_CLIENT: &str = "starling-kv-channel-load";

/// Role of the load generator on a [`LocalChannel`](starling::LocalChannel), in the thread of its
/// endpoint.
pub const KV_LOCAL_CLIENT: &str = "starling-kv-local-load";

/// Runs the process of a role of this module. `None`: the role is not one of them.
pub fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        KV_SERVER => Some(begin_server(role, arguments).and_then(|rest| serve_kv(&rest))),
        KV_CHANNEL_CLIENT | KV_LOCAL_CLIENT => {
            Some(begin_client(role, arguments).and_then(|rest| drive_kv(role, &rest)))
        }
        _ => None,
    }
}

fn serve_kv(arguments: &[String]) -> Result<(), BenchError> {
    let parsed = match arguments {
        [address, records, service @ ..] if service.len() <= 1 => {
            let records = records.parse().ok();
            records.map(|records| (address, records, service.first()))
        }
        _ => None,
    };
    let (address, records, service) = parsed.ok_or_else(|| BenchError::BadRoleArguments {
        role: KV_SERVER.into(),
        why: "expected an address, a number of records, and perhaps a service".into(),
    })?;
    let builder = match service {
        Some(service) => Server::builder().managed_by(service),
        None => Server::builder(),
    };
    let builder = builder.bind(address).map_err(failed)?;
    let server = builder.add_service(kv::server(records)).build();
    let server = server.map_err(failed)?;
    let address = server.addresses().remove(0);
    let handle = server.spawn().map_err(failed)?;
    announce(&address)?;
    handle.wait().map(drop).map_err(failed)
}

fn drive_kv(role: &str, arguments: &[String]) -> Result<(), BenchError> {
    let (address, rest) = arguments
        .split_first()
        .ok_or_else(|| BenchError::BadRoleArguments {
            role: role.into(),
            why: "the first is the server's address".into(),
        })?;
    let settings = Settings::from_arguments(role, rest)?;
    if role == KV_LOCAL_CLIENT {
        let mut client = LocalClient::connect(address, settings.in_flight)?;
        return drive(&mut client, address, &settings);
    }
    let mut client = ChannelClient::connect(address, settings.in_flight)?;
    drive(&mut client, address, &settings)
}
