//! A service in the notation of `.proto` files: its methods and their messages.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, ServiceDescriptor};

/// The types of a service's requests and responses, by name.
#[derive(Default)]
struct Types {
    messages: BTreeMap<String, MessageDescriptor>,
    enums: BTreeMap<String, EnumDescriptor>,
}

/// A service's methods, messages and enumerations, in the notation of `.proto` files.
pub fn service_notation(service: &ServiceDescriptor) -> String {
    let mut text = format!("service {} {{\n", service.full_name());
    let mut types = Types::default();
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
        types.collect(method.input());
        types.collect(method.output());
    }
    text.push_str("}\n");
    for message in types.messages.values().filter(|m| !m.is_map_entry()) {
        write_message(message, &mut text);
    }
    for of in types.enums.values() {
        let _ = write!(text, "\nenum {} {{", of.full_name());
        for value in of.values() {
            let _ = write!(text, "\n  {} = {};", value.name(), value.number());
        }
        text.push_str("\n}\n");
    }
    text
}

fn write_message(message: &MessageDescriptor, text: &mut String) {
    let _ = write!(text, "\nmessage {} {{", message.full_name());
    let mut within = None;
    for field in message.fields() {
        // The fields of a oneof follow each other: that is how they are declared.
        let oneof = field
            .containing_oneof()
            .filter(|oneof| !oneof.is_synthetic());
        if within != oneof {
            text.push_str(if within.is_some() { "\n  }" } else { "" });
            if let Some(oneof) = &oneof {
                let _ = write!(text, "\n  oneof {} {{", oneof.name());
            }
            within = oneof;
        }
        let indent = if within.is_some() { "    " } else { "  " };
        let optional = field.field_descriptor_proto().proto3_optional();
        let label = if optional { "optional " } else { "" };
        let (of, name, number) = (type_of(&field), field.name(), field.number());
        let _ = write!(text, "\n{indent}{label}{of} {name} = {number};");
    }
    text.push_str(if within.is_some() { "\n  }" } else { "" });
    text.push_str(if message.fields().len() == 0 {
        "}\n"
    } else {
        "\n}\n"
    });
}

impl Types {
    /// Adds a message and the types of its fields.
    fn collect(&mut self, message: MessageDescriptor) {
        let name = message.full_name().to_string();
        if self.messages.insert(name, message.clone()).is_some() {
            return;
        }
        for field in message.fields() {
            match field.kind() {
                Kind::Message(part) => self.collect(part),
                Kind::Enum(of) => drop(self.enums.insert(of.full_name().to_string(), of)),
                _ => {}
            }
        }
    }
}

/// A field's type in the notation of `.proto` files.
pub(crate) fn type_of(field: &FieldDescriptor) -> String {
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
    use prost_reflect::DescriptorPool;
    use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
    use prost_reflect::prost_types::{
        DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
        FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
    };
    use starling::reflection::REFLECTION_SERVICE;

    use super::*;

    #[test]
    fn a_service_is_shown_with_all_its_messages() {
        let pool = DescriptorPool::decode(REFLECTION_SERVICE.file_descriptor_set).unwrap();
        let service = pool.get_service_by_name("starling.reflection.Reflection");
        let text = service_notation(&service.unwrap());
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
    fn enumerations_oneofs_and_optional_fields_are_shown() {
        let field = |name: &str, number, of| FieldDescriptorProto {
            name: Some(name.into()),
            number: Some(number),
            r#type: Some(of as i32),
            label: Some(Label::Optional as i32),
            ..FieldDescriptorProto::default()
        };
        let mut state = field("state", 1, Type::Enum);
        state.type_name = Some(".disk.State".into());
        let mut level = field("level", 2, Type::Uint32);
        (level.proto3_optional, level.oneof_index) = (Some(true), Some(1));
        let mut iops = field("iops", 3, Type::Uint64);
        iops.oneof_index = Some(0);
        let oneof = |name: &str| OneofDescriptorProto {
            name: Some(name.into()),
            options: None,
        };
        let disk = DescriptorProto {
            name: Some("Disk".into()),
            field: vec![state, level, iops],
            oneof_decl: vec![oneof("limit"), oneof("_level")],
            ..DescriptorProto::default()
        };
        let on = EnumValueDescriptorProto {
            name: Some("ON".into()),
            number: Some(0),
            options: None,
        };
        let states = EnumDescriptorProto {
            name: Some("State".into()),
            value: vec![on],
            ..EnumDescriptorProto::default()
        };
        let method = MethodDescriptorProto {
            name: Some("Turn".into()),
            input_type: Some(".disk.Disk".into()),
            output_type: Some(".disk.Disk".into()),
            ..MethodDescriptorProto::default()
        };
        let file = FileDescriptorProto {
            name: Some("disk.proto".into()),
            package: Some("disk".into()),
            syntax: Some("proto3".into()),
            message_type: vec![disk],
            enum_type: vec![states],
            service: vec![ServiceDescriptorProto {
                name: Some("Disks".into()),
                method: vec![method],
                options: None,
            }],
            ..FileDescriptorProto::default()
        };
        let mut pool = DescriptorPool::new();
        pool.add_file_descriptor_proto(file).unwrap();
        let text = service_notation(&pool.get_service_by_name("disk.Disks").unwrap());
        let (_, types) = text.split_once("}\n\n").unwrap();
        assert_eq!(
            types,
            "message disk.Disk {\n  disk.State state = 1;\n  optional uint32 level = 2;\n  \
             oneof limit {\n    uint64 iops = 3;\n  }\n}\n\nenum disk.State {\n  ON = 0;\n}\n"
        );
    }
}
