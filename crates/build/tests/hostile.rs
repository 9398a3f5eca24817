//! Bytes that no honest peer sends. Each input is a typed error, or a message that can be read
//! completely.

mod support;

use bytes::Bytes;
use starling_message::protobuf;
use starling_message::reflect::{self, ValueRef};
use starling_message::schema::{Schema, check_compatible};
use starling_message::{
    Arena, LayoutRef, Message, Reader, Shape, TAIL_OFFSET, ValidationErrorKind, validate,
};
use support::everything::{Choices, Everything, Lists, Maps, Nothing, Scalars, Tree};

/// Reads everything that is reachable; returns the number of values.
fn walk(layout: LayoutRef<'_>, reader: Reader<'_>) -> usize {
    let mut seen = 0;
    for field in layout.fields() {
        for value in reflect::values(field, reader) {
            seen += 1;
            match value {
                ValueRef::Message(layout, reader) => seen += walk(layout, reader),
                ValueRef::String(text) => assert!(text.chars().count() <= text.len()),
                ValueRef::Bytes(bytes) => {
                    assert!(bytes.iter().map(|b| usize::from(*b)).sum::<usize>() < usize::MAX)
                }
                _ => {}
            }
        }
        let past = reflect::count(&field, reader);
        if field.shape != Shape::Singular && past > 0 {
            // The element behind the last one reads as something, and does not panic.
            let _ = reflect::value(field, reader, past);
        }
    }
    seen
}

/// Checks the properties that hold for any bytes.
fn check<M: Message>(bytes: &[u8]) {
    if validate(M::LAYOUT, bytes).is_err() {
        assert!(Arena::adopt(bytes.to_vec(), 0, M::LAYOUT).is_err());
        return;
    }
    // Work is linear in the size: every value takes at least a byte, except the fields of a message.
    let fields = M::LAYOUT.fields.len().max(17);
    assert!(walk(M::LAYOUT.into(), Reader::root(bytes)) <= fields * (bytes.len() + 1));

    let view = M::view_of(Reader::root(bytes));
    let copy = M::from_view(view);
    let (head, tail) = copy.parts();
    assert!(tail.is_none());
    validate(M::LAYOUT, head).unwrap();
    assert!(format!("{copy:?}").len() < 1 << 24);
    let encoded = copy.to_protobuf().unwrap();
    let decoded = M::from_protobuf(&encoded, 1 << 26).unwrap();
    assert_eq!(decoded.to_protobuf().unwrap(), encoded);

    let adopted = M::from_arena(Arena::adopt(bytes.to_vec(), 0, M::LAYOUT).unwrap());
    assert_eq!(adopted.to_protobuf().unwrap(), encoded);
}

fn check_all(bytes: &[u8]) {
    check::<Everything>(bytes);
    check::<Tree>(bytes);
    check::<Choices>(bytes);
    check::<Lists>(bytes);
    check::<Maps>(bytes);
    check::<Scalars>(bytes);
    check::<Nothing>(bytes);
}

/// A valid message with something in every kind of field.
fn specimen() -> Vec<u8> {
    let mut message = Everything::new();
    message.scalars_mut().set_f_string("text");
    message.scalars_mut().set_f_bytes(b"data");
    message
        .lists_mut()
        .f_string_mut()
        .extend(["a", "bc", "def"]);
    message
        .lists_mut()
        .f_int32_mut()
        .extend_from_slice(&[1, 2, 3]);
    message
        .lists_mut()
        .f_scalars_mut()
        .push_default()
        .set_f_string("in list");
    message.maps_mut().text_to_number_mut().insert("key", 1);
    message
        .maps_mut()
        .bool_to_message_mut()
        .get_or_default(true)
        .set_f_bytes(b"v");
    message.choices_mut().inner_mut().set_text("inner");
    let mut tree = message.tree_mut();
    tree.left_mut().right_mut().set_value(1);
    tree.others_mut().push_default().left_mut().set_value(2);
    tree.named_mut().get_or_default("n").set_value(3);
    message.nothings_mut().push_default();
    message
        .optionals_mut()
        .set_f_bytes_bytes(Bytes::from_static(b"the tail"));
    let (head, tail) = message.parts();
    [head, tail.unwrap()].concat()
}

/// What harnesses below keep, so that a fuzzer begins with something.
#[test]
fn the_kept_inputs_are_what_is_valid_now() {
    let native = include_bytes!("__fuzz__/random_bytes_are_refused_or_readable/corpus/everything");
    assert_eq!(native.as_slice(), specimen());
    let message = Everything::parse(native).unwrap().to_owned();
    let kept = include_bytes!("__fuzz__/random_protobuf_is_refused_or_decoded/corpus/everything");
    assert_eq!(kept.as_slice(), message.to_protobuf().unwrap());
}

#[test]
fn random_bytes_are_refused_or_readable() {
    bolero::check!().for_each(|bytes: &[u8]| check_all(bytes));
}

#[test]
fn changed_messages_are_refused_or_readable() {
    let valid = specimen();
    check::<Everything>(&valid);
    bolero::check!()
        .with_type::<Vec<(u16, u8)>>()
        .for_each(|changes| {
            let mut bytes = valid.clone();
            for (at, value) in changes.iter().take(8) {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *value;
            }
            check::<Everything>(&bytes);
        });
}

#[test]
fn truncated_messages_are_refused_or_readable() {
    let valid = specimen();
    for end in 0..valid.len() {
        check::<Everything>(&valid[..end]);
    }
    // Every byte, set to values that make small, large and negative numbers.
    for at in 0..valid.len() {
        for value in [0, 1, 8, 0x7f, 0x80, 0xff] {
            let mut bytes = valid.clone();
            bytes[at] = value;
            check::<Everything>(&bytes);
        }
    }
}

#[test]
fn adopted_bytes_can_be_changed() {
    let valid = specimen();
    bolero::check!()
        .with_type::<Vec<(u16, u8)>>()
        .for_each(|changes| {
            let mut bytes = valid.clone();
            for (at, value) in changes.iter().take(8) {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *value;
            }
            let Ok(arena) = Arena::adopt(bytes, 0, Everything::LAYOUT) else {
                return;
            };
            let mut message = Everything::from_arena(arena);
            message.scalars_mut().set_f_string("another text");
            message.scalars_mut().set_f_bytes(b"d");
            message.lists_mut().f_string_mut().push("more");
            message
                .lists_mut()
                .f_scalars_mut()
                .push_default()
                .set_f_int32(1);
            message.maps_mut().text_to_number_mut().insert("key", 2);
            message.choices_mut().inner_mut().set_number(5);
            message.tree_mut().others_mut().push_default().set_value(9);
            message.tree_mut().left_mut().right_mut().set_value(4);
            message.optionals_mut().set_f_bytes(b"new");
            assert_eq!(message.scalars().f_string(), "another text");
            assert_eq!(message.choices().inner().number(), 5);
        });
}

#[test]
fn random_protobuf_is_refused_or_decoded() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut arena = Arena::begin(Vec::new(), Everything::LAYOUT);
        let result = protobuf::decode(Everything::LAYOUT, bytes, &mut arena, 1 << 20);
        // Decoded completely or in part: the arena holds a valid message.
        validate(Everything::LAYOUT, arena.parts().0).unwrap();
        if result.is_ok() {
            let message = Everything::from_arena(arena);
            let again = message.to_protobuf().unwrap();
            let decoded = Everything::from_protobuf(&again, 1 << 20).unwrap();
            assert_eq!(decoded.to_protobuf().unwrap(), again);
        }
    });
}

#[test]
fn changed_protobuf_is_refused_or_decoded() {
    let valid = Everything::parse(&specimen())
        .unwrap()
        .to_owned()
        .to_protobuf()
        .unwrap();
    bolero::check!()
        .with_type::<Vec<(u16, u8)>>()
        .for_each(|changes| {
            let mut bytes = valid.clone();
            for (at, value) in changes.iter().take(8) {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *value;
            }
            if let Ok(message) = Everything::from_protobuf(&bytes, 1 << 20) {
                validate(Everything::LAYOUT, message.parts().0).unwrap();
            }
        });
}

#[test]
fn random_schemas_are_refused_or_compared() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(schema) = Schema::parse(bytes) {
            assert_eq!(Schema::parse(&schema.to_bytes()).unwrap(), schema);
            let _ = check_compatible(bytes, bytes);
        }
    });
}

fn kind<M: Message>(bytes: &[u8]) -> ValidationErrorKind {
    validate(M::LAYOUT, bytes).unwrap_err().kind
}

/// Bytes of a message with numbers at offsets.
fn with<M: Message>(length: usize, numbers: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (at, number) in numbers {
        bytes[*at as usize..*at as usize + 4].copy_from_slice(&number.to_le_bytes());
    }
    assert!(length >= M::LAYOUT.size as usize);
    bytes
}

fn offset<M: Message>(name: &str) -> u32 {
    M::LAYOUT
        .fields
        .iter()
        .find(|field| field.name == name)
        .unwrap()
        .offset
}

#[test]
fn each_fault_has_its_error() {
    assert_eq!(kind::<Tree>(&[]), ValidationErrorKind::Truncated);
    let (left, others) = (offset::<Tree>("left"), offset::<Tree>("others"));
    let size = Tree::LAYOUT.size;
    let tree = |extra: u32, numbers: &[(u32, u32)]| with::<Tree>((size + extra) as usize, numbers);
    assert_eq!(
        kind::<Tree>(&tree(0, &[(left, 1), (left + 4, 1)])),
        ValidationErrorKind::OutOfBounds
    );
    assert_eq!(
        kind::<Tree>(&tree(0, &[(left + 4, 1)])),
        ValidationErrorKind::AbsentWithLength
    );
    assert_eq!(
        kind::<Tree>(&tree(size, &[(left, size), (left + 4, 2)])),
        ValidationErrorKind::Count
    );
    let all = u32::MAX;
    assert_eq!(
        kind::<Tree>(&tree(0, &[(others, 1), (others + 4, all)])),
        ValidationErrorKind::OutOfBounds
    );
    // A message that contains itself.
    assert_eq!(
        kind::<Tree>(&tree(1, &[(left, 1), (left + 4, 1)])),
        ValidationErrorKind::Overlap
    );

    let (text, data) = (offset::<Scalars>("f_string"), offset::<Scalars>("f_bytes"));
    let size = Scalars::LAYOUT.size;
    let mut bytes = with::<Scalars>(size as usize + 1, &[(text, size), (text + 4, 1)]);
    assert_eq!(validate(Scalars::LAYOUT, &bytes), Ok(()));
    bytes[size as usize] = 0xff;
    assert_eq!(kind::<Scalars>(&bytes), ValidationErrorKind::Utf8);
    let tails = [
        (text, TAIL_OFFSET),
        (text + 4, 1),
        (data, TAIL_OFFSET),
        (data + 4, 1),
    ];
    let bytes = with::<Scalars>(size as usize + 2, &tails);
    assert_eq!(kind::<Scalars>(&bytes), ValidationErrorKind::Tail);
    let bytes = with::<Scalars>(size as usize, &[(text, TAIL_OFFSET), (text + 4, size + 1)]);
    assert_eq!(kind::<Scalars>(&bytes), ValidationErrorKind::OutOfBounds);

    let mut choices = Choices::new();
    choices.set_flag(true);
    let mut bytes = choices.parts().0.to_vec();
    let at = bytes.iter().rposition(|byte| *byte == 6).unwrap();
    bytes[at] = 7;
    let error = validate(Choices::LAYOUT, &bytes).unwrap_err();
    assert_eq!(error.kind, ValidationErrorKind::Case);
    assert_eq!(
        error.to_string(),
        "invalid message: everything.Choices.number at byte 0: no such case of a oneof"
    );
}

#[test]
fn aliased_references_do_not_multiply_work() {
    // A list of trees in which every element's list is the next list: 2^n paths for a naive walk.
    let (others, size) = (offset::<Tree>("others"), Tree::LAYOUT.size);
    let levels = 20;
    let mut numbers = vec![(others, size), (others + 4, 2)];
    for level in 0..levels {
        let (at, next) = (size + level * 2 * size, size + (level + 1) * 2 * size);
        for element in [at, at + size] {
            numbers.extend([(element + others, next), (element + others + 4, 2)]);
        }
    }
    let length = (size + (levels + 1) * 2 * size) as usize;
    let bytes = with::<Tree>(length, &numbers);
    assert_eq!(kind::<Tree>(&bytes), ValidationErrorKind::Overlap);
}
