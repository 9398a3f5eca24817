//! Schemas for tests.

#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod counting;

use std::collections::HashMap;

use starling_message::schema::{FieldSchema, MessageSchema, MethodSchema, Schema};
use starling_message::{Kind, Shape, method_id};

/// A singular field, named after its number.
pub(crate) fn field(number: u32, kind: Kind) -> FieldSchema {
    FieldSchema {
        name: format!("f{number}"),
        number,
        kind,
        shape: Shape::Singular,
        optional: false,
        oneof: None,
        message: None,
    }
}

pub(crate) fn message_field(number: u32, message: u32) -> FieldSchema {
    FieldSchema {
        message: Some(message),
        ..field(number, Kind::Message)
    }
}

pub(crate) fn repeated(field: FieldSchema) -> FieldSchema {
    FieldSchema {
        shape: Shape::Repeated,
        ..field
    }
}

pub(crate) fn map(field: FieldSchema) -> FieldSchema {
    FieldSchema {
        shape: Shape::Map,
        ..field
    }
}

/// A schema of messages `M0`, `M1` and so on with these fields, and no methods.
pub(crate) fn schema_of(messages: Vec<Vec<FieldSchema>>) -> Schema {
    let named = |(index, fields)| MessageSchema {
        name: format!("M{index}"),
        fields,
    };
    Schema {
        messages: messages.into_iter().enumerate().map(named).collect(),
        methods: Vec::new(),
    }
}

/// `google.protobuf.Struct` (0) with its entries (1), `Value` (2) and `ListValue` (3) in a package `s`,
/// and two methods.
pub(crate) fn structs() -> Schema {
    let named = |name: &str, field| FieldSchema {
        name: name.to_owned(),
        ..field
    };
    let case = |name, field| FieldSchema {
        oneof: Some(1),
        ..named(name, field)
    };
    let mut schema = schema_of(vec![
        vec![named("fields", map(message_field(1, 1)))],
        vec![
            named("key", field(1, Kind::String)),
            named("value", message_field(2, 2)),
        ],
        vec![
            case("null_value", field(1, Kind::Enum)),
            case("number_value", field(2, Kind::Double)),
            case("string_value", field(3, Kind::String)),
            case("bool_value", field(4, Kind::Bool)),
            case("struct_value", message_field(5, 0)),
            case("list_value", message_field(6, 3)),
        ],
        vec![named("values", repeated(message_field(1, 2)))],
    ]);
    let names = ["s.Struct", "s.Struct.FieldsEntry", "s.Value", "s.ListValue"];
    for (message, name) in schema.messages.iter_mut().zip(names) {
        message.name = name.to_owned();
    }
    let method = |path: &str| MethodSchema {
        path: path.to_owned(),
        client_streaming: false,
        server_streaming: path.ends_with("Get"),
        request: 0,
        response: 2,
    };
    schema.methods = vec![method("/s.S/Get"), method("/s.S/Put")];
    schema
}

/// Two paths with the same method id.
pub(crate) fn paths_with_one_id() -> (String, String) {
    let mut met = HashMap::new();
    (0..)
        .map(|number| format!("/s.S/M{number}"))
        .find_map(|path| {
            let earlier = met.insert(method_id(&path), path.clone());
            earlier.map(|earlier| (earlier, path))
        })
        .expect("ids have 32 bits")
}
