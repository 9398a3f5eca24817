//! A method with a request of all types, for tests.

use starling_message::protobuf;
use starling_message::schema::{FieldSchema, MessageSchema, MethodSchema as Method, Schema};
use starling_message::{Arena, Kind, Shape};

use super::{PolicyMessage, PolicyMethod};

pub(crate) const RESERVE: &str = "/hotel.Reservation/Make";

fn field(number: u32, name: &str, kind: Kind) -> FieldSchema {
    FieldSchema {
        name: name.to_owned(),
        number,
        kind,
        shape: Shape::Singular,
        optional: false,
        oneof: None,
        message: (kind == Kind::Message).then_some(1),
    }
}

fn repeated(field: FieldSchema) -> FieldSchema {
    FieldSchema {
        shape: Shape::Repeated,
        ..field
    }
}

pub(crate) fn schema() -> Schema {
    let of_oneof = |number, name, kind| FieldSchema {
        oneof: Some(9),
        ..field(number, name, kind)
    };
    let request = vec![
        field(1, "customerName", Kind::String),
        repeated(field(2, "hotelId", Kind::String)),
        field(3, "roomNumber", Kind::Int32),
        field(4, "price", Kind::Double),
        field(5, "vip", Kind::Bool),
        field(6, "guest", Kind::Message),
        repeated(field(7, "ratings", Kind::Int64)),
        field(8, "total", Kind::Uint64),
        of_oneof(9, "card", Kind::String),
        of_oneof(10, "cash", Kind::Uint64),
        repeated(field(11, "others", Kind::Message)),
    ];
    let guest = vec![
        field(1, "name", Kind::String),
        field(2, "age", Kind::Uint32),
        field(3, "key", Kind::Bytes),
        field(4, "friend", Kind::Message),
    ];
    let message = |name: &str, fields| MessageSchema {
        name: name.to_owned(),
        fields,
    };
    Schema {
        messages: vec![
            message("hotel.Request", request),
            message("hotel.Guest", guest),
        ],
        methods: vec![Method {
            path: RESERVE.to_owned(),
            client_streaming: false,
            server_streaming: false,
            request: 0,
            response: 1,
        }],
    }
}

pub(crate) fn method() -> PolicyMethod {
    let mut all = PolicyMethod::all_of(&schema()).expect("a schema");
    all.pop().expect("a method")
}

/// A request in protobuf, as bytes that are its native layout.
pub(crate) fn request(method: &PolicyMethod, fields: &[Vec<u8>]) -> Vec<u8> {
    let mut arena = Arena::new(method.request());
    protobuf::decode(method.request(), &fields.concat(), &mut arena, 1 << 20).expect("protobuf");
    arena.into_parts().0
}

pub(crate) fn message<'a>(method: &'a PolicyMethod, request: &'a [u8]) -> PolicyMessage<'a> {
    PolicyMessage::unchecked(method, request)
}

/// A field of protobuf: bytes, a text or a message.
pub(crate) fn text(number: u8, text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&[number << 3 | 2, text.len() as u8], text].concat()
}

/// A number.
pub(crate) fn int(number: u8, mut value: u64) -> Vec<u8> {
    let mut bytes = vec![number << 3];
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub(crate) fn double(number: u8, value: f64) -> Vec<u8> {
    [&[number << 3 | 1][..], &value.to_le_bytes()].concat()
}
