//! The messages of a stream on their way through interceptors.
//!
//! ```text
//!  StreamSender ──▶ ┌ HookedEnd ─────────────────┐ ──▶ the stream's end
//!                   │ hooks, one after the other │
//!  StreamReceiver ◀─└ the other ones, backwards ─┘ ◀──
//! ```
//!
//! A stream without hooks has no such end, and pays nothing.

mod direction;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;
use starling_endpoint::{Encoding, Metadata, Msgbuf, Status};
use starling_message::protobuf::DecodeLimits;
use starling_message::{Bytes, Message, MessageLayout, MethodDescriptor};
use starling_stream::Items;

use self::direction::{Direction, Passed};
use super::body::{Body, check_type};
use super::client::late;
use super::timer::Timer;
use super::{BoxFuture, Side};
use crate::nested::ResponseMetadata;
use crate::plane::Waiting;
use crate::streaming::{HeldBytes, SingleItems, StreamEnd, too_late};

/// One message of a stream, see [`InterceptedCall::on_requests`](super::InterceptedCall::on_requests).
pub struct InterceptedItem {
    layout: &'static MessageLayout,
    body: Body,
    /// Where it was received, unless it was changed.
    received: Option<Items>,
    wait: Option<BoxFuture<'static, Result<(), Status>>>,
}

impl InterceptedItem {
    /// The message as bytes: in the native layout, or in protobuf for a peer with another schema.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        self.body.bytes()
    }

    /// A copy of the message.
    ///
    /// # Errors
    /// INTERNAL if it is of another type, or malformed.
    pub fn message<M: Message>(&self) -> Result<M, Status> {
        check_type(M::LAYOUT, self.layout)?;
        self.body.decode().map_err(|error| {
            Status::internal(format!("an item of the stream is malformed: {error}"))
        })
    }

    /// Sends another message in place of this one.
    ///
    /// # Errors
    /// INTERNAL if it is of another type.
    pub fn set_message<M: Message>(&mut self, message: &M) -> Result<(), Status> {
        check_type(M::LAYOUT, self.layout)?;
        self.body = Body::of(message);
        self.received = None;
        Ok(())
    }

    /// Has the message wait for a future before it goes on, and with it those behind it. An error ends the
    /// stream.
    ///
    /// It waits no longer than its stream lasts: when the deadline has passed, or the stream has failed, the future
    /// and the message are dropped. What a server says at the end of its messages waits behind them.
    ///
    /// The sender waits as well: `send` ends when the message has gone on. A `send` that is dropped before may
    /// or may not have sent the message.
    pub fn wait_for(&mut self, future: impl Future<Output = Result<(), Status>> + Send + 'static) {
        let before = self.wait.take();
        self.wait = Some(Box::pin(async move {
            if let Some(before) = before {
                before.await?;
            }
            future.await
        }));
    }
}

impl fmt::Debug for InterceptedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedItem")
            .field("type", &self.layout.name)
            .field("bytes", &self.bytes().len())
            .finish_non_exhaustive()
    }
}

/// Code that sees messages of a stream.
pub(super) type Hook = Arc<dyn Fn(&mut InterceptedItem) -> Result<(), Status> + Send + Sync>;

/// Code that sees what a server sends in front of its messages.
pub(super) type MetadataHook = Arc<dyn Fn(&mut Metadata) -> Result<(), Status> + Send + Sync>;

/// Those that see a stream's messages, in the order of the interceptors.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    pub(super) requests: Vec<Hook>,
    pub(super) responses: Vec<Hook>,
    pub(super) initial_metadata: Vec<MetadataHook>,
}

/// What a server sends in front of its messages, on its way through hooks.
struct InitialMetadata {
    hooks: Vec<MetadataHook>,
    /// What they have made of it: they see it once.
    passed: Mutex<Option<Result<Metadata, Status>>>,
}

impl InitialMetadata {
    /// Whether there is nothing to do for hooks.
    fn is_settled(&self) -> bool {
        self.hooks.is_empty() || self.passed.lock().is_some()
    }

    /// What they have made of it, if they have seen it.
    fn passed(&self) -> Option<Result<Metadata, Status>> {
        self.passed.lock().clone()
    }

    /// Has them see it. The one half of the stream that it is for does this, and only once.
    fn pass(&self, mut metadata: Metadata) -> Result<Metadata, Status> {
        let seen = self.hooks.iter().try_for_each(|hook| hook(&mut metadata));
        let passed = seen.map(|()| metadata);
        self.passed.lock().insert(passed).clone()
    }
}

/// An end of a stream whose messages are seen by hooks.
struct HookedEnd {
    inner: Arc<dyn StreamEnd>,
    side: Side,
    /// Of a client's stream.
    deadline: Option<(Timer, Instant)>,
    initial_metadata: InitialMetadata,
    /// Messages that leave here.
    outgoing: Direction,
    /// Messages that are read here.
    incoming: Direction,
    items: SingleItems,
}

/// The end with hooks before it, if there are any. A client's may have a deadline: a server drops a handler that is
/// late.
pub(super) fn hooked(
    end: Arc<dyn StreamEnd>,
    hooks: Option<Box<Hooks>>,
    side: Side,
    method: &'static MethodDescriptor,
    deadline: Option<(Timer, Instant)>,
) -> Arc<dyn StreamEnd> {
    let Some(hooks) = hooks else {
        return end;
    };
    let Hooks {
        requests,
        mut responses,
        mut initial_metadata,
    } = *hooks;
    responses.reverse();
    initial_metadata.reverse();
    let requests = Direction::new(method.request, requests);
    let responses = Direction::new(method.response, responses);
    let (outgoing, incoming) = match side {
        Side::Client => (requests, responses),
        Side::Server => (responses, requests),
    };
    Arc::new(HookedEnd {
        inner: end,
        side,
        deadline,
        initial_metadata: InitialMetadata {
            hooks: initial_metadata,
            passed: Mutex::default(),
        },
        outgoing,
        incoming,
        items: SingleItems::default(),
    })
}

impl HookedEnd {
    fn send(&self, passed: Passed) -> Result<(), Status> {
        let encoding = self.inner.encoding();
        let buffer = passed.body.into_buffer(encoding, 0)?;
        let (head, tail) = buffer.into_parts();
        self.inner.push(&head, tail.as_ref(), passed.is_last)
    }

    /// A handler's first message is sent without metadata in front: the hooks may have some.
    fn send_initial_metadata(&self) -> Result<(), Status> {
        if self.side == Side::Client || self.initial_metadata.is_settled() {
            return Ok(());
        }
        let metadata = self.initial_metadata.pass(Metadata::default());
        let metadata = metadata.map_err(|status| self.failed(status))?;
        match metadata.is_empty() {
            true => Ok(()),
            false => self.inner.send_headers(metadata),
        }
    }

    /// A client's reader is to get a message, or what came in front of it. At the stream's end it may be that nothing
    /// did.
    fn read_initial_metadata(&self, is_end: bool) -> Result<(), Status> {
        if self.side == Side::Server || self.initial_metadata.is_settled() {
            return Ok(());
        }
        let received = self.inner.headers().unwrap_or_default();
        if is_end && received.is_empty() {
            return Ok(());
        }
        let passed = self.initial_metadata.pass(received);
        passed.map(drop).map_err(|status| self.failed(status))
    }

    /// The message of this direction that has waited, when it has passed. None if there is none. An error is how the
    /// stream has ended before: `poll_end` asks the inner end for that.
    fn poll_passed(
        &self,
        direction: &Direction,
        cx: &mut Context<'_>,
        poll_end: impl Fn(&dyn StreamEnd, &mut Context<'_>) -> Poll<Status>,
    ) -> Poll<Result<Option<Passed>, Status>> {
        if let Poll::Ready(passed) = direction.poll_held(cx) {
            return Poll::Ready(passed.map_err(|status| self.failed(status)));
        }
        let inner = &*self.inner;
        let mut end = poll_end(inner, cx);
        // The calls of a stream have their own alarms. It has none before it begins, and when the server has ended it.
        if let (Poll::Pending, Some(deadline)) = (&end, &self.deadline) {
            ready!(direction.poll_late(deadline, cx));
            let status = late("a message of the stream");
            inner.fail(status.clone());
            // It knows whether the server may have heard of the stream.
            end = Poll::Ready(match poll_end(inner, cx) {
                Poll::Ready(known) => known,
                Poll::Pending => status,
            });
        }
        let status = ready!(end);
        direction.drop_held();
        Poll::Ready(Err(status))
    }

    /// A hook has ended the stream.
    #[cold]
    fn failed(&self, status: Status) -> Status {
        self.fail(status.clone());
        status
    }
}

impl StreamEnd for HookedEnd {
    fn poll_ready(&self, cx: &mut Context<'_>, waiting: &mut Waiting) -> Poll<()> {
        // If that fails, the stream is over, and the user learns it with the next message.
        let _ = ready!(self.poll_pushed(cx));
        self.inner.poll_ready(cx, waiting)
    }

    fn keep_one(&self) {
        self.inner.keep_one();
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, is_last: bool) -> Result<(), Status> {
        if self.outgoing.holds() {
            return Err(Status::failed_precondition(
                "the message before this one still waits for an interceptor; it was not sent: a sink has \
                 to be ready first",
            ));
        }
        self.send_initial_metadata()?;
        let buffer = Msgbuf::from_parts(head.to_vec(), tail.cloned());
        let body = Body::new(buffer, 0, self.inner.encoding());
        let passed = self.outgoing.begin(body, is_last);
        match passed.map_err(|status| self.failed(status))? {
            Some(passed) => self.send(passed),
            None => Ok(()),
        }
    }

    fn may_hold(&self) -> bool {
        true
    }

    fn poll_pushed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let passed =
            ready!(self.poll_passed(&self.outgoing, cx, |inner, cx| inner.poll_closed(cx)))?;
        Poll::Ready(passed.map_or(Ok(()), |passed| self.send(passed)))
    }

    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.inner.poll_closed(cx)
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.inner.poll_failed(cx)
    }

    fn encoding(&self) -> Encoding {
        self.inner.encoding()
    }

    fn close(&self) {
        self.inner.close();
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn fail(&self, status: Status) {
        // What has come stays, in front of the end: so does what lies behind it in the inner one.
        self.inner.fail(status);
    }

    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        loop {
            let mut passed =
                ready!(self.poll_passed(&self.incoming, cx, |inner, cx| inner.poll_failed(cx)))?;
            if passed.is_none() {
                let next = ready!(self.items.poll_next(&*self.inner, cx, waiting));
                let seen = self.read_initial_metadata(!matches!(next, Ok(Some(_))));
                let next = next?;
                seen?;
                let Some((item, encoding)) = next else {
                    return Poll::Ready(Ok(None));
                };
                let begun = (self.incoming).begin_received(item, encoding, &*self.inner);
                passed = begun.map_err(|status| self.failed(status))?;
            }
            if let Some(Passed { body, received, .. }) = passed {
                let items = received.unwrap_or_else(|| Items::one(&body.bytes()));
                return Poll::Ready(Ok(Some((items, body.encoding()))));
            }
        }
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        self.inner.hold(bytes)
    }

    fn decode_limits(&self) -> DecodeLimits {
        self.inner.decode_limits()
    }

    fn reject(&self, why: &str) -> Status {
        self.inner.reject(why)
    }

    fn stop_reading(&self) {
        // First: whoever is still there finds the end, and not what is behind the message that waits.
        self.inner.stop_reading();
        self.incoming.drop_wait();
        if self.side == Side::Client {
            // It has ended the stream.
            self.outgoing.drop_wait();
        }
    }

    fn headers(&self) -> Option<Metadata> {
        if self.side == Side::Server || self.initial_metadata.hooks.is_empty() {
            return self.inner.headers();
        }
        self.initial_metadata.passed()?.ok()
    }

    fn poll_headers(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Metadata, Status>> {
        let headers = ready!(self.inner.poll_headers(cx, waiting))?;
        self.read_initial_metadata(false)?;
        Poll::Ready(Ok(self.headers().unwrap_or(headers)))
    }

    fn trailers(&self) -> Option<Metadata> {
        self.inner.trailers()
    }

    fn send_headers(&self, metadata: Metadata) -> Result<(), Status> {
        if self.initial_metadata.hooks.is_empty() {
            return self.inner.send_headers(metadata);
        }
        if self.initial_metadata.is_settled() {
            return Err(too_late());
        }
        let metadata = self.initial_metadata.pass(metadata);
        let metadata = metadata.map_err(|status| self.failed(status))?;
        self.inner.send_headers(metadata)
    }

    fn set_trailers(&self, metadata: Metadata) -> Result<(), Status> {
        self.inner.set_trailers(metadata)
    }

    fn send_behind(&self, metadata: ResponseMetadata) {
        self.inner.send_behind(metadata);
    }

    fn refuse(&self) {
        self.inner.refuse();
    }

    fn set_request_metadata(&self, metadata: Metadata) {
        self.inner.set_request_metadata(metadata);
    }
}
