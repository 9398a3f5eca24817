//! How bodies are compressed, as call headers say it. The crate `starling-compress` knows the algorithms.

/// A body that is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressedBody {
    /// The number of the algorithm.
    pub algorithm: u8,
    /// Bytes of the body when it is decompressed.
    pub len: u32,
}

impl CompressedBody {
    /// Bytes on the wire.
    pub(crate) const LEN: usize = 1 + 4;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let [a, b, c, d] = self.len.to_le_bytes();
        [self.algorithm, a, b, c, d]
    }

    pub(crate) fn from_bytes([algorithm, len @ ..]: [u8; Self::LEN]) -> Self {
        Self {
            algorithm,
            len: u32::from_le_bytes(len),
        }
    }
}

/// What a request says of compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestCoding {
    /// How its body is compressed, if it is.
    pub compressed: Option<CompressedBody>,
    /// The algorithms that its caller takes in the response: bit n is algorithm n.
    pub accepts: u8,
    /// Of a stream: the algorithm that packs some of its items. Each item says so by itself, so the header does
    /// not.
    pub items: Option<u8>,
}

impl RequestCoding {
    /// The algorithm that packs the body or some of its items.
    pub fn packed_by(&self) -> Option<u8> {
        self.compressed.map(|body| body.algorithm).or(self.items)
    }

    /// Whether the header has nothing to say.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.compressed.is_none() && self.accepts == 0
    }
}
