//! `kv.Kv` over Starling as a server's and a load generator's process.
//!
//! Both ends have room for all operations in flight on their one session. Everything else is the
//! default: idle threads spin for a moment and then sleep.

use starling::{EndpointConfig, Server};

use super::drive::{Settings, drive};
use super::starling::Client;
use crate::device::failed;
use crate::error::BenchError;
use crate::process::{announce, begin_client, begin_server};
use starling_sample_services::kv;

/// Role of the server; its arguments are an address to bind and the number of its initial records.
pub const KV_SERVER: &str = "starling-kv";

/// Role of the load generator; its arguments are the server's address and [`Settings`].
pub const KV_CLIENT: &str = "starling-kv-load";

/// The most operations in flight that do not queue: the most slots of a session.
pub const SLOTS: u16 = 64;

/// Runs the process of a role of this module. `None`: the role is not one of them.
pub fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    match role {
        KV_SERVER => Some(begin_server(role, arguments).and_then(|rest| serve_kv(&rest))),
        KV_CLIENT => Some(begin_client(role, arguments).and_then(|rest| drive_kv(&rest))),
        _ => None,
    }
}

fn config() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.protocol.slots = SLOTS;
    config.protocol.credits = SLOTS;
    config
}

fn serve_kv(arguments: &[String]) -> Result<(), BenchError> {
    let parsed = match arguments {
        [address, records] => records.parse().ok().map(|records| (address, records)),
        _ => None,
    };
    let (address, records) = parsed.ok_or_else(|| BenchError::BadRoleArguments {
        role: KV_SERVER.into(),
        why: "expected an address and a number of records".into(),
    })?;
    let builder = Server::builder().bind(address).map_err(failed)?;
    let builder = builder.add_service(kv::server(records)).config(config());
    let server = builder.build().map_err(failed)?;
    let address = server.addresses().remove(0);
    let handle = server.spawn().map_err(failed)?;
    announce(&address)?;
    handle.wait().map(drop).map_err(failed)
}

fn drive_kv(arguments: &[String]) -> Result<(), BenchError> {
    let (address, rest) = arguments
        .split_first()
        .ok_or_else(|| BenchError::BadRoleArguments {
            role: KV_CLIENT.into(),
            why: "the first is the server's address".into(),
        })?;
    let settings = Settings::from_arguments(KV_CLIENT, rest)?;
    let mut client = Client::connect(address, config(), settings.in_flight)?;
    drive(&mut client, address, &settings)
}
