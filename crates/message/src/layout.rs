//! Layout tables: where each field of a message lies, and the rule that decides it.
//!
//! The rule itself is stated for implementers in `LAYOUT.md`; [`plan`] is its only implementation,
//! used by the code generator and by whoever derives a layout from a schema at run time.
//! Everything that is not typed access (validation, protobuf, comparison, copying, printing) is
//! driven by these tables, so generated code stays small and every message takes the same, tested path.

use std::sync::OnceLock;

/// Size in bytes of a reference: offset and length, or offset and element count.
pub const REFERENCE_SIZE: u32 = 8;

/// How deep messages may be nested, the root being at depth 1. Deeper ones are refused by
/// validation and by the protobuf decoder, so that hostile bytes cannot exhaust the stack.
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
    /// Every kind, in the order of its number (which is `FieldDescriptorProto.Type`'s).
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

    /// The kind with this number, as in `FieldDescriptorProto.Type`. Groups have none here.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The name that `.proto` files use; `enum` and `message` for the two that are defined there.
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

/// How one knows that a field is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Set means different from zero or empty.
    Implicit,
    /// Set means that the reference's offset is not zero.
    Reference,
    /// Set means that a bit of the fixed part is 1.
    Bit {
        /// Offset of the bit's byte in the fixed part.
        byte: u32,
        /// The bit, as a mask.
        mask: u8,
    },
    /// Set means that the oneof's discriminant is this case.
    Oneof {
        /// Offset of the discriminant's byte in the fixed part.
        discriminant: u32,
        /// Its value when this field is set; counted from 1.
        case: u8,
    },
}

/// The layout of the messages in a field.
#[derive(Clone, Copy, Debug)]
pub enum Nested {
    /// The field holds no messages.
    None,
    /// A generated table.
    Known(&'static MessageLayout),
    /// A table made at run time; tables may refer to each other in cycles, so it is filled in later.
    Late(&'static OnceLock<&'static MessageLayout>),
}

/// One field of a [`MessageLayout`].
#[derive(Debug)]
pub struct FieldLayout {
    /// Name in the `.proto` file.
    pub name: &'static str,
    /// Name in JSON.
    pub json_name: &'static str,
    /// Field number, unique in its message.
    pub number: u32,
    /// Type of the value, or of each value.
    pub kind: Kind,
    /// Singular, repeated or map.
    pub shape: Shape,
    /// How one knows that the field is set.
    pub presence: Presence,
    /// Where the value, or the reference to it, lies in the fixed part.
    pub offset: u32,
    /// Layout of the value when it is a message, or of a map's entries.
    pub nested: Nested,
    /// Names of the values when it is an enumeration.
    pub enumeration: Option<&'static EnumLayout>,
}

impl FieldLayout {
    /// The layout of the messages in this field (for a map: of its entries).
    pub fn message(&self) -> Option<&'static MessageLayout> {
        match self.nested {
            Nested::None => None,
            Nested::Known(layout) => Some(layout),
            Nested::Late(cell) => cell.get().copied(),
        }
    }

    /// Bytes from one element to the next, when the field is repeated.
    pub fn stride(&self) -> u32 {
        match self.message() {
            Some(layout) => layout.stride(),
            None => self.kind.slot_size(),
        }
    }
}

/// The layout of a message: a static table, one per message type.
#[derive(Debug)]
pub struct MessageLayout {
    /// Full name: `kv.GetRequest`.
    pub name: &'static str,
    /// Size of the fixed part in bytes.
    pub size: u32,
    /// The fields, by ascending number.
    pub fields: &'static [FieldLayout],
    /// Hash of all that decides this layout and those of the messages in it: two messages with
    /// equal hashes have the same layout. See [`crate::schema`].
    pub schema_hash: u64,
}

impl MessageLayout {
    /// The field with this number.
    pub fn field(&self, number: u32) -> Option<&'static FieldLayout> {
        // Field numbers are mostly 1, 2, 3, ...: try the direct place first.
        let direct = self.fields.get((number as usize).wrapping_sub(1));
        if let Some(field) = direct
            && field.number == number
        {
            return Some(field);
        }
        let index = self
            .fields
            .binary_search_by_key(&number, |field| field.number)
            .ok()?;
        self.fields.get(index)
    }

    /// Bytes that this message takes as an element or as a sub-message: its fixed part, but at
    /// least one byte, so that nothing that can be counted takes no memory.
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

/// What [`plan`] needs to know of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanField {
    /// Field number.
    pub number: u32,
    /// Type of the value, or of each value.
    pub kind: Kind,
    /// Singular, repeated or map.
    pub shape: Shape,
    /// Declared `optional`: presence is explicit.
    pub optional: bool,
    /// The oneof it belongs to, by any number that tells the oneofs of a message apart.
    pub oneof: Option<u32>,
}

impl PlanField {
    fn slot_size(&self) -> u32 {
        match self.shape {
            Shape::Singular => self.kind.slot_size(),
            Shape::Repeated | Shape::Map => REFERENCE_SIZE,
        }
    }
}

/// Where [`plan`] puts a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The field's number.
    pub number: u32,
    /// Offset in the fixed part.
    pub offset: u32,
    /// How one knows that it is set.
    pub presence: Presence,
}

/// A message's layout as [`plan`] computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Size of the fixed part in bytes.
    pub size: u32,
    /// A place for each field, by ascending number.
    pub places: Vec<Place>,
}

/// A message that has no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a oneof has {cases} cases; at most 255 are supported")]
pub struct PlanError {
    /// How many fields the oneof has.
    pub cases: usize,
}

/// The layout rule: see `LAYOUT.md`.
pub fn plan(fields: &[PlanField]) -> Result<Plan, PlanError> {
    let mut fields: Vec<&PlanField> = fields.iter().collect();
    fields.sort_by_key(|field| field.number);

    // Units of storage: a field of its own, or a oneof, whose members share the largest one's room.
    struct Unit {
        oneof: Option<u32>,
        number: u32,
        size: u32,
        cases: usize,
        offset: u32,
        discriminant: u32,
    }
    let mut units: Vec<Unit> = Vec::new();
    for field in &fields {
        let size = field.slot_size();
        match units
            .iter_mut()
            .find(|unit| field.oneof.is_some() && unit.oneof == field.oneof)
        {
            Some(unit) => {
                unit.size = unit.size.max(size);
                unit.cases += 1;
            }
            None => units.push(Unit {
                oneof: field.oneof,
                number: field.number,
                size,
                cases: 1,
                offset: 0,
                discriminant: 0,
            }),
        }
    }

    units.sort_by_key(|unit| (std::cmp::Reverse(unit.size), unit.number));
    let mut size = 0;
    for unit in &mut units {
        unit.offset = size;
        size += unit.size;
    }
    units.sort_by_key(|unit| unit.number);
    for unit in units.iter_mut().filter(|unit| unit.oneof.is_some()) {
        if unit.cases > 255 {
            return Err(PlanError { cases: unit.cases });
        }
        unit.discriminant = size;
        size += 1;
    }

    let first_bit_byte = size;
    let mut bits = 0;
    let mut places = Vec::with_capacity(fields.len());
    for field in &fields {
        let unit = units
            .iter()
            .find(|unit| match field.oneof {
                Some(_) => unit.oneof == field.oneof,
                None => unit.oneof.is_none() && unit.number == field.number,
            })
            .expect("every field was given a unit above");
        let presence = if field.oneof.is_some() {
            let earlier =
                |other: &&&PlanField| other.oneof == field.oneof && other.number < field.number;
            let case = 1 + fields.iter().filter(earlier).count() as u8;
            Presence::Oneof {
                discriminant: unit.discriminant,
                case,
            }
        } else if field.shape != Shape::Singular {
            Presence::Implicit
        } else if field.kind == Kind::Message || (field.optional && field.kind.is_reference()) {
            Presence::Reference
        } else if field.optional {
            let presence = Presence::Bit {
                byte: first_bit_byte + bits / 8,
                mask: 1 << (bits % 8),
            };
            bits += 1;
            presence
        } else {
            Presence::Implicit
        };
        places.push(Place {
            number: field.number,
            offset: unit.offset,
            presence,
        });
    }
    Ok(Plan {
        size: first_bit_byte + bits.div_ceil(8),
        places,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u32, kind: Kind) -> PlanField {
        PlanField {
            number,
            kind,
            shape: Shape::Singular,
            optional: false,
            oneof: None,
        }
    }

    #[test]
    fn one_bytes_field_takes_eight_bytes() {
        let plan = plan(&[field(1, Kind::Bytes)]).unwrap();
        assert_eq!(plan.size, 8);
        assert_eq!(plan.places[0].offset, 0);
        assert_eq!(plan.places[0].presence, Presence::Implicit);
    }

    #[test]
    fn larger_units_first_then_discriminants_then_bits() {
        let fields = [
            field(1, Kind::Bool),
            PlanField {
                optional: true,
                ..field(2, Kind::Int32)
            },
            PlanField {
                oneof: Some(7),
                ..field(3, Kind::Fixed32)
            },
            PlanField {
                oneof: Some(7),
                ..field(5, Kind::String)
            },
            PlanField {
                optional: true,
                ..field(4, Kind::Double)
            },
            PlanField {
                shape: Shape::Repeated,
                ..field(6, Kind::Bool)
            },
            PlanField {
                optional: true,
                ..field(9, Kind::String)
            },
        ];
        let plan = plan(&fields).unwrap();
        let offsets: Vec<_> = plan.places.iter().map(|p| (p.number, p.offset)).collect();
        // The oneof counts as number 3 and as 8 bytes.
        assert_eq!(
            offsets,
            [(1, 36), (2, 32), (3, 0), (4, 8), (5, 0), (6, 16), (9, 24)]
        );
        assert_eq!(
            plan.places[2].presence,
            Presence::Oneof {
                discriminant: 37,
                case: 1
            }
        );
        assert_eq!(
            plan.places[4].presence,
            Presence::Oneof {
                discriminant: 37,
                case: 2
            }
        );
        assert_eq!(plan.places[1].presence, Presence::Bit { byte: 38, mask: 1 });
        assert_eq!(plan.places[3].presence, Presence::Bit { byte: 38, mask: 2 });
        assert_eq!(plan.places[6].presence, Presence::Reference);
        assert_eq!(plan.size, 39);
    }

    #[test]
    fn the_order_of_declaration_does_not_matter() {
        let fields = [
            field(3, Kind::Int64),
            field(1, Kind::Bool),
            field(2, Kind::Float),
        ];
        let mut reversed = fields;
        reversed.reverse();
        assert_eq!(plan(&fields), plan(&reversed));
    }

    #[test]
    fn a_oneof_has_at_most_255_cases() {
        let member = |n| PlanField {
            oneof: Some(0),
            ..field(n, Kind::Bool)
        };
        let fields: Vec<_> = (1..=256).map(member).collect();
        assert_eq!(plan(&fields), Err(PlanError { cases: 256 }));
        assert!(plan(&fields[..255]).is_ok());
    }

    #[test]
    fn kinds_go_by_the_numbers_of_descriptor_proto() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
        assert_eq!(Kind::from_number(10), None, "groups are not supported");
    }
}
