//! An end of a stream that tells an observer what passes, and when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use starling_compress::AlgorithmSet;
use starling_endpoint::{Code, Encoding, Metadata, Status};
use starling_message::Bytes;
use starling_message::protobuf::DecodeLimits;
use starling_stream::{Bundle, ItemSlices, Items, LENGTH};

use super::{HeldBytes, StreamEnd};
use crate::coding::plain_len;
use crate::nested::ResponseMetadata;
use crate::plane::Waiting;

/// What an end of a stream tells. The end of the stream may be told more than once; the first one counts.
pub(crate) trait StreamObserver: Send + Sync {
    /// An item was sent.
    fn handle_sent(&self, bytes: usize) {
        let _ = bytes;
    }

    /// An item came for the reader.
    fn handle_taken(&self, bytes: usize) {
        let _ = bytes;
    }

    /// The reader has the end of the stream, or has given it up.
    fn handle_end(&self, code: Code) {
        let _ = code;
    }
}

/// The same end, observed.
pub(crate) fn observed_end(
    end: Arc<dyn StreamEnd>,
    observer: impl StreamObserver + 'static,
) -> Arc<dyn StreamEnd> {
    Arc::new(ObservedEnd {
        end,
        observer,
        room: AtomicUsize::new(0),
        codes: AtomicBool::new(false),
    })
}

struct ObservedEnd<O: StreamObserver> {
    end: Arc<dyn StreamEnd>,
    observer: O,
    /// Bytes in front of the items of a bundle, once there is one.
    room: AtomicUsize,
    /// The items that are sent say how they are compressed.
    codes: AtomicBool,
}

impl<O: StreamObserver> ObservedEnd<O> {
    fn handle_sent(&self, head: &[u8], tail: Option<&Bytes>) {
        let tail = tail.map_or(0, Bytes::len);
        self.observer
            .handle_sent(match self.codes.load(Ordering::Relaxed) {
                true => plain_len(head, tail),
                false => head.len() + tail,
            });
    }

    fn handle_taken(&self, items: &Items) {
        let is_coded = self.end.is_coded();
        for item in items.slices() {
            self.observer.handle_taken(match is_coded {
                true => plain_len(item, 0),
                false => item.len(),
            });
        }
    }
}

/// The bytes of a bundle's items. The last part of the last one may be held by reference.
fn sizes_of(bundle: &Bundle, room: usize) -> Vec<usize> {
    let items = bundle.head.get(room..).unwrap_or_default();
    let mut sizes: Vec<usize> = ItemSlices::new(items).map(<[u8]>::len).collect();
    if let Some(tail) = &bundle.tail {
        let before: usize = sizes.iter().map(|size| LENGTH + size).sum();
        sizes.push((items.len() - before).saturating_sub(LENGTH) + tail.len());
    }
    sizes
}

impl<O: StreamObserver> Drop for ObservedEnd<O> {
    fn drop(&mut self) {
        self.observer.handle_end(Code::Cancelled);
    }
}

impl<O: StreamObserver> StreamEnd for ObservedEnd<O> {
    fn poll_ready(&self, cx: &mut Context<'_>, waiting: &mut Waiting) -> Poll<()> {
        self.end.poll_ready(cx, waiting)
    }

    fn keep_one(&self) {
        self.end.keep_one();
    }

    fn poll_push(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
        head: &[u8],
        tail: Option<&Bytes>,
    ) -> Poll<Result<(), Box<Status>>> {
        let pushed = self.end.poll_push(cx, waiting, head, tail);
        if let Poll::Ready(Ok(())) = &pushed {
            self.handle_sent(head, tail);
        }
        pushed
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, is_last: bool) -> Result<(), Status> {
        self.end.push(head, tail, is_last)?;
        self.handle_sent(head, tail);
        Ok(())
    }

    fn new_bundle(&self, bytes: usize) -> Option<Bundle> {
        let bundle = self.end.new_bundle(bytes)?;
        self.room.store(bundle.head.len(), Ordering::Relaxed);
        Some(bundle)
    }

    fn push_bundle(&self, bundle: Bundle) -> Result<(), Status> {
        let sizes = sizes_of(&bundle, self.room.load(Ordering::Relaxed));
        self.end.push_bundle(bundle)?;
        sizes
            .into_iter()
            .for_each(|size| self.observer.handle_sent(size));
        Ok(())
    }

    fn encoding(&self) -> Encoding {
        self.end.encoding()
    }

    fn close(&self) {
        self.end.close();
    }

    fn may_hold(&self) -> bool {
        self.end.may_hold()
    }

    fn poll_pushed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.end.poll_pushed(cx)
    }

    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.end.poll_closed(cx)
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.end.poll_failed(cx)
    }

    fn fail(&self, status: Status) {
        let code = status.code();
        self.end.fail(status);
        self.observer.handle_end(code);
    }

    fn abort(&self) {
        self.end.abort();
        self.observer.handle_end(Code::Cancelled);
    }

    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        let next = self.end.poll_items(cx, waiting);
        match &next {
            Poll::Ready(Ok(Some((items, _)))) => self.handle_taken(items),
            Poll::Ready(Ok(None)) => self.observer.handle_end(Code::Ok),
            Poll::Ready(Err(status)) => self.observer.handle_end(status.code()),
            Poll::Pending => {}
        }
        next
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        self.end.hold(bytes)
    }

    fn decode_limits(&self) -> DecodeLimits {
        self.end.decode_limits()
    }

    fn reject(&self, why: &str) -> Status {
        let status = self.end.reject(why);
        self.observer.handle_end(status.code());
        status
    }

    fn stop_reading(&self) {
        self.end.stop_reading();
        self.observer.handle_end(Code::Cancelled);
    }

    fn headers(&self) -> Option<Metadata> {
        self.end.headers()
    }

    fn poll_headers(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Metadata, Status>> {
        let headers = self.end.poll_headers(cx, waiting);
        if let Poll::Ready(Err(status)) = &headers {
            self.observer.handle_end(status.code());
        }
        headers
    }

    fn trailers(&self) -> Option<Metadata> {
        self.end.trailers()
    }

    fn send_headers(&self, metadata: Metadata) -> Result<(), Status> {
        self.end.send_headers(metadata)
    }

    fn set_trailers(&self, metadata: Metadata) -> Result<(), Status> {
        self.end.set_trailers(metadata)
    }

    fn is_coded(&self) -> bool {
        self.end.is_coded()
    }

    fn accepts(&self) -> AlgorithmSet {
        self.end.accepts()
    }

    fn code_items(&self) {
        self.codes.store(true, Ordering::Relaxed);
        self.end.code_items();
    }

    fn send_behind(&self, metadata: ResponseMetadata) {
        self.end.send_behind(metadata);
    }

    fn refuse(&self) {
        self.end.refuse();
    }

    fn set_request_metadata(&self, metadata: Metadata) {
        self.end.set_request_metadata(metadata);
    }
}
