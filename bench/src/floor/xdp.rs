//! The floor of AF_XDP: frames that both sides send back as they are, polled without end.

use std::time::Instant;

use starling_io::PacketIo;
use starling_io_xdp::{Reflector, XdpConfig, XdpIo};

use super::{IN_FLIGHT, Period, SILENCE, SMALL_BYTES, Spin};
use crate::contest::{Context, Network, Sample};
use crate::endpoint::plane::{Plane, failed};
use crate::error::BenchError;
use crate::latency::LapTimer;
use crate::process::announce;
use crate::row::Metric;

/// Role of the server; its argument is `Spin::name`.
pub const ROLE: &str = "xdp-reflect";

/// Tries between two readings of the clock while waiting for a frame.
const TRIES: u32 = 10_000;

/// The server: sends back whatever comes.
pub fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let spin = match arguments {
        [name] => Spin::from_name(name),
        _ => None,
    };
    let spin = spin.ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected `spin` or `yield`".into(),
    })?;
    let device = XdpIo::server(Network::Veth.server()).map_err(failed)?;
    announce(&device.local_address())?;
    let mut reflector = Reflector::new(device);
    loop {
        reflector.reflect().map_err(failed)?;
        spin.turn();
    }
}

/// A client that has `count` frames on their way.
struct Client {
    reflector: Reflector,
    spin: Spin,
}

impl Client {
    fn start(server: &str, spin: Spin, count: u64) -> Result<Self, BenchError> {
        let device = XdpIo::bind(
            &format!("xdp://va/{}:0", Network::Veth.client()),
            XdpConfig::default(),
        );
        let mut client = Self {
            reflector: Reflector::new(device.map_err(failed)?),
            spin,
        };
        let address = XdpIo::from_client(server);
        let peer = client.reflector.open_peer(&address).map_err(failed)?;
        for _ in 0..count {
            let message = [7; SMALL_BYTES];
            client.reflector.send(peer, &message).map_err(failed)?;
        }
        Ok(client)
    }

    /// Waits for frames, and sends them back; returns how many.
    #[inline]
    fn turn(&mut self) -> Result<u64, BenchError> {
        let mut silent_since = None;
        loop {
            for _ in 0..TRIES {
                match self.reflector.reflect().map_err(failed)? {
                    0 => self.spin.turn(),
                    count => return Ok(count as u64),
                }
            }
            if silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                return Err(BenchError::NoAnswer {
                    plane: "xdp",
                    system: "raw",
                    after: SILENCE,
                });
            }
        }
    }
}

/// Latencies of a single frame that goes back and forth.
pub fn latencies(context: &Context) -> Result<Sample, BenchError> {
    let spin = Spin::on(context.cores);
    let server = context.launcher.start(ROLE, &[spin.name()])?;
    let mut client = Client::start(server.address(), spin, 1)?;
    let warm_up = Period::warm_up(context);
    while !warm_up.over() {
        client.turn()?;
    }
    let mut timer = LapTimer::new();
    let period = Period::measured(context);
    timer.begin();
    loop {
        client.turn()?;
        if timer.lap() && period.over() {
            return Ok(timer.into_latencies().sample());
        }
    }
}

/// Rate with [`IN_FLIGHT`] frames on their way.
pub fn rate(context: &Context) -> Result<Sample, BenchError> {
    let spin = Spin::on(context.cores);
    let server = context.launcher.start(ROLE, &[spin.name()])?;
    let mut client = Client::start(server.address(), spin, IN_FLIGHT)?;
    let mut run = |period: Period| {
        let mut count = 0;
        // However short the period, something has to come of it.
        while !period.over() || count == 0 {
            for _ in 0..16 {
                count += client.turn()?;
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
    fn the_role_wants_to_know_how_to_wait() {
        assert!(serve(&[]).is_err());
        assert!(serve(&["sleep".into()]).is_err());
    }
}
