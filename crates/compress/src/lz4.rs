//! LZ4's block format.

use lz4_flex::block;

/// False if the result has more than `most` bytes.
pub(crate) fn compress(input: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    out.resize(before + block::get_maximum_output_size(input.len()), 0);
    let written = block::compress_into(input, &mut out[before..]);
    out.truncate(before + written.as_ref().copied().unwrap_or(0));
    written.is_ok_and(|written| written <= most)
}

/// False if the input is malformed or has more than `len` bytes.
pub(crate) fn decompress(input: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    out.resize(before + len, 0);
    let written = block::decompress_into(input, &mut out[before..]);
    out.truncate(before + written.as_ref().copied().unwrap_or(0));
    written.is_ok()
}
