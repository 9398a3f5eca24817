//! Canonical schemas from descriptors.

use std::collections::HashMap;
use std::path::Path;

use prost_reflect::{FieldDescriptor, Kind as ProtoKind, MessageDescriptor, ServiceDescriptor};
use starling_message::schema::{FieldSchema, MessageSchema, MethodSchema, Schema};
use starling_message::{Kind, Shape};

use crate::error::{Error, unsupported};
use crate::load::load;

/// The schemas of the services in `.proto` files. They and their imports are searched in `includes`.
///
/// # Errors
/// What is wrong with the files, and where.
pub fn schemas(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<Vec<Schema>, Error> {
    let loaded = load(protos, includes)?;
    let services = loaded.pool.services();
    services.map(|service| schema_of(&service)).collect()
}

/// The schema of one message: the message first, then those it reaches.
pub(crate) fn of_message(message: &MessageDescriptor) -> Result<Schema, Error> {
    let mut walk = Walk::default();
    walk.message(message)?;
    Ok(walk.schema)
}

/// The schema of a service.
///
/// # Errors
/// If it has messages that are not supported.
pub fn schema_of(service: &ServiceDescriptor) -> Result<Schema, Error> {
    let mut methods: Vec<_> = service.methods().collect();
    methods.sort_by_key(method_path);
    let mut walk = Walk::default();
    for method in &methods {
        let request = walk.message(&method.input())?;
        let response = walk.message(&method.output())?;
        walk.schema.methods.push(MethodSchema {
            path: method_path(method),
            client_streaming: method.is_client_streaming(),
            server_streaming: method.is_server_streaming(),
            request,
            response,
        });
    }
    Ok(walk.schema)
}

/// A method's path, as in gRPC.
pub(crate) fn method_path(method: &prost_reflect::MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// A field's type, and the messages in it.
pub(crate) fn kind_of(field: &FieldDescriptor) -> (Kind, Option<MessageDescriptor>) {
    let kind = match field.kind() {
        ProtoKind::Double => Kind::Double,
        ProtoKind::Float => Kind::Float,
        ProtoKind::Int32 => Kind::Int32,
        ProtoKind::Int64 => Kind::Int64,
        ProtoKind::Uint32 => Kind::Uint32,
        ProtoKind::Uint64 => Kind::Uint64,
        ProtoKind::Sint32 => Kind::Sint32,
        ProtoKind::Sint64 => Kind::Sint64,
        ProtoKind::Fixed32 => Kind::Fixed32,
        ProtoKind::Fixed64 => Kind::Fixed64,
        ProtoKind::Sfixed32 => Kind::Sfixed32,
        ProtoKind::Sfixed64 => Kind::Sfixed64,
        ProtoKind::Bool => Kind::Bool,
        ProtoKind::String => Kind::String,
        ProtoKind::Bytes => Kind::Bytes,
        ProtoKind::Enum(_) => Kind::Enum,
        ProtoKind::Message(message) => return (Kind::Message, Some(message)),
    };
    (kind, None)
}

/// Whether a field is a sequence, a map, or neither.
pub(crate) fn shape_of(field: &FieldDescriptor) -> Shape {
    if field.is_map() {
        Shape::Map
    } else if field.is_list() {
        Shape::Repeated
    } else {
        Shape::Singular
    }
}

/// A message's fields, by number. Indices of messages are left out.
pub(crate) fn fields_of(message: &MessageDescriptor) -> Result<Vec<FieldSchema>, Error> {
    let mut fields = Vec::new();
    for field in message.fields() {
        if field.is_group() {
            let problem = "groups are not supported; use a message and a field of its type";
            return Err(unsupported(&field, problem));
        }
        let oneof = field.containing_oneof();
        let real = oneof.as_ref().filter(|oneof| !oneof.is_synthetic());
        let (kind, _) = kind_of(&field);
        fields.push(FieldSchema {
            name: field.name().to_owned(),
            number: field.number(),
            kind,
            shape: shape_of(&field),
            optional: field.field_descriptor_proto().proto3_optional(),
            oneof: real.and_then(|oneof| oneof.fields().map(|field| field.number()).min()),
            message: None,
        });
    }
    fields.sort_by_key(|field| field.number);
    Ok(fields)
}

/// A depth-first walk over messages, which numbers them in its order.
#[derive(Default)]
struct Walk {
    schema: Schema,
    met: HashMap<String, u32>,
}

impl Walk {
    fn message(&mut self, message: &MessageDescriptor) -> Result<u32, Error> {
        if let Some(index) = self.met.get(message.full_name()) {
            return Ok(*index);
        }
        let index = self.schema.messages.len() as u32;
        self.met.insert(message.full_name().to_owned(), index);
        let name = message.full_name().to_owned();
        self.schema.messages.push(MessageSchema {
            name,
            fields: Vec::new(),
        });
        let mut fields = fields_of(message)?;
        for field in &mut fields {
            let descriptor = message.get_field(field.number);
            if let Some((_, Some(child))) = descriptor.as_ref().map(kind_of) {
                field.message = Some(self.message(&child)?);
            }
        }
        self.schema.messages[index as usize].fields = fields;
        Ok(index)
    }
}
