//! How messages are compressed, as users say it.

use starling_compress::Algorithm;

/// Shorter messages are not compressed, unless set.
const MIN_BYTES: u32 = 1024;

/// How messages are compressed: those of a call ([`CallOptions::compression`](crate::CallOptions::compression)),
/// or the responses of methods ([`MethodOptions::compression`](crate::MethodOptions::compression)).
///
/// | algorithm | feature of this crate | what it is for |
/// |---|---|---|
/// | `Compression::lz4` | `lz4`, on by default | speed |
/// | `Compression::gzip` | `gzip` | peers that have nothing else |
/// | `Compression::zstd` | `zstd`, which compiles C | small results |
///
/// A message is compressed by the thread that made it and decompressed by the thread that reads it. It goes as
/// it is if it is shorter than [`Compression::min_bytes`], if it would not get shorter, or if the other end
/// does not have the algorithm. Of streams, each message is compressed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    algorithm: Option<Algorithm>,
    level: Option<i32>,
    min_bytes: u32,
}

impl Compression {
    const fn by(algorithm: Option<Algorithm>) -> Self {
        Self {
            algorithm,
            level: None,
            min_bytes: MIN_BYTES,
        }
    }

    /// No compression: for a call of a client whose other calls are compressed.
    pub const fn off() -> Self {
        Self::by(None)
    }

    /// By gzip (RFC 1952).
    #[cfg(feature = "gzip")]
    pub const fn gzip() -> Self {
        Self::by(Some(Algorithm::Gzip))
    }

    /// By Zstandard (RFC 8878).
    #[cfg(feature = "zstd")]
    pub const fn zstd() -> Self {
        Self::by(Some(Algorithm::Zstd))
    }

    /// By LZ4's block format.
    #[cfg(feature = "lz4")]
    pub const fn lz4() -> Self {
        Self::by(Some(Algorithm::Lz4))
    }

    /// By the algorithm of this name: `gzip`, `zstd`, `lz4`. None if this program was built without it.
    pub fn by_name(name: &str) -> Option<Self> {
        let mut all = Algorithm::ALL.into_iter();
        let named = all.find(|it| it.name() == name && it.is_available())?;
        Some(Self::by(Some(named)))
    }

    /// The algorithm's own level: 1 to 9 of gzip, -7 to 22 of zstd, none of lz4. Higher ones are slower. Others count
    /// as the nearest of these.
    #[must_use]
    pub const fn level(self, level: i32) -> Self {
        Self {
            level: Some(level),
            ..self
        }
    }

    /// Messages with fewer bytes are not compressed. The default is 1,024.
    #[must_use]
    pub const fn min_bytes(self, bytes: u32) -> Self {
        Self {
            min_bytes: bytes,
            ..self
        }
    }

    /// The algorithm, for a message of so many bytes. None if it is to go as it is.
    pub(crate) fn for_len(&self, len: usize) -> Option<Algorithm> {
        let is_long = len >= self.min_bytes as usize && u32::try_from(len).is_ok();
        self.algorithm.filter(|_| is_long)
    }

    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    pub(crate) fn own_level(&self) -> Option<i32> {
        self.level
    }

    /// The same algorithm as of a message that was compressed already.
    pub(crate) fn again(algorithm: Algorithm) -> Self {
        Self::by(Some(algorithm)).min_bytes(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_algorithms_that_are_there() {
        for algorithm in Algorithm::ALL {
            let named = Compression::by_name(algorithm.name());
            assert_eq!(named.is_some(), algorithm.is_available());
            assert!(named.is_none_or(|named| named.algorithm() == Some(algorithm)));
        }
        assert_eq!(Compression::by_name("brotli"), None);
    }

    #[test]
    fn short_messages_are_left_alone() {
        let always = Compression::again(Algorithm::Lz4);
        let long = always.min_bytes(100);
        assert_eq!(long.for_len(99), None);
        assert_eq!(long.for_len(100), Some(Algorithm::Lz4));
        assert_eq!(always.for_len(0), Some(Algorithm::Lz4));
        assert_eq!(Compression::off().min_bytes(0).for_len(1 << 20), None);
    }
}
