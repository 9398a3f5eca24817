//! The measure of a channel's call of which its caller sees more than the endpoint: interceptors make it, or its
//! messages are compressed or bounded.

use std::sync::Arc;
use std::time::Instant;

use starling_endpoint::Code;
use starling_metrics::Recorder;

use super::client::SharedRecorders;
use crate::interceptor::BoxFuture;
use crate::plane::{CallResult, OutgoingCall};

/// A call that its caller waits for. If this is dropped before the call has a result, it was cancelled.
pub(crate) struct CallerMeasure {
    recorder: Arc<Recorder>,
    begun: Instant,
    request_bytes: usize,
    has_ended: bool,
}

impl CallerMeasure {
    /// A call begins, which the endpoint is not to count. `None`: metrics are not enabled.
    pub(crate) fn begin(
        recorders: &SharedRecorders,
        address: &str,
        call: &mut OutgoingCall,
    ) -> Option<Self> {
        super::is_enabled().then(|| {
            call.counted_by_caller = true;
            let message = &call.message;
            let recorder = recorders.of(address, message.method.0, message.path.as_str());
            recorder.begin();
            Self {
                recorder,
                begun: Instant::now(),
                request_bytes: message.payload.len().saturating_sub(message.headroom),
                has_ended: false,
            }
        })
    }

    /// The result of the call.
    pub(crate) async fn end_of(mut self, call: BoxFuture<'static, CallResult>) -> CallResult {
        let result = call.await;
        match &result {
            Ok((response, _)) => self.end(Code::Ok, Some(response.body().len())),
            Err(status) => self.end(status.code(), None),
        }
        result
    }

    fn end(&mut self, code: Code, response: Option<usize>) {
        self.has_ended = true;
        let elapsed_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.recorder
            .end_with(code, elapsed_ns, self.request_bytes, response);
    }
}

impl Drop for CallerMeasure {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Code::Cancelled, None);
        }
    }
}
