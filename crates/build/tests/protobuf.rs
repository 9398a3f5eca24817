//! Protobuf encoding against prost, an independent implementation, on generated values.

mod support;

use std::collections::HashMap;

use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;
use starling_message::protobuf::DecodeErrorKind;
use starling_message::{Arena, Message, validate};
use support::everything as ours;

/// The messages of `everything.proto` in prost's form.
mod theirs {
    use std::collections::HashMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Scalars {
        #[prost(double, tag = "1")]
        pub(crate) f_double: f64,
        #[prost(float, tag = "2")]
        pub(crate) f_float: f32,
        #[prost(int32, tag = "3")]
        pub(crate) f_int32: i32,
        #[prost(int64, tag = "4")]
        pub(crate) f_int64: i64,
        #[prost(uint32, tag = "5")]
        pub(crate) f_uint32: u32,
        #[prost(uint64, tag = "6")]
        pub(crate) f_uint64: u64,
        #[prost(sint32, tag = "7")]
        pub(crate) f_sint32: i32,
        #[prost(sint64, tag = "8")]
        pub(crate) f_sint64: i64,
        #[prost(fixed32, tag = "9")]
        pub(crate) f_fixed32: u32,
        #[prost(fixed64, tag = "10")]
        pub(crate) f_fixed64: u64,
        #[prost(sfixed32, tag = "11")]
        pub(crate) f_sfixed32: i32,
        #[prost(sfixed64, tag = "12")]
        pub(crate) f_sfixed64: i64,
        #[prost(bool, tag = "13")]
        pub(crate) f_bool: bool,
        #[prost(string, tag = "14")]
        pub(crate) f_string: String,
        #[prost(bytes = "vec", tag = "15")]
        pub(crate) f_bytes: Vec<u8>,
        #[prost(int32, tag = "16")]
        pub(crate) f_color: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Optionals {
        #[prost(double, optional, tag = "1")]
        pub(crate) f_double: Option<f64>,
        #[prost(int32, optional, tag = "3")]
        pub(crate) f_int32: Option<i32>,
        #[prost(sint64, optional, tag = "8")]
        pub(crate) f_sint64: Option<i64>,
        #[prost(bool, optional, tag = "13")]
        pub(crate) f_bool: Option<bool>,
        #[prost(string, optional, tag = "14")]
        pub(crate) f_string: Option<String>,
        #[prost(bytes = "vec", optional, tag = "15")]
        pub(crate) f_bytes: Option<Vec<u8>>,
        #[prost(message, optional, tag = "17")]
        pub(crate) f_scalars: Option<Scalars>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Lists {
        #[prost(double, repeated, tag = "1")]
        pub(crate) f_double: Vec<f64>,
        #[prost(int32, repeated, tag = "3")]
        pub(crate) f_int32: Vec<i32>,
        #[prost(sint32, repeated, packed = "false", tag = "7")]
        pub(crate) f_sint32: Vec<i32>,
        #[prost(fixed64, repeated, tag = "10")]
        pub(crate) f_fixed64: Vec<u64>,
        #[prost(bool, repeated, tag = "13")]
        pub(crate) f_bool: Vec<bool>,
        #[prost(string, repeated, tag = "14")]
        pub(crate) f_string: Vec<String>,
        #[prost(bytes = "vec", repeated, tag = "15")]
        pub(crate) f_bytes: Vec<Vec<u8>>,
        #[prost(message, repeated, tag = "17")]
        pub(crate) f_scalars: Vec<Scalars>,
        #[prost(int32, repeated, packed = "false", tag = "18")]
        pub(crate) f_unpacked: Vec<i32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Maps {
        #[prost(map = "string, int32", tag = "1")]
        pub(crate) text_to_number: HashMap<String, i32>,
        #[prost(map = "int64, bytes", tag = "2")]
        pub(crate) number_to_bytes: HashMap<i64, Vec<u8>>,
        #[prost(map = "bool, message", tag = "3")]
        pub(crate) bool_to_message: HashMap<bool, Scalars>,
        #[prost(map = "sint64, double", tag = "5")]
        pub(crate) number_to_double: HashMap<i64, f64>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Choice {
        #[prost(int32, tag = "1")]
        Number(i32),
        #[prost(string, tag = "3")]
        Text(String),
        #[prost(bytes, tag = "4")]
        Data(Vec<u8>),
        #[prost(message, tag = "5")]
        Inner(Box<Choices>),
        #[prost(int32, tag = "6")]
        Color(i32),
        #[prost(bool, tag = "200")]
        Flag(bool),
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Small {
        #[prost(bool, tag = "7")]
        Yes(bool),
        #[prost(fixed32, tag = "8")]
        Maybe(u32),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Choices {
        #[prost(oneof = "Choice", tags = "1, 3, 4, 5, 6, 200")]
        pub(crate) choice: Option<Choice>,
        #[prost(oneof = "Small", tags = "7, 8")]
        pub(crate) small: Option<Small>,
        #[prost(uint32, tag = "2")]
        pub(crate) between: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Tree {
        #[prost(uint64, tag = "1")]
        pub(crate) value: u64,
        #[prost(message, optional, boxed, tag = "2")]
        pub(crate) left: Option<Box<Tree>>,
        #[prost(message, repeated, tag = "4")]
        pub(crate) others: Vec<Tree>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Everything {
        #[prost(message, optional, tag = "1")]
        pub(crate) scalars: Option<Scalars>,
        #[prost(message, optional, tag = "2")]
        pub(crate) optionals: Option<Optionals>,
        #[prost(message, optional, tag = "3")]
        pub(crate) lists: Option<Lists>,
        #[prost(message, optional, tag = "4")]
        pub(crate) maps: Option<Maps>,
        #[prost(message, optional, tag = "5")]
        pub(crate) choices: Option<Choices>,
        #[prost(message, optional, tag = "6")]
        pub(crate) tree: Option<Tree>,
    }
}

use theirs::{Choice, Small};

/// Finite numbers, which are equal to themselves.
fn double() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), -1e300..1e300f64]
}

fn scalars() -> impl Strategy<Value = theirs::Scalars> {
    let numbers = (
        any::<(i32, i64, u32, u64)>(),
        any::<(i32, i64, u32, u64)>(),
        any::<(i32, i64)>(),
    );
    let others = (
        double(),
        -1e30..1e30f32,
        any::<bool>(),
        any::<String>(),
        any::<Vec<u8>>(),
    );
    (numbers, others, any::<i32>()).prop_map(|((a, b, c), d, f_color)| theirs::Scalars {
        f_int32: a.0,
        f_int64: a.1,
        f_uint32: a.2,
        f_uint64: a.3,
        f_sint32: b.0,
        f_sint64: b.1,
        f_fixed32: b.2,
        f_fixed64: b.3,
        f_sfixed32: c.0,
        f_sfixed64: c.1,
        f_double: d.0,
        f_float: d.1,
        f_bool: d.2,
        f_string: d.3,
        f_bytes: d.4,
        f_color,
    })
}

prop_compose! {
    fn optionals()(
        f_double in option::of(double()),
        f_int32 in any::<Option<i32>>(),
        f_sint64 in any::<Option<i64>>(),
        f_bool in any::<Option<bool>>(),
        f_string in any::<Option<String>>(),
        f_bytes in any::<Option<Vec<u8>>>(),
        f_scalars in option::of(scalars()),
    ) -> theirs::Optionals {
        theirs::Optionals { f_double, f_int32, f_sint64, f_bool, f_string, f_bytes, f_scalars }
    }
}

prop_compose! {
    fn lists()(
        f_double in vec(double(), 0..5),
        f_int32 in vec(any::<i32>(), 0..5),
        f_sint32 in vec(any::<i32>(), 0..5),
        f_fixed64 in vec(any::<u64>(), 0..5),
        f_bool in vec(any::<bool>(), 0..5),
        f_string in vec(any::<String>(), 0..5),
        f_bytes in vec(vec(any::<u8>(), 0..9), 0..5),
        f_scalars in vec(scalars(), 0..3),
        f_unpacked in vec(any::<i32>(), 0..5),
    ) -> theirs::Lists {
        theirs::Lists {
            f_double, f_int32, f_sint32, f_fixed64, f_bool, f_string, f_bytes, f_scalars, f_unpacked,
        }
    }
}

prop_compose! {
    fn maps()(
        text_to_number in hash_map(any::<String>(), any::<i32>(), 0..5),
        number_to_bytes in hash_map(any::<i64>(), vec(any::<u8>(), 0..9), 0..5),
        bool_to_message in hash_map(any::<bool>(), scalars(), 0..3),
        number_to_double in hash_map(any::<i64>(), double(), 0..5),
    ) -> theirs::Maps {
        theirs::Maps { text_to_number, number_to_bytes, bool_to_message, number_to_double }
    }
}

fn choices() -> impl Strategy<Value = theirs::Choices> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(Choice::Number),
        any::<String>().prop_map(Choice::Text),
        any::<Vec<u8>>().prop_map(Choice::Data),
        any::<i32>().prop_map(Choice::Color),
        any::<bool>().prop_map(Choice::Flag),
    ];
    let small = prop_oneof![
        any::<bool>().prop_map(Small::Yes),
        any::<u32>().prop_map(Small::Maybe)
    ];
    let leaf =
        (option::of(leaf), option::of(small), any::<u32>()).prop_map(|(choice, small, between)| {
            theirs::Choices {
                choice,
                small,
                between,
            }
        });
    leaf.prop_recursive(4, 8, 1, |inner| {
        inner.prop_map(|inner| theirs::Choices {
            choice: Some(Choice::Inner(Box::new(inner))),
            small: None,
            between: 0,
        })
    })
}

fn tree() -> impl Strategy<Value = theirs::Tree> {
    let leaf = any::<u64>().prop_map(|value| theirs::Tree {
        value,
        left: None,
        others: vec![],
    });
    leaf.prop_recursive(5, 20, 3, |inner| {
        (any::<u64>(), option::of(inner.clone()), vec(inner, 0..3)).prop_map(
            |(value, left, others)| theirs::Tree {
                value,
                left: left.map(Box::new),
                others,
            },
        )
    })
}

prop_compose! {
    fn everything()(
        scalars in option::of(scalars()),
        optionals in option::of(optionals()),
        lists in option::of(lists()),
        maps in option::of(maps()),
        choices in option::of(choices()),
        tree in option::of(tree()),
    ) -> theirs::Everything {
        theirs::Everything { scalars, optionals, lists, maps, choices, tree }
    }
}

fn same_scalars(view: ours::ScalarsView<'_>, theirs: &theirs::Scalars) {
    assert_eq!(view.f_double(), theirs.f_double);
    assert_eq!(view.f_float(), theirs.f_float);
    assert_eq!(view.f_int32(), theirs.f_int32);
    assert_eq!(view.f_int64(), theirs.f_int64);
    assert_eq!(view.f_uint32(), theirs.f_uint32);
    assert_eq!(view.f_uint64(), theirs.f_uint64);
    assert_eq!(view.f_sint32(), theirs.f_sint32);
    assert_eq!(view.f_sint64(), theirs.f_sint64);
    assert_eq!(view.f_fixed32(), theirs.f_fixed32);
    assert_eq!(view.f_fixed64(), theirs.f_fixed64);
    assert_eq!(view.f_sfixed32(), theirs.f_sfixed32);
    assert_eq!(view.f_sfixed64(), theirs.f_sfixed64);
    assert_eq!(view.f_bool(), theirs.f_bool);
    assert_eq!(view.f_string(), theirs.f_string);
    assert_eq!(view.f_bytes(), theirs.f_bytes);
    assert_eq!(view.f_color().0, theirs.f_color);
}

fn same_lists(view: ours::ListsView<'_>, theirs: &theirs::Lists) {
    assert!(view.f_double().iter().eq(theirs.f_double.iter().copied()));
    assert!(view.f_int32().iter().eq(theirs.f_int32.iter().copied()));
    assert!(view.f_sint32().iter().eq(theirs.f_sint32.iter().copied()));
    assert!(view.f_fixed64().iter().eq(theirs.f_fixed64.iter().copied()));
    assert!(view.f_bool().iter().eq(theirs.f_bool.iter().copied()));
    assert!(view.f_string().iter().eq(theirs.f_string.iter()));
    assert!(view.f_bytes().iter().eq(theirs.f_bytes.iter()));
    assert!(
        view.f_unpacked()
            .iter()
            .eq(theirs.f_unpacked.iter().copied())
    );
    assert_eq!(view.f_scalars().len(), theirs.f_scalars.len());
    view.f_scalars()
        .iter()
        .zip(&theirs.f_scalars)
        .for_each(|(a, b)| same_scalars(a, b));
}

fn same_maps(view: ours::MapsView<'_>, theirs: &theirs::Maps) {
    let text = view.text_to_number().iter().map(|(k, v)| (k.to_owned(), v));
    assert_eq!(text.collect::<HashMap<_, _>>(), theirs.text_to_number);
    let bytes = view
        .number_to_bytes()
        .iter()
        .map(|(k, v)| (k, v.to_owned()));
    assert_eq!(bytes.collect::<HashMap<_, _>>(), theirs.number_to_bytes);
    assert_eq!(
        view.number_to_double().iter().collect::<HashMap<_, _>>(),
        theirs.number_to_double
    );
    assert_eq!(view.bool_to_message().len(), theirs.bool_to_message.len());
    for (key, value) in &theirs.bool_to_message {
        same_scalars(view.bool_to_message().get(*key).unwrap(), value);
    }
}

fn same_choices(view: ours::ChoicesView<'_>, theirs: &theirs::Choices) {
    assert_eq!(view.between(), theirs.between);
    match (view.small(), &theirs.small) {
        (None, None) => {}
        (Some(ours::ChoicesSmall::Yes(a)), Some(Small::Yes(b))) => assert_eq!(a, *b),
        (Some(ours::ChoicesSmall::Maybe(a)), Some(Small::Maybe(b))) => assert_eq!(a, *b),
        (a, b) => panic!("{a:?} is not {b:?}"),
    }
    match (view.choice(), &theirs.choice) {
        (None, None) => {}
        (Some(ours::ChoicesChoice::Number(a)), Some(Choice::Number(b))) => assert_eq!(a, *b),
        (Some(ours::ChoicesChoice::Text(a)), Some(Choice::Text(b))) => assert_eq!(a, b),
        (Some(ours::ChoicesChoice::Data(a)), Some(Choice::Data(b))) => assert_eq!(a, b),
        (Some(ours::ChoicesChoice::Color(a)), Some(Choice::Color(b))) => assert_eq!(a.0, *b),
        (Some(ours::ChoicesChoice::Flag(a)), Some(Choice::Flag(b))) => assert_eq!(a, *b),
        (Some(ours::ChoicesChoice::Inner(a)), Some(Choice::Inner(b))) => same_choices(a, b),
        (a, b) => panic!("{a:?} is not {b:?}"),
    }
}

fn same_tree(view: ours::TreeView<'_>, theirs: &theirs::Tree) {
    assert_eq!(view.value(), theirs.value);
    assert_eq!(view.has_left(), theirs.left.is_some());
    if let Some(left) = &theirs.left {
        same_tree(view.left(), left);
    }
    assert_eq!(view.others().len(), theirs.others.len());
    view.others()
        .iter()
        .zip(&theirs.others)
        .for_each(|(a, b)| same_tree(a, b));
}

fn same(view: ours::EverythingView<'_>, theirs: &theirs::Everything) {
    assert_eq!(view.has_scalars(), theirs.scalars.is_some());
    same_scalars(
        view.scalars(),
        theirs.scalars.as_ref().unwrap_or(&Default::default()),
    );
    same_lists(
        view.lists(),
        theirs.lists.as_ref().unwrap_or(&Default::default()),
    );
    same_maps(
        view.maps(),
        theirs.maps.as_ref().unwrap_or(&Default::default()),
    );
    same_choices(
        view.choices(),
        theirs.choices.as_ref().unwrap_or(&Default::default()),
    );
    same_tree(
        view.tree(),
        theirs.tree.as_ref().unwrap_or(&Default::default()),
    );
    let (a, b) = (
        view.optionals(),
        theirs.optionals.clone().unwrap_or_default(),
    );
    assert_eq!(a.f_double_opt(), b.f_double);
    assert_eq!(a.f_int32_opt(), b.f_int32);
    assert_eq!(a.f_sint64_opt(), b.f_sint64);
    assert_eq!(a.f_bool_opt(), b.f_bool);
    assert_eq!(a.f_string_opt(), b.f_string.as_deref());
    assert_eq!(a.f_bytes_opt(), b.f_bytes.as_deref());
    assert_eq!(a.has_f_scalars(), b.f_scalars.is_some());
    same_scalars(a.f_scalars(), &b.f_scalars.unwrap_or_default());
}

const LIMIT: usize = 1 << 24;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn prost_and_we_read_each_other(value in everything()) {
        let message = ours::Everything::from_protobuf(&value.encode_to_vec(), LIMIT).unwrap();
        same(message.view(), &value);
        let back = theirs::Everything::decode(&message.to_protobuf().unwrap()[..]).unwrap();
        prop_assert_eq!(&back, &value);
        // The result of decoding is a valid message, and so is a copy of it.
        let head = message.parts().0;
        prop_assert!(validate(ours::Everything::LAYOUT, head).is_ok());
        let copy = message.view().to_owned();
        prop_assert!(validate(ours::Everything::LAYOUT, copy.parts().0).is_ok());
        prop_assert_eq!(copy, message);
    }

    #[test]
    fn concatenated_encodings_merge_as_in_prost(a in everything(), b in everything()) {
        let bytes = [a.encode_to_vec(), b.encode_to_vec()].concat();
        let merged = theirs::Everything::decode(&bytes[..]).unwrap();
        let message = ours::Everything::from_protobuf(&bytes, LIMIT).unwrap();
        // A merged map may hold a key twice, and the last one counts; prost's map holds one.
        let ours = theirs::Everything::decode(&message.to_protobuf().unwrap()[..]).unwrap();
        prop_assert_eq!(ours, merged);
    }

    #[test]
    fn unknown_fields_are_skipped(value in everything()) {
        // A tree has only the fields 1 to 5; text is number 14 in both of these.
        let known = theirs::Scalars { f_string: "kept".to_owned(), ..Default::default() };
        let mut bytes = theirs::Lists { f_string: vec!["x".to_owned()], ..Default::default() }
            .encode_to_vec();
        bytes.extend(known.encode_to_vec());
        let tree = value.tree.clone().unwrap_or_default();
        bytes.extend(theirs::Tree { left: None, others: vec![], ..tree.clone() }.encode_to_vec());
        let message = ours::Tree::from_protobuf(&bytes, LIMIT).unwrap();
        prop_assert_eq!(message.value(), tree.value);
    }

    #[test]
    fn a_truncated_encoding_never_panics(value in everything(), cut in any::<prop::sample::Index>()) {
        let bytes = value.encode_to_vec();
        let cut = cut.index(bytes.len() + 1);
        let theirs = theirs::Everything::decode(&bytes[..cut]);
        let ours = ours::Everything::from_protobuf(&bytes[..cut], LIMIT);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
    }
}

fn kind_of<M: Message>(bytes: &[u8]) -> DecodeErrorKind {
    M::from_protobuf(bytes, LIMIT).unwrap_err().kind
}

#[test]
fn hostile_encodings_get_typed_errors() {
    assert_eq!(kind_of::<ours::Tree>(&[0x08]), DecodeErrorKind::Truncated);
    assert_eq!(
        kind_of::<ours::Tree>(&[0x12, 0x05, 0]),
        DecodeErrorKind::Truncated
    );
    assert_eq!(
        kind_of::<ours::Tree>(&[&[0x08][..], &[0xff; 10]].concat()),
        DecodeErrorKind::Varint
    );
    assert_eq!(kind_of::<ours::Tree>(&[0x00]), DecodeErrorKind::Tag);
    assert_eq!(kind_of::<ours::Tree>(&[0x0e]), DecodeErrorKind::Tag);
    assert_eq!(
        kind_of::<ours::Tree>(&[0x0d, 0, 0, 0, 0]),
        DecodeErrorKind::WireType
    );
    assert_eq!(kind_of::<ours::Tree>(&[0x7c]), DecodeErrorKind::Group);
    assert_eq!(
        kind_of::<ours::Scalars>(&[0x72, 1, 0xff]),
        DecodeErrorKind::Utf8
    );
    let mut nested = vec![];
    for _ in 0..64 {
        nested = theirs_left(&nested);
    }
    assert_eq!(kind_of::<ours::Tree>(&nested), DecodeErrorKind::TooDeep);
    // Unknown groups nest no deeper than messages.
    assert_eq!(
        kind_of::<ours::Tree>(&[0x7b; 1000]),
        DecodeErrorKind::TooDeep
    );
}

/// A tree whose left branch is this encoding.
fn theirs_left(inner: &[u8]) -> Vec<u8> {
    let mut out = vec![0x12];
    prost::encoding::encode_varint(inner.len() as u64, &mut out);
    out.extend_from_slice(inner);
    out
}

#[test]
fn an_error_has_its_offset_and_its_field() {
    let bytes = [theirs_left(&[]), theirs_left(&[0x08, 0x80])].concat();
    let error = ours::Tree::from_protobuf(&bytes, LIMIT).unwrap_err();
    assert_eq!(
        (&*error.message, error.number, error.offset),
        ("everything.Tree", 1, 5)
    );
    assert_eq!(
        error.to_string(),
        "invalid protobuf: everything.Tree field 1 before byte 5: truncated"
    );
}

#[test]
fn memory_is_bounded_by_the_limit() {
    // Two bytes of input become an element of dozens of bytes.
    let bytes = [0x22, 0].repeat(1 << 16);
    let mut arena = Arena::begin(Vec::new(), ours::Tree::LAYOUT);
    let result =
        starling_message::protobuf::decode(ours::Tree::LAYOUT, &bytes, &mut arena, 1 << 16);
    assert_eq!(result.unwrap_err().kind, DecodeErrorKind::TooLarge);
    assert!(arena.message_len() < 4 << 16);

    // One byte of a packed field becomes an element of eight.
    let mut bytes = vec![0x22];
    prost::encoding::encode_varint(1 << 16, &mut bytes);
    bytes.resize(bytes.len() + (1 << 16), 1);
    let layout = ours::Lists::LAYOUT;
    let mut arena = Arena::begin(Vec::new(), layout);
    let result = starling_message::protobuf::decode(layout, &bytes, &mut arena, 1 << 16);
    assert_eq!(result.unwrap_err().kind, DecodeErrorKind::TooLarge);
    assert!(arena.message_len() < 2 << 16);
}

#[test]
fn groups_are_skipped() {
    // Field 15 as a group that holds field 1; then field 1 of ours.
    let bytes = [0x7b, 0x08, 0x05, 0x7c, 0x08, 0x07];
    assert_eq!(ours::Tree::from_protobuf(&bytes, LIMIT).unwrap().value(), 7);
}
