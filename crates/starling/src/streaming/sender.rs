//! The writer's half of a stream.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_sink::Sink;
use starling_endpoint::{Encoding, Metadata, Status};
use starling_message::{Message, protobuf};

use super::{StreamEnd, StreamItem, StreamReceiver};
use crate::plane::Waiting;
use crate::wait::block_on;

/// Sends messages to the other end: of a client, to the server, and of a handler, to the client.
///
/// Sending waits while the other end does not read: while what it has not read is as much as its window
/// ([`CallOptions::stream_window`], `ServerBuilder::stream_window`), and as much again waits here.
///
/// It is also a [`Sink`] of messages.
///
/// A client that drops it closes it, unless its thread panics, which cancels the call. A handler that drops
/// it sends no more; the call goes on until the handler returns.
///
/// [`CallOptions::stream_window`]: crate::CallOptions::stream_window
pub struct StreamSender<M: Message> {
    end: Arc<dyn StreamEnd>,
    waiting: Waiting,
    is_closed: bool,
    types: PhantomData<fn(M)>,
}

impl<M: Message> StreamSender<M> {
    pub(crate) fn new(end: Arc<dyn StreamEnd>) -> Self {
        Self {
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
    pub async fn send(&mut self, message: &M) -> Result<(), Status> {
        poll_fn(|cx| self.poll_room(cx)).await;
        self.push(message, false)
    }

    /// [`StreamSender::send`] for plain threads. This thread drives the channel's endpoint meanwhile, or
    /// sleeps, so this is not for use inside an executor.
    ///
    /// # Errors
    /// How the stream has ended. The message is not sent.
    pub fn send_wait(&mut self, message: &M) -> Result<(), Status> {
        block_on(self.send(message))
    }

    /// Says that no more messages come.
    pub fn close(mut self) {
        self.close_here();
    }

    /// Sends metadata in front of the messages. For handlers, before they send a message.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is too late, or in a client, whose metadata goes with its options.
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
        if self.end.encoding() == Encoding::Native {
            let (head, tail) = message.parts();
            return self.end.push(head, tail, is_last);
        }
        let mut bytes = Vec::new();
        protobuf::encode(M::LAYOUT, message.arena().reader(), &mut bytes)
            .map_err(|error| Status::internal(format!("the message: {error}")))?;
        self.end.push(&bytes, None, is_last)
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

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // What was sent leaves without anybody's help.
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.close_here();
        Poll::Ready(Ok(()))
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

    /// Says that no more messages come, and waits for the response.
    ///
    /// # Errors
    /// How the call failed.
    pub async fn finish(mut self) -> Result<StreamItem<P>, Status> {
        self.sender.close_here();
        self.response.only().await
    }

    /// As [`StreamCall::finish`], with the metadata that the server sent.
    ///
    /// # Errors
    /// How the call failed.
    pub async fn finish_with_metadata(mut self) -> Result<(StreamItem<P>, Metadata), Status> {
        self.sender.close_here();
        let response = self.response.only().await?;
        Ok((response, self.response.trailers().unwrap_or_default()))
    }

    /// [`StreamCall::finish`] for plain threads.
    ///
    /// # Errors
    /// How the call failed.
    pub fn finish_wait(self) -> Result<StreamItem<P>, Status> {
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
