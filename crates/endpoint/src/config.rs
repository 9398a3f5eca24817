//! The settings of an endpoint and of its workers, with the reasons for the defaults.

use std::time::Duration;

use starling_io::Capabilities;
use starling_proto::ConfigError;

use crate::error::WorkerConfigError;
use crate::jbsq::{MAX_DEPTH, Mode};

/// What an event loop does when nothing is to be done. While a device has no room for what is to be
/// sent, all but [`Idle::Spin`] look for it for 100 us after the last news, then every 50 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Never sleeps: the lowest latency, for a whole core.
    Spin,
    /// Spins as long as the last work is at most `spin` ago, then sleeps.
    Adaptive {
        /// How long to spin after work.
        spin: Duration,
    },
    /// Sleeps at once.
    Block,
}

impl Default for Idle {
    /// Adaptive, 50 us: a few round trips on the local host or network, about what it costs to
    /// put a thread to sleep and wake it; more would take the core from the peer on a small host.
    fn default() -> Self {
        Self::Adaptive {
            spin: Duration::from_micros(50),
        }
    }
}

/// The threads of worker handlers, and who gets what. What cannot work is refused, whoever hands
/// requests out: [`WorkerConfig::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Threads, at least one.
    pub threads: usize,
    /// Requests that may wait for a thread; those beyond are refused.
    pub queue: usize,
    /// Requests that one thread has at a time: the one that it runs, and those to go on with at
    /// once. 1 to [`MAX_DEPTH`](crate::jbsq::MAX_DEPTH), 2 by default.
    pub depth: u8,
    /// Which threads may run a request.
    pub mode: Mode,
    /// The device itself hands plain requests of one packet to the threads, which answer them
    /// without the endpoint's thread (RPCValet, ASPLOS 2019). Only `xdp://` can; 1 to 63 threads,
    /// [`Mode::SingleQueue`]. What it does not hand out, such as calls with a timeout or metadata, is
    /// given to the same threads as usual. An endpoint that is dropped while handlers run gives its
    /// port back at once, and the queue of the interface when the last of them has returned.
    pub steered: bool,
    /// What a thread does with nothing to do. [`Idle::Adaptive`] yields the core a few times, some
    /// microseconds, then goes on with that for `spin` (none by default), then sleeps. To wake it
    /// takes the dispatch thread some microseconds: if it has to do so often, `spin` of a
    /// millisecond or two keeps that from the requests that it runs itself.
    pub idle: Idle,
}

impl WorkerConfig {
    /// So many threads behind a queue of so many requests, otherwise as by default.
    pub fn new(threads: usize, queue: usize) -> Self {
        Self {
            threads,
            queue,
            depth: 2,
            mode: Mode::SingleQueue,
            steered: false,
            idle: Idle::Adaptive {
                spin: Duration::ZERO,
            },
        }
    }

    /// Whether workers can be like this, as far as that does not depend on the device.
    ///
    /// # Errors
    /// With the field that has to be changed.
    pub fn check(&self) -> Result<(), WorkerConfigError> {
        let (mode, depth) = (self.mode, self.depth);
        let checks = [
            (
                "threads",
                self.threads.to_string(),
                self.threads >= 1,
                "at least 1",
            ),
            (
                "depth",
                depth.to_string(),
                (1..=MAX_DEPTH).contains(&depth),
                "1 to 8",
            ),
            (
                "mode",
                format!("{mode:?}"),
                mode != Mode::Grouped(0),
                "of at least one group",
            ),
            (
                "mode",
                format!("{mode:?}"),
                mode == Mode::SingleQueue || !self.steered,
                "SingleQueue where the device hands requests to workers: it knows no other",
            ),
        ];
        for (field, value, good, must) in checks {
            if !good {
                return Err(WorkerConfigError { field, value, must });
            }
        }
        Ok(())
    }
}

/// Configuration of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// The session protocol. What it says of the device (`reliable`, `rx_queue_bytes`,
    /// `rx_queue_datagrams`) is replaced by what the device says of itself.
    pub protocol: starling_proto::Config,
    /// What to do when idle.
    pub idle: Idle,
    /// Calls outstanding at once, all sessions together, at most 2^31. Default 2^20: some 32 MiB
    /// of bookkeeping when all are used.
    pub max_calls: usize,
    /// Reads the clock once for all that a turn does (eRPC, NSDI'19, section 5.2.2). Default on;
    /// off: for each datagram that arrives, to see what that costs.
    pub batched_timestamps: bool,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            protocol: starling_proto::Config::default(),
            idle: Idle::default(),
            max_calls: 1 << 20,
            batched_timestamps: true,
        }
    }
}

impl EndpointConfig {
    /// Whether an endpoint can be like this on a device that says this of itself.
    ///
    /// # Errors
    /// With the field of the session protocol that has to be changed.
    pub fn check(&self, device: &Capabilities) -> Result<(), ConfigError> {
        self.protocol_on(device).check()
    }

    /// The session protocol's settings, with what the device says of itself.
    pub(crate) fn protocol_on(&self, device: &Capabilities) -> starling_proto::Config {
        starling_proto::Config {
            reliable: device.reliable,
            rx_queue_bytes: device.rx_queue_bytes,
            rx_queue_datagrams: device.rx_queue_datagrams,
            ..self.protocol.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_workers_that_cannot_work_are_named() {
        let sound = WorkerConfig::new(2, 0);
        assert_eq!(sound.check(), Ok(()));
        type Change = fn(&mut WorkerConfig);
        let changes: [(Change, &str); 5] = [
            (|config| config.threads = 0, "threads is 0, "),
            (|config| config.depth = 0, "depth is 0, it must be 1 to 8"),
            (
                |config| config.depth = MAX_DEPTH + 1,
                "depth is 9, it must be 1 to 8",
            ),
            (
                |config| config.mode = Mode::Grouped(0),
                "mode is Grouped(0), it must be of at least one group",
            ),
            (
                |config| (config.steered, config.mode) = (true, Mode::Partitioned),
                "mode is Partitioned, it must be SingleQueue",
            ),
        ];
        for (change, says) in changes {
            let mut config = sound.clone();
            change(&mut config);
            let error = config.check().expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
