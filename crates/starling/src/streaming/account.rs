//! What the streams of a dispatch thread hold, or those of a channel; and the decoded requests of one.
//!
//! ```text
//!  a message that comes ── within the window? ── yes ─▶ its bytes are the window's, which was counted when the
//!                                │                      stream began
//!                                no
//!                                ▼
//!                            ByteAccount ── no room ─▶ the stream ends with RESOURCE_EXHAUSTED
//!                                ▼
//!                           counted bytes, until nobody has them
//! ```
//!
//! So do messages that were unpacked, whatever the window. What a reader has of the window's bytes is at most
//! the window once more.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Buf;
use parking_lot::Mutex;
use starling_endpoint::{HeldMost, LargeBuffers, Msgbuf, OwnedMessage, Status};
use starling_io::LARGE_BYTES;
use starling_message::Bytes;
use starling_msgbuf::spare;

use super::limits::{AllHoldings, Holding, StreamLimits, StreamNeeds, StreamShare};

/// A body behind a longer header than this is copied out of its message, unless it is larger than the second.
/// So headers do not stay in memory that does not count.
const LONG_HEADER: usize = 128;
const LARGE_BODY: usize = 64 << 10;

/// So is a body that is shorter than this: readers keep their last message, and thousands of streams may be at rest.
const SHORT_BODY: usize = 128;

#[derive(Debug, Default)]
struct Sums {
    clients: HashMap<u64, Holding>,
    all: AllHoldings,
}

/// What clients hold, each by its number.
#[derive(Debug)]
pub(crate) struct ByteAccount {
    limits: StreamLimits,
    sums: Mutex<Sums>,
}

impl ByteAccount {
    /// Of the streams of a dispatch thread.
    pub(super) fn new(limits: StreamLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            sums: Mutex::default(),
        })
    }

    /// Of the streams that a client opens. Their windows do not count: it has chosen them.
    pub(crate) fn of_client(max_bytes: Option<usize>) -> Arc<Self> {
        let default = StreamLimits::default();
        Self::new(StreamLimits {
            all_bytes: max_bytes.unwrap_or(default.all_bytes),
            ..default
        })
    }

    pub(super) fn limits(&self) -> &StreamLimits {
        &self.limits
    }

    /// Of decoded requests that wait for their handlers.
    pub(crate) fn of_requests(max_bytes: usize) -> Arc<Self> {
        Self::of_client(Some(max_bytes))
    }

    /// The share of one more stream of a client. None: it has as many as it may.
    pub(super) fn admit(&self, client: u64, needs: StreamNeeds) -> Option<StreamShare> {
        let Sums { clients, all } = &mut *self.sums.lock();
        let mut holding = clients.get(&client).copied().unwrap_or_default();
        let share = self.limits.admit(&mut holding, all, needs)?;
        clients.insert(client, holding);
        Some(share)
    }

    /// A stream with this share is over.
    pub(super) fn release(&self, client: u64, share: StreamShare) {
        let Sums { clients, all } = &mut *self.sums.lock();
        let holding = clients.entry(client).or_default();
        StreamLimits::release(holding, all, share);
        if holding.is_empty() {
            clients.remove(&client);
        }
    }

    /// Counts bytes beyond the windows. A client may have as many as are free. Without
    /// one there is no share.
    /// None: there is no room.
    pub(crate) fn hold(self: &Arc<Self>, client: Option<u64>, bytes: usize) -> Option<HeldBytes> {
        let Sums { clients, all } = &mut *self.sums.lock();
        let mut holding = client.map(|client| clients.get(&client).copied().unwrap_or_default());
        if !self.limits.hold(holding.as_mut(), all, bytes) {
            return None;
        }
        if let (Some(client), Some(holding)) = (client, holding) {
            clients.insert(client, holding);
        }
        Some(HeldBytes(Some(Counted {
            account: Arc::clone(self),
            client,
            bytes,
        })))
    }

    /// Bytes that are held now: windows, and what is beyond them.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sums.lock().all.bytes()
    }

    /// Bytes that may wait to be sent by the streams that there are.
    pub(crate) fn to_send_bytes(&self) -> usize {
        self.sums.lock().all.to_send()
    }

    /// Says what all held at most since it was last asked.
    pub(crate) fn held_most(self: &Arc<Self>) -> HeldMost {
        let account = Arc::clone(self);
        Box::new(move || account.sums.lock().all.take_most())
    }

    /// Why a message of a stream finds no room. `builder` has the setting.
    #[cold]
    pub(super) fn no_room(&self, bytes: usize, builder: &str) -> Status {
        Status::resource_exhausted(format!(
            "streams may hold {} bytes in all, and have no room for {bytes} more of a message: read messages \
             sooner, send smaller ones, or raise `{builder}::max_stream_bytes`",
            self.limits.all_bytes
        ))
    }
}

/// Bytes that count until this is dropped. By default there are none.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(
    #[expect(dead_code, reason = "it counts until it is dropped")] Option<Counted>,
);

#[derive(Debug)]
struct Counted {
    account: Arc<ByteAccount>,
    client: Option<u64>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Sums { clients, all } = &mut *self.account.sums.lock();
        let Some(client) = self.client else {
            return StreamLimits::give_back(None, all, self.bytes);
        };
        let holding = clients.entry(client).or_default();
        StreamLimits::give_back(Some(holding), all, self.bytes);
        if holding.is_empty() {
            clients.remove(&client);
        }
    }
}

impl HeldBytes {
    /// These bytes, which count until nobody has them.
    pub(crate) fn around(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        struct Counted<T>(
            T,
            #[expect(dead_code, reason = "it is dropped with them")] HeldBytes,
        );
        impl<T: AsRef<[u8]>> AsRef<[u8]> for Counted<T> {
            fn as_ref(&self) -> &[u8] {
                self.0.as_ref()
            }
        }
        Bytes::from_owner(Counted(bytes, self))
    }
}

/// A buffer for a message of a stream.
pub(crate) fn spare_for(bytes: usize, buffers: &LargeBuffers) -> Msgbuf {
    match bytes {
        LARGE_BYTES.. => buffers.take(bytes),
        // Its body leaves it. A longer one may stay in it for long, and its memory is no larger than that.
        ..SHORT_BODY => Msgbuf::from_vec(spare::take(bytes)),
        _ => Msgbuf::new(),
    }
}

/// The items of a message that came. The memory of a large one goes back to `buffers` when nobody has it any more: an
/// allocator gives so much back to the system, and takes it again for the next message, a page fault for each page.
pub(super) fn body_of(message: OwnedMessage, buffers: Option<&LargeBuffers>) -> Bytes {
    let (buffer, body_at) = message.into_parts();
    let (bytes, _) = buffer.into_parts();
    let len = bytes.len().saturating_sub(body_at);
    match len {
        0 => Bytes::new(),
        _ if len < SHORT_BODY || body_at > LONG_HEADER && len <= LARGE_BODY => {
            let body = Bytes::copy_from_slice(&bytes[body_at..]);
            match buffers {
                Some(buffers) if bytes.len() >= LARGE_BYTES => drop(buffers.lend(bytes)),
                _ => spare::give(bytes),
            }
            body
        }
        _ => {
            let mut body = lent(bytes, buffers);
            // Not a slice of it, which would be another reference.
            body.advance(body_at);
            body
        }
    }
}

fn lent(bytes: Vec<u8>, buffers: Option<&LargeBuffers>) -> Bytes {
    match buffers {
        Some(buffers) if bytes.len() >= LARGE_BYTES => buffers.lend(bytes),
        _ => Bytes::from(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_large_message_is_used_again() {
        let buffers = LargeBuffers::default();
        let message = OwnedMessage::of_body(vec![1; LARGE_BYTES]);
        let memory = message.body().as_ptr();
        let body = body_of(message, Some(&buffers));
        assert_eq!((body.len(), body.as_ptr()), (LARGE_BYTES, memory));
        assert_ne!(spare_for(LARGE_BYTES, &buffers).head().as_ptr(), memory);
        drop(body);
        assert_eq!(spare_for(LARGE_BYTES, &buffers).head().as_ptr(), memory);
        // So is that of one whose body is copied, to leave a long header behind.
        let bytes = vec![1; LARGE_BYTES];
        let memory = bytes.as_ptr();
        let message = OwnedMessage::new(Msgbuf::from_vec(bytes), 0, 1000);
        let body = body_of(message, Some(&buffers));
        assert_eq!(body.len(), LARGE_BYTES - 1000);
        assert_eq!(spare_for(LARGE_BYTES, &buffers).head().as_ptr(), memory);
    }

    #[test]
    fn the_memory_of_a_small_message_is_not_kept() {
        let buffers = LargeBuffers::default();
        let message = OwnedMessage::of_body(vec![1; LARGE_BYTES - 1]);
        drop(body_of(message, Some(&buffers)));
        // It would fit.
        let taken = buffers.take(LARGE_BYTES / 2);
        assert_eq!(taken.capacity(), LARGE_BYTES / 2);
    }
}
