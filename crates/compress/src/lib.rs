//! Compression of messages: the algorithms that calls may use, and bounds for what comes from others.
//!
//! This crate knows bytes, and no calls. Which algorithms it has is decided by features; it knows the names
//! and numbers of all.
//!
//! A compressed message says how long it is when decompressed. So a receiver refuses one that is too long
//! before it takes memory for it: [`decompress`] checks that the length is possible at all, and then writes
//! exactly so many bytes or fails. The caller checks its own limit first.

#![forbid(unsafe_code)]

mod algorithm;
#[cfg(feature = "gzip")]
mod gzip;
#[cfg(feature = "lz4")]
mod lz4;
#[cfg(test)]
mod tests;
#[cfg(feature = "zstd")]
mod zstandard;

pub use algorithm::{Algorithm, AlgorithmSet};

/// Why bytes were not decompressed. Their sender is at fault, or this end lacks the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    /// The program was built without the algorithm.
    #[error(
        "{} is not among the algorithms of this end: {}",
        .0.name(),
        AlgorithmSet::AVAILABLE
    )]
    Unavailable(Algorithm),
    /// So few bytes cannot become so many.
    #[error("{bytes} bytes of {} cannot be {len} when decompressed", .algorithm.name())]
    Impossible {
        /// The algorithm.
        algorithm: Algorithm,
        /// Compressed bytes.
        bytes: usize,
        /// The length that was said.
        len: usize,
    },
    /// The bytes are not what the algorithm makes, or are of another length than was said.
    #[error("{bytes} bytes are not {len} bytes compressed by {}", .algorithm.name())]
    Malformed {
        /// The algorithm.
        algorithm: Algorithm,
        /// Compressed bytes.
        bytes: usize,
        /// The length that was said.
        len: usize,
    },
}

/// Compresses `input` and appends the result to `out`, if it is shorter than `input`. False, with `out` as it
/// was, if it is not, or if the program was built without the algorithm. `level` is the algorithm's own, or the
/// nearest one that it has; None is its default.
pub fn compress(algorithm: Algorithm, level: Option<i32>, input: &[u8], out: &mut Vec<u8>) -> bool {
    let before = out.len();
    // One byte less than the input has: what does not fit is not worth it.
    let most = input.len().saturating_sub(1);
    let fits = match algorithm {
        #[cfg(feature = "gzip")]
        Algorithm::Gzip => gzip::compress(level, input, most, out),
        #[cfg(feature = "zstd")]
        Algorithm::Zstd => zstandard::compress(level, input, most, out),
        #[cfg(feature = "lz4")]
        Algorithm::Lz4 => lz4::compress(input, most, out),
        #[allow(unreachable_patterns, reason = "if all algorithms are there")]
        _ => {
            let _ = (level, most);
            false
        }
    };
    if !fits {
        out.truncate(before);
    }
    fits
}

/// Decompresses `input`, which has `len` bytes then, and appends them to `out`.
///
/// Takes memory for `len` bytes, once it is known that `input` can be so many. A caller that gets `len` from
/// somebody else compares it with its limit first.
///
/// # Errors
/// If `input` is anything else. `out` is as it was then.
pub fn decompress(
    algorithm: Algorithm,
    input: &[u8],
    len: usize,
    out: &mut Vec<u8>,
) -> Result<(), DecompressError> {
    let bytes = input.len();
    if !algorithm.is_available() {
        return Err(DecompressError::Unavailable(algorithm));
    }
    if len > algorithm.most_from(bytes) {
        return Err(DecompressError::Impossible {
            algorithm,
            bytes,
            len,
        });
    }
    let before = out.len();
    let done = match algorithm {
        #[cfg(feature = "gzip")]
        Algorithm::Gzip => gzip::decompress(input, len, out),
        #[cfg(feature = "zstd")]
        Algorithm::Zstd => zstandard::decompress(input, len, out),
        #[cfg(feature = "lz4")]
        Algorithm::Lz4 => lz4::decompress(input, len, out),
        #[allow(unreachable_patterns, reason = "if all algorithms are there")]
        _ => false,
    };
    if done && out.len() == before + len {
        return Ok(());
    }
    out.truncate(before);
    Err(DecompressError::Malformed {
        algorithm,
        bytes,
        len,
    })
}
