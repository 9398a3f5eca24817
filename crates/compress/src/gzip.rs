//! Gzip, by zlib-rs. A thread that compresses keeps the memory for the next message.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The greatest window, as a power of two, which every receiver has to have.
const WINDOW_BITS: u8 = 15;

thread_local! {
    static ENCODER: RefCell<Option<(u32, Compress)>> = const { RefCell::new(None) };
}

/// False if the result has more than `most` bytes.
pub(crate) fn compress(level: Option<i32>, input: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
    let level = level.map_or(Compression::default().level(), |level| {
        level.clamp(1, 9) as u32
    });
    ENCODER.with_borrow_mut(|kept| {
        let of_level = kept.take().filter(|(kept, _)| *kept == level);
        let (_, encoder) = kept.insert(of_level.unwrap_or_else(|| {
            let encoder = Compress::new_gzip(Compression::new(level), WINDOW_BITS);
            (level, encoder)
        }));
        encoder.reset();
        let before = out.len();
        out.reserve_exact(most);
        // It writes no more than there is memory for, and the vector may have more.
        let status = encoder.compress_vec(input, out, FlushCompress::Finish);
        matches!(status, Ok(Status::StreamEnd)) && out.len() - before <= most
    })
}

/// False if the input is malformed or has more than `len` bytes.
pub(crate) fn decompress(input: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
    let mut decoder = Decompress::new_gzip(WINDOW_BITS);
    let before = out.len();
    out.reserve_exact(len);
    let status = decoder.decompress_vec(input, out, FlushDecompress::Finish);
    // The vector may have had more memory. Bytes behind the end are not part of the message.
    matches!(status, Ok(Status::StreamEnd))
        && out.len() - before <= len
        && decoder.total_in() == input.len() as u64
}
