//! Memory that a device sends from without a copy.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A device's own memory for messages. Used through [`MessageMemory`].
pub trait PacketMemory: Send + Sync {
    /// `len` bytes, all written by `fill`: they may have been part of another message before. The
    /// device takes them back when the last reference is gone and the network needs them no more.
    /// Returns `None`, without calling `fill`, if there is no room.
    fn make(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes>;

    /// Memory for messages to the peer of this address, which no peer of another address can read. `None`: the
    /// device has no such memory, and sends from any memory alike.
    fn of_peer(&self, address: &str) -> Option<Arc<dyn PacketMemory>> {
        let _ = address;
        None
    }
}

/// The memory for large parts of messages: memory from which the device sends without a copy, or
/// ordinary memory if the device has no such memory or none is left. Any other device may send a part
/// that was made in this device's memory; it copies the part.
///
/// Over `shm`, the receiver copies a message from where it was made. All servers that a client's device has opened, and
/// that run as the same user, can read everything that is made in its memory, also what is meant for another one. What
/// a server makes in its memory for a client can be read by that client only.
///
/// ```
/// use starling_msgbuf::MessageMemory;
///
/// // The device has no such memory.
/// let memory = MessageMemory::default();
/// let value = memory.make(5, |room| room.copy_from_slice(b"hello"));
/// assert_eq!(value, "hello");
/// ```
#[derive(Clone, Default)]
pub struct MessageMemory(Option<Arc<dyn PacketMemory>>);

impl MessageMemory {
    /// The memory of a device.
    pub fn of_device(memory: Arc<dyn PacketMemory>) -> Self {
        Self(Some(memory))
    }

    /// Whether a device sends from it without a copy. If not, it is ordinary memory.
    #[inline]
    pub fn is_of_device(&self) -> bool {
        self.0.is_some()
    }

    /// `len` bytes, zero where `fill` writes nothing. A device's memory lives as long as anything
    /// that was made in it.
    ///
    /// # Panics
    /// If `fill` panics.
    pub fn make(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
        let mut fill = Some(fill);
        let mut fill = move |room: &mut [u8]| {
            let fill = fill.take();
            fill.expect("a device with room calls `fill` once")(room);
        };
        let made = self.make_of_device(len, &mut |room| {
            // It may have been part of another message.
            room.fill(0);
            fill(room);
        });
        made.unwrap_or_else(|| {
            let mut bytes = vec![0; len];
            fill(&mut bytes);
            bytes.into()
        })
    }

    /// A copy of `bytes`.
    pub fn copy(&self, bytes: &[u8]) -> Bytes {
        let made = self.make_of_device(bytes.len(), &mut |room| room.copy_from_slice(bytes));
        made.unwrap_or_else(|| Bytes::copy_from_slice(bytes))
    }

    /// Where senders put large messages to the peer of this address, without being asked to.
    pub fn of_peer(&self, address: &str) -> PeerMemory {
        PeerMemory(self.0.as_ref().and_then(|memory| memory.of_peer(address)))
    }

    fn make_of_device(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
        self.0.as_ref()?.make(len, fill)
    }
}

/// The same memory, not only memory of one kind.
impl PartialEq for MessageMemory {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Eq for MessageMemory {}

impl fmt::Debug for MessageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageMemory")
            .field("is_of_device", &self.is_of_device())
            .finish()
    }
}

/// A message of so many bytes takes less time in [`PeerMemory`] than on the way of small ones: see
/// `docs/notes/large-messages.md`.
pub const LARGE_BYTES: usize = 32 << 10;

/// Memory for large messages to one peer, out of which the peer copies them. No other peer can read it.
#[derive(Clone, Default)]
pub struct PeerMemory(Option<Arc<dyn PacketMemory>>);

impl PeerMemory {
    /// Whether there is such memory.
    #[inline]
    pub fn is_of_device(&self) -> bool {
        self.0.is_some()
    }

    /// A copy of a message, if it is large and there is room.
    #[inline]
    pub fn copy(&self, message: &[u8]) -> Option<Bytes> {
        if message.len() < LARGE_BYTES {
            return None;
        }
        let memory = self.0.as_ref()?;
        memory.make(message.len(), &mut |room| room.copy_from_slice(message))
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerMemory")
            .field(&self.0.is_some())
            .finish()
    }
}
