//! Metrics of calls: what threads count, the sums, and their text for Prometheus.
//!
//! Nothing here knows a device, a plane or a clock: times are arguments.
//!
//! ```text
//!  one thread         its recorder         the registry
//!  call ends ───────▶ CallRecorder ──┐
//!  call ends ───────▶ CallRecorder ──┼──▶ a series: side, address, method ──▶ CallSeries ──▶ text
//!                                    │      + the sums of recorders that are gone
//!  another thread ──▶ CallRecorder ──┘
//! ```
//!
//! A recorder has one writer, so that counting is an addition to memory of its own, or many, where it
//! costs an atomic one. Reading takes no lock that a writer takes. Memory is bounded: a histogram has a
//! fixed number of buckets, a recorder one histogram for each code that occurred, and the registry at most
//! [`MAX_SERIES`] series.

#![forbid(unsafe_code)]

mod alike;
mod cells;
mod histogram;
mod recorder;
mod registry;
mod saved;
mod text;
mod totals;

pub use cells::Writers;
pub use histogram::{DURATION_BOUNDS_NS, HistogramTotals, SIZE_BOUNDS};
pub use recorder::CallRecorder;
pub use registry::{CallSeries, MAX_SERIES, Recorder, Registry, SeriesKey, Side};
pub use text::{Kind, LabelledCalls, TextWriter, write_calls, write_labelled};
pub use totals::CallTotals;
