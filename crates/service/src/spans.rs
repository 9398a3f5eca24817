//! Spans on their way from a runtime to a collector.
//!
//! ```text
//!  runtime ── push ─▶ SpanQueue (bounded) ◀── every second ── a thread ── OTLP over HTTP ─▶ collector
//! ```
//!
//! A runtime never waits for it: a span for which there is no room is dropped, and counted.

mod http;
mod otlp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use starling_endpoint::{Code, MethodId};
use starling_io::{Clock, Fault, IoError, MonotonicClock};
use starling_policy::{Datapath, Span};

use crate::error::ServiceError;

pub(crate) use http::Destination;

/// Spans that wait, at most.
const MAX_QUEUED: usize = 8192;
/// Spans of one request.
const BATCH: usize = 512;
/// How often spans are sent.
const INTERVAL: Duration = Duration::from_secs(1);

/// A call that a policy has recorded.
#[derive(Debug)]
pub(crate) struct RecordedSpan {
    pub(crate) span: Span,
    /// The name of the policy.
    pub(crate) policy: String,
    /// The method's name, if it is known.
    pub(crate) path: Option<Arc<str>>,
    pub(crate) method: MethodId,
    pub(crate) datapath: Arc<Datapath>,
    pub(crate) code: Code,
    /// In nanoseconds of the service's clock.
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
}

/// What became of spans so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanCounts {
    pub(crate) exported: u64,
    pub(crate) dropped: u64,
}

/// Spans that were not sent yet.
#[derive(Debug, Default)]
pub(crate) struct SpanQueue {
    waiting: Mutex<Vec<RecordedSpan>>,
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl SpanQueue {
    /// Adds a span, if there is room.
    pub(crate) fn push(&self, span: RecordedSpan) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MAX_QUEUED {
            return waiting.push(span);
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        SpanCounts {
            exported: self.exported.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

/// A thread that sends spans, until this is dropped.
#[derive(Debug)]
pub(crate) struct Exporter {
    queue: Arc<SpanQueue>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    pub(crate) fn start(
        destination: Destination,
        service: &str,
        clock: MonotonicClock,
    ) -> Result<Self, ServiceError> {
        let (queue, is_over) = (Arc::<SpanQueue>::default(), Arc::<AtomicBool>::default());
        let mut sender = Sender {
            destination,
            service: service.to_owned(),
            clock,
            queue: Arc::clone(&queue),
            is_taken: true,
        };
        let its_flag = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("starling-spans".into())
            .spawn(move || {
                let mut is_last = false;
                while !is_last {
                    std::thread::park_timeout(INTERVAL);
                    is_last = its_flag.load(Ordering::Acquire);
                    sender.send_all();
                }
            })
            .map_err(|error| {
                let remedy = "raise the limit of threads";
                IoError::from_os(Fault::Host, "start a thread for spans", error, remedy)
            })?;
        Ok(Self {
            queue,
            is_over,
            thread: Some(thread),
        })
    }

    pub(crate) fn queue(&self) -> Arc<SpanQueue> {
        Arc::clone(&self.queue)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The panic hook has reported a panic there.
            let _ = thread.join();
        }
    }
}

struct Sender {
    destination: Destination,
    /// The name of the service.
    service: String,
    clock: MonotonicClock,
    queue: Arc<SpanQueue>,
    /// Whether the collector has taken the last spans.
    is_taken: bool,
}

impl Sender {
    fn send_all(&mut self) {
        let spans = std::mem::take(&mut *self.queue.waiting.lock());
        let mut failure = None;
        for batch in spans.chunks(BATCH) {
            // A collector that has not answered holds up the others no longer.
            if failure.is_none() {
                let body = otlp::request(&self.service, self.clock_began_ns(), batch);
                failure = self.destination.post(&body).err();
            }
            let count = match failure {
                None => &self.queue.exported,
                Some(_) => &self.queue.dropped,
            };
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        if !spans.is_empty() {
            self.tell(failure);
        }
    }

    /// When the service's clock was at 0, in nanoseconds of Unix time.
    fn clock_began_ns(&self) -> u64 {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_ns = unix.map_or(0, |unix| unix.as_nanos() as u64);
        unix_ns.saturating_sub(self.clock.now_ns())
    }

    /// Tells the operator if that is new.
    fn tell(&mut self, failure: Option<String>) {
        let was_taken = std::mem::replace(&mut self.is_taken, failure.is_none());
        let collector = &self.destination;
        match failure {
            Some(failure) if was_taken => tracing::warn!(
                "the collector at {collector} does not take spans, and they are dropped: {failure}; see that it runs \
                 there and receives OTLP over HTTP, whose port is 4318 unless set"
            ),
            None if !was_taken => tracing::info!("the collector at {collector} takes spans again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_endpoint::TraceParent;
    use starling_policy::Side;

    use super::*;

    pub(super) fn span(code: Code, parent_id: Option<u64>) -> RecordedSpan {
        RecordedSpan {
            span: Span {
                context: TraceParent::root([1, 2, 3]),
                parent_id,
            },
            policy: "traces".to_owned(),
            path: None,
            method: MethodId(0x1234),
            datapath: Arc::new(Datapath {
                id: 1,
                side: Side::Client,
                program: "frontend".to_owned(),
                server: "udp://h:1".to_owned(),
            }),
            code,
            began_ns: 500,
            ended_ns: 1500,
        }
    }

    #[test]
    fn a_queue_that_is_full_drops_and_counts() {
        let queue = SpanQueue::default();
        for _ in 0..MAX_QUEUED + 3 {
            queue.push(span(Code::Ok, None));
        }
        let expected = SpanCounts {
            exported: 0,
            dropped: 3,
        };
        assert_eq!(queue.counts(), expected);
        assert_eq!(queue.waiting.lock().len(), MAX_QUEUED);
    }

    #[test]
    fn spans_that_no_collector_takes_are_counted_when_the_export_ends() {
        // Nobody listens at a port that was just free.
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let destination = Destination::parse(&format!("http://{address}")).expect("an address");
        let exporter =
            Exporter::start(destination, "mesh", MonotonicClock::new()).expect("a thread");
        let queue = exporter.queue();
        queue.push(span(Code::Ok, None));
        drop(exporter);
        let expected = SpanCounts {
            exported: 0,
            dropped: 1,
        };
        assert_eq!(queue.counts(), expected);
    }
}
