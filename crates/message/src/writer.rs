//! Writing a message where it lies.

use bytes::Bytes;

use crate::arena::Arena;
use crate::element::Scalar;
use crate::layout::{MessageLayout, Shape};
use crate::reader::Reader;
use crate::reflect;

/// A position in a message under construction: what every `Mut` is made of.
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

    /// At the root of a message.
    #[inline]
    pub fn from_arena(arena: &'a mut Arena) -> Self {
        arena.root()
    }

    /// The same position, borrowed for less long.
    #[inline]
    pub fn reborrow(&mut self) -> Writer<'_> {
        Writer {
            arena: self.arena,
            at: self.at,
        }
    }

    /// For reading at the same position.
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

    /// Sets a bytes or string field to a copy. With `explicit`, empty is not unset.
    #[inline]
    pub fn set_bytes(&mut self, offset: u32, value: &[u8], explicit: bool) {
        self.arena.write_bytes(self.at + offset, value, explicit);
    }

    /// Sets a bytes field without copying it, if no other field of the message is held by
    /// reference; copies otherwise.
    pub fn set_shared(&mut self, offset: u32, value: Bytes, explicit: bool) {
        self.arena.write_shared(self.at + offset, value, explicit);
    }

    /// Unsets a bytes, string, sub-message, repeated or map field.
    pub fn clear_reference(&mut self, offset: u32) {
        self.arena.clear_reference(self.at + offset);
    }

    /// Sets a message field to a copy.
    pub fn set_message(&mut self, offset: u32, layout: &'static MessageLayout, value: Reader<'_>) {
        self.clear_reference(offset);
        reflect::copy(
            layout,
            value,
            &mut self.reborrow().child(offset, layout.stride()),
        );
    }

    /// Makes the whole message at this position a copy of another one of its type.
    pub fn copy_from(&mut self, layout: &'static MessageLayout, value: Reader<'_>) {
        if self.at == 0 {
            self.arena.clear(layout);
            return reflect::copy(layout, value, self);
        }
        for field in layout.fields {
            if field.shape != Shape::Singular || field.kind.is_reference() {
                self.clear_reference(field.offset);
            }
        }
        self.arena.zero(self.at, layout.size);
        reflect::copy(layout, value, self);
    }

    /// The sub-message of a field, made if it is not there.
    #[inline]
    pub fn child(self, offset: u32, stride: u32) -> Writer<'a> {
        let at = self.arena.child(self.at + offset, stride);
        Writer {
            arena: self.arena,
            at,
        }
    }

    /// Makes `case` the one that is set of a oneof; its value, of `size` bytes at `offset`, is
    /// zeroed unless that case was set already. Case 0 unsets the oneof.
    pub fn set_case(&mut self, discriminant: u32, case: u8, offset: u32, size: u32) {
        if self.arena.read::<u8>(self.at + discriminant) != case {
            self.arena.zero(self.at + offset, size);
            self.arena.write::<u8>(self.at + discriminant, case);
        }
    }
}
