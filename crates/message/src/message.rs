//! The trait of all generated message types.

use std::fmt::Debug;

use bytes::Bytes;

use crate::arena::Arena;
use crate::copy::copy;
use crate::layout::MessageLayout;
use crate::protobuf::{self, DecodeError, DecodeLimits, EncodeError};
use crate::reader::Reader;
use crate::validate::{ValidationError, is_flat, validate, validate_flat};
use crate::writer::Writer;

/// An owned message. [`Message::View`] reads it and [`Message::Mut`] writes it. Both work the same
/// on an owned message, in a packet buffer and in a response under construction.
pub trait Message: Default + Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The type for reading: a position in borrowed bytes.
    type View<'a>: Copy + MessageView<'a>;
    /// The type for writing: a position in a borrowed arena.
    type Mut<'a>;
    /// The table of its fields.
    const LAYOUT: &'static MessageLayout;

    /// The message in an arena that was begun, or adopted, with this layout.
    fn from_arena(arena: Arena) -> Self;
    /// Its memory.
    fn arena(&self) -> &Arena;
    /// Its memory, for writing.
    fn arena_mut(&mut self) -> &mut Arena;
    /// Hands over its memory.
    fn into_arena(self) -> Arena;
    /// The view at a position that holds such a message.
    fn view_of(reader: Reader<'_>) -> Self::View<'_>;
    /// The mutable view at a position that holds such a message.
    fn mut_of(writer: Writer<'_>) -> Self::Mut<'_>;

    /// The message for reading.
    #[inline]
    fn view(&self) -> Self::View<'_> {
        Self::view_of(self.arena().reader())
    }

    /// The message for writing.
    #[inline]
    fn as_mut(&mut self) -> Self::Mut<'_> {
        Self::mut_of(self.arena_mut().root())
    }

    /// Unsets every field. Keeps the memory.
    fn clear(&mut self) {
        self.arena_mut().clear(Self::LAYOUT);
    }

    /// Checks a received message like [`validate`], but faster for simple types.
    #[inline]
    fn validate(bytes: &[u8]) -> Result<(), ValidationError> {
        match const { is_flat(Self::LAYOUT) } {
            true => validate_flat(Self::LAYOUT, bytes),
            false => validate(Self::LAYOUT, bytes),
        }
    }

    /// Validates a received message and reads it in place.
    #[inline]
    fn parse(bytes: &[u8]) -> Result<Self::View<'_>, ValidationError> {
        Self::validate(bytes)?;
        Ok(Self::view_of(Reader::root(bytes)))
    }

    /// An owned copy of a view.
    fn from_view(view: Self::View<'_>) -> Self {
        let mut arena = Arena::new(Self::LAYOUT);
        copy(Self::LAYOUT, view.reader(), &mut arena.root());
        Self::from_arena(arena)
    }

    /// Encodes as protobuf.
    fn to_protobuf(&self) -> Result<Vec<u8>, EncodeError> {
        let mut out = Vec::new();
        protobuf::encode(Self::LAYOUT, self.arena().reader(), &mut out)?;
        Ok(out)
    }

    /// Decodes protobuf. The limits, or a number of bytes, bound what the message takes in memory.
    fn from_protobuf(bytes: &[u8], limits: impl Into<DecodeLimits>) -> Result<Self, DecodeError> {
        let mut arena = Arena::begin(Vec::new(), Self::LAYOUT);
        protobuf::decode(Self::LAYOUT, bytes, &mut arena, limits)?;
        Ok(Self::from_arena(arena))
    }

    /// The message's memory: its head, and the bytes that logically follow it.
    #[inline]
    fn parts(&self) -> (&[u8], Option<&Bytes>) {
        self.arena().parts()
    }
}

/// A view, as a position in a message.
pub trait MessageView<'a> {
    /// The position.
    fn reader(self) -> Reader<'a>;
}
