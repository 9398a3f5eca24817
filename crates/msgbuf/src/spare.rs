//! Memory of small messages that a thread uses again: a message is built in the memory of an earlier one.
//!
//! An allocator keeps a few blocks of each size for each thread, seven in glibc. A thread with a hundred
//! calls outstanding has a hundred messages at once, and pays for the slow path of the allocator each time.

use std::cell::RefCell;

/// Buffers that a thread keeps, at most.
const SPARE_BUFFERS: usize = 256;
/// The most memory of one of them, in bytes.
const SPARE_BYTES: usize = 1024;

/// The least memory of one, in bytes: most small messages fit what any other one leaves.
const LEAST_BYTES: usize = 128;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for so many bytes.
#[inline]
pub fn take(bytes: usize) -> Vec<u8> {
    let spare = match bytes <= SPARE_BYTES {
        // A thread that is ending has none.
        true => SPARE.try_with(|spare| spare.borrow_mut().pop()).ok(),
        false => None,
    };
    match spare.flatten() {
        Some(buffer) if buffer.capacity() >= bytes => buffer,
        // One that is too small is not grown: what is not there would be copied.
        _ => Vec::with_capacity(bytes.max(LEAST_BYTES)),
    }
}

/// Keeps a buffer for a later message of this thread, if it is small and there are not too many.
#[inline]
pub fn give(mut buffer: Vec<u8>) {
    if !(LEAST_BYTES..=SPARE_BYTES).contains(&buffer.capacity()) {
        return;
    }
    buffer.clear();
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_come_back_empty_and_their_number_is_bounded() {
        give(vec![7; 150]);
        let buffer = take(100);
        assert!(buffer.is_empty() && buffer.capacity() == 150);
        give(buffer);
        let larger = take(200);
        assert!(larger.is_empty() && larger.capacity() >= 200);
        assert!(SPARE.with_borrow(Vec::is_empty), "nobody else wants it");
        give(vec![7; LEAST_BYTES - 1]);
        assert!(SPARE.with_borrow(Vec::is_empty), "it is too small to keep");
        give(vec![7; SPARE_BYTES + 1]);
        assert!(SPARE.with_borrow(Vec::is_empty), "it is too large to keep");
        for _ in 0..2 * SPARE_BUFFERS {
            give(vec![7; LEAST_BYTES]);
        }
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_BUFFERS);
    }
}
