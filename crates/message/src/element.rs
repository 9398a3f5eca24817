//! What fields, arrays and maps are made of: scalars, text, bytes, messages.

use crate::arena::Arena;
use crate::layout::REFERENCE_SIZE;
use crate::message::Message;
use crate::reader::Reader;

/// A fixed-width value, little-endian in memory.
pub trait Scalar: Copy + Default + 'static {
    /// Bytes that it takes.
    const WIDTH: usize;
    /// From exactly [`Scalar::WIDTH`] bytes.
    fn from_le(bytes: &[u8]) -> Self;
    /// To exactly [`Scalar::WIDTH`] bytes.
    fn to_le(self, bytes: &mut [u8]);
}

macro_rules! scalar {
    ($($type:ty)*) => {$(
        impl Scalar for $type {
            const WIDTH: usize = size_of::<$type>();
            #[inline]
            fn from_le(bytes: &[u8]) -> Self {
                match bytes.first_chunk() {
                    Some(bytes) => <$type>::from_le_bytes(*bytes),
                    None => <$type>::default(),
                }
            }
            #[inline]
            fn to_le(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

scalar!(u8 i32 u32 i64 u64 f32 f64);

impl Scalar for bool {
    const WIDTH: usize = 1;
    #[inline]
    fn from_le(bytes: &[u8]) -> Self {
        bytes.first().is_some_and(|byte| *byte != 0)
    }
    #[inline]
    fn to_le(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&[u8::from(self)]);
    }
}

/// Something that a repeated field or a map can hold: scalars, generated enumerations, `str`,
/// `[u8]`, messages.
pub trait Element: 'static {
    /// What reading it gives.
    type View<'a>: Copy;
    /// Bytes from one element of an array to the next.
    const STRIDE: u32;
    /// Bytes that it takes as a field: the value, or a reference to it.
    const SLOT: u32;
    /// Reads the array element at the reader's position.
    fn read_element(reader: Reader<'_>) -> Self::View<'_>;
    /// Reads the field `offset` bytes into the fixed part.
    fn read_field(reader: Reader<'_>, offset: u32) -> Self::View<'_>;
}

/// An [`Element`] that is written in one go: all but messages.
pub trait Value: Element {
    /// Writes into a slot whose bytes are zero, or hold an earlier value.
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
