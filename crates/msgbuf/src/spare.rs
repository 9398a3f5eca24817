//! Memory of small messages that a thread uses again: a message is built in the memory of an earlier one.
//!
//! An allocator keeps a few blocks of each size for each thread, seven in glibc. A thread with a hundred
//! calls outstanding has a hundred messages at once, and pays for the slow path of the allocator each time.

use std::cell::RefCell;

/// Buffers that a thread keeps, at most.
const SPARE_BUFFERS: usize = 256;
/// The most memory of one of them, in bytes.
const SPARE_BYTES: usize = 1024;

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
        Some(mut buffer) => {
            buffer.reserve(bytes);
            buffer
        }
        None => Vec::with_capacity(bytes),
    }
}

/// Keeps a buffer for a later message of this thread, if it is small and there are not too many.
#[inline]
pub fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > SPARE_BYTES {
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
        give(vec![7; 100]);
        let buffer = take(200);
        assert!(buffer.is_empty() && buffer.capacity() >= 200);
        give(vec![7; SPARE_BYTES + 1]);
        assert!(SPARE.with_borrow(Vec::is_empty), "it is too large to keep");
        for _ in 0..2 * SPARE_BUFFERS {
            give(vec![7; 10]);
        }
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_BUFFERS);
    }
}
