//! Zstandard. A thread keeps its memory for the next message.

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

thread_local! {
    static ENCODER: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// False if the result has more than `most` bytes.
pub(crate) fn compress(level: Option<i32>, input: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
    // Below these it has levels down to -131072, which hardly compress.
    let level = level.map_or(zstd::DEFAULT_COMPRESSION_LEVEL, |level| level.clamp(-7, 22));
    ENCODER.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Compressor::new(level).ok();
        }
        let Some(encoder) = kept else {
            return false;
        };
        let before = out.len();
        out.resize(before + most, 0);
        let written = encoder
            .set_compression_level(level)
            .and_then(|()| encoder.compress_to_buffer(input, &mut out[before..]));
        out.truncate(before + written.as_ref().copied().unwrap_or(0));
        written.is_ok()
    })
}

/// False if the input is malformed or has more than `len` bytes.
pub(crate) fn decompress(input: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
    DECODER.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Decompressor::new().ok();
        }
        let Some(decoder) = kept else {
            return false;
        };
        let before = out.len();
        // In one step: the decoder then needs no window of its own, however large the sender's was.
        out.resize(before + len, 0);
        let written = decoder.decompress_to_buffer(input, &mut out[before..]);
        out.truncate(before + written.as_ref().copied().unwrap_or(0));
        written.is_ok()
    })
}
