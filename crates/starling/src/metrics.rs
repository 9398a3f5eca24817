//! Metrics of calls and threads: for a scraper, for a registry of the program's own, or for its code.
//!
//! ```no_run
//! # fn main() -> Result<(), starling::Error> {
//! // First: servers and channels that are made from now on are measured.
//! starling::metrics::enable();
//! // For programs that have a page already: appended to what it shows.
//! println!("{}", starling::metrics::prometheus());
//! // For those that have none: http://127.0.0.1:9464/metrics, until this is dropped.
//! let page = starling::metrics::serve("127.0.0.1:9464")?;
//! # Ok(())
//! # }
//! ```
//!
//! | metric | labels | of |
//! |---|---|---|
//! | `rpc_server_call_duration_seconds` | method, address, status | the time from the arrival of a request until its response is sent; its count is that of calls |
//! | `rpc_client_call_duration_seconds` | method, address, status | the time from the moment at which the channel's endpoint takes a call until its end |
//! | `rpc_server_request_size_bytes`, `..._response_size_bytes`, `rpc_client_...` | method, address | messages without their headers |
//! | `starling_server_queue_duration_seconds` | method, address | the wait for a worker |
//! | `starling_client_queue_duration_seconds` | method, address | the wait of a call for room in a full channel |
//! | `starling_server_calls_in_flight`, `starling_client_calls_in_flight` | method, address | calls that have begun and not ended; those of inline handlers never show |
//! | `starling_server_stream_messages_total`, `starling_client_...` | method, address, direction | messages of streams |
//! | `starling_client_retries_total` | method, address | calls that were made once more, by a policy for retries or for hedging |
//! | `starling_endpoint_..._total`, `starling_protocol_..._total`, `starling_device_..._total` | address, role, thread | the counters of [`ThreadStats`](crate::ThreadStats), by their names |
//!
//! The names and labels of calls are those of OpenTelemetry's semantic conventions for RPC: `rpc_method` is
//! `kv.Kv/Get`, `rpc_response_status_code` is `NOT_FOUND`, `server_address` is the server's own address or what
//! the channel was made with; with several servers, that of the server that got the call. A call that did not run
//! and is made again counts once for each attempt that an endpoint takes. A call with interceptors, compression,
//! bounds, retries or hedging counts once, as its caller sees it: what interceptors answer counts, sizes are those of
//! messages that are not compressed, and `server_address` has all servers of the channel, of many the first three.
//!
//! Messages' contents and metadata are in none of them. The counts of a server or channel that is gone stay.
//!
//! A process has at most 4,096 series, one for each method at each address at each end. When one more begins, those
//! give way, with their counts, whose servers and channels are gone; such a series begins again at zero. If that makes
//! no room, the calls of further methods and addresses count together, with `_OTHER` as method and address. So do those
//! of further methods of one address, beyond some hundreds. A method takes some kilobytes for each thread that records
//! it, as long as its server or channel lives, also if it counts there. So a process that calls many thousands of
//! addresses at once has to have memory for that.

mod caller;
mod client;
mod local;
mod page;
mod places;
mod server;
mod streams;
mod threads;
mod turns;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use starling_metrics::{Registry, TextWriter, Writers, write_calls};

pub use starling_metrics::{CallSeries, CallTotals, HistogramTotals, SeriesKey, Side};

pub(crate) use caller::CallerMeasure;
pub(crate) use client::{
    CallMeasure, ClientMetrics, Measured, QueueMeasure, SharedRecorders, record_queue, record_retry,
};
pub(crate) use local::{CallClock, LocalMeasure, begin_local, end_local};
pub use page::MetricsPage;
#[doc(hidden)]
pub use page::Timed;
pub(crate) use server::MeasuredMethod;
pub(crate) use streams::{client_end, server_end};
pub use threads::{ThreadCounters, threads};
pub(crate) use turns::{TurnEnds, Turns};

use crate::error::Error;

static ENABLED: AtomicBool = AtomicBool::new(false);
static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);

/// Has servers, endpoints and channels that are made from now on measured, for the life of the process.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Whether [`enable`] was called.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// The counts of all calls so far, by side, address and method. Those that an endpoint ends just now may be missing.
///
/// Takes a turn of each endpoint behind channels that no thread drives. That may run wakers of callers, so hold no lock
/// that these take.
pub fn snapshot() -> Vec<CallSeries> {
    crate::threads::kick_channels();
    REGISTRY.snapshot()
}

/// Some of them, without the first `from`.
pub(crate) fn page(from: usize, most: usize) -> Vec<CallSeries> {
    crate::threads::kick_channels();
    REGISTRY.page(from, most)
}

/// All metrics as text, in Prometheus' exposition format 0.0.4. It may stand before or behind that of another
/// library; in OpenMetrics, before its `# EOF`.
///
/// Waits for the threads' counters, at most for half a second: those of a thread that does not answer, because
/// a handler holds it up, are missing. In a dispatch thread, all counters of threads are missing. It takes turns of
/// endpoints as [`snapshot`] does.
pub fn prometheus() -> String {
    let mut text = String::new();
    let mut out = TextWriter::new(&mut text);
    write_calls(&mut out, &snapshot())
        .and_then(|()| threads::write(&mut out))
        .expect("a string takes all text");
    text
}

/// Enables metrics, and shows them at `http://ADDRESS/metrics`, by a thread of its own, until the result is
/// dropped. Whoever can connect can read them.
///
/// # Errors
/// If the address cannot be bound.
pub fn serve(address: &str) -> Result<MetricsPage, Error> {
    enable();
    MetricsPage::open(address, || Ok(prometheus()))
}

/// Shows another text than that of this process's calls: that of the managed service. If there is none, the page says
/// why, with the status 503.
#[doc(hidden)]
pub fn serve_text(
    address: &str,
    text: impl Fn() -> Result<String, String> + Send + Sync + 'static,
) -> Result<MetricsPage, Error> {
    MetricsPage::open(address, text)
}

/// The method of a path: `kv.Kv/Get` of `/kv.Kv/Get`.
fn method_of(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

/// A recorder of the calls of a method.
fn recorder(
    side: Side,
    address: &Arc<str>,
    path: &str,
    writers: Writers,
) -> Arc<starling_metrics::Recorder> {
    let key = SeriesKey {
        side,
        address: Arc::clone(address),
        method: method_of(path).into(),
    };
    Arc::new(REGISTRY.recorder(&key, writers))
}
