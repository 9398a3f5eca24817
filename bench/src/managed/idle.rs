//! What a service costs whose applications do nothing: its processor time, which it counts itself.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use starling::Channel;
use starling_sample_services::api::bench::EchoClient;
use starling_service::{Service, ServiceConfig};

use super::{ECHO_ROLE, MANAGED, NONE, unused_name};
use crate::benchmark::{Benchmark, Context};
use crate::callers::own_cpu_ns;
use crate::channel::request;
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::{RoleProcess, announce};

/// Role of a service that counts its time. Its argument: its name. A line of its input says for how many ms.
pub(super) const SERVICE_ROLE: &str = "starling-idle-service";
/// Role of an application. Its arguments: its service, and a server.
pub(super) const CLIENT_ROLE: &str = "starling-idle-application";

const APPLICATIONS: usize = 20;
/// So many times longer than other benchmarks: keepalives go out twice a second.
const LONGER: f64 = 10.0;

pub(super) fn benchmark() -> Benchmark {
    let case = format!("idle={APPLICATIONS}");
    Benchmark::new("udp", MANAGED, case, measure).in_any_placement()
}

fn measure(context: &Context) -> Result<Sample, BenchError> {
    let name = unused_name();
    let mut service = context.launcher.start_client(SERVICE_ROLE, &[&name])?;
    let server = context.launcher.start(ECHO_ROLE, &[NONE])?;
    let arguments = [&*name, server.address()];
    let applications =
        (0..APPLICATIONS).map(|_| context.launcher.start_client(CLIENT_ROLE, &arguments));
    let _applications: Vec<RoleProcess> = applications.collect::<Result<_, _>>()?;
    let milliseconds = (context.seconds * LONGER * 1000.0).ceil();
    service.write_line(&milliseconds.to_string())?;
    let said = service.read_line()?;
    let used_ns: f64 = said.parse().map_err(|_| service.unexpected(&said))?;
    let percent = used_ns / (milliseconds * 1e6) * 100.0;
    Ok(vec![(Metric::OfCore, percent)])
}

fn bad(role: &str, why: &str) -> BenchError {
    BenchError::BadRoleArguments {
        role: role.into(),
        why: why.into(),
    }
}

pub(super) fn serve_service(arguments: &[String]) -> Result<(), BenchError> {
    let [name] = arguments else {
        return Err(bad(SERVICE_ROLE, "expected a name"));
    };
    let config = ServiceConfig {
        name: name.clone(),
        ..ServiceConfig::default()
    };
    let _service = Service::start(config).map_err(failed)?;
    announce(name)?;
    for line in stdin().lock().lines() {
        let line = line.map_err(BenchError::io("reading from the benchmark"))?;
        let milliseconds = line.parse();
        let milliseconds =
            milliseconds.map_err(|_| bad(SERVICE_ROLE, "a line is a number of ms"))?;
        let before_ns = own_cpu_ns();
        std::thread::sleep(Duration::from_millis(milliseconds));
        writeln!(stdout(), "{}", own_cpu_ns() - before_ns)
            .map_err(BenchError::io("writing to the benchmark"))?;
    }
    Ok(())
}

pub(super) fn serve_application(arguments: &[String]) -> Result<(), BenchError> {
    let [service, server] = arguments else {
        return Err(bad(CLIENT_ROLE, "expected a service and an address"));
    };
    let channel = Channel::builder(server).managed_by(service).lazy();
    let client = EchoClient::new(channel.map_err(failed)?);
    client.call(&request(1)).wait().map_err(failed)?;
    announce(server)?;
    // Its input ends with the benchmark.
    stdin().lock().lines().for_each(drop);
    Ok(())
}
