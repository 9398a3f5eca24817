//! The settings of an endpoint and of its workers, with the reasons for the defaults.

use std::time::Duration;

use starling_io::Capabilities;
use starling_proto::{ConfigError, Prefix};

use crate::error::WorkerConfigError;
use crate::jbsq::{MAX_DEPTH, QueueModel};

/// The greatest number of requests that may wait outside their handlers.
const MAX_WAITING: usize = 1 << 20;

/// How an event loop behaves when it has no work. While a device has no room for frames that wait,
/// all settings but [`Idle::Spin`] poll the device for 100 us after the last work, then every 50
/// us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Never sleeps: the lowest latency, for a whole core.
    Spin,
    /// Spins until the last work is `spin` ago, then sleeps. While spins so long bring no work, because the peers are
    /// silent for longer or need this very core, it spins for 20 us at most, and now and then tries one that is twice
    /// as long as `spin`.
    Adaptive {
        /// How long to spin after work, but for such tries.
        spin: Duration,
    },
    /// Sleeps at once.
    Block,
}

impl Idle {
    /// How long an event loop without work spins before it sleeps, in nanoseconds.
    pub fn spin_ns(self) -> u64 {
        match self {
            Self::Spin => u64::MAX,
            Self::Adaptive { spin } => u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX),
            Self::Block => 0,
        }
    }
}

impl Default for Idle {
    /// Adaptive, 200 us: many round trips on the local host or network, and a few times the cost of putting a
    /// thread to sleep and waking it in a virtual machine.
    fn default() -> Self {
        Self::Adaptive {
            spin: Duration::from_micros(200),
        }
    }
}

/// The threads of worker handlers, and which thread gets which request. [`WorkerConfig::check`]
/// refuses invalid settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Threads, at least one.
    pub threads: usize,
    /// Requests that may wait for a thread. Further ones are refused. A client may have as many in
    /// the queue as are still free, as with [`EndpointConfig::max_waiting`].
    pub queue: usize,
    /// Outstanding requests of one thread: the one that it runs, and those that it continues with
    /// at once. 1 to [`MAX_DEPTH`](crate::jbsq::MAX_DEPTH), 2 by default.
    pub depth: u8,
    /// Which threads may run a request.
    pub model: QueueModel,
    /// The device itself steers plain requests of one packet to the threads, which answer them
    /// without the endpoint's thread (RPCValet, ASPLOS 2019). Only `xdp://` can do that, with 1 to
    /// 63 threads and [`QueueModel::SingleQueue`]. The same threads get all other requests, such as calls
    /// with a timeout or metadata, in the usual way. An endpoint that is dropped while handlers run
    /// frees its port at once, and the interface's queue when the last handler has returned.
    pub steered: bool,
    /// How a thread without work behaves. [`Idle::Adaptive`] yields the core a few times, for some
    /// microseconds, continues to do so for `spin` (zero by default), then sleeps. To wake a thread
    /// takes the dispatch thread some microseconds. If that happens often, a `spin` of a
    /// millisecond or two keeps that delay from the requests that the dispatch thread runs itself.
    pub idle: Idle,
}

impl WorkerConfig {
    /// `threads` threads and a queue of `queue` requests; the other settings have their defaults.
    pub fn new(threads: usize, queue: usize) -> Self {
        Self {
            threads,
            queue,
            depth: 2,
            model: QueueModel::SingleQueue,
            steered: false,
            idle: Idle::Adaptive {
                spin: Duration::ZERO,
            },
        }
    }

    /// Checks the settings that do not depend on the device.
    ///
    /// # Errors
    /// With the field that has to be changed.
    pub fn check(&self) -> Result<(), WorkerConfigError> {
        let (model, depth) = (self.model, self.depth);
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
                "model",
                format!("{model:?}"),
                model != QueueModel::Grouped(0),
                "of at least one group",
            ),
            (
                "model",
                format!("{model:?}"),
                model == QueueModel::SingleQueue || !self.steered,
                "SingleQueue if the device steers requests to workers: it has no other model",
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
    /// The session protocol. The device's own values replace `reliable`, `rx_queue_bytes` and
    /// `rx_queue_datagrams`.
    pub protocol: starling_proto::Config,
    /// How the event loop behaves when it has no work.
    pub idle: Idle,
    /// Calls outstanding at once, all sessions together, at most 2^31. Default 2^20: some 32 MiB
    /// of bookkeeping when all are used.
    pub max_calls: usize,
    /// Requests that may wait outside their handlers at once, all clients together: those that were
    /// deferred, as by nested handlers, and those in workers or their queue. 1 to 2^20, default
    /// 65,536. A client may have as many as are still free: half of them if no other has any, a
    /// third if one other takes all that it may. Further requests are refused with
    /// RESOURCE_EXHAUSTED, and did not run.
    pub max_waiting: usize,
    /// The bytes of the messages of those requests, in the same way; of a compressed one, also those that
    /// it has when decompressed. At least the protocol's `max_message` and 16 KiB, default 512 MiB.
    pub max_waiting_bytes: usize,
    /// Reads the clock once a turn (eRPC, NSDI'19, section 5.2.2). Default on. Off: the clock is
    /// read for each datagram that arrives, to measure what that costs.
    pub batched_timestamps: bool,
    /// Has the C library give free memory back to the system soon after a burst, when the endpoint has let go of
    /// 32 MiB or more that it held for its peers: glibc's allocator keeps what it once had. A thread of its own
    /// does that, at most once in 5 s, in 3 to 20 ms for each 100 MB. It concerns the whole process: a
    /// thread that needs the allocator meanwhile may wait. Default on. Off: for a program with another allocator
    /// (`#[global_allocator]`), where it costs the start of a thread for nothing, or that cannot have such waits.
    pub returns_memory: bool,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            protocol: starling_proto::Config::default(),
            idle: Idle::default(),
            max_calls: 1 << 20,
            max_waiting: 1 << 16,
            max_waiting_bytes: 512 << 20,
            batched_timestamps: true,
            returns_memory: true,
        }
    }
}

impl EndpointConfig {
    /// Checks the settings for a device with these capabilities.
    ///
    /// # Errors
    /// With the field that has to be changed.
    pub fn check(&self, device: &Capabilities) -> Result<(), ConfigError> {
        self.protocol_on(device).check()?;
        let largest = self.protocol.max_message as usize + usize::from(Prefix::MAX);
        let checks = [
            (
                "max_waiting",
                self.max_waiting,
                (1..=MAX_WAITING).contains(&self.max_waiting),
                "1 to 2^20",
            ),
            (
                "max_waiting_bytes",
                self.max_waiting_bytes,
                self.max_waiting_bytes >= largest,
                "at least max_message and 16 KiB",
            ),
        ];
        for (field, value, good, must) in checks {
            if !good {
                let value = value as u64;
                return Err(ConfigError { field, value, must });
            }
        }
        Ok(())
    }

    /// The session protocol's settings, with the device's own values.
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
    fn the_error_names_the_invalid_setting_of_an_endpoint() {
        let device = Capabilities {
            scheme: "test",
            reliable: true,
            ecn: false,
            rx_queue_bytes: 1 << 20,
            rx_queue_datagrams: 1024,
            max_datagram: 1400,
        };
        type Change = fn(&mut EndpointConfig);
        let changes: [(Change, &str); 4] = [
            (
                |config| config.max_waiting = 0,
                "max_waiting is 0, it must be 1 to 2^20",
            ),
            (
                |config| config.max_waiting = MAX_WAITING + 1,
                "max_waiting is 1048577, it must be 1 to 2^20",
            ),
            (
                |config| {
                    config.protocol.max_message = 1 << 20;
                    config.max_waiting_bytes = 1 << 20;
                },
                "max_waiting_bytes is 1048576, it must be at least max_message and 16 KiB",
            ),
            (
                |config| config.protocol.slots = 65,
                "slots is 65, it must be 1 to 64",
            ),
        ];
        assert_eq!(EndpointConfig::default().check(&device), Ok(()));
        for (change, says) in changes {
            let mut config = EndpointConfig::default();
            change(&mut config);
            let error = config.check(&device).expect_err(says);
            assert_eq!(error.to_string(), says);
        }
    }

    #[test]
    fn the_error_names_the_invalid_setting_of_workers() {
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
                |config| config.model = QueueModel::Grouped(0),
                "model is Grouped(0), it must be of at least one group",
            ),
            (
                |config| (config.steered, config.model) = (true, QueueModel::Partitioned),
                "model is Partitioned, it must be SingleQueue",
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
