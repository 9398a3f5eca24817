//! The writer's half of a stream.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use starling_endpoint::{Encoding, Metadata, Status};
use starling_message::{Arena, Message, protobuf};
use starling_stream::{BUNDLE_BYTES, Bundle, LENGTH, SMALL_TAIL, put_item, set_length};

use super::{StreamEnd, StreamItem, StreamReceiver, open_bundle};
use crate::plane::Waiting;
use crate::wait::block_on;

/// Sends messages to the other end: of a client, to the server, and of a handler, to the client.
///
/// Sending waits while the other end does not read: while what it has not read is as much as its window
/// ([`CallOptions::stream_window`], `ServerBuilder::stream_window`), and as much again waits here, at most 256 KiB
/// and a message. At a server, streams of a client that has many, or when there are many in all, keep less.
///
/// It is also a [`Sink`] of messages. Plain threads use the functions whose names end in `wait`: a
/// handler that has to block is a WORKER one. While a plain thread waits with a `LocalChannel`'s stream, another
/// thread has to run the endpoint.
///
/// A client that drops it closes it, unless its thread panics, which cancels the call. A handler that drops
/// it sends no more; the call goes on until the handler returns.
///
/// [`CallOptions::stream_window`]: crate::CallOptions::stream_window
pub struct StreamSender<M: Message> {
    end: Arc<dyn StreamEnd>,
    encoding: Encoding,
    waiting: Waiting,
    is_closed: bool,
    /// The end may hold messages.
    holds: bool,
    types: PhantomData<fn(M)>,
}

impl<M: Message> StreamSender<M> {
    pub(crate) fn new(end: Arc<dyn StreamEnd>) -> Self {
        Self {
            encoding: end.encoding(),
            holds: end.may_hold(),
            end,
            waiting: Waiting::default(),
            is_closed: false,
            types: PhantomData,
        }
    }

    /// Sends a message, when there is room. It leaves with the next ones if those come soon.
    ///
    /// # Errors
    /// How the stream has ended. The message is not sent.
    // Not an `async fn`: one future in place of three in each other.
    #[inline]
    pub fn send<'a>(
        &'a mut self,
        message: &'a M,
    ) -> impl Future<Output = Result<(), Status>> + Send + 'a {
        let mut is_pushed = false;
        poll_fn(move |cx| match self.holds {
            false => self.poll_send(cx, message),
            true => self.poll_send_held(cx, message, &mut is_pushed),
        })
    }

    /// The message may wait in the end before it goes on.
    #[cold]
    fn poll_send_held(
        &mut self,
        cx: &mut Context<'_>,
        message: &M,
        is_pushed: &mut bool,
    ) -> Poll<Result<(), Status>> {
        if !*is_pushed {
            ready!(self.poll_send(cx, message))?;
            *is_pushed = true;
        }
        self.end.poll_pushed(cx)
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>, message: &M) -> Poll<Result<(), Status>> {
        if self.encoding == Encoding::Native
            && let (head, None) = message.parts()
            && open_bundle::push(open_bundle::owner_of(&*self.end), head)
        {
            return Poll::Ready(Ok(()));
        }
        self.poll_send_to_end(cx, message)
    }

    /// Apart, so that a message for the bundle that this thread has calls no function of the end.
    #[inline(never)]
    fn poll_send_to_end(&mut self, cx: &mut Context<'_>, message: &M) -> Poll<Result<(), Status>> {
        let sent = match self.encoding {
            Encoding::Native => {
                let (head, tail) = message.parts();
                let pushed = self.end.poll_push(cx, &mut self.waiting, head, tail);
                pushed.map_err(|status| *status)
            }
            Encoding::Protobuf => {
                ready!(self.end.poll_ready(cx, &mut self.waiting));
                Poll::Ready(self.push(message, false))
            }
        };
        if sent.is_ready() {
            self.waiting = Waiting::default();
        }
        sent
    }

    /// Sends a message for each element, when there is room. `build` writes each message where it is sent from:
    /// nothing is allocated or copied for each of them. For many small messages.
    ///
    /// ```text
    /// items.send_each(rows, |row, mut item| item.set_key(row.key())).await?;
    /// ```
    ///
    /// # Errors
    /// How the stream has ended. The messages that were built last, up to 60 KiB of them, and all later ones are
    /// not sent. Nor are they if `build` panics.
    pub async fn send_each<T>(
        &mut self,
        each: impl IntoIterator<Item = T>,
        mut build: impl FnMut(T, M::Mut<'_>),
    ) -> Result<(), Status> {
        let mut each = each.into_iter();
        // Of the last bundle: the next one hardly has to grow.
        let mut bytes = 0;
        loop {
            poll_fn(|cx| self.poll_room(cx)).await;
            let Some(empty) = self.end.new_bundle(bytes) else {
                return self.send_single(each, build).await;
            };
            let room = empty.head.len();
            let Filled {
                bundle,
                alone,
                is_full,
            } = match self.encoding {
                Encoding::Native => fill::<M, _>(empty, &mut each, &mut build),
                Encoding::Protobuf => encode_one::<M, _>(empty, &mut each, &mut build)?,
            };
            bytes = bundle.head.len() - room;
            self.end.push_bundle(bundle)?;
            if let Some(alone) = alone {
                self.end.push_bundle(alone)?;
            }
            if !is_full {
                return Ok(());
            }
        }
    }

    /// Sends a message for each element to an end that takes them one by one.
    async fn send_single<T>(
        &mut self,
        each: impl Iterator<Item = T>,
        mut build: impl FnMut(T, M::Mut<'_>),
    ) -> Result<(), Status> {
        for element in each {
            let mut message = M::default();
            build(element, message.as_mut());
            self.send(&message).await?;
        }
        Ok(())
    }

    /// [`StreamSender::send`] for plain threads. This thread drives the channel's endpoint meanwhile, or
    /// sleeps, so this is not for use inside an executor.
    ///
    /// # Errors
    /// How the stream has ended. The message is not sent.
    pub fn send_wait(&mut self, message: &M) -> Result<(), Status> {
        block_on(self.send(message))
    }

    /// [`StreamSender::send_each`] for plain threads, as [`StreamSender::send_wait`].
    ///
    /// # Errors
    /// How the stream has ended.
    pub fn send_each_wait<T>(
        &mut self,
        each: impl IntoIterator<Item = T>,
        build: impl FnMut(T, M::Mut<'_>),
    ) -> Result<(), Status> {
        block_on(self.send_each(each, build))
    }

    /// Says that no more messages come.
    pub fn close(mut self) {
        self.close_here();
    }

    /// Sends metadata in front of the messages. For handlers, once, before they send a message. Empty metadata is none:
    /// a client that waits for it goes on waiting.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if metadata or a message was sent, or in a client, whose metadata goes with its options.
    pub fn send_metadata(&mut self, metadata: Metadata) -> Result<(), Status> {
        self.end.send_headers(metadata)
    }

    /// Sends metadata behind the messages, when the handler returns.
    ///
    /// # Errors
    /// FAILED_PRECONDITION in a client.
    pub fn set_trailers(&mut self, metadata: Metadata) -> Result<(), Status> {
        self.end.set_trailers(metadata)
    }

    /// Of a handler: has room for a message only when none waits. What waits is never old then.
    pub(crate) fn keep_one(&self) {
        self.end.keep_one();
    }

    /// The end that it sends to.
    pub(crate) fn end(&self) -> &Arc<dyn StreamEnd> {
        &self.end
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let ready = self.end.poll_ready(cx, &mut self.waiting);
        if ready.is_ready() {
            self.waiting = Waiting::default();
        }
        ready
    }

    /// Sends the only message of a stream. If it cannot be sent, the receiver hears why.
    pub(crate) fn send_only(mut self, message: &M) {
        self.is_closed = self.push(message, true).is_ok();
    }

    fn push(&mut self, message: &M, is_last: bool) -> Result<(), Status> {
        if self.encoding != Encoding::Native {
            let mut bytes = Vec::new();
            encode(message, &mut bytes)?;
            return self.end.push(&bytes, None, is_last);
        }
        let (head, tail) = message.parts();
        self.end.push(head, tail, is_last)
    }

    fn close_here(&mut self) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.end.close();
        }
    }
}

impl<M: Message> Sink<M> for StreamSender<M> {
    type Error = Status;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.poll_room(cx).map(Ok)
    }

    fn start_send(mut self: Pin<&mut Self>, message: M) -> Result<(), Status> {
        self.push(&message, false)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // What no interceptor holds leaves without anybody's help.
        self.end.poll_pushed(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let flushed = ready!(self.end.poll_pushed(cx));
        self.close_here();
        Poll::Ready(flushed)
    }
}

impl<M: Message> Drop for StreamSender<M> {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        match std::thread::panicking() {
            true => self.end.abort(),
            false => self.close_here(),
        }
    }
}

impl<M: Message> fmt::Debug for StreamSender<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamSender(..)")
    }
}

/// Messages that were built in a bundle.
struct Filled {
    bundle: Bundle,
    /// The one behind them that there was no room for.
    alone: Option<Bundle>,
    /// False: there are no more.
    is_full: bool,
}

/// Builds messages in a bundle until it is full.
fn fill<M: Message, T>(
    bundle: Bundle,
    each: &mut impl Iterator<Item = T>,
    build: &mut impl FnMut(T, M::Mut<'_>),
) -> Filled {
    let begin = bundle.head.len();
    // One arena for all of them: to move the vector for each would cost more than the rest.
    let mut arena = Arena::behind(bundle.head);
    for element in each {
        arena.begin_next(LENGTH, M::LAYOUT);
        build(element, M::mut_of(arena.root()));
        let len = arena.message_len();
        set_length(arena.front_mut(), len);
        let end = arena.base() + len;
        let has_tail = arena.has_tail();
        // Another one like it would not fit.
        if has_tail || end + LENGTH + len - begin > BUNDLE_BYTES {
            let (mut head, mut tail) = arena.into_parts();
            if let Some(small) = tail.take_if(|tail| tail.len() < SMALL_TAIL) {
                head.extend_from_slice(&small);
            }
            let (bundle, alone) = match end - len - LENGTH {
                at if at > begin && end - begin > BUNDLE_BYTES => {
                    let item = [&head[..begin], &head[at..]].concat();
                    head.truncate(at);
                    (Bundle::new(head, None), Some(Bundle::new(item, tail)))
                }
                _ => (Bundle::new(head, tail), None),
            };
            return Filled {
                bundle,
                alone,
                is_full: true,
            };
        }
    }
    let (head, _) = arena.into_parts();
    Filled {
        bundle: Bundle::new(head, None),
        alone: None,
        is_full: false,
    }
}

/// Builds a message for a peer with another schema.
fn encode_one<M: Message, T>(
    mut bundle: Bundle,
    each: &mut impl Iterator<Item = T>,
    build: &mut impl FnMut(T, M::Mut<'_>),
) -> Result<Filled, Status> {
    let filled = |bundle, is_full| Filled {
        bundle,
        alone: None,
        is_full,
    };
    let Some(element) = each.next() else {
        return Ok(filled(bundle, false));
    };
    let mut message = M::default();
    build(element, message.as_mut());
    put_item(&mut bundle.head, |out| encode(&message, out))?;
    Ok(filled(bundle, true))
}

/// A message for a peer with another schema.
#[cold]
fn encode<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<(), Status> {
    protobuf::encode(M::LAYOUT, message.arena().reader(), out)
        .map_err(|error| Status::internal(format!("the message: {error}")))
}

/// A call that sends a stream of messages and gets one back. Dropping it before
/// [`StreamCall::finish`] cancels the call.
pub struct StreamCall<Q: Message, P: Message> {
    sender: StreamSender<Q>,
    response: StreamReceiver<P>,
}

impl<Q: Message, P: Message> StreamCall<Q, P> {
    /// From the halves that [`Caller::streams`](crate::Caller::streams) gives.
    pub fn new(sender: StreamSender<Q>, response: StreamReceiver<P>) -> Self {
        Self { sender, response }
    }

    /// Sends a message, when there is room.
    ///
    /// # Errors
    /// How the call has ended. The message is not sent.
    pub async fn send(&mut self, message: &Q) -> Result<(), Status> {
        self.sender.send(message).await
    }

    /// [`StreamCall::send`] for plain threads.
    ///
    /// # Errors
    /// How the call has ended. The message is not sent.
    pub fn send_wait(&mut self, message: &Q) -> Result<(), Status> {
        self.sender.send_wait(message)
    }

    /// Sends a message for each element, as [`StreamSender::send_each`].
    ///
    /// # Errors
    /// How the call has ended.
    pub async fn send_each<T>(
        &mut self,
        each: impl IntoIterator<Item = T>,
        build: impl FnMut(T, Q::Mut<'_>),
    ) -> Result<(), Status> {
        self.sender.send_each(each, build).await
    }

    /// [`StreamCall::send_each`] for plain threads.
    ///
    /// # Errors
    /// How the call has ended.
    pub fn send_each_wait<T>(
        &mut self,
        each: impl IntoIterator<Item = T>,
        build: impl FnMut(T, Q::Mut<'_>),
    ) -> Result<(), Status> {
        self.sender.send_each_wait(each, build)
    }

    /// Says that no more messages come, and waits for the response.
    ///
    /// # Errors
    /// How the call failed.
    pub async fn finish(mut self) -> Result<StreamItem<'static, P>, Status> {
        self.sender.close_here();
        self.response.only().await
    }

    /// As [`StreamCall::finish`], with the metadata that the server sent.
    ///
    /// # Errors
    /// How the call failed.
    pub async fn finish_with_metadata(
        mut self,
    ) -> Result<(StreamItem<'static, P>, Metadata), Status> {
        self.sender.close_here();
        let response = self.response.only().await?;
        Ok((response, self.response.trailers().unwrap_or_default()))
    }

    /// [`StreamCall::finish`] for plain threads.
    ///
    /// # Errors
    /// How the call failed.
    pub fn finish_wait(self) -> Result<StreamItem<'static, P>, Status> {
        block_on(self.finish())
    }
}

impl<Q: Message, P: Message> Drop for StreamCall<Q, P> {
    fn drop(&mut self) {
        // First, so that the server never takes an unfinished call for a finished one.
        self.response.abandon();
    }
}

impl<Q: Message, P: Message> fmt::Debug for StreamCall<Q, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamCall(..)")
    }
}
