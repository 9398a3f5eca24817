//! The items of an end, one by one: for what looks at each of them.

use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use starling_endpoint::{Encoding, Status};
use starling_stream::Items;

use super::StreamEnd;
use crate::plane::Waiting;

/// What is left of the message that was taken last.
#[derive(Default)]
pub(crate) struct SingleItems(Mutex<Option<(Items, Encoding)>>);

impl SingleItems {
    /// The next item of this end, where it lies, or the end.
    pub(crate) fn poll_next(
        &self,
        end: &dyn StreamEnd,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        loop {
            let mut left = self.0.lock();
            if let Some((items, encoding)) = &mut *left {
                let (next, encoding) = (items.take_one(), *encoding);
                match next {
                    Ok(Some(item)) => return Poll::Ready(Ok(Some((item, encoding)))),
                    Ok(None) => *left = None,
                    Err(error) => {
                        *left = None;
                        drop(left);
                        return Poll::Ready(Err(end.reject(&error.to_string())));
                    }
                }
            }
            drop(left);
            match ready!(end.poll_items(cx, waiting))? {
                None => return Poll::Ready(Ok(None)),
                next => *self.0.lock() = next,
            }
        }
    }
}
