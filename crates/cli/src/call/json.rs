//! Messages as JSON, by protobuf's mapping.

use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use starling::Status;

use crate::error::CliError;

/// A request in protobuf encoding. Errors name the field.
pub(super) fn request(descriptor: &MessageDescriptor, json: &str) -> Result<Vec<u8>, CliError> {
    let wrong = |what: String| CliError::Usage(format!("the request: {what}"));
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut deserializer, &mut track);
    let message = DynamicMessage::deserialize(descriptor.clone(), tracked);
    let message = message.map_err(|error| {
        let path = track.path().to_string();
        let name = descriptor.full_name();
        match path.as_str() {
            // What broke off is of no field.
            "." | "?" => wrong(format!("{name}: {error}")),
            path => wrong(format!("field {path} of {name}: {error}")),
        }
    })?;
    let end = deserializer.end();
    end.map_err(|error| wrong(format!("after the message: {error}")))?;
    Ok(message.encode_to_vec())
}

/// A response in protobuf encoding as JSON for people, fields that are not set included.
pub(super) fn response(descriptor: &MessageDescriptor, bytes: &[u8]) -> Result<String, CliError> {
    let malformed =
        |error: String| Status::internal(format!("the server's response is malformed: {error}"));
    let message = DynamicMessage::decode(descriptor.clone(), bytes)
        .map_err(|error| malformed(error.to_string()))?;
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::pretty(&mut out);
    let options = SerializeOptions::new().skip_default_fields(false);
    message
        .serialize_with_options(&mut serializer, &options)
        .map_err(|error| malformed(error.to_string()))?;
    out.push(b'\n');
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;
    use starling_bench::services::api::kv::KV_SERVICE;

    use super::*;

    fn descriptor(name: &str) -> MessageDescriptor {
        let pool = DescriptorPool::decode(KV_SERVICE.file_descriptor_set).unwrap();
        pool.get_message_by_name(name).unwrap()
    }

    fn refused(name: &str, json: &str) -> String {
        match request(&descriptor(name), json) {
            Err(CliError::Usage(what)) => what,
            other => panic!("{json}: {other:?}"),
        }
    }

    #[test]
    fn requests_and_responses_are_json() {
        let descriptor = descriptor("kv.ScanRequest");
        let bytes = request(&descriptor, r#"{"start": "YWJj", "limit": 3}"#).unwrap();
        assert_eq!(bytes, b"\x0a\x03abc\x10\x03");
        let json = response(&descriptor, &bytes).unwrap();
        assert_eq!(json, "{\n  \"start\": \"YWJj\",\n  \"limit\": 3\n}\n");
        // Fields that are not set are shown as well.
        assert!(response(&descriptor, b"").unwrap().contains("\"limit\": 0"));
    }

    #[test]
    fn what_is_wrong_with_a_request_names_the_field() {
        let cases = [
            (
                "kv.ScanRequest",
                r#"{"limit": "many"}"#,
                "field limit of kv.ScanRequest",
            ),
            ("kv.ScanRequest", r#"{"limit": -1}"#, "field limit"),
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
    fn a_response_that_is_none_is_the_servers_fault() {
        let error = response(&descriptor("kv.ScanRequest"), &[0xff]).unwrap_err();
        assert!(matches!(error, CliError::Status(_)), "{error}");
    }
}
