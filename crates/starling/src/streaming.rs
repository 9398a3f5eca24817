//! Streams as users see them: a sender and a receiver of items, the same two types at both ends.
//!
//! ```text
//!  StreamSender ──▶ ┌ StreamEnd ────────────┐ ──▶ requests or answers
//!                   │ client: ClientEnd     │       of the session protocol
//!  StreamReceiver ◀─└ server: ServerEnd ────┘ ◀──
//! ```
//!
//! The rules of streams are in `starling_stream`. Here they meet calls, wakers and message types.

mod account;
mod again;
mod bundle;
mod client;
mod handler_task;
mod item;
mod limits;
mod observed;
mod open_bundle;
mod receiver;
mod route;
mod sender;
mod server;
mod single_items;
mod slots;
mod table;
mod threads;
mod uncommon;

use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use starling_compress::AlgorithmSet;
use starling_endpoint::{Encoding, Metadata, Status};
use starling_message::protobuf::DecodeLimits;
use starling_message::{Bytes, Message, MethodDescriptor};
use starling_stream::{Bundle, Items};

use crate::coding::{CallCoding, coded_at_client};
use crate::message::OwnedRequest;
use crate::nested::{NestedContext, ResponseMetadata};
use crate::options::CallOptions;
use crate::plane::Waiting;
use crate::wait::block_on;

pub(crate) use account::{ByteAccount, HeldBytes, spare_for};
pub use bundle::{StreamBundle, StreamBundleIter};
pub(crate) use client::{ClientEnd, belongs_to_parent};
pub use item::StreamItem;
pub(crate) use limits::{StreamLimits, StreamNeeds};
pub(crate) use observed::{StreamObserver, observed_end};
pub use receiver::{Blocking, NextMessage, StreamReceiver};
pub(crate) use route::Route;
pub use sender::{StreamCall, StreamSender};
pub(crate) use server::too_late;
pub(crate) use single_items::SingleItems;
pub(crate) use slots::{StreamSlots, WaitingStream};
pub(crate) use table::Streams;
pub(crate) use threads::StreamThreads;

/// One end of a stream, without the types of its items.
pub(crate) trait StreamEnd: Send + Sync {
    /// Ready when an item may be pushed, or the stream is over.
    fn poll_ready(&self, cx: &mut Context<'_>, waiting: &mut Waiting) -> Poll<()>;

    /// A server has room for an item only when none waits. Clients have no use for it.
    fn keep_one(&self) {}

    /// Adds an item when there is room: its bytes, and more that are held by reference.
    fn poll_push(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
        head: &[u8],
        tail: Option<&Bytes>,
    ) -> Poll<Result<(), Box<Status>>> {
        ready!(self.poll_ready(cx, waiting));
        Poll::Ready(self.push(head, tail, false).map_err(Box::new))
    }

    /// Adds an item. A client may say that it is the last.
    fn push(&self, head: &[u8], tail: Option<&Bytes>, is_last: bool) -> Result<(), Status>;

    /// An empty bundle with memory for so many bytes, for items that are written where they lie. None: the end
    /// looks at each item, and takes them one by one.
    fn new_bundle(&self, bytes: usize) -> Option<Bundle> {
        let _ = bytes;
        None
    }

    /// Adds the items that were written to such a bundle.
    fn push_bundle(&self, bundle: Bundle) -> Result<(), Status> {
        let _ = bundle;
        unreachable!("this end gives no bundles")
    }

    /// The encoding of the items to push.
    fn encoding(&self) -> Encoding;

    /// No more items are pushed. At a server, its handler's return says so.
    fn close(&self);

    /// Whether an item that was pushed may wait before it goes on.
    fn may_hold(&self) -> bool {
        false
    }

    /// Ready when no item waits to go on.
    fn poll_pushed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    /// For an item that waits in front of this end: ready when the stream is over, and no item can be pushed any
    /// more. Wakes the writer. Of a client's end: a server drops the handler with all that it waits for.
    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        let _ = cx;
        Poll::Pending
    }

    /// For an item that came from this end and waits: ready when the stream has failed, whatever its reader has not
    /// taken. The server's own status is no failure: it comes behind the items. Wakes the reader. Of a client's end.
    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        let _ = cx;
        Poll::Pending
    }

    /// The user who pushes has panicked.
    fn abort(&self);

    /// Ends the stream with this status, at both ends.
    fn fail(&self, status: Status);

    /// The items of the next message, at least one, or the end.
    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>>;

    /// Counts bytes of items that this end's reader is to have beyond those that came, before there is memory
    /// for them.
    ///
    /// # Errors
    /// If the streams of this end hold too much.
    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status>;

    /// What an item may take that comes in protobuf.
    fn decode_limits(&self) -> DecodeLimits;

    /// An item is not of the stream's type: the other end's fault. Ends the stream, and returns how.
    fn reject(&self, why: &str) -> Status;

    /// Nobody reads any more.
    fn stop_reading(&self);

    /// What the other end sent in front of its items, if that is here.
    fn headers(&self) -> Option<Metadata>;

    /// What the other end sent in front of its items, or how the stream ended before. A server's end has it at once.
    fn poll_headers(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Metadata, Status>> {
        let _ = (cx, waiting);
        Poll::Ready(Ok(self.headers().unwrap_or_default()))
    }

    /// What the server sends behind its items, if that is known here.
    fn trailers(&self) -> Option<Metadata>;

    /// Sends metadata in front of the items.
    fn send_headers(&self, metadata: Metadata) -> Result<(), Status>;

    /// Sends metadata behind the items.
    fn set_trailers(&self, metadata: Metadata) -> Result<(), Status>;

    /// Sends what is in there behind the items when the handler has ended, unless that sets trailers. Of a
    /// server's end.
    fn send_behind(&self, metadata: ResponseMetadata) {
        let _ = metadata;
    }

    /// Whether each item that comes says how it is compressed.
    fn is_coded(&self) -> bool {
        false
    }

    /// The algorithms that the other end takes. Of a server's end.
    fn accepts(&self) -> AlgorithmSet {
        AlgorithmSet::NONE
    }

    /// Each item that is pushed says how it is compressed. Of a server's end, before any item.
    fn code_items(&self) {}

    /// The handler has not run, and will not: an interceptor ends the stream. Of a server's end.
    fn refuse(&self) {}

    /// Replaces the metadata that the client sent. Of a server's end.
    fn set_request_metadata(&self, metadata: Metadata) {
        let _ = metadata;
    }
}

#[cold]
pub(crate) fn only_servers_send() -> Status {
    Status::failed_precondition(
        "only a server sends metadata by itself; a client's goes with CallOptions::metadata",
    )
}

/// A client's end of a stream, with what its options say of messages.
pub(crate) fn client_end(
    route: Route,
    method: &'static MethodDescriptor,
    options: CallOptions,
    deadline: Option<Instant>,
) -> Arc<dyn StreamEnd> {
    let mut coding = options.messages.as_deref().map(CallCoding::of);
    if let Route::Channel(shared, _) = &route {
        coding = shared.with_bounds(method.path, coding);
    }
    let end = ClientEnd::new(route, method, options, deadline, coding);
    coded_at_client(end, coding.as_ref())
}

/// The two halves of one end.
pub(crate) fn halves<Q: Message, P: Message>(
    end: Arc<dyn StreamEnd>,
) -> (StreamSender<Q>, StreamReceiver<P>) {
    (
        StreamSender::new(Arc::clone(&end)),
        StreamReceiver::new(end),
    )
}

/// Wakes those who wait for something of a stream: its reader and its writer.
#[inline]
fn wake([reader, writer]: [Option<Waker>; 2]) {
    if let Some(reader) = reader {
        reader.wake();
    }
    if let Some(writer) = writer {
        writer.wake();
    }
}

// ---- for generated code ----

/// Sends the only request of a call with a stream of responses.
pub fn send_only<Q: Message>(sender: StreamSender<Q>, request: &Q) {
    sender.send_only(request);
}

/// The only request of such a call, in its handler, and what it counts for if it was decoded: to be kept as long
/// as the handler runs, whatever that does with the request.
///
/// # Errors
/// If there is none, or if there are several.
pub async fn receive_only<Q: Message>(
    mut requests: StreamReceiver<Q>,
    context: &NestedContext,
) -> Result<(OwnedRequest<Q>, impl Send + use<Q>), Status> {
    let item = requests.only().await?;
    let held = item.held();
    let metadata = requests.metadata().unwrap_or_default();
    Ok((OwnedRequest::of_stream(item, metadata, context), held))
}

/// [`receive_only`] for a handler that blocks.
///
/// # Errors
/// As [`receive_only`].
pub fn receive_only_wait<Q: Message>(
    requests: StreamReceiver<Q>,
    context: &NestedContext,
) -> Result<(OwnedRequest<Q>, impl Send + use<Q>), Status> {
    block_on(receive_only(requests, context))
}
