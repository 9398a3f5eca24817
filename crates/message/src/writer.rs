//! Writes a message in place.

use bytes::Bytes;

use crate::arena::Arena;
use crate::layout::{Kind, REFERENCE_SIZE};
use crate::reader::Reader;
use crate::scalar::Scalar;

/// A position in a message under construction, which every `Mut` is made of.
#[derive(Debug)]
pub struct Writer<'a> {
    arena: &'a mut Arena,
    at: u32,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(arena: &'a mut Arena, at: u32) -> Self {
        Writer { arena, at }
    }

    /// The same position, borrowed for a shorter time.
    #[inline]
    pub fn reborrow(&mut self) -> Writer<'_> {
        Writer {
            arena: self.arena,
            at: self.at,
        }
    }

    /// A reader at the same position.
    #[inline]
    pub fn reader(&self) -> Reader<'_> {
        self.arena.reader().moved_to(self.at)
    }

    /// The arena and the position in it.
    #[inline]
    pub(crate) fn into_parts(self) -> (&'a mut Arena, u32) {
        (self.arena, self.at)
    }

    #[inline]
    pub(crate) fn arena(&mut self) -> &mut Arena {
        self.arena
    }

    /// The position of the field `offset` bytes into the fixed part.
    #[inline]
    pub(crate) fn slot(&self, offset: u32) -> u32 {
        self.at + offset
    }

    /// Sets the scalar `offset` bytes into the fixed part.
    #[inline]
    pub fn set_scalar<T: Scalar>(&mut self, offset: u32, value: T) {
        self.arena.write(self.at + offset, value);
    }

    /// Sets or clears a presence bit.
    #[inline]
    pub fn set_bit(&mut self, byte: u32, mask: u8, on: bool) {
        let at = self.at + byte;
        let old = self.arena.read::<u8>(at);
        self.arena
            .write::<u8>(at, if on { old | mask } else { old & !mask });
    }

    /// Sets a bytes or string field to a copy. With `explicit`, an empty value counts as set.
    #[inline]
    pub fn set_bytes(&mut self, offset: u32, value: &[u8], explicit: bool) {
        self.arena.write_bytes(self.at + offset, value, explicit);
    }

    /// Sets a bytes field without copying it. If another field of the message is already held by
    /// reference, it copies.
    pub fn set_shared(&mut self, offset: u32, value: Bytes, explicit: bool) {
        self.arena.write_shared(self.at + offset, value, explicit);
    }

    /// Unsets a bytes, string, sub-message, repeated or map field.
    pub fn clear_reference(&mut self, offset: u32) {
        self.arena.clear_reference(self.at + offset);
    }

    /// The sub-message of a field, created if absent.
    #[inline]
    pub fn child(self, offset: u32, stride: u32) -> Writer<'a> {
        let at = self.arena.child(self.at + offset, stride);
        Writer {
            arena: self.arena,
            at,
        }
    }

    /// Selects `case` of a oneof. Its value, of `size` bytes at `offset`, is zeroed unless that
    /// case was already selected. Case 0 unsets the oneof.
    pub fn set_case(&mut self, discriminant: u32, case: u8, offset: u32, size: u32) {
        if self.arena.read::<u8>(self.at + discriminant) != case {
            self.arena.zero(self.at + offset, size);
            self.arena.write::<u8>(self.at + discriminant, case);
        }
    }
}

/// Writes a scalar's bits at a position.
#[inline]
pub(crate) fn set_raw(to: &mut Writer<'_>, at: u32, kind: Kind, bits: u64) {
    match kind.slot_size() {
        1 => to.arena().write(at, bits != 0),
        4 => to.arena().write(at, bits as u32),
        size => {
            debug_assert_eq!(size, REFERENCE_SIZE);
            to.arena().write(at, bits);
        }
    }
}
