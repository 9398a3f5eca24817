//! The measures of a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use starling_endpoint::Code;
use starling_message::MethodDescriptor;
use starling_metrics::Recorder;

use super::client::SharedRecorders;
use crate::streaming::{StreamEnd, StreamObserver, observed_end};

/// A server's end whose messages are counted. Its handler's future is measured elsewhere.
pub(crate) fn server_end(end: Arc<dyn StreamEnd>, recorder: &Arc<Recorder>) -> Arc<dyn StreamEnd> {
    observed_end(end, ServerMessages(Arc::clone(recorder)))
}

struct ServerMessages(Arc<Recorder>);

impl StreamObserver for ServerMessages {
    fn handle_sent(&self, bytes: usize) {
        self.0.record_message_sent();
        self.0.record_response(bytes);
    }

    fn handle_taken(&self, bytes: usize) {
        self.0.record_message_received();
        self.0.record_request(bytes);
    }
}

/// A client's end that is measured, if metrics are enabled.
pub(crate) fn client_end(
    end: Arc<dyn StreamEnd>,
    recorders: &SharedRecorders,
    address: &str,
    method: &'static MethodDescriptor,
) -> Arc<dyn StreamEnd> {
    if !super::is_enabled() {
        return end;
    }
    let recorder = recorders.of(address, method.id, method.path);
    recorder.begin();
    let call = ClientStreamCall {
        recorder,
        begun: Instant::now(),
        has_ended: AtomicBool::new(false),
    };
    observed_end(end, call)
}

/// The call that a stream is, at its client.
struct ClientStreamCall {
    recorder: Arc<Recorder>,
    begun: Instant,
    has_ended: AtomicBool,
}

impl StreamObserver for ClientStreamCall {
    fn handle_sent(&self, bytes: usize) {
        self.recorder.record_message_sent();
        self.recorder.record_request(bytes);
    }

    fn handle_taken(&self, bytes: usize) {
        self.recorder.record_message_received();
        self.recorder.record_response(bytes);
    }

    fn handle_end(&self, code: Code) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            let elapsed_ns = u64::try_from(self.begun.elapsed().as_nanos());
            self.recorder.end(code, elapsed_ns.unwrap_or(u64::MAX));
        }
    }
}
