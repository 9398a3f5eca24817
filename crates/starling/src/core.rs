//! One thread's endpoint on one kind of device, with the connections that it looks after.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use starling_endpoint::{Endpoint, EndpointConfig, Secrets, Turn, WorkerConfig};
use starling_io::{IoError, MonotonicClock, Wake};

use crate::address::Way;
use crate::error::Error;
use crate::hub::Hub;
use crate::plane::Plane;
use crate::registry::Registry;
use crate::stats::ThreadStats;

pub(crate) type Raw<I> = Endpoint<I, MonotonicClock>;

pub(crate) struct Core<I: Plane> {
    pub(crate) raw: Raw<I>,
    pub(crate) hub: Rc<Hub>,
    woken: Arc<Woken>,
}

impl<I: Plane> Core<I> {
    pub(crate) fn new(io: I, way: Way, config: &EndpointConfig) -> Result<Self, Error> {
        let (secrets, seed) = secrets()?;
        let clock = MonotonicClock::new();
        let raw = Raw::new(io, clock.clone(), config.clone(), secrets)?;
        let hub = Hub::new(raw.local(), way, raw.memory(), clock, seed);
        let woken = Arc::new(Woken {
            flag: AtomicBool::new(false),
            device: raw.waker(),
        });
        Ok(Self { raw, hub, woken })
    }

    /// Has the endpoint serve all methods of a registry, with workers if some need them.
    pub(crate) fn serve(
        &mut self,
        registry: &Registry,
        workers: &WorkerConfig,
    ) -> Result<(), Error> {
        for (method, entry) in registry.entries() {
            self.raw.register(method, I::handler(entry, &self.hub));
        }
        if registry.has_workers() {
            self.raw.start_workers(workers)?;
        }
        Ok(())
    }

    /// One turn of the endpoint, and what its connections want.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<Turn, IoError> {
        let mut turn = self.raw.poll()?;
        if self.hub.look_after(&mut self.raw) {
            // What it did is to be flushed by another turn before anybody sleeps.
            turn.events += 1;
        }
        Ok(turn)
    }

    /// Waits as the endpoint does, unless a connection wants something.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        if self.hub.is_wanted.get() {
            return Ok(());
        }
        self.raw.wait(limit)
    }

    /// What the endpoint and its device have done.
    pub(crate) fn stats(&self) -> ThreadStats {
        ThreadStats {
            address: self.raw.local_address(),
            endpoint: *self.raw.stats(),
            protocol: *self.raw.protocol().stats(),
            device: self.raw.io().report(),
        }
    }

    /// Runs until `future` is ready.
    pub(crate) fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, IoError> {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&waker);
        self.woken.flag.store(true, Ordering::Relaxed);
        loop {
            if self.woken.flag.load(Ordering::Acquire) {
                self.woken.flag.store(false, Ordering::Relaxed);
                // A wake between the two stores is answered by the poll that follows.
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return Ok(output);
                }
                self.hub.look_after(&mut self.raw);
                self.turn()?;
            } else if self.turn()?.is_idle() && !self.woken.flag.load(Ordering::Acquire) {
                self.raw.wait(None)?;
            }
        }
    }

    /// Finishes what is being worked on, at most for `timeout`. True if everything was finished.
    pub(crate) fn drain(&mut self, timeout: Duration) -> Result<bool, IoError> {
        let begun = std::time::Instant::now();
        self.raw.start_drain();
        while !self.raw.is_drained() {
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            if self.turn()?.is_idle() {
                self.raw.wait(Some(left))?;
            }
        }
        self.raw.drain(timeout.saturating_sub(begun.elapsed()))
    }
}

/// The waker of the future in [`Core::block_on`].
struct Woken {
    flag: AtomicBool,
    device: Arc<dyn Wake>,
}

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.flag.swap(true, Ordering::AcqRel) {
            self.device.wake();
        }
    }
}

/// Fresh secrets and a seed from the operating system's randomness.
fn secrets() -> Result<(Secrets, u64), Error> {
    let mut bytes = [0u8; 28];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("read the system's randomness", error)),
        }
    }
    let (token, rest) = bytes.split_at(4);
    let (cookie_key, seed) = rest.split_at(16);
    let secrets = Secrets {
        token: u32::from_le_bytes(token.try_into().expect("4 bytes")),
        cookie_key: cookie_key.try_into().expect("16 bytes"),
    };
    Ok((
        secrets,
        u64::from_le_bytes(seed.try_into().expect("8 bytes")),
    ))
}
