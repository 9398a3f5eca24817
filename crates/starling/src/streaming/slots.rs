//! The slots that the streams of a connection may have, where that has fewer than servers take for granted. A
//! channel to several servers counts all of its streams as those of one connection.
//!
//! Each stream has a request at its server all the time, which takes a slot. A server bounds the streams of a client by
//! the slots that it gives, and cannot know of a client that takes fewer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use starling_endpoint::{ProtocolConfig, Status};

use super::limits::{SLOTS, streams_of};

/// The streams of a connection with few slots.
#[derive(Debug)]
pub(crate) struct StreamSlots {
    /// Streams at once.
    most: usize,
    open: AtomicUsize,
}

/// That of one stream, until it is dropped.
#[derive(Debug)]
pub(super) struct StreamSlot(Arc<StreamSlots>);

impl StreamSlots {
    /// Those of a connection with these settings, on which there may be so many other streams. None: it has as many
    /// slots as servers take for granted.
    pub(crate) fn of(protocol: &ProtocolConfig, others: usize) -> Option<Arc<Self>> {
        let slots = usize::from(protocol.slots) * usize::from(protocol.group_sessions);
        (slots < SLOTS).then(|| {
            Arc::new(Self {
                most: streams_of(slots).saturating_sub(others),
                open: AtomicUsize::new(0),
            })
        })
    }

    /// A stream begins.
    ///
    /// # Errors
    /// If there are as many as there may be.
    pub(super) fn begin(self: &Arc<Self>) -> Result<StreamSlot, Status> {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let slot = StreamSlot(Arc::clone(self));
        match before < self.most {
            true => Ok(slot),
            false => Err(Status::resource_exhausted(format!(
                "this client has slots for {} streams at once: end some, or raise `ProtocolConfig::group_sessions` or \
                 `slots`",
                self.most
            ))
            .with_not_run()),
        }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
