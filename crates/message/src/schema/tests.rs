use super::*;

fn field(number: u32, name: &str, kind: Kind) -> FieldSchema {
    FieldSchema {
        name: name.to_owned(),
        number,
        kind,
        shape: Shape::Singular,
        optional: false,
        oneof: None,
        message: None,
    }
}

fn repeated(field: FieldSchema) -> FieldSchema {
    FieldSchema {
        shape: Shape::Repeated,
        ..field
    }
}

fn message_field(number: u32, name: &str, message: u32) -> FieldSchema {
    FieldSchema {
        message: Some(message),
        ..field(number, name, Kind::Message)
    }
}

/// A service `kv.Kv` with one method, whose request has these fields; message 1 is the response, 2
/// and 3 are for fields to refer to.
fn schema(fields: Vec<FieldSchema>) -> Schema {
    let message = |name: &str, fields| MessageSchema {
        name: name.to_owned(),
        fields,
    };
    Schema {
        messages: vec![
            message("kv.PutRequest", fields),
            message("kv.PutResponse", vec![]),
            message("kv.Inner", vec![field(1, "text", Kind::String)]),
            message("kv.Other", vec![field(1, "number", Kind::Double)]),
        ],
        methods: vec![MethodSchema {
            path: "/kv.Kv/Put".to_owned(),
            client_streaming: false,
            server_streaming: false,
            request: 0,
            response: 1,
        }],
    }
}

fn compare(ours: &Schema, theirs: &Schema) -> Result<Compatibility, SchemaError> {
    let result = check_compatible(&ours.to_bytes(), &theirs.to_bytes());
    // The result is the same from either side.
    let mirrored = check_compatible(&theirs.to_bytes(), &ours.to_bytes());
    match (&result, &mirrored) {
        (Ok(a), Ok(b)) => assert_eq!(a, b),
        (Err(_), Err(_)) => {}
        (a, b) => panic!("{a:?} here, {b:?} there"),
    }
    result
}

fn compare_fields(ours: FieldSchema, theirs: FieldSchema) -> Result<Compatibility, SchemaError> {
    compare(&schema(vec![ours]), &schema(vec![theirs]))
}

#[test]
fn the_compact_form_round_trips() {
    let optional = FieldSchema {
        optional: true,
        ..field(3, "c", Kind::Sint64)
    };
    let member = FieldSchema {
        oneof: Some(4),
        ..field(4, "d", Kind::Bool)
    };
    let fields = vec![
        field(1, "a", Kind::Bytes),
        message_field(2, "b", 2),
        optional,
        member,
    ];
    let schema = schema(fields);
    assert_eq!(Schema::parse(&schema.to_bytes()), Ok(schema.clone()));
    for end in 0..schema.to_bytes().len() {
        assert!(Schema::parse(&schema.to_bytes()[..end]).is_err());
    }
}

#[test]
fn the_hash_covers_everything_but_names() {
    let base = schema(vec![
        field(1, "key", Kind::Bytes),
        field(2, "n", Kind::Int32),
    ]);
    let mut renamed = base.clone();
    renamed.messages[0].name = "kv.Renamed".to_owned();
    renamed.messages[0].fields[0].name = "renamed".to_owned();
    assert_eq!(renamed.hash(), base.hash());
    assert_eq!(compare(&base, &renamed), Ok(Compatibility::Identical));

    let changes: [fn(&mut Schema); 6] = [
        |s| s.messages[0].fields[0].number = 9,
        |s| s.messages[0].fields[0].kind = Kind::String,
        |s| s.messages[0].fields[0].shape = Shape::Repeated,
        |s| s.messages[0].fields[1].optional = true,
        |s| s.messages[0].fields[1].oneof = Some(2),
        |s| s.methods[0].path = "/kv.Kv/Set".to_owned(),
    ];
    for change in changes {
        let mut changed = base.clone();
        change(&mut changed);
        assert_ne!(changed.hash(), base.hash(), "{changed:?}");
    }
}

#[test]
fn unknown_fields_and_methods_are_compatible() {
    let small = schema(vec![field(2, "b", Kind::Int32)]);
    let large = schema(vec![field(1, "a", Kind::Bytes), field(2, "b", Kind::Int32)]);
    assert_eq!(compare(&small, &large), Ok(Compatibility::ThroughProtobuf));

    let mut more = small.clone();
    let method = MethodSchema {
        path: "/kv.Kv/Get".to_owned(),
        ..more.methods[0].clone()
    };
    more.methods.insert(0, method);
    assert_ne!(more.hash(), small.hash());
    assert_eq!(compare(&small, &more), Ok(Compatibility::Identical));
    let unknown = check_method_compatible(&small.to_bytes(), &more.to_bytes(), "/kv.Kv/Get");
    assert_eq!(
        unknown.unwrap_err().to_string(),
        "incompatible schemas: /kv.Kv/Get is unknown here and a method at the peer"
    );
    let known = check_method_compatible(&small.to_bytes(), &more.to_bytes(), "/kv.Kv/Put");
    assert_eq!(known, Ok(Compatibility::Identical));
}

#[test]
fn types_convert_by_protobufs_rules() {
    let classes: [&[Kind]; 7] = [
        &[
            Kind::Bool,
            Kind::Int32,
            Kind::Uint32,
            Kind::Int64,
            Kind::Uint64,
            Kind::Enum,
        ],
        &[Kind::Sint32, Kind::Sint64],
        &[Kind::Fixed32, Kind::Sfixed32],
        &[Kind::Fixed64, Kind::Sfixed64],
        &[Kind::Float],
        &[Kind::Double],
        &[Kind::String, Kind::Bytes],
    ];
    let class = |kind| classes.iter().position(|class| class.contains(&kind));
    for ours in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Message) {
        for theirs in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Message) {
            let result = compare_fields(field(1, "f", ours), field(1, "f", theirs));
            if ours == theirs {
                assert_eq!(result, Ok(Compatibility::Identical));
            } else if class(ours) == class(theirs) {
                assert_eq!(
                    result,
                    Ok(Compatibility::ThroughProtobuf),
                    "{ours:?} {theirs:?}"
                );
            } else {
                assert!(result.is_err(), "{ours:?} {theirs:?}");
            }
        }
        let message = compare_fields(field(1, "f", ours), message_field(1, "f", 2));
        assert!(message.is_err(), "{ours:?}");
    }
}

#[test]
fn an_error_names_the_field_as_on_our_side() {
    let theirs = repeated(field(1, "their_name", Kind::Int64));
    let error = compare_fields(field(1, "value", Kind::Bytes), theirs).unwrap_err();
    assert_eq!(
        error,
        SchemaError::Incompatible {
            field: "kv.PutRequest.value".to_owned(),
            ours: "bytes".to_owned(),
            theirs: "repeated int64".to_owned(),
        }
    );
}

#[test]
fn repeated_and_singular_convert_but_for_packed_numbers() {
    let through = Ok(Compatibility::ThroughProtobuf);
    let text = field(1, "f", Kind::String);
    assert_eq!(compare_fields(text.clone(), repeated(text)), through);
    let inner = message_field(1, "f", 2);
    assert_eq!(compare_fields(inner.clone(), repeated(inner)), through);
    let number = field(1, "f", Kind::Int32);
    assert!(compare_fields(number.clone(), repeated(number)).is_err());
}

#[test]
fn presence_and_oneofs_may_change() {
    let plain = field(1, "f", Kind::Int32);
    let optional = FieldSchema {
        optional: true,
        ..plain.clone()
    };
    let member = FieldSchema {
        oneof: Some(1),
        ..plain.clone()
    };
    assert_eq!(
        compare_fields(plain.clone(), optional),
        Ok(Compatibility::ThroughProtobuf)
    );
    assert_eq!(
        compare_fields(plain, member),
        Ok(Compatibility::ThroughProtobuf)
    );
}

#[test]
fn sub_messages_are_compared_too() {
    let error = compare_fields(message_field(1, "f", 2), message_field(1, "f", 3)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "incompatible schemas: kv.Inner.text is string here and double at the peer"
    );
    // A message that contains itself.
    let recursive = message_field(1, "f", 0);
    let result = compare_fields(recursive.clone(), recursive);
    assert_eq!(result, Ok(Compatibility::Identical));
}

#[test]
fn streaming_must_agree() {
    let mut streaming = schema(vec![]);
    streaming.methods[0].server_streaming = true;
    let error = compare(&schema(vec![]), &streaming).unwrap_err();
    assert_eq!(
        error.to_string(),
        "incompatible schemas: /kv.Kv/Put is unary -> unary here and unary -> stream at the peer"
    );
}

#[test]
fn comparing_hostile_schemas_is_bounded() {
    // Every message of ours meets every message of theirs, in chains of coprime lengths.
    let chain = |length: u32| {
        let message = |index: u32| {
            let mut fields = vec![message_field(1, "next", (index + 1) % length)];
            fields.extend((2..40).map(|number| field(number, "f", Kind::Bool)));
            MessageSchema {
                name: String::new(),
                fields,
            }
        };
        Schema {
            messages: (0..length).map(message).collect(),
            ..schema(vec![])
        }
    };
    let (ours, theirs) = (chain(499), chain(503));
    assert_eq!(compare(&ours, &theirs), Err(SchemaError::TooComplex));
}

#[test]
fn the_error_of_a_malformed_schema_says_why() {
    let malformed = |change: fn(&mut Schema)| {
        let mut changed = schema(vec![message_field(1, "f", 2), field(2, "g", Kind::Bool)]);
        change(&mut changed);
        match Schema::parse(&changed.to_bytes()) {
            Err(SchemaError::Malformed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        malformed(|s| s.messages[0].fields[0].message = Some(4)),
        "no such message"
    );
    assert_eq!(malformed(|s| s.methods[0].response = 4), "no such message");
    assert_eq!(
        malformed(|s| s.messages[0].fields.reverse()),
        "fields are not in order"
    );
    assert_eq!(
        malformed(|s| s.messages[0].fields[0].number = 0),
        "not a field number"
    );
    assert_eq!(
        malformed(|s| s.methods.push(s.methods[0].clone())),
        "methods are not in order"
    );
    assert_eq!(
        malformed(|s| s.messages[0].fields[0].shape = Shape::Map),
        "a map's entries are not key and value"
    );
    assert_eq!(
        Schema::parse(&[2]),
        Err(SchemaError::Malformed("unknown version"))
    );
    assert_eq!(
        Schema::parse(&[1, 0, 0, 0]),
        Err(SchemaError::Malformed("trailing bytes"))
    );
}

#[test]
fn schemas_beyond_the_limits_are_refused() {
    let refusal = |schema: &Schema| match Schema::parse(&schema.to_bytes()) {
        Err(SchemaError::TooLarge { what, most }) => (what, most),
        other => panic!("{other:?}"),
    };
    let empty = MessageSchema {
        name: String::new(),
        fields: Vec::new(),
    };
    let mut many = schema(vec![]);
    many.messages.resize(MAX_MESSAGES, empty);
    assert_eq!(Schema::parse(&many.to_bytes()), Ok(many.clone()));
    many.messages.push(many.messages[1].clone());
    assert_eq!(refusal(&many), ("messages", MAX_MESSAGES));
    assert!(many.layouts().is_err());

    let mut many = schema(vec![]);
    let fields = |count: usize| (1..=count as u32).map(|number| field(number, "", Kind::Bool));
    many.messages[2].fields = fields(MAX_FIELDS / 2).collect();
    many.messages[3].fields = fields(MAX_FIELDS / 2).collect();
    assert_eq!(Schema::parse(&many.to_bytes()), Ok(many.clone()));
    many.messages[1].fields = fields(1).collect();
    assert_eq!(refusal(&many), ("fields", MAX_FIELDS));
    assert!(many.layouts().is_err());

    let mut many = schema(vec![]);
    let method = |index| MethodSchema {
        path: format!("{index:04}"),
        ..many.methods[0].clone()
    };
    let methods: Vec<_> = (0..=MAX_METHODS).map(method).collect();
    many.methods = methods[..MAX_METHODS].to_vec();
    assert_eq!(Schema::parse(&many.to_bytes()), Ok(many.clone()));
    many.methods = methods;
    assert_eq!(refusal(&many), ("methods", MAX_METHODS));
    assert!(many.layouts().is_err());

    let mut long = schema(vec![]);
    long.messages[0].name = "n".repeat(MAX_SCHEMA_BYTES);
    assert_eq!(refusal(&long), ("bytes", MAX_SCHEMA_BYTES));
    // A count alone takes no memory.
    let counts = [1, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let error = Schema::parse(&counts).unwrap_err();
    assert_eq!(error.to_string(), "a schema has more than 16384 messages");
}
