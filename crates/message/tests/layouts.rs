//! Layouts made from a schema at run time: what they do, how long they live, and what a hostile peer can
//! do with a schema.

mod common;

use std::fmt;
use std::thread;

use common::{field, map, message_field, repeated, schema_of, structs};
use starling_message::protobuf::{self, DecodeErrorKind};
use starling_message::schema::{OwnedMethod, Schema, SchemaError};
use starling_message::well_known::{ListValue, Struct, Value};
use starling_message::{
    Arena, Kind, LayoutRef, Layouts, Message, Presence, Reader, method_id, reflect, validate,
};

/// A message with something in every kind of field of `google.protobuf.Struct`.
fn specimen() -> Struct {
    let list: ListValue = (0..3).map(|n| Value::from(f64::from(n))).collect();
    let inner: Struct = [("flag", Value::from(true))].into_iter().collect();
    let fields = [
        ("list", Value::from(&list)),
        ("inner", Value::from(&inner)),
        ("text", Value::from("hello")),
    ];
    fields.into_iter().collect()
}

struct Printed<'a>(LayoutRef<'a>, Reader<'a>);

impl fmt::Debug for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reflect::debug(self.0, self.1, f)
    }
}

#[test]
fn messages_that_refer_to_each_other_in_cycles_are_read_as_by_generated_code() {
    let layouts = structs().layouts().unwrap();
    let layout = layouts.get(0).unwrap();
    let message = specimen();
    let (bytes, _) = message.parts();
    assert_eq!(layout.size(), Struct::LAYOUT.size);
    validate(layout, bytes).unwrap();

    let reader = Reader::root(bytes);
    assert_eq!(
        format!("{:?}", Printed(layout, reader)),
        format!("{message:?}")
    );
    let mut encoded = Vec::new();
    protobuf::encode(layout, reader, &mut encoded).unwrap();
    assert_eq!(encoded, message.to_protobuf().unwrap());

    let mut decoded = Arena::begin(Vec::new(), layout);
    protobuf::decode(layout, &encoded, &mut decoded, 1 << 20).unwrap();
    assert!(reflect::equal(layout, decoded.reader(), reader));
    let mut copied = Arena::begin(Vec::new(), layout);
    reflect::copy(layout, decoded.reader(), &mut copied.root());
    assert_eq!(Struct::parse(copied.parts().0), Ok(message.view()));
    copied.clear(layout);
    assert!(!reflect::equal(layout, copied.reader(), reader));
}

#[test]
fn a_message_field_is_set_by_its_layout() {
    let layouts = structs().layouts().unwrap();
    let (value, inner) = (layouts.get(2).unwrap(), layouts.get(0).unwrap());
    let field = value.field(5).unwrap();
    assert_eq!(field.message(), Some(inner));
    let Presence::Oneof {
        discriminant, case, ..
    } = field.presence
    else {
        panic!("{field:?}");
    };
    let mut arena = Arena::begin(Vec::new(), value);
    let mut root = arena.root();
    root.set_case(discriminant, case, field.offset, field.kind.slot_size());
    root.set_message(field.offset, inner, specimen().view_reader());
    let built = Value::parse(arena.parts().0).unwrap();
    assert_eq!(built, Value::from(&specimen()).view());
}

trait ViewReader {
    fn view_reader(&self) -> Reader<'_>;
}

impl<M: Message> ViewReader for M {
    fn view_reader(&self) -> Reader<'_> {
        self.arena().reader()
    }
}

#[test]
fn layouts_of_two_sets_do_not_meet() {
    let (first, second) = (structs().layouts().unwrap(), structs().layouts().unwrap());
    let again = first.clone();
    assert_eq!(first.get(1), again.get(1));
    assert_ne!(first.get(1), second.get(1));
    let child = |layouts: &Layouts| {
        let field = layouts.get(0).unwrap().field(1).unwrap();
        field.message() == layouts.get(1)
    };
    assert!(child(&first) && child(&again) && child(&second));
    assert_eq!(first.get(4), None);
    assert_eq!(first.iter().len(), 4);
    assert_eq!(first.named("s.ListValue"), first.get(3));
    assert_eq!(first.named("s.Unknown"), None);
}

#[test]
fn layouts_cross_threads_and_outlive_their_schema() {
    let layouts = structs().layouts().unwrap();
    let message = specimen();
    let other = layouts.clone();
    let bytes = message.parts().0.to_vec();
    let checked = thread::spawn(move || validate(other.get(0).unwrap(), &bytes));
    drop(layouts);
    assert_eq!(checked.join().unwrap(), Ok(()));
}

#[test]
fn an_error_outlives_the_layouts_that_it_names() {
    let layouts = structs().layouts().unwrap();
    let layout = layouts.get(0).unwrap();
    let invalid = validate(layout, &[0; 3]).unwrap_err();
    let mut arena = Arena::begin(Vec::new(), layout);
    let undecoded = protobuf::decode(layout, &[0x0a, 9], &mut arena, 1 << 20).unwrap_err();
    drop(layouts);
    assert_eq!(
        invalid.to_string(),
        "invalid message: s.Struct at byte 0: shorter than its fixed part"
    );
    assert_eq!(undecoded.message, "s.Struct");
    assert_eq!(undecoded.kind, DecodeErrorKind::Truncated);
}

#[test]
fn a_method_made_at_run_time_keeps_the_layouts_of_its_messages() {
    let methods = structs().owned_methods().unwrap();
    let [get, put]: [OwnedMethod; 2] = methods.try_into().unwrap();
    assert_eq!((&*get.path, get.id), ("/s.S/Get", method_id("/s.S/Get")));
    assert_eq!((get.client_streaming, get.server_streaming), (false, true));
    drop(get);
    assert_eq!(put.request().name(), "s.Struct");
    assert_eq!(put.response().name(), "s.Value");
    validate(put.request(), specimen().parts().0).unwrap();
}

#[test]
fn methods_with_the_same_id_are_refused() {
    let mut schema = structs();
    let (one, other) = common::paths_with_one_id();
    assert_eq!(method_id(&one), method_id(&other));
    schema.methods[0].path = one.clone().min(other.clone());
    schema.methods[1].path = one.max(other);
    let error = schema.owned_methods().unwrap_err();
    assert_eq!(
        error,
        SchemaError::Malformed("two methods have the same id")
    );
    assert!(
        schema.layouts().is_ok(),
        "the id matters for the methods only"
    );
}

#[test]
fn a_schema_put_together_wrongly_has_no_layouts() {
    let refused = |change: fn(&mut Schema)| {
        let mut schema = structs();
        change(&mut schema);
        match schema.layouts() {
            Err(SchemaError::Malformed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let no_message = "no such message";
    assert_eq!(
        refused(|s| s.messages[0].fields[0].message = Some(4)),
        no_message
    );
    assert_eq!(
        refused(|s| s.messages[0].fields[0].message = None),
        no_message
    );
    assert_eq!(refused(|s| s.methods[1].response = 9), no_message);
    let unordered = "fields are not in order";
    assert_eq!(refused(|s| s.messages[2].fields.swap(0, 1)), unordered);
    let key = "a map's entries are not key and value";
    for kind in [Kind::Bytes, Kind::Double, Kind::Float, Kind::Enum] {
        let mut schema = structs();
        schema.messages[1].fields[0].kind = kind;
        let error = schema.layouts().unwrap_err();
        assert_eq!(error, SchemaError::Malformed(key), "{kind:?}");
    }
    let cases = (1..=256).map(|number| starling_message::schema::FieldSchema {
        oneof: Some(1),
        ..field(number, Kind::Bool)
    });
    let error = schema_of(vec![cases.collect()]).layouts().unwrap_err();
    assert_eq!(error, SchemaError::Malformed("a oneof has too many cases"));
}

#[test]
fn a_layout_of_many_oneofs_checks_each_of_them() {
    // One case each: a number above 1 is refused wherever it stands.
    let fields = (1..=300).map(|number| starling_message::schema::FieldSchema {
        oneof: Some(number),
        ..field(number, Kind::Bool)
    });
    let layouts = schema_of(vec![fields.collect()]).layouts().unwrap();
    let layout = layouts.get(0).unwrap();
    assert_eq!(layout.size(), 600);
    let mut bytes = vec![0; 600];
    for at in 300..600 {
        bytes[at] = 2;
        let error = validate(layout, &bytes).unwrap_err();
        assert_eq!(error.number as usize, at - 299);
        bytes[at] = 1;
    }
    validate(layout, &bytes).unwrap();
}

#[test]
fn repeated_fields_and_maps_of_messages_without_fields_have_layouts() {
    let fields = vec![
        repeated(message_field(1, 1)),
        message_field(2, 1),
        map(message_field(3, 2)),
    ];
    let entry = vec![field(1, Kind::Sint64), message_field(2, 1)];
    let layouts = schema_of(vec![fields, vec![], entry]).layouts().unwrap();
    let layout = layouts.get(0).unwrap();
    let strides: Vec<_> = layout.fields().map(|field| field.stride()).collect();
    assert_eq!(strides, [1, 1, 16]);
    let mut arena = Arena::begin(Vec::new(), layout);
    let encoded = [0x0a, 0, 0x0a, 0, 0x12, 0, 0x1a, 2, 0x08, 3];
    protobuf::decode(layout, &encoded, &mut arena, 1 << 10).unwrap();
    validate(layout, arena.parts().0).unwrap();
    assert_eq!(
        format!("{:?}", Printed(layout, arena.reader())),
        "M0 { f1: [M1, M1], f2: M1, f3: {-2: M1} }"
    );
}
