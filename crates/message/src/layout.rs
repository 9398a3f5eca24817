//! Layout tables: where each field of a message lies.
//!
//! `LAYOUT.md` states the layout rule for implementers; [`plan`](crate::plan()) is its only
//! implementation. The code generator uses it, and so does code that derives a layout from a schema
//! at run time. These tables drive everything but typed access: validation, protobuf, comparison,
//! copying and printing. So generated code stays small, and all messages take the same, tested path.
//!
//! Generated tables are statics. Tables made from a schema belong to a set,
//! [`Layouts`](crate::Layouts), and go with it. A table does not say whose it is, so all that reads
//! one takes a [`LayoutRef`](crate::LayoutRef).

use std::borrow::Cow;
use std::fmt;

/// Size in bytes of a reference: offset and length, or offset and element count.
pub const REFERENCE_SIZE: u32 = 8;

/// How deep messages may be nested; the root is at depth 1. Validation and the protobuf decoder
/// refuse deeper ones, so that hostile bytes cannot exhaust the stack.
pub const MAX_DEPTH: u32 = 64;

/// Offset of a reference that means "the last `length` bytes of the whole message".
pub const TAIL_OFFSET: u32 = u32::MAX;

/// The type of a field's value, as `.proto` files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// 64-bit IEEE 754.
    Double = 1,
    /// 32-bit IEEE 754.
    Float = 2,
    /// Signed, protobuf varint.
    Int64 = 3,
    /// Unsigned, protobuf varint.
    Uint64 = 4,
    /// Signed, protobuf varint.
    Int32 = 5,
    /// Unsigned, protobuf fixed width.
    Fixed64 = 6,
    /// Unsigned, protobuf fixed width.
    Fixed32 = 7,
    /// One byte, zero is false.
    Bool = 8,
    /// UTF-8 text.
    String = 9,
    /// Another message.
    Message = 11,
    /// Any bytes.
    Bytes = 12,
    /// Unsigned, protobuf varint.
    Uint32 = 13,
    /// Open enumeration: any 32-bit signed number.
    Enum = 14,
    /// Signed, protobuf fixed width.
    Sfixed32 = 15,
    /// Signed, protobuf fixed width.
    Sfixed64 = 16,
    /// Signed, protobuf zigzag varint.
    Sint32 = 17,
    /// Signed, protobuf zigzag varint.
    Sint64 = 18,
}

impl Kind {
    /// Every kind, in the order of `FieldDescriptorProto.Type`'s numbers.
    pub const ALL: [Kind; 17] = [
        Kind::Double,
        Kind::Float,
        Kind::Int64,
        Kind::Uint64,
        Kind::Int32,
        Kind::Fixed64,
        Kind::Fixed32,
        Kind::Bool,
        Kind::String,
        Kind::Message,
        Kind::Bytes,
        Kind::Uint32,
        Kind::Enum,
        Kind::Sfixed32,
        Kind::Sfixed64,
        Kind::Sint32,
        Kind::Sint64,
    ];

    /// The kind with this number in `FieldDescriptorProto.Type`; `None` for groups.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The name in `.proto` files; `enum` and `message` for types that are defined there.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Double => "double",
            Kind::Float => "float",
            Kind::Int64 => "int64",
            Kind::Uint64 => "uint64",
            Kind::Int32 => "int32",
            Kind::Fixed64 => "fixed64",
            Kind::Fixed32 => "fixed32",
            Kind::Bool => "bool",
            Kind::String => "string",
            Kind::Message => "message",
            Kind::Bytes => "bytes",
            Kind::Uint32 => "uint32",
            Kind::Enum => "enum",
            Kind::Sfixed32 => "sfixed32",
            Kind::Sfixed64 => "sfixed64",
            Kind::Sint32 => "sint32",
            Kind::Sint64 => "sint64",
        }
    }

    /// Bytes that a singular field of this kind takes in the fixed part.
    pub const fn slot_size(self) -> u32 {
        match self {
            Kind::Bool => 1,
            Kind::Float
            | Kind::Int32
            | Kind::Uint32
            | Kind::Sint32
            | Kind::Fixed32
            | Kind::Sfixed32
            | Kind::Enum => 4,
            Kind::Double
            | Kind::Int64
            | Kind::Uint64
            | Kind::Sint64
            | Kind::Fixed64
            | Kind::Sfixed64 => 8,
            Kind::String | Kind::Bytes | Kind::Message => REFERENCE_SIZE,
        }
    }

    /// Whether a value lies outside the fixed part, behind a reference.
    pub const fn is_reference(self) -> bool {
        matches!(self, Kind::String | Kind::Bytes | Kind::Message)
    }
}

/// How many values a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// At most one.
    Singular,
    /// A sequence.
    Repeated,
    /// A sequence of entries: messages with the fields `key` (1) and `value` (2).
    Map,
}

/// How a message shows that a field is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// The value is not zero or empty.
    Implicit,
    /// The reference's offset is not zero.
    Reference,
    /// A bit of the fixed part is 1.
    Bit {
        /// Offset of the bit's byte in the fixed part.
        byte: u32,
        /// The bit, as a mask.
        mask: u8,
    },
    /// The oneof's discriminant is this case.
    Oneof {
        /// Offset of the discriminant's byte in the fixed part.
        discriminant: u32,
        /// Its value when this field is set; counted from 1.
        case: u8,
        /// How many cases the oneof has.
        cases: u8,
    },
}

/// The layout of the messages in a field.
#[derive(Clone, Copy)]
pub enum Nested {
    /// The field holds no messages.
    None,
    /// A generated table.
    Known(&'static MessageLayout),
    /// A table of the same set: its index. Generated tables have none.
    InSet(u32),
}

impl fmt::Debug for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nested::None => f.write_str("None"),
            // The name only: tables may refer to each other in cycles.
            Nested::Known(layout) => f.write_str(&layout.name),
            Nested::InSet(index) => write!(f, "InSet({index})"),
        }
    }
}

/// One field of a [`MessageLayout`].
#[derive(Clone, Debug)]
pub struct FieldLayout {
    /// Name in the `.proto` file.
    pub name: Cow<'static, str>,
    /// Name in JSON.
    pub json_name: Cow<'static, str>,
    /// Field number, unique in its message.
    pub number: u32,
    /// Type of the value, or of each value.
    pub kind: Kind,
    /// Singular, repeated or map.
    pub shape: Shape,
    /// How a message shows that the field is set.
    pub presence: Presence,
    /// Where the value, or the reference to it, lies in the fixed part.
    pub offset: u32,
    /// Layout of the value when it is a message, or of a map's entries.
    pub nested: Nested,
    /// Names of the values when it is an enumeration.
    pub enumeration: Option<&'static EnumLayout>,
}

/// The layout of a message: a table, one per message type.
#[derive(Debug)]
pub struct MessageLayout {
    /// Full name: `kv.GetRequest`.
    pub name: Cow<'static, str>,
    /// Size of the fixed part in bytes.
    pub size: u32,
    /// The fields, by ascending number.
    pub fields: Cow<'static, [FieldLayout]>,
    /// Hash of everything that decides this layout and those of the messages in it. Messages with
    /// equal hashes have the same layout. See [`crate::schema`].
    pub schema_hash: u64,
}

impl MessageLayout {
    /// The fields, also for constants.
    #[inline]
    pub(crate) const fn fields(&self) -> &[FieldLayout] {
        match &self.fields {
            Cow::Borrowed(fields) => fields,
            Cow::Owned(fields) => fields.as_slice(),
        }
    }

    /// The field with this number.
    #[inline]
    pub(crate) fn field(&self, number: u32) -> Option<&FieldLayout> {
        let fields = self.fields();
        // Field numbers are mostly 1, 2, 3, ...: try that index first.
        let direct = fields.get((number as usize).wrapping_sub(1));
        if let Some(field) = direct
            && field.number == number
        {
            return Some(field);
        }
        self.find_field(number)
    }

    fn find_field(&self, number: u32) -> Option<&FieldLayout> {
        let fields = self.fields();
        let index = fields.binary_search_by_key(&number, |field| field.number);
        fields.get(index.ok()?)
    }

    /// Bytes that this message takes as an element or as a sub-message: its fixed part, but at
    /// least one byte, so that every element takes memory.
    pub const fn stride(&self) -> u32 {
        if self.size == 0 { 1 } else { self.size }
    }
}

/// Names of an enumeration's values.
#[derive(Debug)]
pub struct EnumLayout {
    /// Full name: `kv.Consistency`.
    pub name: &'static str,
    /// Names and numbers, in the order of the `.proto` file.
    pub values: &'static [(&'static str, i32)],
}

impl EnumLayout {
    /// The first name with this number.
    pub fn name_of(&self, number: i32) -> Option<&'static str> {
        self.values
            .iter()
            .find(|(_, value)| *value == number)
            .map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_numbers_of_descriptor_proto() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
        assert_eq!(Kind::from_number(10), None, "groups are not supported");
    }
}
