//! What engines record of calls, for the operator.

use std::sync::Arc;

use starling_call::MethodId;
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
