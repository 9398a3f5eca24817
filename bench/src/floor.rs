//! Floors: the least that any program could pay for an exchange, measured with the shortest program
//! that makes it. And two other systems that need no library: one TCP stream, and copying memory.
//!
//! A floor has no protocol. It does not notice a lost message, does not know its peer, and has a
//! fixed number of messages in flight.

pub mod cache_line;
pub mod handover;
pub mod memcpy;
pub mod ring;
pub mod tcp;
pub mod udp;
pub mod xdp;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::benchmark::Context;
use crate::error::BenchError;
use crate::pin::{Cores, pin_thread};

/// Bytes of a small request and of its response: most datacenter messages are shorter, and eRPC is
/// measured with this size (NSDI'19, section 6).
pub const SMALL_BYTES: usize = 32;

/// Requests in flight in measurements of the rate (eRPC, section 6.2).
pub const IN_FLIGHT: u64 = 60;

/// Without an answer for this long, a floor's exchange ends with an error.
const SILENCE: Duration = Duration::from_secs(1);

/// The behaviour of a polling loop that finds no work: it spins or yields its core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusyWait {
    yields: bool,
}

impl BusyWait {
    /// Spins if each side has a core; yields the core if they share one, where spinning would only
    /// keep the other side from answering.
    pub(crate) fn on(cores: Cores) -> Self {
        Self {
            yields: cores.shared(),
        }
    }

    /// Its name, for a server process.
    pub(crate) fn name(self) -> &'static str {
        if self.yields { "yield" } else { "spin" }
    }

    /// The inverse of [`Self::name`].
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "yield" => Some(Self { yields: true }),
            "spin" => Some(Self { yields: false }),
            _ => None,
        }
    }

    /// Called once in each iteration that found nothing to do.
    #[inline]
    pub(crate) fn pause(self) {
        if self.yields {
            std::thread::yield_now();
        }
    }
}

/// A warm-up or a measurement: a time limit.
pub(crate) struct Period {
    begin: Instant,
    length: Duration,
}

impl Period {
    /// A warm-up of a tenth of the measuring time.
    pub(crate) fn warm_up(context: &Context) -> Self {
        Self::seconds(context.seconds / 10.0)
    }

    /// The measuring time.
    pub(crate) fn measured(context: &Context) -> Self {
        Self::seconds(context.seconds)
    }

    pub(crate) fn seconds(seconds: f64) -> Self {
        Self {
            begin: Instant::now(),
            length: Duration::from_secs_f64(seconds),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.begin.elapsed() >= self.length
    }

    /// `count` per second of the time that has gone by.
    pub(crate) fn rate_of(&self, count: u64) -> f64 {
        count as f64 / self.begin.elapsed().as_secs_f64()
    }
}

/// Runs `server` in a thread on the server's core and `client` in this one, which the caller has
/// pinned to the client's core. `server` must return once `client` has.
pub(crate) fn between_threads<R>(
    cores: Cores,
    server: impl FnOnce() + Send,
    client: impl FnOnce() -> R,
) -> Result<R, BenchError> {
    std::thread::scope(|scope| {
        let (ready, is_ready) = mpsc::channel();
        scope.spawn(move || {
            let pinned = pin_thread(cores.server);
            let failed = pinned.is_err();
            // The client waits for this message, so it is there.
            let _ = ready.send(pinned);
            if !failed {
                server();
            }
        });
        is_ready
            .recv()
            .expect("the thread sends before it does anything else")?;
        Ok(client())
    })
}
