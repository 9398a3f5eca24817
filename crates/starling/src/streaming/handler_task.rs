//! The task of a stream's handler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use starling_endpoint::Status;

use super::server::ServerEnd;
use crate::plane::StreamingFuture;

/// Runs a handler until it ends, or until its stream does.
pub(crate) struct HandlerTask {
    end: Arc<ServerEnd>,
    handler: Option<StreamingFuture>,
}

impl HandlerTask {
    pub(super) fn new(end: Arc<ServerEnd>, handler: StreamingFuture) -> Self {
        let handler = Some(handler);
        Self { end, handler }
    }
}

impl Future for HandlerTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { end, handler } = &mut *self;
        let Some(running) = handler else {
            return Poll::Ready(());
        };
        let poll = end.begin_handler(cx);
        let result = match running.as_mut().poll(cx) {
            Poll::Ready(result) => {
                drop(poll);
                result
            }
            Poll::Pending => match poll.end() {
                Some(result) => result,
                None => return Poll::Pending,
            },
        };
        *handler = None;
        end.finish(result);
        Poll::Ready(())
    }
}

/// A handler that is dropped before its end has panicked, or its executor has dropped it.
impl Drop for HandlerTask {
    fn drop(&mut self) {
        struct Unfinished<'a>(&'a ServerEnd);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                // Has no effect on a stream that has ended.
                self.0.finish(Err(Status::internal(
                    "the server's handler, or an interceptor before it, panicked, or its executor dropped it",
                )));
            }
        }
        let unfinished = Unfinished(&self.end);
        self.handler = None;
        drop(unfinished);
    }
}
