//! Memory that a device sends from as it is.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A device's own memory for messages. Used through [`MessageMemory`].
pub trait PacketMemory: Send + Sync {
    /// `len` bytes that `fill` has written, all of them: what was there before may have been part of
    /// another message. They are the device's again when the last reference is gone and the network
    /// needs them no more. `None`, and `fill` is not called, if there is no room.
    fn make(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes>;
}

/// Where large parts of messages are best made: in memory that the device sends from without a copy,
/// if it has such memory and some is left, otherwise in the process's own. What is made in one
/// device's memory may be sent by any other, which copies it.
///
/// ```
/// use starling_io::MessageMemory;
///
/// // A device that has none.
/// let memory = MessageMemory::default();
/// let value = memory.make(5, |room| room.copy_from_slice(b"hello"));
/// assert_eq!(value, "hello");
/// ```
#[derive(Clone, Default)]
pub struct MessageMemory(Option<Arc<dyn PacketMemory>>);

impl MessageMemory {
    /// A device's.
    pub fn of_device(memory: Arc<dyn PacketMemory>) -> Self {
        Self(Some(memory))
    }

    /// Whether a device sends from it without a copy. If not, what is made lies in ordinary memory.
    #[inline]
    pub fn is_of_device(&self) -> bool {
        self.0.is_some()
    }

    /// `len` bytes, zero where `fill` writes nothing. A device's memory stays as long as anything that
    /// was made in it.
    ///
    /// # Panics
    /// As `fill` does.
    pub fn make(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
        let mut fill = Some(fill);
        let mut fill = move |room: &mut [u8]| {
            let fill = fill.take();
            fill.expect("a device that has room has it filled once")(room);
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

    fn make_of_device(&self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Option<Bytes> {
        self.0.as_ref()?.make(len, fill)
    }
}

impl fmt::Debug for MessageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageMemory")
            .field("is_of_device", &self.is_of_device())
            .finish()
    }
}
