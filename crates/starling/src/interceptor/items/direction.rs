//! The messages of one direction of a stream, one after the other through its hooks.

use std::future::pending;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;
use starling_endpoint::{Encoding, Status};
use starling_message::MessageLayout;
use starling_stream::Items;

use super::{Hook, InterceptedItem};
use crate::interceptor::body::Body;
use crate::interceptor::timer::{Alarm, Timer};
use crate::streaming::StreamEnd;

/// A message that waits in front of a hook.
struct Held {
    item: InterceptedItem,
    next_hook: usize,
    is_last: bool,
}

/// A message that has passed all hooks.
pub(super) struct Passed {
    pub(super) body: Body,
    pub(super) received: Option<Items>,
    pub(super) is_last: bool,
}

/// The messages of one direction.
pub(super) struct Direction {
    layout: &'static MessageLayout,
    hooks: Vec<Hook>,
    held: Mutex<Option<Held>>,
    /// Of the stream, for a message that waits.
    alarm: Mutex<Alarm>,
}

impl Direction {
    pub(super) fn new(layout: &'static MessageLayout, hooks: Vec<Hook>) -> Self {
        Self {
            layout,
            hooks,
            held: Mutex::default(),
            alarm: Mutex::default(),
        }
    }

    /// Has the hooks see a message. None: it waits.
    pub(super) fn begin(&self, body: Body, is_last: bool) -> Result<Option<Passed>, Status> {
        let item = InterceptedItem {
            layout: self.layout,
            body,
            received: None,
            wait: None,
        };
        self.pass(item, 0, is_last)
    }

    /// The same for a message that was received: the only one of `received`.
    pub(super) fn begin_received(
        &self,
        received: Items,
        encoding: Encoding,
        end: &dyn StreamEnd,
    ) -> Result<Option<Passed>, Status> {
        let message = received.clone().next().unwrap_or_default();
        let item = InterceptedItem {
            layout: self.layout,
            body: Body::of_item(message, encoding).within(|| end.decode_limits()),
            received: Some(received),
            wait: None,
        };
        self.pass(item, 0, false)
    }

    /// Lets go of the message that waits.
    pub(super) fn drop_held(&self) {
        let held = self.held.lock().take();
        // Without the lock: it runs the user's destructors.
        drop(held);
    }

    /// Lets go of what the message waits for. It never passes.
    pub(super) fn drop_wait(&self) {
        let mut held = self.held.lock();
        let wait = (held.as_mut()).and_then(|held| held.item.wait.replace(Box::pin(pending())));
        drop(held);
        drop(wait);
    }

    /// Ready when the time of the stream is over.
    pub(super) fn poll_late(
        &self,
        (timer, deadline): &(Timer, Instant),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.alarm.lock().poll(timer, Some(*deadline), cx)
    }

    fn pass(
        &self,
        mut item: InterceptedItem,
        first_hook: usize,
        is_last: bool,
    ) -> Result<Option<Passed>, Status> {
        for (index, hook) in self.hooks.iter().enumerate().skip(first_hook) {
            hook(&mut item)?;
            if item.wait.is_some() {
                *self.held.lock() = Some(Held {
                    item,
                    next_hook: index + 1,
                    is_last,
                });
                return Ok(None);
            }
        }
        Ok(Some(Passed {
            body: item.body,
            received: item.received,
            is_last,
        }))
    }

    pub(super) fn holds(&self) -> bool {
        self.held.lock().is_some()
    }

    /// The message that has waited, when it has passed. None if there is none.
    pub(super) fn poll_held(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Passed>, Status>> {
        loop {
            let mut held = self.held.lock();
            let Some(waiting) = held.as_mut() else {
                return Poll::Ready(Ok(None));
            };
            let waited = match &mut waiting.item.wait {
                Some(wait) => ready!(wait.as_mut().poll(cx)),
                None => Ok(()),
            };
            let before = held.take();
            drop(held);
            waited?;
            if let Some(Held {
                mut item,
                next_hook,
                is_last,
            }) = before
            {
                item.wait = None;
                if let Some(passed) = self.pass(item, next_hook, is_last)? {
                    return Poll::Ready(Ok(Some(passed)));
                }
            }
        }
    }
}
