//! The layout rule: where each field of a message lies.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::layout::{Kind, Presence, REFERENCE_SIZE, Shape};

/// The facts about a field that [`plan`] needs.
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
    /// The oneof it belongs to, by any number that distinguishes the oneofs of a message.
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
    /// How a message shows that it is set.
    pub presence: Presence,
}

/// A message's layout, computed by [`plan`].
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

/// A unit of storage: a field of its own, or a oneof, whose members share the largest one's room.
struct Unit {
    is_oneof: bool,
    number: u32,
    size: u32,
    cases: usize,
    offset: u32,
    discriminant: u32,
}

/// A field, as a member of its unit.
struct Member<'a> {
    field: &'a PlanField,
    /// Index of the unit.
    unit: usize,
    /// Its position among the unit's members, from 1.
    case: usize,
}

/// The units of `fields`, which are sorted by number, and the fields as their members. So units are
/// sorted by number too. Offsets and discriminants are still zero.
fn units_of<'a>(fields: &[&'a PlanField]) -> (Vec<Unit>, Vec<Member<'a>>) {
    let mut units: Vec<Unit> = Vec::new();
    let mut oneofs = HashMap::new();
    let mut members = Vec::with_capacity(fields.len());
    for field in fields {
        let next = units.len();
        let unit = match field.oneof {
            Some(oneof) => *oneofs.entry(oneof).or_insert(next),
            None => next,
        };
        if unit == next {
            units.push(Unit {
                is_oneof: field.oneof.is_some(),
                number: field.number,
                size: 0,
                cases: 0,
                offset: 0,
                discriminant: 0,
            });
        }
        units[unit].size = units[unit].size.max(field.slot_size());
        units[unit].cases += 1;
        members.push(Member {
            field,
            unit,
            case: units[unit].cases,
        });
    }
    (units, members)
}

/// Computes a layout by the rule of `LAYOUT.md`, in time that is linear in the fields but for sorting:
/// they may be a peer's.
///
/// # Errors
/// If a oneof has more than 255 cases.
pub fn plan(fields: &[PlanField]) -> Result<Plan, PlanError> {
    let mut fields: Vec<&PlanField> = fields.iter().collect();
    fields.sort_by_key(|field| field.number);

    let (mut units, members) = units_of(&fields);
    let mut by_size: Vec<&mut Unit> = units.iter_mut().collect();
    by_size.sort_by_key(|unit| (Reverse(unit.size), unit.number));
    let mut size = 0;
    for unit in by_size {
        unit.offset = size;
        size += unit.size;
    }
    for unit in units.iter_mut().filter(|unit| unit.is_oneof) {
        if unit.cases > 255 {
            return Err(PlanError { cases: unit.cases });
        }
        unit.discriminant = size;
        size += 1;
    }

    let first_bit_byte = size;
    let mut bits = 0;
    let mut places = Vec::with_capacity(members.len());
    for Member { field, unit, case } in members {
        let unit = &units[unit];
        let presence = if unit.is_oneof {
            Presence::Oneof {
                discriminant: unit.discriminant,
                case: case as u8,
                cases: unit.cases as u8,
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
    fn a_bytes_field_takes_eight_bytes() {
        let plan = plan(&[field(1, Kind::Bytes)]).unwrap();
        assert_eq!(plan.size, 8);
        assert_eq!(plan.places[0].offset, 0);
        assert_eq!(plan.places[0].presence, Presence::Implicit);
    }

    #[test]
    fn larger_units_come_first_then_discriminants_then_bits() {
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
        // The oneof has the number 3 and takes 8 bytes.
        assert_eq!(
            offsets,
            [(1, 36), (2, 32), (3, 0), (4, 8), (5, 0), (6, 16), (9, 24)]
        );
        assert_eq!(
            plan.places[2].presence,
            Presence::Oneof {
                discriminant: 37,
                case: 1,
                cases: 2
            }
        );
        assert_eq!(
            plan.places[4].presence,
            Presence::Oneof {
                discriminant: 37,
                case: 2,
                cases: 2
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
}
