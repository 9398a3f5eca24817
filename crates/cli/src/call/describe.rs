//! A service for people: its methods, and the messages that they take.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, ServiceDescriptor};
use starling::Status;

use crate::error::CliError;

/// The service's descriptor, in a pool that its server sent.
pub(super) fn find(pool: &DescriptorPool, service: &str) -> Result<ServiceDescriptor, CliError> {
    pool.get_service_by_name(service).ok_or_else(|| {
        let error = format!("the server's description of {service} does not contain it");
        Status::internal(error).into()
    })
}

/// Methods and messages, in the notation of `.proto` files.
pub(super) fn service(pool: &DescriptorPool, name: &str) -> Result<String, CliError> {
    let service = find(pool, name)?;
    let mut text = format!("service {name} {{\n");
    let mut messages = BTreeMap::new();
    for method in service.methods() {
        let stream = |yes| if yes { "stream " } else { "" };
        let _ = writeln!(
            text,
            "  rpc {}({}{}) returns ({}{});",
            method.name(),
            stream(method.is_client_streaming()),
            method.input().full_name(),
            stream(method.is_server_streaming()),
            method.output().full_name(),
        );
        collect(method.input(), &mut messages);
        collect(method.output(), &mut messages);
    }
    text.push_str("}\n");
    for message in messages.values().filter(|m| !m.is_map_entry()) {
        let _ = write!(text, "\nmessage {} {{", message.full_name());
        for field in message.fields() {
            let _ = write!(
                text,
                "\n  {} {} = {};",
                type_of(&field),
                field.name(),
                field.number()
            );
        }
        text.push_str(if message.fields().len() == 0 {
            "}\n"
        } else {
            "\n}\n"
        });
    }
    Ok(text)
}

/// A message and all that it is made of.
fn collect(message: MessageDescriptor, found: &mut BTreeMap<String, MessageDescriptor>) {
    let name = message.full_name().to_string();
    if found.insert(name, message.clone()).is_some() {
        return;
    }
    for field in message.fields() {
        if let Kind::Message(part) = field.kind() {
            collect(part, found);
        }
    }
}

fn type_of(field: &FieldDescriptor) -> String {
    let kind = |field: &FieldDescriptor| match field.kind() {
        Kind::Message(message) => message.full_name().to_string(),
        Kind::Enum(of) => of.full_name().to_string(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        return format!("map<{}, {}>", kind(&key), kind(&value));
    }
    let label = if field.is_list() { "repeated " } else { "" };
    format!("{label}{}", kind(field))
}

#[cfg(test)]
mod tests {
    use starling::reflection::REFLECTION_SERVICE;

    use super::*;

    #[test]
    fn a_service_is_shown_with_all_its_messages() {
        let pool = DescriptorPool::decode(REFLECTION_SERVICE.file_descriptor_set).unwrap();
        let text = service(&pool, "starling.reflection.Reflection").unwrap();
        for line in [
            "service starling.reflection.Reflection {",
            "  rpc Bind(starling.reflection.BindRequest) returns (starling.reflection.BindResponse);",
            "message starling.reflection.ListServicesRequest {}",
            "  repeated starling.reflection.ServiceSummary services = 1;",
            "  fixed64 schema_hash = 2;",
            "  bytes file_descriptor_set = 1;",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_service_that_is_not_there_is_an_error() {
        let pool = DescriptorPool::decode(REFLECTION_SERVICE.file_descriptor_set).unwrap();
        assert!(service(&pool, "kv.Kv").is_err());
    }
}
