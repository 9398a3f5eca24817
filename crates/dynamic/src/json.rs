//! Messages as JSON, by protobuf's mapping.

use std::borrow::Cow;
use std::fmt;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions};
use serde_path_to_error::{Path, Segment};

use crate::notation;

/// Why JSON is no request of a method: the field, and what it takes.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the request: {0}")]
pub struct JsonError(String);

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A message from its JSON. Errors name the field and what it takes.
pub(crate) fn parse(
    descriptor: &MessageDescriptor,
    json: &str,
) -> Result<DynamicMessage, JsonError> {
    let wrong = JsonError;
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut deserializer, &mut track);
    let message = DynamicMessage::deserialize(descriptor.clone(), tracked);
    let message = message.map_err(|error| {
        let path = track.path();
        let name = descriptor.full_name();
        match (path.to_string().as_str(), found(descriptor, &path)) {
            // JSON that ends early is an error of no field.
            ("." | "?", _) => wrong(format!("{name}: {error}; it has {}", fields(descriptor))),
            (path, Found::Value(takes)) => {
                wrong(format!("field {path} of {name} takes {takes}: {error}"))
            }
            (path, Found::Nothing(message)) => wrong(format!(
                "field {path} of {name}: {error}; {} has {}",
                message.full_name(),
                fields(&message)
            )),
        }
    })?;
    let end = deserializer.end();
    end.map_err(|error| wrong(format!("after the message: {error}")))?;
    Ok(message)
}

/// The target of a path in a message.
enum Found {
    /// A value, with a description of its type.
    Value(Cow<'static, str>),
    /// No field: the message does not have it.
    Nothing(MessageDescriptor),
}

/// Follows the path from a message to the wrong part.
fn found(descriptor: &MessageDescriptor, path: &Path) -> Found {
    let mut message = descriptor.clone();
    let mut field: Option<FieldDescriptor> = None;
    // Whether the value is one of several in the field.
    let mut element = false;
    for segment in path.iter() {
        match (segment, &field) {
            (Segment::Map { .. }, Some(map)) if map.is_map() && !element => element = true,
            (Segment::Seq { .. }, Some(_)) => element = true,
            (Segment::Map { key }, _) => {
                let inner = field.as_ref().and_then(|field| match value_kind(field) {
                    Kind::Message(message) => Some(message),
                    _ => None,
                });
                message = inner.unwrap_or(message);
                let named = |field: &FieldDescriptor| {
                    field.name() == key.as_str() || field.json_name() == key.as_str()
                };
                let Some(next) = message.fields().find(named) else {
                    return Found::Nothing(message);
                };
                (field, element) = (Some(next), false);
            }
            _ => break,
        }
    }
    match field {
        Some(field) if !element && (field.is_list() || field.is_map()) => {
            Found::Value(notation::type_of(&field).into())
        }
        Some(field) => Found::Value(takes(&value_kind(&field))),
        None => Found::Nothing(message),
    }
}

/// The type of one value of the field.
fn value_kind(field: &FieldDescriptor) -> Kind {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
        kind => kind,
    }
}

/// A type, as protobuf's JSON mapping represents it.
fn takes(kind: &Kind) -> Cow<'static, str> {
    let text = match kind {
        Kind::Double | Kind::Float => "a number, \"NaN\", \"Infinity\" or \"-Infinity\"",
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "a whole number of 32 bits",
        Kind::Uint32 | Kind::Fixed32 => "a whole number of 32 bits that is not negative",
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "a whole number of 64 bits, in quotes",
        Kind::Uint64 | Kind::Fixed64 => "a whole number of 64 bits that is not negative, in quotes",
        Kind::Bool => "true or false",
        Kind::String => "a string",
        Kind::Bytes => "bytes: a string in base64",
        Kind::Message(message) => return format!("a message {}", message.full_name()).into(),
        Kind::Enum(of) => {
            // In the order of the schema; `values()` is in that of the numbers.
            let values = &of.enum_descriptor_proto().value;
            let names: Vec<&str> = values.iter().map(|value| value.name()).collect();
            return format!(
                "one of {}: {}, or a number",
                of.full_name(),
                names.join(", ")
            )
            .into();
        }
    };
    text.into()
}

/// The fields of a message with their types, for an error text.
fn fields(message: &MessageDescriptor) -> String {
    let all = message.fields();
    let names = all.map(|field| format!("{} ({})", field.name(), notation::type_of(&field)));
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return "no fields".into();
    }
    names.join(", ")
}

/// A message as indented JSON, with fields that are not set.
pub(crate) fn print(message: &DynamicMessage) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::pretty(&mut out);
    let options = SerializeOptions::new().skip_default_fields(false);
    // A vector takes all that is written, and a message has no key that is not text.
    let written = message.serialize_with_options(&mut serializer, &options);
    debug_assert!(written.is_ok(), "{written:?}");
    out.push(b'\n');
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;
    use prost_reflect::prost::Message as _;
    use starling_sample_services::api::kv::KV_SERVICE;

    use super::*;

    fn descriptor(name: &str) -> MessageDescriptor {
        let pool = DescriptorPool::decode(KV_SERVICE.file_descriptor_set).unwrap();
        pool.get_message_by_name(name).unwrap()
    }

    fn refused_by(descriptor: &MessageDescriptor, json: &str) -> String {
        match parse(descriptor, json) {
            Err(error) => error.to_string(),
            other => panic!("{json}: {other:?}"),
        }
    }

    fn refused(name: &str, json: &str) -> String {
        refused_by(&descriptor(name), json)
    }

    #[test]
    fn requests_and_responses_are_json() {
        let descriptor = descriptor("kv.ScanRequest");
        let message = parse(&descriptor, r#"{"start": "YWJj", "limit": 3}"#).unwrap();
        assert_eq!(message.encode_to_vec(), b"\x0a\x03abc\x10\x03");
        let json = print(&message);
        assert_eq!(json, "{\n  \"start\": \"YWJj\",\n  \"limit\": 3\n}\n");
        // Fields that are not set are shown as well.
        assert!(print(&DynamicMessage::new(descriptor)).contains("\"limit\": 0"));
    }

    /// A message of the code generator's test schema, which has every kind of field.
    fn everything(name: &str) -> MessageDescriptor {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../build/tests/fixtures");
        let files = protox::compile(["everything.proto"], [fixtures]).unwrap();
        let pool = DescriptorPool::from_file_descriptor_set(files).unwrap();
        pool.get_message_by_name(&format!("everything.{name}"))
            .unwrap()
    }

    /// The JSON of a response whose bytes are those of a request with this JSON.
    fn there_and_back(message: &str, json: &str) -> serde_json::Value {
        let descriptor = everything(message);
        let sent = parse(&descriptor, json).unwrap_or_else(|error| panic!("{json}: {error}"));
        let bytes = sent.encode_to_vec();
        let received = DynamicMessage::decode(descriptor, &bytes[..]).unwrap();
        serde_json::from_str(&print(&received)).unwrap()
    }

    #[test]
    fn every_kind_is_mapped_as_protobuf_says() {
        use serde_json::json;
        // What is written, and what it reads as; the field is that of `everything.Scalars`.
        for (field, written, read) in [
            ("f_double", json!("NaN"), json!("NaN")),
            ("f_double", json!("-Infinity"), json!("-Infinity")),
            ("f_double", json!(1.5), json!(1.5)),
            ("f_int32", json!(-5), json!(-5)),
            ("f_int32", json!("-5"), json!(-5)),
            ("f_int32", json!(1e2), json!(100)),
            ("f_int64", json!(-7), json!("-7")),
            (
                "f_int64",
                json!("-9223372036854775808"),
                json!("-9223372036854775808"),
            ),
            (
                "f_uint64",
                json!("18446744073709551615"),
                json!("18446744073709551615"),
            ),
            ("f_fixed64", json!(3), json!("3")),
            ("f_sint64", json!("-3"), json!("-3")),
            ("f_bool", json!(true), json!(true)),
            ("f_string", json!("\u{e9}\n"), json!("\u{e9}\n")),
            ("f_bytes", json!("/+8="), json!("/+8=")),
            // The alphabet for file names, and without padding, too.
            ("f_bytes", json!("_-8"), json!("/+8=")),
            ("f_color", json!("COLOR_BLUE"), json!("COLOR_BLUE")),
            ("f_color", json!(-2), json!("COLOR_BLUE")),
            // The enumeration is open: a number without a name is kept.
            ("f_color", json!(77), json!(77)),
            // As if it were not there.
            ("f_int32", json!(null), json!(0)),
        ] {
            let json_name = everything("Scalars").get_field_by_name(field).unwrap();
            let json_name = json_name.json_name().to_owned();
            // By either name.
            for name in [field, json_name.as_str()] {
                let back = there_and_back("Scalars", &json!({ name: written }).to_string());
                assert_eq!(back[&json_name], read, "{name}: {written}");
            }
        }
    }

    #[test]
    fn presence_lists_maps_and_choices_are_mapped_as_protobuf_says() {
        use serde_json::json;
        // JSON leaves out a field with presence that is not set, and has one that is set to zero.
        assert_eq!(there_and_back("Optionals", "{}"), json!({}));
        let set = json!({"fInt32": 0, "fColor": "COLOR_UNSPECIFIED", "fBytes": ""});
        assert_eq!(there_and_back("Optionals", &set.to_string()), set);

        let lists =
            json!({"fInt64": ["1", 2], "fColor": ["COLOR_RED", -2], "fBytes": ["AA==", ""]});
        let back = there_and_back("Lists", &lists.to_string());
        assert_eq!(back["fInt64"], json!(["1", "2"]));
        assert_eq!(back["fColor"], json!(["COLOR_RED", "COLOR_BLUE"]));
        assert_eq!(back["fBytes"], json!(["AA==", ""]));
        assert_eq!(back["fDouble"], json!([]));

        // Keys are strings whatever their type.
        let maps = json!({
            "textToNumber": {"a": 1},
            "numberToBytes": {"-5": "AA=="},
            "boolToMessage": {"true": {"fInt32": 4}},
            "numberToColor": {"7": "COLOR_RED"},
        });
        let back = there_and_back("Maps", &maps.to_string());
        for name in ["textToNumber", "numberToBytes", "numberToColor"] {
            assert_eq!(back[name], maps[name]);
        }
        assert_eq!(back["boolToMessage"]["true"]["fInt32"], 4);

        let choice = there_and_back("Choices", r#"{"number": 0}"#);
        assert_eq!(choice, json!({"number": 0, "between": 0}));
    }

    #[test]
    fn an_error_in_a_request_names_the_field() {
        let cases = [
            (
                "kv.ScanRequest",
                r#"{"limit": "many"}"#,
                "field limit of kv.ScanRequest",
            ),
            (
                "kv.ScanRequest",
                r#"{"limit": -2}"#,
                "field limit of kv.ScanRequest takes a whole number of 32 bits that is not negative",
            ),
            ("kv.ScanRequest", r#"{"start": "?"}"#, "field start"),
            ("kv.ScanRequest", r#"{"first": ""}"#, "first"),
            (
                "kv.MultiGetRequest",
                r#"{"keys": ["", 5]}"#,
                "field keys[1]",
            ),
            ("kv.ScanRequest", "{", "kv.ScanRequest: EOF"),
            ("kv.ScanRequest", "[]", "kv.ScanRequest"),
            ("kv.ScanRequest", "{} {}", "after the message"),
        ];
        for (name, json, expected) in cases {
            let what = refused(name, json);
            assert!(what.contains(expected), "{json}: {what}");
        }
    }

    #[test]
    fn an_error_in_a_request_names_the_type_of_the_field() {
        for (message, json, expected) in [
            (
                "Scalars",
                r#"{"f_color": "COLOR_GREEN"}"#,
                "field f_color of everything.Scalars takes one of everything.Color: \
                 COLOR_UNSPECIFIED, COLOR_RED, COLOR_BLUE, or a number",
            ),
            (
                "Scalars",
                r#"{"fInt64": "9223372036854775808"}"#,
                "field fInt64 of everything.Scalars takes a whole number of 64 bits, in quotes",
            ),
            (
                "Scalars",
                r#"{"f_int32": 1.5}"#,
                "takes a whole number of 32 bits",
            ),
            (
                "Scalars",
                r#"{"f_uint32": -1}"#,
                "of 32 bits that is not negative",
            ),
            (
                "Scalars",
                r#"{"f_bool": "yes"}"#,
                "f_bool of everything.Scalars takes true or false",
            ),
            (
                "Scalars",
                r#"{"f_bytes": "%"}"#,
                "takes bytes: a string in base64",
            ),
            ("Scalars", r#"{"f_string": 1}"#, "takes a string"),
            ("Scalars", r#"{"f_sting": ""}"#, "f_string (string)"),
            (
                "Lists",
                r#"{"f_bool": true}"#,
                "field f_bool of everything.Lists takes repeated bool",
            ),
            (
                "Lists",
                r#"{"f_bool": [true, 1]}"#,
                "field f_bool[1] of everything.Lists takes true",
            ),
            (
                "Lists",
                r#"{"f_scalars": [{"f_bool": 1}]}"#,
                "takes true or false",
            ),
            (
                "Maps",
                r#"{"text_to_number": 5}"#,
                "field text_to_number of everything.Maps takes map<string, int32>",
            ),
            (
                "Maps",
                r#"{"number_to_color": {"7": "BLUE"}}"#,
                "takes one of everything.Color: COLOR_UNSPECIFIED",
            ),
            (
                "Maps",
                r#"{"bool_to_message": {"true": {"f_bool": 3}}}"#,
                "takes true or false",
            ),
            (
                "Optionals",
                r#"{"f_scalars": 3}"#,
                "takes a message everything.Scalars",
            ),
        ] {
            let what = refused_by(&everything(message), json);
            assert!(what.contains(expected), "{json}: {what}");
        }
    }
}
