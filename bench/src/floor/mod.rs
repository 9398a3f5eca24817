//! Floors: the least that any program could pay for an exchange, by the shortest program that
//! makes it. And the two peers that need no library: one TCP stream, and copying memory.
//!
//! A floor has no protocol. It does not notice a lost message, does not know whom it talks to,
//! holds one exchange at a time or a fixed number of them.

pub mod cache_line;
pub mod memcpy;
pub mod ring;
pub mod tcp;
pub mod udp;
pub mod xdp;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::contest::Context;
use crate::error::BenchError;
use crate::pin::{Cores, pin_thread};

/// Bytes of a small request and of its response, the size that most datacenter messages stay
/// below and that eRPC is measured with (NSDI'19, section 6).
pub const SMALL_BYTES: usize = 32;

/// Requests in flight where the rate is measured (eRPC, section 6.2).
pub const IN_FLIGHT: u64 = 60;

/// A silence of this length ends a floor's exchange with an error.
const SILENCE: Duration = Duration::from_secs(1);

/// How a busy loop waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    yields: bool,
}

impl Spin {
    /// Spins if the two sides have a core each; gives the core away if they share one, where
    /// spinning would only keep the other side from answering.
    pub(crate) fn on(cores: Cores) -> Self {
        Self {
            yields: cores.shared(),
        }
    }

    /// Its name, for a server process.
    pub(crate) fn name(self) -> &'static str {
        if self.yields { "yield" } else { "spin" }
    }

    /// The opposite of [`Self::name`].
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "yield" => Some(Self { yields: true }),
            "spin" => Some(Self { yields: false }),
            _ => None,
        }
    }

    /// One turn of the loop.
    #[inline]
    pub(crate) fn turn(self) {
        if self.yields {
            std::thread::yield_now();
        }
    }
}

/// Counts exchanges against a time limit and reads the clock only now and then.
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

    pub(crate) fn over(&self) -> bool {
        self.begin.elapsed() >= self.length
    }

    /// `count` per second of the time that has gone by.
    pub(crate) fn rate_of(&self, count: u64) -> f64 {
        count as f64 / self.begin.elapsed().as_secs_f64()
    }
}

/// Runs `server` in a thread on the server's core and `client` in this one, which the caller has
/// put on the client's core. `server` must return once `client` has.
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
            // The client is there until it has heard.
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
