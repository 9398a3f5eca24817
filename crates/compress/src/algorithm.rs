//! The algorithms that calls may use, whether this program has them or not.

use std::fmt;

/// An algorithm, with its number in call headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// RFC 1952. The slowest, and what everybody has.
    Gzip = 1,
    /// RFC 8878. The smallest results.
    Zstd = 2,
    /// LZ4's block format. The fastest.
    Lz4 = 3,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Gzip, Self::Zstd, Self::Lz4];

    /// Its number in call headers, 1 to 7.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The one with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.number() == number)
    }

    /// Its name, as gRPC has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }

    /// Whether this program was built with it.
    pub const fn is_available(self) -> bool {
        match self {
            Self::Gzip => cfg!(feature = "gzip"),
            Self::Zstd => cfg!(feature = "zstd"),
            Self::Lz4 => cfg!(feature = "lz4"),
        }
    }

    /// The most bytes that so many can be when decompressed.
    pub(crate) fn most_from(self, bytes: usize) -> usize {
        match self {
            // A match of 258 bytes takes two bits at least.
            Self::Gzip => bytes.saturating_mul(1032),
            // A block of one repeated byte takes 4 bytes and is 128 KiB at most; so are all others.
            Self::Zstd => (bytes / 4).saturating_mul(128 << 10),
            // Each further byte of a length stands for 255.
            Self::Lz4 => bytes.saturating_mul(255),
        }
    }
}

/// A set of algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AlgorithmSet(u8);

impl AlgorithmSet {
    /// None.
    pub const NONE: Self = Self(0);

    /// Those that this program was built with.
    pub const AVAILABLE: Self = {
        let mut bits = 0;
        let mut index = 0;
        while index < Algorithm::ALL.len() {
            let algorithm = Algorithm::ALL[index];
            if algorithm.is_available() {
                bits |= 1 << algorithm.number();
            }
            index += 1;
        }
        Self(bits)
    };

    /// The set that another end has sent: bit n is algorithm n. It may have some that this version does not
    /// know.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// As it is sent.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether this algorithm is in it.
    pub const fn has(self, algorithm: Algorithm) -> bool {
        self.0 & 1 << algorithm.number() != 0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The names of those that this version knows: `gzip, zstd`; or `none`.
impl fmt::Display for AlgorithmSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Algorithm::ALL.into_iter().filter(|it| self.has(*it));
        let names: Vec<_> = names.map(Algorithm::name).collect();
        match names.as_slice() {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}
