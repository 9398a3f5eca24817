//! Generated messages: accessors, building in place, reading in place.

mod support;

use bytes::Bytes;
use starling_message::protobuf::EncodeError;
use starling_message::well_known::Timestamp;
use starling_message::{Arena, MAX_DEPTH, Message, ValidationErrorKind, validate};
use support::everything::{
    Choices, ChoicesChoice, ChoicesSmall, Color, Everything, Lists, Maps, Nothing, Option as Odd,
    Optionals, Scalars, Tree, TreeMut, option,
};
use support::shared::v1::unit::Scale;

/// The message as a peer would receive it: contiguous and validated.
fn sent<M: Message>(message: &M) -> Vec<u8> {
    let (head, tail) = message.parts();
    let mut bytes = head.to_vec();
    bytes.extend_from_slice(tail.map_or(&[][..], |tail| tail));
    assert_eq!(bytes.len(), message.arena().message_len());
    validate(M::LAYOUT, &bytes).unwrap();
    let received = M::from_arena(Arena::adopt(bytes.clone(), 0, M::LAYOUT).unwrap());
    assert!(received == *message, "{received:?} is not {message:?}");
    bytes
}

fn scalars() -> Scalars {
    let mut m = Scalars::new();
    m.set_f_double(-1.5);
    m.set_f_float(2.25);
    m.set_f_int32(i32::MIN);
    m.set_f_int64(i64::MIN);
    m.set_f_uint32(u32::MAX);
    m.set_f_uint64(u64::MAX);
    m.set_f_sint32(-3);
    m.set_f_sint64(-4);
    m.set_f_fixed32(5);
    m.set_f_fixed64(6);
    m.set_f_sfixed32(-7);
    m.set_f_sfixed64(-8);
    m.set_f_bool(true);
    m.set_f_string("grüße");
    m.set_f_bytes(b"\x00\xff");
    m.set_f_color(Color::BLUE);
    m
}

#[test]
fn scalars_read_back_as_they_were_set() {
    let message = scalars();
    let bytes = sent(&message);
    let view = Scalars::parse(&bytes).unwrap();
    assert_eq!(view.f_double(), -1.5);
    assert_eq!(view.f_float(), 2.25);
    assert_eq!(view.f_int32(), i32::MIN);
    assert_eq!(view.f_int64(), i64::MIN);
    assert_eq!(view.f_uint32(), u32::MAX);
    assert_eq!(view.f_uint64(), u64::MAX);
    assert_eq!(view.f_sint32(), -3);
    assert_eq!(view.f_sint64(), -4);
    assert_eq!(view.f_fixed32(), 5);
    assert_eq!(view.f_fixed64(), 6);
    assert_eq!(view.f_sfixed32(), -7);
    assert_eq!(view.f_sfixed64(), -8);
    assert!(view.f_bool());
    assert_eq!(view.f_string(), "grüße");
    assert_eq!(view.f_bytes(), b"\x00\xff");
    assert_eq!(view.f_color(), Color::BLUE);
    assert_eq!(view.to_owned(), message);

    let mut cleared = message;
    cleared.clear_f_double();
    cleared.clear_f_bool();
    cleared.clear_f_color();
    cleared.clear_f_string();
    assert_eq!((cleared.f_double(), cleared.f_bool()), (0.0, false));
    assert_eq!(
        (cleared.f_color(), cleared.f_string()),
        (Color::UNSPECIFIED, "")
    );
    cleared.clear();
    assert_eq!(cleared, Scalars::new());
}

#[test]
fn a_message_can_be_read_at_any_alignment() {
    let bytes = sent(&scalars());
    for shift in 0..16 {
        let mut shifted = vec![0xaa; shift];
        shifted.extend_from_slice(&bytes);
        assert_eq!(
            Scalars::parse(&shifted[shift..]).unwrap().to_owned(),
            scalars()
        );
    }
}

#[test]
fn a_message_can_be_built_behind_a_header() {
    let mut arena = Arena::begin(b"header".to_vec(), Choices::LAYOUT);
    Choices::mut_of(arena.root()).inner_mut().set_text("deep");
    assert_eq!(arena.base(), 6);
    let message = arena.parts().0.to_vec();
    assert_eq!(Choices::parse(&message).unwrap().inner().text(), "deep");
    let (whole, tail) = arena.into_parts();
    assert!(whole.starts_with(b"header") && whole.ends_with(b"deep") && tail.is_none());
    assert_eq!(whole[6..], message);
}

#[test]
fn an_explicit_field_set_to_its_default_is_set() {
    let mut message = Optionals::new();
    assert!(!message.has_f_int32() && message.f_int32_opt().is_none());
    message.set_f_int32(0);
    message.set_f_string("");
    message.set_f_bytes(b"");
    message.f_scalars_mut();
    let bytes = sent(&message);
    let view = Optionals::parse(&bytes).unwrap();
    assert_eq!(view.f_int32_opt(), Some(0));
    assert_eq!(view.f_string_opt(), Some(""));
    assert_eq!(view.f_bytes_opt(), Some(&b""[..]));
    assert!(view.has_f_scalars() && !view.has_f_bool());
    assert_ne!(message, Optionals::new());
    message.clear_f_int32();
    message.clear_f_string();
    message.clear_f_bytes();
    message.clear_f_scalars();
    assert_eq!(message, Optionals::new());
}

#[test]
fn several_lists_can_grow_in_turns() {
    let mut message = Lists::new();
    for index in 0..100 {
        message.f_int32_mut().push(index);
        message.f_string_mut().push(&index.to_string());
        message.f_bool_mut().push(index % 3 == 0);
        message.f_color_mut().push(Color(index));
        let mut lists = message.as_mut();
        let mut scalars = lists.f_scalars_mut();
        let mut scalars = scalars.push_default();
        scalars.set_f_string("s");
        scalars.set_f_int64(index.into());
    }
    message.f_double_mut().extend_from_slice(&[0.5, 1.5]);
    message.f_bytes_mut().extend([&b"a"[..], b"", b"c"]);
    let bytes = sent(&message);
    let view = Lists::parse(&bytes).unwrap();
    assert!(view.f_int32().iter().eq(0..100));
    assert!(
        view.f_string()
            .iter()
            .enumerate()
            .all(|(i, s)| s == i.to_string())
    );
    assert!(
        view.f_bool()
            .iter()
            .enumerate()
            .all(|(i, b)| b == (i % 3 == 0))
    );
    assert_eq!(view.f_color().get(1), Some(Color::RED));
    assert_eq!(view.f_color().get(100), None);
    assert!(
        view.f_scalars()
            .iter()
            .enumerate()
            .all(|(i, s)| s.f_int64() == i as i64)
    );
    assert_eq!(view.f_double().iter().collect::<Vec<_>>(), [0.5, 1.5]);
    assert_eq!(
        view.f_bytes().iter().collect::<Vec<_>>(),
        [&b"a"[..], b"", b"c"]
    );

    let mut lists = message.as_mut();
    lists.f_string_mut().set(3, "three");
    lists.f_scalars_mut().get_mut(4).unwrap().set_f_bool(true);
    assert_eq!(message.f_string().get(3), Some("three"));
    assert!(message.f_scalars().get(4).unwrap().f_bool());
    message.clear_f_int32();
    assert!(message.f_int32().is_empty());
}

#[test]
fn reserved_lists_leave_no_gaps() {
    let mut message = Lists::new();
    message.f_string_mut().reserve(10);
    for _ in 0..10 {
        message.f_string_mut().push("four");
    }
    assert_eq!(
        message.arena().message_len(),
        Lists::LAYOUT.size as usize + 10 * (8 + 4)
    );
}

#[test]
fn growth_is_linear_with_many_lists() {
    let mut message = Lists::new();
    for index in 0..1000 {
        message.f_int32_mut().push(index);
        message.f_int64_mut().push(index.into());
        message.f_uint32_mut().push(1);
        message.f_uint64_mut().push(1);
        message.f_sint32_mut().push(1);
        message.f_sint64_mut().push(1);
        message.f_fixed32_mut().push(1);
        message.f_fixed64_mut().push(1);
        message.f_float_mut().push(1.0);
        message.f_double_mut().push(1.0);
    }
    // 60 bytes a turn. An array takes at most four times its elements, with its moves.
    assert!(message.arena().message_len() < 4 * 60 * 1000 + 4096);
    sent(&message);
}

#[test]
fn maps_replace_and_find_entries() {
    let mut message = Maps::new();
    message.text_to_number_mut().insert("one", 1);
    message.text_to_number_mut().insert("two", 3);
    message.text_to_number_mut().insert("two", 2);
    message.number_to_bytes_mut().insert(-5, b"five");
    message
        .bool_to_message_mut()
        .get_or_default(true)
        .set_f_int32(9);
    message
        .bool_to_message_mut()
        .get_or_default(true)
        .set_f_bool(true);
    message.number_to_color_mut().insert(7, Color::RED);
    message.number_to_double_mut().append(1, 0.5);
    message.number_to_double_mut().append(1, 1.5);
    let bytes = sent(&message);
    let view = Maps::parse(&bytes).unwrap();
    assert_eq!(view.text_to_number().len(), 2);
    assert_eq!(view.text_to_number().get("two"), Some(2));
    assert_eq!(view.text_to_number().get("three"), None);
    assert_eq!(view.number_to_bytes().get(-5), Some(&b"five"[..]));
    let inner = view.bool_to_message().get(true).unwrap();
    assert_eq!((inner.f_int32(), inner.f_bool()), (9, true));
    assert_eq!(view.number_to_color().get(7), Some(Color::RED));
    assert_eq!(
        view.number_to_double().get(1),
        Some(1.5),
        "the last entry counts"
    );

    let mut other = Maps::new();
    other.number_to_double_mut().insert(1, 1.5);
    let mut same = Maps::new();
    same.number_to_double_mut().append(1, 7.0);
    same.number_to_double_mut().append(1, 1.5);
    assert_eq!(other, same);
}

#[test]
fn one_case_of_a_oneof_is_set() {
    let mut message = Choices::new();
    assert_eq!(message.choice(), None);
    message.set_text("words");
    assert_eq!(message.choice(), Some(ChoicesChoice::Text("words")));
    message.set_number(5);
    assert!(message.has_number() && !message.has_text());
    assert_eq!(message.text(), "");
    message.inner_mut().set_flag(true);
    message.inner_mut().set_maybe(3);
    sent(&message);
    let Some(ChoicesChoice::Inner(inner)) = message.choice() else {
        panic!("{message:?}")
    };
    assert_eq!(inner.choice(), Some(ChoicesChoice::Flag(true)));
    assert_eq!(inner.small(), Some(ChoicesSmall::Maybe(3)));
    message.clear_text();
    assert!(message.has_inner(), "clearing another case changes nothing");
    message.set_data(b"");
    assert_eq!(message.choice(), Some(ChoicesChoice::Data(b"")));
    sent(&message);
    message.clear_choice();
    assert_eq!(message, Choices::new());
}

#[test]
fn awkward_names_are_usable() {
    let mut message = Odd::new();
    message.set_type("t");
    message.set_self(true);
    message.set_view_3(1);
    message.set_has_count(2);
    message.set_count_5(3);
    message.set_new_6(4);
    message.set_camel_case(b"c");
    message.set_some(6);
    let mut result = message.result_mut();
    result.set_ok(option::result::Ok::OK_1);
    result.set_scale(Scale::KILO);
    result.parent_mut().set_type("inner");
    message.oks_mut().push(option::result::Ok(7));
    sent(&message);
    assert_eq!(message.r#type(), "t");
    assert_eq!(
        (message.self_(), message.view_3(), message.has_count()),
        (true, 1, 2)
    );
    assert_eq!((message.count_5_opt(), message.new_6()), (Some(3), 4));
    assert_eq!(message.result().parent().r#type(), "inner");
    assert!(message.r#match().is_some());
}

#[test]
fn debug_prints_the_set_fields() {
    let mut message = Everything::new();
    message.scalars_mut().set_f_string("x");
    message.scalars_mut().set_f_color(Color::RED);
    message.choices_mut().set_data(&[7; 100]);
    message.maps_mut().text_to_number_mut().insert("k", 1);
    message.nothings_mut().push_default();
    let text = format!("{message:?}");
    let bytes = "\\x07".repeat(64);
    assert_eq!(
        text,
        format!(
            "Everything {{ scalars: Scalars {{ f_string: \"x\", f_color: COLOR_RED }}, \
             maps: Maps {{ text_to_number: {{\"k\": 1}} }}, \
             choices: Choices {{ data: b\"{bytes}\" and 36 more bytes }}, nothings: [Nothing] }}"
        )
    );
    assert_eq!(
        format!("{:?} {:?}", Color::BLUE, Color(9)),
        "COLOR_BLUE Color(9)"
    );
}

#[test]
fn a_large_field_is_held_by_reference() {
    let large = Bytes::from(vec![42; 100_000]);
    let mut message = Everything::new();
    message.scalars_mut().set_f_bytes_bytes(large.clone());
    message.scalars_mut().set_f_string("after");
    assert_eq!(
        message.parts().1.unwrap().as_ptr(),
        large.as_ptr(),
        "not copied"
    );
    assert!(message.parts().0.len() < 1000);
    assert_eq!(message.scalars().f_bytes(), &large[..]);
    let bytes = sent(&message);
    assert_eq!(
        Everything::parse(&bytes).unwrap().scalars().f_bytes(),
        &large[..]
    );

    // A second large field is copied.
    message.choices_mut().set_data_bytes(large.clone());
    assert!(message.parts().0.len() > large.len());
    assert_eq!(message.choices().data(), message.scalars().f_bytes());
    sent(&message);

    // A received tail is unchanged when the message grows.
    let mut received = Everything::from_arena(Arena::adopt(bytes, 0, Everything::LAYOUT).unwrap());
    received
        .scalars_mut()
        .set_f_string("a longer text than before");
    assert_eq!(received.scalars().f_bytes(), &large[..]);
    sent(&received);

    // A replaced tail is gone.
    message.scalars_mut().set_f_bytes(b"small");
    assert!(message.parts().1.is_none());
    sent(&message);
}

#[test]
fn a_field_by_reference_survives_moves_and_cases() {
    let mut message = Lists::new();
    message
        .f_bytes_mut()
        .push_shared(Bytes::from_static(b"shared"));
    for _ in 0..20 {
        message.f_bytes_mut().push(b"x");
        message.f_string_mut().push("y");
    }
    assert_eq!(message.f_bytes().get(0), Some(&b"shared"[..]));
    sent(&message);
    message.f_bytes_mut().set(0, b"copied");
    assert!(message.parts().1.is_none());
    assert_eq!(message.f_bytes().get(0), Some(&b"copied"[..]));

    let mut choices = Choices::new();
    choices.set_data_bytes(Bytes::from_static(b"shared"));
    choices.set_number(1);
    assert!(choices.parts().1.is_none(), "another case drops it");
    sent(&choices);
}

#[test]
fn setting_a_field_again_does_not_grow_the_message() {
    let mut message = scalars();
    let before = message.arena().message_len();
    for turn in 0..100 {
        message.set_f_string(if turn % 2 == 0 { "short" } else { "grüße" });
        message.set_f_bytes(&[1; 2]);
    }
    assert!(message.arena().message_len() <= before + 8);
    sent(&message);
}

#[test]
fn views_can_be_copied_between_messages() {
    let source = scalars();
    let mut target = Everything::new();
    target.set_scalars(source.view());
    target.lists_mut().f_scalars_mut().push_view(source.view());
    assert_eq!(target.scalars(), source.view());
    assert_eq!(
        target.lists().f_scalars().get(0).unwrap().to_owned(),
        source
    );
    let mut at = Timestamp::new();
    at.set_seconds(5);
    target.set_at(at.view());
    target.unit_mut().set_scale(Scale::KILO);
    assert_eq!(target.at().seconds(), 5);
    sent(&target);
}

#[test]
fn a_message_is_built_in_one_expression() {
    let at = Timestamp::new().with_seconds(5);
    let lists = Lists::new()
        .with_f_int32([1, 2])
        .with_f_string(["a", "b"])
        .with_f_scalars([&scalars(), &Scalars::new()]);
    let maps = Maps::new()
        .with_text_to_number([("x", 1), ("y", 2)])
        .with_bool_to_message([(true, &scalars())]);
    let message = Everything::new()
        .with_scalars(scalars().with_f_string("s").view())
        .with_lists(lists.view())
        .with_maps(maps.view())
        .with_at(at.view());
    assert_eq!(message.scalars().f_string(), "s");
    assert_eq!(message.scalars().f_int32(), i32::MIN);
    assert_eq!(message.lists().f_int32().iter().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(message.lists().f_string().get(1), Some("b"));
    assert_eq!(message.lists().f_scalars().len(), 2);
    assert_eq!(message.maps().text_to_number().get("y"), Some(2));
    let kept = message.maps().bool_to_message().get(true);
    assert_eq!(kept.unwrap().to_owned(), scalars());
    assert_eq!(message.at().seconds(), 5);
    sent(&message);
}

#[test]
fn copy_from_replaces_whatever_a_message_held() {
    let source = scalars();
    let mut target = Scalars::new();
    target.set_f_string("what was there");
    target.set_f_bytes_bytes(Bytes::from(vec![7; 100_000]));
    target.as_mut().copy_from(source.view());
    assert_eq!(target, source);
    assert_eq!(sent(&target).len(), sent(&source).len());

    let mut choice = Choices::new();
    choice.set_number(3);
    let mut outer = Everything::new();
    outer.choices_mut().set_text("what was there");
    outer.choices_mut().set_between(9);
    outer.choices_mut().copy_from(choice.view());
    assert_eq!(outer.choices(), choice.view());
    outer.choices_mut().copy_from(Choices::new().view());
    assert!(outer.has_choices() && outer.choices().choice().is_none());
    sent(&outer);
}

#[test]
fn an_empty_message_takes_no_bytes_at_the_root_and_one_elsewhere() {
    assert_eq!(sent(&Nothing::new()).len(), 0);
    let mut message = Everything::new();
    message.nothing_mut();
    message.nothings_mut().push_default();
    let bytes = sent(&message);
    assert_eq!(bytes.len(), Everything::LAYOUT.size as usize + 2);
    let view = Everything::parse(&bytes).unwrap();
    assert!(view.has_nothing() && view.nothings().len() == 1);
}

fn nest(mut tree: TreeMut<'_>, levels: u32) {
    if levels > 0 {
        nest(tree.left_mut(), levels - 1);
    }
}

#[test]
fn nesting_is_bounded() {
    let mut tree = Tree::new();
    nest(tree.as_mut(), MAX_DEPTH - 1);
    sent(&tree);
    assert!(tree.to_protobuf().is_ok());
    nest(tree.as_mut(), MAX_DEPTH);
    let error = validate(Tree::LAYOUT, tree.parts().0).unwrap_err();
    assert_eq!(
        (&*error.field, error.kind),
        ("left", ValidationErrorKind::TooDeep)
    );
    assert_eq!(
        tree.to_protobuf(),
        Err(EncodeError::TooDeep {
            message: "everything.Tree".into()
        })
    );
}
