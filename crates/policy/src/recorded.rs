//! What engines record of calls, for the operator.

use std::sync::Arc;

use starling_call::{MethodId, TraceParent};
use starling_metrics::CallRecorder;

use crate::spec::Side;

/// What the calls of a series have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeriesLabels {
    /// Which end of calls the application is.
    pub side: Side,
    /// The application's program.
    pub program: String,
    /// The address of the server.
    pub server: String,
    /// The method.
    pub method: MethodId,
}

/// The counts of some calls. Another thread may read them while the engine counts.
#[derive(Clone, Debug)]
pub struct Series {
    /// `None`: calls for which the engine had no series of their own.
    pub labels: Option<Arc<SeriesLabels>>,
    /// The counts.
    pub recorder: Arc<CallRecorder>,
}

/// Where in which trace a call was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The span itself.
    pub context: TraceParent,
    /// The span that it is in. `None`: it is the first of its trace.
    pub parent_id: Option<u64>,
}
