//! Calls over a device for a tenth of a second, to a server in a process of its own.
//!
//! The server's process is this program again, started as `starling doctor --echo-server ADDRESS`.
//! It ends when its standard input does, so it cannot outlive the doctor.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use starling::{Endpoint, Server};
use starling_netns::Pair;
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_sample_services::echo;

use super::device::Device;
use super::report::Finding;
use crate::error::CliError;
use crate::output;

/// How long calls are made.
const PERIOD: Duration = Duration::from_millis(100);

/// Bytes of a request and of its response.
const SMALL_BYTES: usize = 32;

/// The result of a trial.
pub(super) enum Trial {
    /// The trial made calls, with this finding.
    Made(Finding),
    /// The trial could make no calls for a reason that is not the device's.
    NotMade(Finding),
}

/// Makes calls over `device` between this process and another. Those over AF_XDP go from a network
/// namespace to another, over a veth pair that is made for them.
///
/// # Errors
/// If no process can be started at all. A call that fails is a finding.
pub(super) fn of(device: Device) -> Result<Trial, CliError> {
    let program = std::env::current_exe().map_err(CliError::OwnPath)?;
    let start = |address: &str| {
        let mut command = Command::new(&program);
        command.args(["doctor", "--echo-server", address]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn()
    };
    let start_failed = |source| CliError::System {
        attempt: "starting a process",
        source,
    };
    let latency = match device {
        Device::Udp | Device::Tcp => {
            let address = format!("{}://127.0.0.1:0", device.scheme());
            latency_to(start(&address).map_err(start_failed)?, |a| a)
        }
        Device::Shm => {
            let address = format!("shm://starling-doctor-{}", std::process::id());
            latency_to(start(&address).map_err(start_failed)?, |a| a)
        }
        Device::Xdp => {
            let pair = match Pair::new() {
                Ok(pair) => pair,
                Err(problem) => return Ok(Trial::NotMade(no_namespaces(&problem))),
            };
            let address = format!("xdp://vb/{}:0", starling_netns::IPV4[1]);
            let server = starling_netns::inside(&pair.b, || start(&address));
            let server = server.map_err(start_failed)?;
            starling_netns::inside(&pair.a, || {
                latency_to(server, |address| address.replace("xdp://vb/", "xdp://va/"))
            })
        }
    };
    let place = match device {
        Device::Xdp => " over a veth pair",
        Device::Udp | Device::Tcp | Device::Shm => "",
    };
    Ok(Trial::Made(match latency {
        Ok(latency) => Finding::ok(format!(
            "a call of {SMALL_BYTES} bytes took {:.1} us between two processes{place}",
            latency.as_nanos() as f64 / 1e3
        )),
        Err(error) => Finding::bad(
            format!("a call failed: {error}"),
            match device {
                Device::Udp | Device::Tcp => {
                    "do as it says; a firewall on the loopback interface is another possible cause"
                }
                Device::Shm | Device::Xdp => "do as it says",
            },
        ),
    }))
}

fn no_namespaces(problem: &str) -> Finding {
    Finding::note(
        format!(
            "not tried: calls between network namespaces need root and iproute2 ({})",
            problem.trim_end()
        ),
        "to see calls go through, run `starling doctor xdp` as root, with `ip` of iproute2",
    )
}

/// The server's process. Dropping it ends the process and waits for its end.
struct EchoServer(Child);

impl Drop for EchoServer {
    fn drop(&mut self) {
        // A process that has ended by itself is no error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The median latency of calls to the server. `as_seen` turns the address that the server announces
/// into the client's address for it.
fn latency_to(
    server: Child,
    as_seen: impl FnOnce(String) -> String,
) -> Result<Duration, Box<dyn std::error::Error + Send + Sync>> {
    let mut server = EchoServer(server);
    let mut line = String::new();
    let output = server.0.stdout.take().expect("the child's output is piped");
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        let mut message = String::new();
        let errors = server
            .0
            .stderr
            .take()
            .expect("the child's errors are piped");
        BufReader::new(errors).read_to_string(&mut message)?;
        let message = message.trim_end();
        return Err(message.strip_prefix("error: ").unwrap_or(message).into());
    }
    let address = as_seen(line.trim_end().to_owned());
    let mut endpoint = Endpoint::builder().reach(&address).build()?;
    let echo = EchoClient::new(endpoint.channel(&address)?);
    let mut latencies = endpoint.block_on(async {
        let mut request = Payload::new();
        request.set_data(&[7; SMALL_BYTES]);
        let mut latencies = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < PERIOD || latencies.is_empty() {
            let sent = Instant::now();
            echo.call(&request).await?;
            latencies.push(sent.elapsed());
        }
        Ok::<_, starling::Status>(latencies)
    })??;
    let middle = latencies.len() / 2;
    Ok(*latencies.select_nth_unstable(middle).1)
}

/// The server's process: serves an echo at `address` until standard input ends.
pub(super) fn serve(address: &str) -> Result<(), CliError> {
    let server = Server::builder().bind(address)?;
    let server = server.add_service(echo::server()).build()?.spawn()?;
    output::print(&format!("{}\n", server.address()))?;
    // An error ends the server just as the end of the input does.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    Ok(())
}
