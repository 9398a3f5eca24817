//! A server's end of a stream: a handler's future, and the requests that are held for it.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::{Mutex, MutexGuard};
use starling_endpoint::header::STREAM_RESPONSE_LEN;
use starling_endpoint::{DeferredReply, Encoding, LocalHandle, Metadata, OwnedMessage, Status};
use starling_message::Bytes;
use starling_stream::{Answer, Arrival, ServerStream};

use super::StreamEnd;
use super::table::{Key, Streams};
use crate::plane::Waiting;

struct State {
    stream: ServerStream<DeferredReply>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The handler's task.
    handler: Option<Waker>,
    /// The handler runs now: what it sends leaves when it returns, together.
    in_handler: bool,
}

impl State {
    fn take_wakers(&mut self) -> [Option<Waker>; 2] {
        [self.reader.take(), self.writer.take()]
    }
}

/// A server's end of a stream.
pub(crate) struct ServerEnd {
    this: Weak<Self>,
    table: Weak<Streams>,
    key: Key,
    local: LocalHandle,
    encoding: Encoding,
    /// The client's.
    metadata: Mutex<Metadata>,
    state: Mutex<State>,
}

impl ServerEnd {
    /// The end of a stream that this request opens.
    pub(super) fn new(
        table: &Arc<Streams>,
        key: Key,
        window: u32,
        local: LocalHandle,
        opening: &OwnedMessage,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            table: Arc::downgrade(table),
            key,
            local,
            encoding: opening.encoding(),
            metadata: Mutex::new(opening.to_metadata()),
            state: Mutex::new(State {
                stream: ServerStream::new(key.id, window, STREAM_RESPONSE_LEN),
                reader: None,
                writer: None,
                handler: None,
                in_handler: false,
            }),
        })
    }

    /// Takes in a request.
    pub(super) fn handle_request(self: &Arc<Self>, request: OwnedMessage, reply: DeferredReply) {
        let Some(position) = request.stream() else {
            return;
        };
        let waker = Waker::from(Arc::clone(self));
        let cancelled = reply.poll_cancelled(&mut Context::from_waker(&waker));
        let encoding = request.encoding();
        let (buffer, body_at) = request.into_parts();
        let (bytes, _) = buffer.into_parts();
        let body = match bytes.len() > body_at {
            true => Bytes::from(bytes).slice(body_at..),
            false => Bytes::new(),
        };
        let mut state = self.state.lock();
        let arrival = state.stream.handle_request(position, body, reply);
        if let Poll::Ready(status) = cancelled {
            return self.abort_with(state, status);
        }
        let arrival = match arrival {
            Ok(Arrival::Cancelled) => {
                return self.abort_with(state, Status::cancelled("the client cancelled the call"));
            }
            Err(violation) => {
                let text = format!("the client broke the stream: {violation}");
                return self.abort_with(state, Status::invalid_argument(text));
            }
            Ok(_) if encoding != self.encoding => {
                let text = "the client broke the stream: the encoding changed";
                return self.abort_with(state, Status::invalid_argument(text));
            }
            Ok(arrival) => arrival,
        };
        let wakers = match arrival {
            Arrival::Progress => state.take_wakers(),
            _ => [None, None],
        };
        if wakers.iter().all(Option::is_none) {
            return self.flush(state);
        }
        // The task that goes on has something to say, perhaps: its answer and this one are one.
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Ends the stream at once.
    pub(super) fn abort(&self, status: Status) {
        self.abort_with(self.state.lock(), status);
    }

    fn abort_with(&self, mut state: MutexGuard<'_, State>, status: Status) {
        state.stream.abort(status);
        let wakers = state.take_wakers();
        let handler = state.handler.take();
        self.flush(state);
        wakers
            .into_iter()
            .flatten()
            .chain(handler)
            .for_each(Waker::wake);
    }

    /// Whether the client has no request held.
    pub(super) fn is_quiet(&self) -> bool {
        self.state.lock().stream.held().is_empty()
    }

    /// Sends what may leave now, unless the handler may have more in a moment.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        if state.in_handler {
            return;
        }
        let mut answers = Vec::new();
        while let Some(answer) = state.stream.poll_answer() {
            answers.push(answer);
        }
        let is_over = state.stream.is_over();
        // What has left makes room.
        let writer = match state.stream.may_push() {
            true => state.writer.take(),
            false => None,
        };
        drop(state);
        // Before the last answer wakes a thread that shuts down when there are no streams.
        if is_over && let Some(table) = self.table.upgrade() {
            table.remove(self.key, self.this.as_ptr());
        }
        for answer in answers {
            respond(&self.local, answer);
        }
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    fn begin_handler(&self, cx: &Context<'_>) {
        let mut state = self.state.lock();
        state.in_handler = true;
        match &mut state.handler {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.handler = Some(cx.waker().clone()),
        }
    }

    /// Ends a poll of the handler. Returns how the stream has ended, if it has.
    fn end_handler(&self) -> Option<Result<(), Status>> {
        let mut state = self.state.lock();
        state.in_handler = false;
        let finished = state.stream.finished().cloned();
        self.flush(state);
        finished
    }

    fn finish(&self, result: Result<(), Status>) {
        let mut state = self.state.lock();
        state.in_handler = false;
        state.stream.finish(result.map_err(Status::with_run));
        let wakers = state.take_wakers();
        state.handler = None;
        self.flush(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// A request that is held was cancelled.
impl Wake for ServerEnd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let state = self.state.lock();
        let mut cx = Context::from_waker(Waker::noop());
        let cancelled = (state.stream.held().iter())
            .filter(|reply| reply.is_cancelled())
            .find_map(|reply| match reply.poll_cancelled(&mut cx) {
                Poll::Ready(status) => Some(status),
                Poll::Pending => None,
            });
        if let Some(status) = cancelled {
            self.abort_with(state, status);
        }
    }
}

/// Answers a request of a stream.
pub(super) fn respond(local: &LocalHandle, answer: Answer<DeferredReply>) {
    let Answer {
        to: mut reply,
        position,
        status,
        metadata,
        body,
    } = answer;
    *reply.buffer() = body.head;
    if let Some(tail) = body.tail {
        reply.set_tail(tail);
    }
    if !metadata.is_empty() {
        reply.set_metadata(metadata);
    }
    reply.set_stream(position, status, STREAM_RESPONSE_LEN);
    local.complete_with(reply, Ok(()));
}

/// Runs a handler until it ends, or until its stream does. A handler that is dropped before has panicked, or
/// its executor has dropped it.
pub(crate) async fn run(end: Arc<ServerEnd>, handler: impl Future<Output = Result<(), Status>>) {
    struct Unfinished(Arc<ServerEnd>);
    impl Drop for Unfinished {
        fn drop(&mut self) {
            // Has no effect on a stream that has ended.
            self.0.finish(Err(Status::internal(
                "the server's handler panicked, or its executor dropped it",
            )));
        }
    }
    let unfinished = Unfinished(end);
    let end = &unfinished.0;
    let result = {
        let mut handler = pin!(handler);
        std::future::poll_fn(|cx| {
            end.begin_handler(cx);
            if let Poll::Ready(result) = handler.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            match end.end_handler() {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            }
        })
        .await
    };
    end.finish(result);
}

impl StreamEnd for ServerEnd {
    fn poll_ready(&self, cx: &mut Context<'_>, _: &mut Waiting) -> Poll<()> {
        let mut state = self.state.lock();
        if state.stream.may_push() {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        self.flush(state);
        Poll::Pending
    }

    fn keep_one(&self) {
        self.state.lock().stream.keep_one();
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, _: bool) -> Result<(), Status> {
        let mut state = self.state.lock();
        state.stream.push(head, tail)?;
        self.flush(state);
        Ok(())
    }

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn close(&self) {
        // The stream ends when the handler returns, with a status.
    }

    fn abort(&self) {
        // The handler ends, too, or another task of the user's sends for it.
    }

    fn poll_item(
        &self,
        cx: &mut Context<'_>,
        _: &mut Waiting,
    ) -> Poll<Result<Option<(Bytes, Encoding)>, Status>> {
        let mut state = self.state.lock();
        if let Some(item) = state.stream.take() {
            return Poll::Ready(Ok(Some((item, self.encoding))));
        }
        if state.stream.is_read() {
            let aborted = state.stream.finished().cloned();
            return Poll::Ready(aborted.unwrap_or(Ok(())).map(|()| None));
        }
        state.reader = Some(cx.waker().clone());
        self.flush(state);
        Poll::Pending
    }

    fn stop_reading(&self) {
        let mut state = self.state.lock();
        state.stream.discard();
        self.flush(state);
    }

    fn headers(&self) -> Option<Metadata> {
        Some(self.metadata.lock().clone())
    }

    fn trailers(&self) -> Option<Metadata> {
        self.state.lock().stream.trailers().cloned()
    }

    fn send_headers(&self, metadata: Metadata) -> Result<(), Status> {
        let mut state = self.state.lock();
        if !state.stream.set_headers(metadata) {
            return Err(Status::failed_precondition(
                "the metadata is too late: a message has been sent",
            ));
        }
        self.flush(state);
        Ok(())
    }

    fn set_trailers(&self, metadata: Metadata) -> Result<(), Status> {
        self.state.lock().stream.set_trailers(metadata);
        Ok(())
    }

    fn set_request_metadata(&self, metadata: Metadata) {
        *self.metadata.lock() = metadata;
    }
}
