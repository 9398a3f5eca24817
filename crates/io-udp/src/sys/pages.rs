//! Zeroed memory whose pages are there when they are first used. An allocator would write the zeros, into all of them,
//! where the memory has to begin at a line of the cache, or has been used before.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::slice;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is this struct's alone.
unsafe impl Send for Pages {}

impl Pages {
    /// So many bytes, at least one.
    pub(crate) fn new(len: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; nobody refers to it yet.
        let start = unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) };
        let start = start.ok().and_then(|start| NonNull::new(start.cast()));
        let start = start.unwrap_or_else(|| {
            handle_alloc_error(Layout::array::<u8>(len).expect("less than the address space"))
        });
        Self { start, len }
    }

    /// Where they begin: a page.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Deref for Pages {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as this struct lives, and zero if nobody has written to it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and there is no other reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(pages: &Pages) -> usize {
        let mut states = vec![0; pages.len.div_ceil(4096)];
        // SAFETY: the kernel writes a byte for each page.
        let result =
            unsafe { libc::mincore(pages.start.as_ptr().cast(), pages.len, states.as_mut_ptr()) };
        assert_eq!(result, 0);
        states.iter().filter(|state| **state & 1 != 0).count()
    }

    #[test]
    fn pages_come_when_they_are_used_also_where_others_were() {
        for _ in 0..3 {
            let mut pages = Pages::new(1 << 20);
            assert_eq!(resident(&pages), 0);
            pages[70_000] = 7;
            assert!(resident(&pages) > 0);
            assert_eq!((pages[0], pages[70_000], pages.len()), (0, 7, 1 << 20));
            pages.fill(9);
        }
    }
}
