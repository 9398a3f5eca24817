//! The reader's half of a stream.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use starling_endpoint::{Encoding, Metadata, Status};
use starling_message::Message;
use starling_stream::Items;

use super::item::{Decoded, malformed};
use super::{StreamBundle, StreamEnd, StreamItem};
use crate::plane::Waiting;
use crate::wait::block_on;

/// The messages that the other end sends, in order: of a client, the server's, and of a handler, the
/// client's.
///
/// ```text
/// while let Some(item) = items.message().await? { .. }   // in a task
/// for item in items.blocking() { let item = item?; .. }  // in a plain thread
/// while let Some(bundle) = items.bundle().await? {       // many small ones at once
///     for item in &bundle { .. }
/// }
/// ```
///
/// It is also a [`Stream`] of `Result<StreamItem<'static, M>, Status>`. While a plain thread waits for a message of a
/// `LocalChannel`'s stream, another thread has to run the endpoint.
///
/// A client that drops it before the end cancels the call. A handler that drops it has the items that
/// still come discarded.
pub struct StreamReceiver<M: Message> {
    end: Arc<dyn StreamEnd>,
    /// What is left of the message that was taken last.
    items: Items,
    encoding: Encoding,
    waiting: Waiting,
    is_over: bool,
    types: PhantomData<fn() -> M>,
}

impl<M: Message> StreamReceiver<M> {
    pub(crate) fn new(end: Arc<dyn StreamEnd>) -> Self {
        Self {
            end,
            items: Items::default(),
            encoding: Encoding::Native,
            waiting: Waiting::default(),
            is_over: false,
            types: PhantomData,
        }
    }

    /// Waits for the next message, which is read where it lies. None after the last one.
    ///
    /// # Errors
    /// How the stream ended, if not well. Afterwards there are no more messages.
    #[inline]
    pub fn message(&mut self) -> NextMessage<'_, M> {
        NextMessage(Some(self))
    }

    /// [`StreamReceiver::message`] for plain threads. This thread drives the channel's endpoint meanwhile, or
    /// sleeps, so this is not for use inside an executor.
    ///
    /// # Errors
    /// How the stream ended, if not well.
    pub fn wait(&mut self) -> Result<Option<StreamItem<'_, M>>, Status> {
        block_on(self.message())
    }

    /// Waits for the next messages, all of those that came together and were not taken. None after the last
    /// one. This costs less than [`StreamReceiver::message`] for each, and they may be kept.
    ///
    /// # Errors
    /// As [`StreamReceiver::message`].
    pub async fn bundle(&mut self) -> Result<Option<StreamBundle<M>>, Status> {
        poll_fn(|cx| self.poll_bundle(cx)).await
    }

    /// [`StreamReceiver::bundle`] for plain threads, as [`StreamReceiver::wait`].
    ///
    /// # Errors
    /// How the stream ended, if not well.
    pub fn bundle_wait(&mut self) -> Result<Option<StreamBundle<M>>, Status> {
        block_on(self.bundle())
    }

    /// The messages as an iterator for plain threads. It ends after the first error.
    pub fn blocking(&mut self) -> Blocking<'_, M> {
        Blocking(self)
    }

    /// Waits for the metadata that the server sends in front of its messages: it is here with the first message at the
    /// latest. A handler has its client's at once. The messages are still to be taken.
    ///
    /// # Errors
    /// How the stream ended, if nothing else came, and not well.
    pub async fn initial_metadata(&mut self) -> Result<Metadata, Status> {
        let metadata = poll_fn(|cx| self.end.poll_headers(cx, &mut self.waiting)).await;
        self.waiting = Waiting::default();
        metadata
    }

    /// [`StreamReceiver::initial_metadata`] for plain threads, as [`StreamReceiver::wait`].
    ///
    /// # Errors
    /// As [`StreamReceiver::initial_metadata`].
    pub fn initial_metadata_wait(&mut self) -> Result<Metadata, Status> {
        block_on(self.initial_metadata())
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

    /// Where the next message lies.
    #[inline(never)]
    fn poll_next_place(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Range<usize>>, Status>> {
        loop {
            match self.items.next_range() {
                Ok(Some(place)) => return Poll::Ready(Ok(Some(place))),
                Err(error) => return Poll::Ready(Err(self.reject(&error.to_string()))),
                Ok(None) => match ready!(self.poll_items(cx)) {
                    Ok(true) => {}
                    end => return Poll::Ready(end.map(|_| None)),
                },
            }
        }
    }

    /// The message that lies there.
    #[inline(always)]
    fn item(&mut self, place: Range<usize>) -> Result<StreamItem<'_, M>, Status> {
        if self.encoding != Encoding::Native {
            return self.decode(place);
        }
        match M::validate(&self.items.body()[place.clone()]) {
            Ok(()) => Ok(StreamItem::lent(&self.items.body()[place])),
            Err(error) => Err(self.reject(&malformed(&error))),
        }
    }

    #[cold]
    fn decode(&mut self, place: Range<usize>) -> Result<StreamItem<'static, M>, Status> {
        self.decode_at(place).map(StreamItem::decoded)
    }

    #[cold]
    fn decode_at(&mut self, place: Range<usize>) -> Result<Decoded<M>, Status> {
        let decoded = Decoded::new(&*self.end, &self.items.body()[place]);
        decoded.inspect_err(|_| self.give_up())
    }

    /// A message that may be kept.
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<StreamItem<'static, M>>, Status>> {
        let Some(place) = ready!(self.poll_next_place(cx))? else {
            return Poll::Ready(Ok(None));
        };
        if self.encoding != Encoding::Native {
            return Poll::Ready(self.decode(place).map(Some));
        }
        self.item(place.clone())?;
        Poll::Ready(Ok(Some(StreamItem::shared(&self.items, place))))
    }

    fn poll_bundle(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<StreamBundle<M>>, Status>> {
        if self.items.is_empty() && !ready!(self.poll_items(cx))? {
            return Poll::Ready(Ok(None));
        }
        let bundle = match self.encoding {
            Encoding::Native => StreamBundle::receive(std::mem::take(&mut self.items)),
            // One only, for in memory they may be much larger.
            Encoding::Protobuf => match self.items.next_range() {
                Ok(place) => {
                    let decoded = self.decode_at(place.unwrap_or_default());
                    return Poll::Ready(decoded.map(|it| Some(StreamBundle::decoded(it))));
                }
                Err(error) => Err(error.to_string()),
            },
        };
        Poll::Ready(bundle.map(Some).map_err(|why| self.reject(&why)))
    }

    /// Takes the items of the next message. False: there are no more.
    #[inline(never)]
    fn poll_items(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        if self.is_over {
            return Poll::Ready(Ok(false));
        }
        // The memory of the last message is given back before the next one comes.
        self.items = Items::default();
        let Poll::Ready(next) = self.end.poll_items(cx, &mut self.waiting) else {
            return Poll::Pending;
        };
        self.waiting = Waiting::default();
        Poll::Ready(match next {
            Ok(Some((items, encoding))) => {
                (self.items, self.encoding) = (items, encoding);
                Ok(true)
            }
            Ok(None) => {
                self.abandon();
                Ok(false)
            }
            Err(status) => {
                self.abandon();
                Err(status)
            }
        })
    }

    #[cold]
    fn reject(&mut self, why: &str) -> Status {
        let status = self.end.reject(why);
        self.give_up();
        status
    }

    /// The stream has failed.
    #[cold]
    fn give_up(&mut self) {
        self.items = Items::default();
        self.abandon();
    }

    /// Nobody reads any more.
    pub(super) fn abandon(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.end.stop_reading();
        }
    }

    /// The only message of a stream that has to have one.
    pub(crate) async fn only(&mut self) -> Result<StreamItem<'static, M>, Status> {
        let wrong = |count: &str| {
            Status::internal(format!(
                "the other end sent {count} messages where one belongs"
            ))
        };
        let only = poll_fn(|cx| self.poll_message(cx)).await?;
        let only = only.ok_or_else(|| wrong("no"))?;
        match self.message().await? {
            None => Ok(only),
            Some(_) => Err(wrong("several")),
        }
    }
}

/// Waits for the next message: [`StreamReceiver::message`].
// Not an `async fn`, which is not inlined: what it returns would go through memory, for each message.
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextMessage<'a, M: Message>(Option<&'a mut StreamReceiver<M>>);

impl<'a, M: Message> Future for NextMessage<'a, M> {
    type Output = Result<Option<StreamItem<'a, M>>, Status>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let receiver = self.0.as_mut().expect("polled after it had ended");
        let place = match receiver.items.next_range() {
            Ok(Some(place)) => place,
            _ => match ready!(receiver.poll_next_place(cx)) {
                Ok(Some(place)) => place,
                end => return Poll::Ready(end.map(|_| None)),
            },
        };
        let receiver = self.0.take().expect("just used");
        Poll::Ready(receiver.item(place).map(Some))
    }
}

impl<M: Message> fmt::Debug for NextMessage<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextMessage(..)")
    }
}

impl<M: Message> Stream for StreamReceiver<M> {
    type Item = Result<StreamItem<'static, M>, Status>;

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
    type Item = Result<StreamItem<'static, M>, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(poll_fn(|cx| self.0.poll_message(cx))).transpose()
    }
}
