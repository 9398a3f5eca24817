//! What the two halves of a handler's stream do with its end.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use starling_compress::AlgorithmSet;
use starling_endpoint::{Encoding, Metadata, Status};
use starling_message::Bytes;
use starling_message::protobuf::DecodeLimits;
use starling_stream::{Bundle, Items};

use super::super::StreamEnd;
use super::super::account::HeldBytes;
use super::super::open_bundle;
use super::{ServerEnd, too_late};
use crate::nested::ResponseMetadata;
use crate::plane::Waiting;

impl StreamEnd for ServerEnd {
    fn poll_ready(&self, cx: &mut Context<'_>, _: &mut Waiting) -> Poll<()> {
        self.poll_room(cx).map(drop)
    }

    fn keep_one(&self) {
        self.state.lock().stream.keep_fewer_than(1);
    }

    fn poll_push(
        &self,
        cx: &mut Context<'_>,
        _: &mut Waiting,
        head: &[u8],
        tail: Option<&Bytes>,
    ) -> Poll<Result<(), Box<Status>>> {
        if tail.is_none() && open_bundle::push(self.owner(), head) {
            return Poll::Ready(Ok(()));
        }
        self.poll_room(cx).map(|mut state| {
            self.push_locked(&mut state, head, tail)?;
            self.flush(state);
            Ok(())
        })
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, _: bool) -> Result<(), Status> {
        let mut state = self.state.lock();
        if !self.take_back(&mut state) {
            return Err(Status::failed_precondition(
                "the sender moved to another thread between `poll_ready` and `start_send`",
            ));
        }
        self.push_locked(&mut state, head, tail)?;
        self.flush(state);
        Ok(())
    }

    fn new_bundle(&self, bytes: usize) -> Option<Bundle> {
        Some(self.state.lock().stream.new_bundle(bytes))
    }

    fn push_bundle(&self, bundle: Bundle) -> Result<(), Status> {
        // What was lent has come back: there was room.
        let mut state = self.state.lock();
        state.stream.push_bundle(bundle)?;
        self.flush(state);
        Ok(())
    }

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn close(&self) {
        // The stream ends when the handler returns, with a status.
    }

    fn fail(&self, status: Status) {
        ServerEnd::abort(self, status);
    }

    fn abort(&self) {
        // The handler ends, too, or another task of the user's sends for it.
    }

    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        _: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        let mut state = self.state.lock();
        if let Some(items) = state.stream.take() {
            return Poll::Ready(Ok(Some((items, self.encoding))));
        }
        if state.stream.is_read() {
            let aborted = state.stream.finished().cloned();
            return Poll::Ready(aborted.unwrap_or(Ok(())).map(|()| None));
        }
        state.reader = Some(cx.waker().clone());
        self.flush(state);
        Poll::Pending
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        let Some(table) = self.table.upgrade() else {
            // The server has ended, and nobody counts.
            return Ok(HeldBytes::default());
        };
        let held = table.account.hold(Some(self.key.client), bytes);
        held.ok_or_else(|| table.account.no_room(bytes, "ServerBuilder"))
    }

    fn decode_limits(&self) -> DecodeLimits {
        let table = self.table.upgrade();
        table.map_or_else(DecodeLimits::default, |table| table.decode)
    }

    fn reject(&self, why: &str) -> Status {
        let status = Status::invalid_argument(format!("the client broke the stream: {why}"));
        self.abort_with(self.state.lock(), status.clone());
        status
    }

    fn stop_reading(&self) {
        let mut state = self.state.lock();
        state.stream.discard();
        self.flush(state);
    }

    fn headers(&self) -> Option<Metadata> {
        let metadata = self.state.lock().metadata.as_deref().cloned();
        Some(metadata.unwrap_or_default())
    }

    fn trailers(&self) -> Option<Metadata> {
        let state = self.state.lock();
        let set = state.stream.trailers().cloned();
        set.or_else(|| Some(state.response_metadata.as_ref()?.get()))
    }

    fn send_headers(&self, metadata: Metadata) -> Result<(), Status> {
        let mut state = self.state.lock();
        // Items that another thread has are items, too.
        if !self.take_back(&mut state) || !state.stream.set_headers(metadata) {
            return Err(too_late());
        }
        self.flush(state);
        Ok(())
    }

    fn set_trailers(&self, metadata: Metadata) -> Result<(), Status> {
        self.state.lock().stream.set_trailers(metadata);
        Ok(())
    }

    fn is_coded(&self) -> bool {
        self.is_coded
    }

    fn accepts(&self) -> AlgorithmSet {
        self.accepts
    }

    fn code_items(&self) {
        self.codes.store(true, Ordering::Relaxed);
    }

    fn refuse(&self) {
        self.state.lock().is_refused = true;
    }

    fn set_request_metadata(&self, metadata: Metadata) {
        self.state.lock().metadata = Some(Box::new(metadata));
    }

    fn send_behind(&self, metadata: ResponseMetadata) {
        self.state.lock().response_metadata = Some(metadata);
    }
}
