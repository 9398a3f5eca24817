//! Elements of fields, arrays and maps: scalars, text, bytes, messages.

use crate::arena::Arena;
use crate::layout::REFERENCE_SIZE;
use crate::message::Message;
use crate::reader::Reader;

/// Something that a repeated field or a map can hold: scalars, generated enumerations, `str`,
/// `[u8]`, messages.
pub trait Element: 'static {
    /// The type that reading returns.
    type View<'a>: Copy;
    /// Bytes from one element of an array to the next.
    const STRIDE: u32;
    /// Bytes of the field itself: the value, or a reference to it.
    const SLOT: u32;
    /// Reads the array element at the reader's position.
    fn read_element(reader: Reader<'_>) -> Self::View<'_>;
    /// Reads the field `offset` bytes into the fixed part.
    fn read_field(reader: Reader<'_>, offset: u32) -> Self::View<'_>;
}

/// An [`Element`] that is written as a whole: every kind but messages.
pub trait Value: Element {
    /// Writes into a slot that is zero or holds an earlier value.
    fn write(arena: &mut Arena, slot: u32, value: Self::View<'_>);
}

macro_rules! scalar_element {
    ($($type:ty)*) => {$(
        impl Element for $type {
            type View<'a> = $type;
            const STRIDE: u32 = size_of::<$type>() as u32;
            const SLOT: u32 = Self::STRIDE;
            #[inline]
            fn read_element(reader: Reader<'_>) -> $type {
                reader.scalar(0)
            }
            #[inline]
            fn read_field(reader: Reader<'_>, offset: u32) -> $type {
                reader.scalar(offset)
            }
        }

        impl Value for $type {
            #[inline]
            fn write(arena: &mut Arena, slot: u32, value: $type) {
                arena.write(slot, value);
            }
        }
    )*};
}

scalar_element!(bool i32 u32 i64 u64 f32 f64);

impl Element for str {
    type View<'a> = &'a str;
    const STRIDE: u32 = REFERENCE_SIZE;
    const SLOT: u32 = REFERENCE_SIZE;
    #[inline]
    fn read_element(reader: Reader<'_>) -> &str {
        reader.text(0)
    }
    #[inline]
    fn read_field(reader: Reader<'_>, offset: u32) -> &str {
        reader.text(offset)
    }
}

impl Value for str {
    #[inline]
    fn write(arena: &mut Arena, slot: u32, value: &str) {
        arena.write_bytes(slot, value.as_bytes(), false);
    }
}

impl Element for [u8] {
    type View<'a> = &'a [u8];
    const STRIDE: u32 = REFERENCE_SIZE;
    const SLOT: u32 = REFERENCE_SIZE;
    #[inline]
    fn read_element(reader: Reader<'_>) -> &[u8] {
        reader.bytes(0)
    }
    #[inline]
    fn read_field(reader: Reader<'_>, offset: u32) -> &[u8] {
        reader.bytes(offset)
    }
}

impl Value for [u8] {
    #[inline]
    fn write(arena: &mut Arena, slot: u32, value: &[u8]) {
        arena.write_bytes(slot, value, false);
    }
}

impl<M: Message> Element for M {
    type View<'a> = M::View<'a>;
    const STRIDE: u32 = M::LAYOUT.stride();
    const SLOT: u32 = REFERENCE_SIZE;
    #[inline]
    fn read_element(reader: Reader<'_>) -> M::View<'_> {
        M::view_of(reader)
    }
    #[inline]
    fn read_field(reader: Reader<'_>, offset: u32) -> M::View<'_> {
        M::view_of(reader.child(offset).unwrap_or(Reader::empty()))
    }
}
