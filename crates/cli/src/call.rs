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

mod describe;
mod json;

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use prost_reflect::{DescriptorPool, MethodDescriptor};
use starling::reflection::{
    DescribeServiceRequest, ListServicesRequest, ListServicesResponse, ReflectionClient,
};
use starling::{CallOptions, Endpoint, LocalChannel, Message, Metadata, Response, Status};
use starling_endpoint::{Encoding, MethodId, OpenError, OwnedMessage, SessionId};
use starling_io::Fault;
use starling_message::method_id;

use crate::error::CliError;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The server: udp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT, with ?queue=N where
    /// another process has the first queue (IFNAME and queue are of this host).
    address: String,
    /// The method to call: pkg.Service/Method. Given pkg.Service, prints the service's methods; without
    /// this argument, prints the server's services.
    method: Option<String>,
    /// The request: JSON, `-` for standard input, `@FILE` for a file's content.
    #[arg(value_name = "JSON|-|@FILE", default_value = "{}")]
    request: String,
    /// How long everything may take: 500ms, 1s, 2m.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    /// Sent beside the request; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_metadata)]
    metadata: Vec<(String, String)>,
}

const HELP: &str = "\
The server describes its services itself (reflection): no .proto file is needed. Requests and
responses are JSON as protobuf maps it: field names as in the .proto file or in lowerCamelCase,
bytes in base64, 64-bit integers in quotes.

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
  starling call udp://127.0.0.1:9000 kv.Kv/Put '{\"key\": \"aGVsbG8=\", \"value\": \"d29ybGQ=\"}'
  starling call udp://127.0.0.1:9000 kv.Kv/Get '{\"key\": \"aGVsbG8=\"}' --timeout 100ms
  echo '{\"limit\": 3}' | starling call shm://kv kv.Kv/Scan -";

/// The longest request that is read, in bytes of JSON.
const MAX_REQUEST: u64 = 256 << 20;

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit_s = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("expected a number and a unit: 500us, 100ms, 1s, 2m".into()),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a number".to_string())?;
    let seconds = number * unit_s;
    if !(1e-6..=86_400.0).contains(&seconds) {
        return Err("expected 1us to 1440m".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_metadata(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let mut session = Session::open(arguments)?;
    let Some(method) = &arguments.method else {
        return output::print(&session.services()?);
    };
    // gRPC writes a method as a path.
    let method = method.strip_prefix('/').unwrap_or(method);
    let Some((service, method)) = method.split_once('/') else {
        let pool = session.describe(method)?;
        return output::print(&describe::service(&pool, method)?);
    };
    let pool = session.describe(service)?;
    let method = find(&pool, service, method)?;
    let request = json::request(&method.input(), &text_of(&arguments.request)?)?;
    let (response, metadata) = session.call(&method, &request)?;
    for (key, value) in metadata.view().iter() {
        eprintln!("{key}: {}", String::from_utf8_lossy(value));
    }
    output::print(&json::response(&method.output(), &response)?)
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

fn find(pool: &DescriptorPool, service: &str, method: &str) -> Result<MethodDescriptor, CliError> {
    let descriptor = describe::find(pool, service)?;
    let mut methods = descriptor.methods();
    if let Some(found) = methods.find(|candidate| candidate.name() == method) {
        return Ok(found);
    }
    let names: Vec<String> = descriptor.methods().map(|m| m.name().into()).collect();
    let names = names.join(", ");
    let error = format!("{service} has no method {method}; it has {names}");
    Err(Status::unimplemented(error).into())
}

/// A connection to the server, with the deadline of the whole command.
struct Session {
    endpoint: Endpoint,
    /// For the call itself: there is no generated client of its service.
    session: SessionId,
    reflection: ReflectionClient<LocalChannel>,
    deadline: Instant,
    metadata: Metadata,
}

impl Session {
    fn open(arguments: &Arguments) -> Result<Self, CliError> {
        let mut metadata = Metadata::default();
        for (key, value) in &arguments.metadata {
            let inserted = metadata.insert(key, value);
            inserted.map_err(|error| CliError::Usage(format!("--metadata {key}: {error}")))?;
        }
        let mut endpoint = Endpoint::client(&arguments.address)?;
        let channel = endpoint.channel(&arguments.address)?;
        Ok(Self {
            session: connect(&mut endpoint, &arguments.address)?,
            endpoint,
            reflection: ReflectionClient::new(channel),
            deadline: Instant::now() + arguments.timeout,
            metadata,
        })
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn wait<P: Message>(
        &mut self,
        call: impl Future<Output = Result<Response<P>, Status>>,
    ) -> Result<Response<P>, CliError> {
        Ok(self.endpoint.block_on(call)??)
    }

    fn list(&mut self) -> Result<Response<ListServicesResponse>, CliError> {
        let options = CallOptions::with_timeout(self.remaining());
        let request = ListServicesRequest::new();
        let call = self.reflection.list_services_with(&request, &options);
        self.wait(call)
    }

    /// The names of the server's services, a line each.
    fn services(&mut self) -> Result<String, CliError> {
        let list = self.list()?;
        let services = list.message().services();
        Ok(services.iter().map(|s| format!("{}\n", s.name())).collect())
    }

    /// All types of a service.
    fn describe(&mut self, service: &str) -> Result<DescriptorPool, CliError> {
        let list = self.list()?;
        let names = list.message().services().iter();
        let names: Vec<&str> = names.map(|service| service.name()).collect();
        if !names.contains(&service) {
            let as_method = service
                .rsplit_once('.')
                .filter(|(prefix, _)| names.contains(prefix))
                .map_or_else(String::new, |(prefix, method)| {
                    format!("; for a method write {prefix}/{method}")
                });
            let names = names.join(", ");
            let error = format!("the server has no service {service}; it has {names}{as_method}");
            return Err(Status::unimplemented(error).into());
        }
        let mut request = DescribeServiceRequest::new();
        request.set_name(service);
        let options = CallOptions::with_timeout(self.remaining());
        let call = self.reflection.describe_service_with(&request, &options);
        let described = self.wait(call)?;
        let set = described.message().file_descriptor_set();
        DescriptorPool::decode(set).map_err(|error| {
            let error = format!("the server's description of {service} is malformed: {error}");
            Status::internal(error).into()
        })
    }

    /// Makes a call with an encoded request; returns the encoded response.
    fn call(
        &mut self,
        method: &MethodDescriptor,
        request: &[u8],
    ) -> Result<(Vec<u8>, Metadata), CliError> {
        if method.is_client_streaming() || method.is_server_streaming() {
            let error = format!("{} is a streaming method", method.full_name());
            return Err(Status::unimplemented(error).into());
        }
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let options = starling_endpoint::CallOptions {
            timeout: Some(self.remaining()),
            encoding: Encoding::Protobuf,
            stream: None,
            metadata: self.metadata.clone(),
        };
        let id = MethodId(method_id(&path));
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(request);
        let call = self
            .endpoint
            .local()
            .call(self.session, id, &options, build);
        let response: OwnedMessage = self.endpoint.block_on(call)??;
        Ok((response.body().to_vec(), response.to_metadata()))
    }
}

/// Opens a session. A server that cannot be reached shows when the first call ends.
fn connect(endpoint: &mut Endpoint, address: &str) -> Result<SessionId, CliError> {
    let opened = if let Some(raw) = endpoint.raw::<starling_io_udp::UdpIo>() {
        raw.connect(address)
    } else if let Some(raw) = endpoint.raw::<starling_io_shm::ShmIo>() {
        raw.connect(address)
    } else {
        let raw = endpoint.raw::<starling_io_xdp::XdpIo>();
        raw.expect("there are no other devices").connect(address)
    };
    opened.map_err(|error| match error {
        OpenError::Device(error) if error.fault == Fault::Caller => CliError::Device(error),
        error => Status::unavailable(error.to_string()).into(),
    })
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

    #[test]
    fn metadata_is_a_key_and_a_value() {
        assert_eq!(parse_metadata("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_metadata("a").is_err());
    }
}
