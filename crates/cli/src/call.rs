//! `starling call`: calls any method of any server, with JSON in and out.
//!
//! ```text
//!  call                                      server
//!    │ ── ListServices ─────────────────────▶ starling.reflection.Reflection
//!    │ ── DescribeService(pkg.Service) ─────▶   a FileDescriptorSet
//!    │    JSON ─▶ message ─▶ protobuf
//!    │ ── the call itself, in protobuf ─────▶ pkg.Service
//!    │    protobuf ─▶ message ─▶ JSON
//! ```
//!
//! The command knows nothing of the service beforehand: the server describes it.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use starling::{Channel, LoadBalancing, block_on};
use starling_dynamic::{DynamicClient, service_notation};

use crate::error::CliError;
use crate::metadata::Metadata;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The server: udp://HOST:PORT, tcp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT, with ?queue=N where
    /// another process has the first queue (IFNAME and queue are of this host). Of several addresses
    /// with commas between them, the first one that can be reached.
    #[arg(value_name = "ADDRESS[,ADDRESS]")]
    addresses: String,
    /// The method to call: pkg.Service/Method, without streams. Given pkg.Service, prints the service's
    /// methods; without this argument, prints the server's services.
    method: Option<String>,
    /// The request: JSON, `-` for standard input, `@FILE` for a file's content.
    #[arg(value_name = "JSON|-|@FILE", default_value = "{}")]
    request: String,
    /// How long everything may take: 500ms, 1s, 2m.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    metadata: Metadata,
}

const HELP: &str = "\
The server describes its services itself (reflection): no .proto file is needed. Requests and
responses are JSON as protobuf maps it: field names as in the .proto file or in lowerCamelCase,
bytes in base64, 64-bit integers in quotes. Streaming methods cannot be called.

Exit status:
  0     the call succeeded; the response is on standard output
  2     the address, the JSON or another argument was wrong
  64+N  the call ended with status N of gRPC's: 69 NOT_FOUND, 76 UNIMPLEMENTED (also an unknown
        service or method), 78 UNAVAILABLE (also a server that cannot be reached);
        standard error says CODE: message
  1     anything else failed

Examples, with `starling serve kv` in another terminal:
  starling call udp://127.0.0.1:9000
  starling call udp://127.0.0.1:9000 kv.Kv
  starling call udp://kv-0:9000,udp://kv-1:9000 kv.Kv
  starling call udp://127.0.0.1:9000 kv.Kv/Put '{\"key\": \"aGVsbG8=\", \"value\": \"d29ybGQ=\"}'
  starling call udp://127.0.0.1:9000 kv.Kv/Get '{\"key\": \"aGVsbG8=\"}' --timeout 100ms
  echo '{\"limit\": 3}' | starling call shm://kv kv.Kv/Scan -";

/// The longest request that is read, in bytes of JSON.
const MAX_REQUEST: u64 = 256 << 20;

pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    match starling_policy::parse_duration(text) {
        None => Err("expected a number and a unit, up to a day: 500us, 100ms, 1s, 2m".into()),
        Some(time) if time < Duration::from_micros(1) => Err("expected 1us at least".into()),
        Some(time) => Ok(time),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let options = arguments.metadata.options()?;
    let channel = Channel::balanced(arguments.addresses.split(','));
    let channel = channel.load_balancing(LoadBalancing::pick_first()).lazy()?;
    let deadline = Instant::now() + arguments.timeout;
    // The timeout is that of all calls together.
    let client = || {
        let left = deadline.saturating_duration_since(Instant::now());
        DynamicClient::new(channel.clone()).with_options(options.clone().timeout(left))
    };
    let Some(method) = &arguments.method else {
        let names = block_on(client().services())?;
        let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
        return output::print(&lines);
    };
    // gRPC writes a method as a path.
    let path = method.strip_prefix('/').unwrap_or(method);
    if !path.contains('/') {
        let service = block_on(client().service(path))?;
        return output::print(&service_notation(&service));
    }
    let method = block_on(client().method(path))?;
    let request = method.request_from_json(&text_of(&arguments.request)?);
    let request = request.map_err(|error| CliError::Usage(error.to_string()))?;
    let response = client().call(&method, &request).wait()?;
    for (key, value) in response.metadata().iter() {
        let value = String::from_utf8_lossy(value);
        eprintln!("{key}: {}", output::harmless(&value));
    }
    output::print(&response.to_json())
}

/// The request's text: the argument itself, or the input that it names.
fn text_of(argument: &str) -> Result<String, CliError> {
    let mut text = String::new();
    let (path, read) = match argument.strip_prefix('@') {
        Some(path) => {
            let file = std::fs::File::open(path);
            let read = file.and_then(|file| file.take(MAX_REQUEST).read_to_string(&mut text));
            (path, read)
        }
        None if argument == "-" => {
            let stdin = std::io::stdin().lock();
            let read = stdin.take(MAX_REQUEST).read_to_string(&mut text);
            ("standard input", read)
        }
        None => return Ok(argument.into()),
    };
    read.map_err(|source| CliError::File {
        path: Path::new(path).into(),
        source,
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit_and_a_plausible_value() {
        assert_eq!(parse_duration("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "1", "s", "-1s", "0s", "1h", "1e9s", "1.2.3s", "9999m"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
