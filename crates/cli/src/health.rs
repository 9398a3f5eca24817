//! `starling health`: asks a server whether it can be called, by gRPC's health checking
//! (`grpc.health.v1.Health`), which every Starling server has.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use starling::health::{HealthCheckRequest, HealthClient};
use starling::{CallOptions, Channel, Code, ServingStatus, Status};

use crate::call::parse_duration;
use crate::error::CliError;
use crate::metadata::Metadata;
use crate::output;

/// How long a check may take, unless set.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The server: udp://HOST:PORT, tcp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT.
    address: String,
    /// The service to ask for, by its full name: pkg.Service. Without it, asks for the server as a whole.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    service: String,
    /// Goes on, and prints the status each time it changes, until the server ends.
    #[arg(long)]
    watch: bool,
    /// Prints one JSON object per line, with the keys service, status.
    #[arg(long)]
    json: bool,
    /// How long a check may take (5s unless set), or how long to watch (for ever unless set): 500ms, 1s,
    /// 2m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    metadata: Metadata,
}

const HELP: &str = "\
Prints SERVING if the server says that it can be called, NOT_SERVING if it says that it should not be
called now, such as while it shuts down, and UNKNOWN if it does not say. With --watch, a service that
the server does not know is SERVICE_UNKNOWN until the server knows it.

Exit status:
  0     the server said SERVING; with --watch, the last thing that it said
  1     it said something else
  2     the address or another argument was wrong
  64+N  the call ended with status N of gRPC's: 68 DEADLINE_EXCEEDED, 69 NOT_FOUND (the server does not
        know the service), 76 UNIMPLEMENTED (it has no health checks), 78 UNAVAILABLE (it cannot be
        reached, or has ended); standard error says CODE: message

Examples, with `starling serve kv` in another terminal:
  starling health udp://127.0.0.1:9000
  starling health udp://127.0.0.1:9000 --service kv.Kv --json
  starling health udp://127.0.0.1:9000 --watch               # then end the server with Ctrl-C
  until starling health udp://127.0.0.1:9000 --timeout 1s; do sleep 1; done   # waits for the server";

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let channel = Channel::lazy(&arguments.address)?;
    let client = HealthClient::new(channel).with_options(arguments.metadata.options()?);
    let request = HealthCheckRequest::new().with_service(&arguments.service);
    let status = match arguments.watch {
        true => watch(arguments, &client, &request)?,
        false => {
            let timeout = arguments.timeout.unwrap_or(TIMEOUT);
            let options = CallOptions::with_timeout(timeout);
            let response = client.check_with(&request, &options).wait()?;
            let status = response.message().status();
            print(arguments, status)?;
            status
        }
    };
    if status == ServingStatus::SERVING {
        return Ok(());
    }
    let what = match arguments.service.as_str() {
        "" => arguments.address.clone(),
        service => service.to_owned(),
    };
    let status = format!("{status:?}");
    Err(CliError::NotServing { what, status })
}

/// Prints each change. Returns the last status if the watch ended well, which it does when its time is over.
fn watch(
    arguments: &Arguments,
    client: &HealthClient<Channel>,
    request: &HealthCheckRequest,
) -> Result<ServingStatus, CliError> {
    let options = arguments.timeout.map_or_else(
        CallOptions::default,
        // Of the whole watch.
        CallOptions::with_timeout,
    );
    let mut last = None;
    let mut changes = client.watch_with(request, &options);
    let end = loop {
        match changes.wait() {
            Ok(Some(change)) => {
                let status = change.message().status();
                print(arguments, status)?;
                last = Some(status);
            }
            Ok(None) => break Status::internal("the server ended the watch without a reason"),
            Err(end) => break end,
        }
    };
    match last {
        Some(status) if end.code() == Code::DeadlineExceeded => Ok(status),
        _ => Err(end.into()),
    }
}

fn print(arguments: &Arguments, status: ServingStatus) -> Result<(), CliError> {
    let status = format!("{status:?}");
    output::print(&match arguments.json {
        true => format!(
            "{}\n",
            json!({"service": arguments.service, "status": status})
        ),
        false => status + "\n",
    })
}
