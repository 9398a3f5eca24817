//! Finds out whether client and server have the same version of a method.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};

use starling_compress::AlgorithmSet;
use starling_endpoint::{Code, Encoding, LocalHandle, MethodId, SessionId, Status};
use starling_message::schema::{
    FieldSchema, MessageSchema, MethodSchema, Schema, SchemaError, check_method_compatible,
};
use starling_message::{Kind, LayoutRef, Message, MethodDescriptor, Presence};

use crate::reflection::{self, BindRequest, BindResponse};

/// The longest schema of a server that the client accepts, in bytes.
const MAX_SCHEMA_BYTES: usize = 4 << 20;

/// What a server has said of a method, and of itself.
pub(crate) struct Bound {
    /// Messages of the method go in it.
    pub(crate) encoding: Encoding,
    /// The algorithms that the server has.
    pub(crate) accepts: AlgorithmSet,
}

/// Asks the server for its version of `method`.
pub(crate) fn request(
    local: &LocalHandle,
    session: SessionId,
    method: &'static MethodDescriptor,
) -> impl Future<Output = Result<Bound, Status>> + 'static {
    let mut request = BindRequest::new();
    request.set_path(method.path);
    request.set_request_hash(method.request.schema_hash);
    request.set_response_hash(method.response.schema_hash);
    let options = starling_endpoint::CallOptions {
        encoding: Encoding::Protobuf,
        ..Default::default()
    };
    let body = request.to_protobuf();
    let call = body.map(|body| {
        let bind = MethodId(reflection::bind_method().id);
        local.call(session, bind, &options, |buffer| {
            buffer.extend_from_slice(&body);
        })
    });
    async move {
        let call = call.map_err(|error| Status::internal(error.to_string()))?;
        let response = call.await.map_err(|status| match status.code() {
            Code::Unimplemented => Status::unimplemented(format!(
                "{}: the server cannot be asked for its schema: {}",
                method.path,
                status.message()
            )),
            _ => status,
        })?;
        let response = BindResponse::from_protobuf(response.body(), MAX_SCHEMA_BYTES)
            .map_err(|error| Status::internal(format!("the server's schema: {error}")))?;
        let encoding = match response.identical() {
            true => Encoding::Native,
            false => compare(method, response.schema())?,
        };
        Ok(Bound {
            encoding,
            accepts: AlgorithmSet::from_bits(response.compression() as u8),
        })
    }
}

/// Compares the client's version of a method with the server's, which differs.
fn compare(method: &'static MethodDescriptor, theirs: &[u8]) -> Result<Encoding, Status> {
    let ours = schema_of(method).to_bytes();
    match check_method_compatible(&ours, theirs, method.path) {
        // The hashes differ, so the layouts differ, or names do, or something that the hash covers and
        // the layout does not. Protobuf is right in each case.
        Ok(_) => Ok(Encoding::Protobuf),
        Err(error @ SchemaError::Incompatible { .. }) => Err(Status::failed_precondition(format!(
            "{}: {error}",
            method.path
        ))),
        Err(error) => Err(Status::internal(format!(
            "{}: the server's schema: {error}",
            method.path
        ))),
    }
}

/// The schema of one method, from its layouts.
pub(crate) fn schema_of(method: &'static MethodDescriptor) -> Schema {
    let mut schema = Schema::default();
    let mut indexes = HashMap::new();
    let request = add(&mut schema, &mut indexes, method.request.into());
    let response = add(&mut schema, &mut indexes, method.response.into());
    schema.methods.push(MethodSchema {
        path: method.path.to_owned(),
        client_streaming: method.client_streaming,
        server_streaming: method.server_streaming,
        request,
        response,
    });
    schema
}

/// Adds a message and the messages that it contains, depth first. Returns its index.
fn add(
    schema: &mut Schema,
    indexes: &mut HashMap<LayoutRef<'static>, u32>,
    layout: LayoutRef<'static>,
) -> u32 {
    let index = schema.messages.len() as u32;
    if let Some(index) = indexes.get(&layout) {
        return *index;
    }
    indexes.insert(layout, index);
    schema.messages.push(MessageSchema {
        name: layout.name().to_owned(),
        fields: Vec::new(),
    });
    let fields = layout
        .fields()
        .map(|field| {
            let oneof_of = |presence| match presence {
                Presence::Oneof { discriminant, .. } => Some(discriminant),
                _ => None,
            };
            let oneof = oneof_of(field.presence);
            // A oneof is named by its lowest field number. Fields are in the order of their numbers.
            let first = layout
                .fields()
                .find(|other| oneof.is_some() && oneof_of(other.presence) == oneof);
            let text = matches!(field.kind, Kind::String | Kind::Bytes);
            FieldSchema {
                name: field.name().to_owned(),
                number: field.number,
                kind: field.kind,
                shape: field.shape,
                optional: match field.presence {
                    Presence::Bit { .. } => true,
                    Presence::Reference => text,
                    _ => false,
                },
                oneof: first.map(|first| first.number),
                message: field.message().map(|child| add(schema, indexes, child)),
            }
        })
        .collect();
    schema.messages[index as usize].fields = fields;
    index
}

/// The hasher of tables by method id. Method ids are hashes already, so it spreads their bits and
/// does no more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher;

impl BuildHasher for IdHasher {
    type Hasher = Id;

    fn build_hasher(&self) -> Id {
        Id(0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Id(u64);

impl Hasher for Id {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        self.0 = id.rotate_left(32) ^ id;
    }

    #[inline]
    fn write_u32(&mut self, id: u32) {
        // The table uses low and high bits of a hash.
        self.0 = (u64::from(id) << 32) | u64::from(id);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
