//! The floor of AF_XDP: both sides poll, and send every Ethernet frame back as it is.

use std::time::Instant;

use starling_io::PacketIo;
use starling_io_xdp::{Reflector, XdpConfig, XdpIo};

use super::{BusyWait, IN_FLIGHT, Period, SILENCE, SMALL_BYTES};
use crate::benchmark::{Context, Network};
use crate::device::{Device, failed};
use crate::error::BenchError;
use crate::latency::LatencyTimer;
use crate::metric::{Metric, Sample};
use crate::process::announce;

/// Role of the server; its argument is `BusyWait::name`.
pub const ROLE: &str = "xdp-reflect";

/// Polls between two readings of the clock while waiting for an Ethernet frame.
const TRIES: u32 = 10_000;

/// The server: sends every Ethernet frame back.
pub fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let wait = match arguments {
        [name] => BusyWait::from_name(name),
        _ => None,
    };
    let wait = wait.ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected `spin` or `yield`".into(),
    })?;
    let device = XdpIo::server(Network::Veth.server()).map_err(failed)?;
    announce(&device.local_address())?;
    let mut reflector = Reflector::new(device);
    loop {
        reflector.reflect().map_err(failed)?;
        wait.pause();
    }
}

/// A client with a fixed number of Ethernet frames in flight.
struct Client {
    reflector: Reflector,
    wait: BusyWait,
}

impl Client {
    fn start(server: &str, wait: BusyWait, count: u64) -> Result<Self, BenchError> {
        let device = XdpIo::bind(
            &format!("xdp://va/{}:0", Network::Veth.client()),
            XdpConfig::default(),
        );
        let mut client = Self {
            reflector: Reflector::new(device.map_err(failed)?),
            wait,
        };
        let address = XdpIo::address_from_client(server);
        let peer = client.reflector.open_peer(&address).map_err(failed)?;
        for _ in 0..count {
            let message = [7; SMALL_BYTES];
            client.reflector.send(peer, &message).map_err(failed)?;
        }
        Ok(client)
    }

    /// Waits for Ethernet frames and sends them back; returns their number.
    #[inline]
    fn bounce(&mut self) -> Result<u64, BenchError> {
        let mut silent_since = None;
        loop {
            for _ in 0..TRIES {
                match self.reflector.reflect().map_err(failed)? {
                    0 => self.wait.pause(),
                    count => return Ok(count as u64),
                }
            }
            if silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                return Err(BenchError::NoAnswer {
                    scheme: "xdp",
                    system: "raw",
                    after: SILENCE,
                });
            }
        }
    }
}

/// Latencies of a single Ethernet frame that goes back and forth.
pub fn latencies(context: &Context) -> Result<Sample, BenchError> {
    let wait = BusyWait::on(context.cores);
    let server = context.launcher.start(ROLE, &[wait.name()])?;
    let mut client = Client::start(server.address(), wait, 1)?;
    let warm_up = Period::warm_up(context);
    while !warm_up.is_over() {
        client.bounce()?;
    }
    let mut timer = LatencyTimer::new();
    let period = Period::measured(context);
    timer.start();
    loop {
        client.bounce()?;
        if timer.record() && period.is_over() {
            return Ok(timer.into_latencies().sample());
        }
    }
}

/// Rate with [`IN_FLIGHT`] Ethernet frames in flight.
pub fn rate(context: &Context) -> Result<Sample, BenchError> {
    let wait = BusyWait::on(context.cores);
    let server = context.launcher.start(ROLE, &[wait.name()])?;
    let mut client = Client::start(server.address(), wait, IN_FLIGHT)?;
    let mut run = |period: Period| {
        let mut count = 0;
        // Even the shortest period has a result.
        while !period.is_over() || count == 0 {
            for _ in 0..16 {
                count += client.bounce()?;
            }
        }
        Ok::<_, BenchError>(period.rate_of(count))
    };
    run(Period::warm_up(context))?;
    Ok(vec![(Metric::Rate, run(Period::measured(context))?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_refuses_arguments_without_a_way_to_wait() {
        assert!(serve(&[]).is_err());
        assert!(serve(&["sleep".into()]).is_err());
    }
}
