//! A message's position in a stream.

/// What a message of a stream says about its stream. A stream is made of unary calls: items of the client
/// travel in requests, items of the server in responses. The crate `starling-stream` has the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamPosition {
    /// Identifies the stream among those of one client.
    pub id: u64,
    /// The number of this message among those of its direction. The first one has number 0.
    pub number: u64,
    /// So many messages of the other direction have arrived here without a gap.
    pub received: u64,
    /// Of so many messages of the other direction the reader has taken all items.
    pub taken: u64,
    /// Bytes that the other end may have sent beyond what was taken, before it has to wait.
    pub window: u32,
    /// In a request: how many requests the client wants the server to hold.
    pub hold: u8,
    /// What is true of this message.
    pub flags: StreamFlags,
}

impl StreamPosition {
    /// Bytes on the wire.
    pub(crate) const LEN: usize = 4 * 8 + 4 + 2;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let numbers = [self.id, self.number, self.received, self.taken];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&self.window.to_le_bytes());
        bytes[36] = self.hold;
        bytes[37] = self.flags.0;
        bytes
    }

    /// None if a flag is set that this version does not know.
    pub(crate) fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = bytes[at..].first_chunk().copied();
            u64::from_le_bytes(bytes.expect("within the length"))
        };
        let window = bytes[32..].first_chunk().copied();
        let flags = StreamFlags(bytes[37]);
        (flags.0 & !StreamFlags::ALL.0 == 0).then(|| Self {
            id: number(0),
            number: number(8),
            received: number(16),
            taken: number(24),
            window: u32::from_le_bytes(window.expect("within the length")),
            hold: bytes[36],
            flags,
        })
    }
}

/// Flags of a message of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamFlags(u8);

impl StreamFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The sender's last items are in this message, or in earlier ones. In a response: the stream is over,
    /// with this response's status.
    pub const END: Self = Self(1);
    /// In a request: the client gives up.
    pub const CANCEL: Self = Self(2);
    /// In a request: the client wants an answer now.
    pub const ANSWER: Self = Self(4);
    /// In a response: more items wait to be sent. In a request: the client waits for its window.
    pub const MORE: Self = Self(8);
    /// In a response: the server does not have this stream, or it has ended. The rest of the position,
    /// except for the id, has no meaning.
    pub const GONE: Self = Self(16);
    /// Each item of this direction begins with a byte that says how it is compressed.
    pub const CODED: Self = Self(32);
    const ALL: Self = Self(63);

    /// Whether all of these flags are set.
    #[inline]
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags without those.
    #[must_use]
    pub fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Both flags, or one of them if the condition holds.
    #[must_use]
    pub fn with_if(self, condition: bool, flags: Self) -> Self {
        if condition {
            Self(self.0 | flags.0)
        } else {
            self
        }
    }
}
