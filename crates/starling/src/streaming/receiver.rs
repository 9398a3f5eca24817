//! The reader's half of a stream.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use starling_endpoint::{Metadata, Status};
use starling_message::Message;

use super::{StreamEnd, StreamItem};
use crate::plane::Waiting;
use crate::wait::block_on;

/// The messages that the other end sends, in order: of a client, the server's, and of a handler, the
/// client's.
///
/// ```text
/// while let Some(item) = items.message().await? { .. }   // in a task
/// for item in items.blocking() { let item = item?; .. }  // in a plain thread
/// ```
///
/// It is also a [`Stream`] of `Result<StreamItem<M>, Status>`.
///
/// A client that drops it before the end cancels the call. A handler that drops it has the items that
/// still come discarded.
pub struct StreamReceiver<M: Message> {
    end: Arc<dyn StreamEnd>,
    waiting: Waiting,
    is_over: bool,
    types: PhantomData<fn() -> M>,
}

impl<M: Message> StreamReceiver<M> {
    pub(crate) fn new(end: Arc<dyn StreamEnd>) -> Self {
        Self {
            end,
            waiting: Waiting::default(),
            is_over: false,
            types: PhantomData,
        }
    }

    /// Waits for the next message. None after the last one.
    ///
    /// # Errors
    /// How the stream ended, if not well. Afterwards there are no more messages.
    pub async fn message(&mut self) -> Result<Option<StreamItem<M>>, Status> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// [`StreamReceiver::message`] for plain threads. This thread drives the channel's endpoint meanwhile, or
    /// sleeps, so this is not for use inside an executor.
    ///
    /// # Errors
    /// How the stream ended, if not well.
    pub fn wait(&mut self) -> Result<Option<StreamItem<M>>, Status> {
        block_on(self.message())
    }

    /// The messages as an iterator for plain threads. It ends after the first error.
    pub fn blocking(&mut self) -> Blocking<'_, M> {
        Blocking(self)
    }

    /// The metadata that the other end sent before its messages: for a handler, the client's options, for a
    /// client what the server has sent, if that has come.
    pub fn metadata(&self) -> Option<Metadata> {
        self.end.headers()
    }

    /// The metadata that the server sent after its messages. None before the end.
    pub fn trailers(&self) -> Option<Metadata> {
        self.end.trailers()
    }

    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<StreamItem<M>>, Status>> {
        if self.is_over {
            return Poll::Ready(Ok(None));
        }
        let Poll::Ready(next) = self.end.poll_item(cx, &mut self.waiting) else {
            return Poll::Pending;
        };
        self.waiting = Waiting::default();
        let item = next.and_then(|item| match item {
            Some((bytes, encoding)) => StreamItem::receive(bytes, encoding).map(Some),
            None => Ok(None),
        });
        if !matches!(item, Ok(Some(_))) {
            self.abandon();
        }
        Poll::Ready(item)
    }

    /// Nobody reads any more.
    pub(super) fn abandon(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.end.stop_reading();
        }
    }

    /// The only message of a stream that has to have one.
    pub(crate) async fn only(&mut self) -> Result<StreamItem<M>, Status> {
        let wrong = |count: &str| {
            Status::internal(format!(
                "the other end sent {count} messages where one belongs"
            ))
        };
        let only = self.message().await?.ok_or_else(|| wrong("no"))?;
        match self.message().await? {
            None => Ok(only),
            Some(_) => Err(wrong("several")),
        }
    }
}

impl<M: Message> Stream for StreamReceiver<M> {
    type Item = Result<StreamItem<M>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx).map(Result::transpose)
    }
}

impl<M: Message> Drop for StreamReceiver<M> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<M: Message> fmt::Debug for StreamReceiver<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamReceiver(..)")
    }
}

/// The messages of a stream, for plain threads: [`StreamReceiver::blocking`].
#[derive(Debug)]
pub struct Blocking<'a, M: Message>(&'a mut StreamReceiver<M>);

impl<M: Message> Iterator for Blocking<'_, M> {
    type Item = Result<StreamItem<M>, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.wait().transpose()
    }
}
