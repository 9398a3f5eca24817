//! Schemas that no honest peer sends. Each is a typed error, or has layouts with which any bytes are an
//! error, or a message that can be read completely.

mod common;

use std::fmt;

use bolero::TypeGenerator;
use common::structs;
use starling_message::protobuf::{self, DecodeLimits};
use starling_message::reflect::{self, ValueRef};
use starling_message::schema::{FieldSchema, MessageSchema, Schema, check_compatible};
use starling_message::{Arena, Kind, LayoutRef, Reader, Shape, validate};

/// What a message may take in memory.
const LIMIT: usize = 1 << 16;

struct Printed<'a>(LayoutRef<'a>, Reader<'a>);

impl fmt::Debug for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(self.0, self.1, f)
    }
}

/// Reads everything that is reachable; returns the number of values.
fn walk(layout: LayoutRef<'_>, reader: Reader<'_>) -> usize {
    let values = layout
        .fields()
        .flat_map(|field| reflect::values(field, reader));
    let below = values.map(|value| match value {
        ValueRef::Message(layout, reader) => 1 + walk(layout, reader),
        _ => 1,
    });
    below.sum()
}

/// Uses a message in every way that takes a layout.
fn use_message(layout: LayoutRef<'_>, reader: Reader<'_>) {
    let values = walk(layout, reader);
    assert!(values < 1 << 24, "{values}");
    let _ = format!("{:?}", Printed(layout, reader));
    let mut copied = Arena::begin(Vec::new(), layout);
    reflect::copy(layout, reader, &mut copied.root());
    assert_eq!(walk(layout, copied.reader()), values);
    validate(layout, copied.parts().0).expect("a copy is a message");
    let _ = reflect::equal(layout, reader, copied.reader());
    let mut encoded = Vec::new();
    protobuf::encode(layout, reader, &mut encoded).expect("a message has an encoding");
    let mut decoded = Arena::begin(Vec::new(), layout);
    // The schema may have types as wide as it likes, so the proportion is no limit for its messages.
    let limits = DecodeLimits {
        factor: usize::MAX,
        ..DecodeLimits::from(1 << 26)
    };
    protobuf::decode(layout, &encoded, &mut decoded, limits).expect("encoded above");
    let mut again = Vec::new();
    protobuf::encode(layout, decoded.reader(), &mut again).expect("decoded above");
    assert_eq!(again, encoded);
}

/// Checks the properties that hold for any schema and any bytes. Returns whether the schema has layouts.
fn check(schema: &Schema, bytes: &[u8]) -> bool {
    let Ok(layouts) = schema.layouts() else {
        return false;
    };
    assert_eq!(layouts.iter().len(), schema.messages.len());
    for layout in layouts.iter() {
        if validate(layout, bytes).is_ok() {
            use_message(layout, Reader::root(bytes));
        }
        // Few random bytes are a message, but most begin with some fields in protobuf.
        let mut arena = Arena::begin(Vec::new(), layout);
        let _ = protobuf::decode(layout, bytes, &mut arena, LIMIT);
        validate(layout, arena.parts().0).expect("what was decoded is a message");
        use_message(layout, arena.reader());
    }
    let _ = schema.owned_methods();
    true
}

fn check_bytes(schema: &[u8], bytes: &[u8]) -> bool {
    let Ok(parsed) = Schema::parse(schema) else {
        return false;
    };
    assert_eq!(Schema::parse(&parsed.to_bytes()), Ok(parsed.clone()));
    assert!(check_compatible(schema, schema).is_ok());
    check(&parsed, bytes)
}

/// Choices of which [`schema_from`] makes a schema that is mostly valid.
#[derive(Clone, Debug, TypeGenerator)]
struct FieldChoices {
    message: u8,
    step: u8,
    kind: u8,
    shape: u8,
    group: u8,
    target: u8,
}

/// Seven messages with fields of any kind that refer to each other, and the entry of a map.
fn schema_from(choices: &[FieldChoices]) -> Schema {
    let mut messages: Vec<MessageSchema> = Vec::new();
    for index in 0..8 {
        messages.push(MessageSchema {
            name: format!("m.M{index}"),
            fields: Vec::new(),
        });
    }
    for choice in choices.iter().take(64) {
        let fields = &mut messages[usize::from(choice.message % 7)].fields;
        let last = fields.last().map_or(0, |field| field.number);
        let kind = Kind::ALL[usize::from(choice.kind) % Kind::ALL.len()];
        let shape = match choice.shape % 8 {
            0 | 1 => Shape::Repeated,
            2 if kind == Kind::Message => Shape::Map,
            _ => Shape::Singular,
        };
        let singular = shape == Shape::Singular;
        fields.push(FieldSchema {
            name: format!("f_{}", fields.len()),
            number: last + 1 + u32::from(choice.step / 200),
            kind,
            shape,
            optional: singular && choice.group % 4 == 1,
            oneof: (singular && choice.group % 4 == 2).then_some(u32::from(choice.group / 128)),
            message: (kind == Kind::Message).then_some(match shape {
                Shape::Map => 7,
                _ => u32::from(choice.target % 8),
            }),
        });
    }
    messages[7].fields = vec![common::field(1, Kind::Uint32), common::message_field(2, 0)];
    Schema {
        messages,
        methods: Vec::new(),
    }
}

#[test]
fn random_bytes_are_no_schema_or_one_with_layouts() {
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<u8>)>()
        .for_each(|(schema, bytes)| {
            check_bytes(schema, bytes);
        });
}

#[test]
fn changed_schemas_are_refused_or_have_layouts() {
    let valid = structs().to_bytes();
    assert!(check_bytes(&valid, b"\x0a\x05\x0a\x01k\x12\x00"));
    bolero::check!()
        .with_type::<(Vec<(u16, u8)>, Vec<u8>)>()
        .for_each(|(changes, bytes)| {
            let mut schema = valid.clone();
            for (at, value) in changes.iter().take(8) {
                let at = usize::from(*at) % schema.len();
                schema[at] = *value;
            }
            check_bytes(&schema, bytes);
        });
}

#[test]
fn every_single_change_of_a_schema_is_refused_or_has_layouts() {
    let valid = structs().to_bytes();
    let bytes = [
        0x0a, 0x06, 0x0a, 0x01, b'k', 0x12, 0x01, 0x20, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for at in 0..valid.len() {
        for value in 0..=255 {
            let mut schema = valid.clone();
            schema[at] = value;
            check_bytes(&schema, &bytes);
        }
    }
}

#[test]
fn any_schema_that_is_valid_reads_any_bytes() {
    bolero::check!()
        .with_type::<(Vec<FieldChoices>, Vec<u8>)>()
        .for_each(|(choices, bytes)| {
            let schema = schema_from(choices);
            assert!(check(&schema, bytes), "{schema:?}");
            assert!(check_bytes(&schema.to_bytes(), bytes));
        });
}
