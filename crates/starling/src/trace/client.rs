//! Spans of a client's calls.

use std::borrow::Cow;
use std::sync::Arc;

use starling_endpoint::{Code, Status};

use super::{CallSpan, End, begins_trace, current, may_be_in_trace, of_metadata, put};
use crate::options::CallOptions;
use crate::streaming::{StreamEnd, StreamObserver, observed_end};

/// The span of a call, until it ends. A call that is dropped was cancelled.
pub(crate) struct ClientSpan {
    call: CallSpan,
    has_ended: bool,
}

/// The span of a call that is about to be made; its metadata gets the context. `None`: it is in no trace.
#[inline]
pub(crate) fn begin_call(
    path: &str,
    address: &str,
    options: &mut Cow<'_, CallOptions>,
) -> Option<Box<ClientSpan>> {
    match super::is_enabled() {
        true => begin_enabled(path, address, options),
        false => None,
    }
}

#[inline(never)]
fn begin_enabled(
    path: &str,
    address: &str,
    options: &mut Cow<'_, CallOptions>,
) -> Option<Box<ClientSpan>> {
    let begins = begins_trace();
    match !begins && options.metadata.view().has_no_extension() && !may_be_in_trace() {
        // As most calls.
        true => None,
        false => begin(path, address, options, begins),
    }
}

#[cold]
fn begin(
    path: &str,
    address: &str,
    options: &mut Cow<'_, CallOptions>,
    begins: bool,
) -> Option<Box<ClientSpan>> {
    let parent = of_metadata(options.metadata.view()).or_else(current);
    let call = CallSpan::begin(path, End::Client { server: address }, parent, begins)?;
    put(&call.context, &mut options.to_mut().metadata);
    Some(Box::new(ClientSpan {
        call,
        has_ended: false,
    }))
}

impl ClientSpan {
    /// The call has this result.
    pub(crate) fn end<T>(mut self, result: &Result<T, Status>) {
        self.end_with(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
    }

    fn end_with(&mut self, code: Code) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.call.end(code);
        }
    }
}

impl Drop for ClientSpan {
    fn drop(&mut self) {
        self.end_with(Code::Cancelled);
    }
}

/// Ends the span of a stream with the stream.
struct StreamSpan(parking_lot::Mutex<Option<Box<ClientSpan>>>);

impl StreamObserver for StreamSpan {
    fn handle_end(&self, code: Code) {
        let span = self.0.lock().take();
        if let Some(mut span) = span {
            span.end_with(code);
        }
    }
}

/// The same for a stream: what makes an end of it that ends the span.
pub(crate) fn begin_stream(
    path: &str,
    address: &str,
    options: &mut Cow<'_, CallOptions>,
) -> impl FnOnce(Arc<dyn StreamEnd>) -> Arc<dyn StreamEnd> + use<> {
    let span = begin_call(path, address, options);
    move |end| match span {
        Some(span) => observed_end(end, StreamSpan(parking_lot::Mutex::new(Some(span)))),
        None => end,
    }
}
