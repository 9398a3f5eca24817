//! What a decoder of protobuf may take: a multiple of what came, asked for before it is taken.

mod common;

use std::alloc::System;

use common::counting::{Counting, most_in_use};
use common::{field, map, message_field, repeated, schema_of};
use starling_message::protobuf::{self, DecodeError, DecodeErrorKind, DecodeLimits};
use starling_message::schema::FieldSchema;
use starling_message::{Arena, Kind, Layouts};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// What an error, and an index of arrays, may take beside the message.
const ASIDE: usize = 4096;

/// `M0` of `fields`, and `M1`, which the fields may refer to, of 64-bit numbers.
fn layouts(fields: Vec<FieldSchema>, numbers: u32) -> Layouts {
    let numbers = (1..=numbers).map(|number| field(number, Kind::Fixed64));
    let schema = schema_of(vec![fields, numbers.collect()]);
    schema.layouts().unwrap()
}

/// Decodes an `M0`. The most memory in use, the bytes that the message takes, and how it ended.
fn decode(
    layouts: &Layouts,
    bytes: &[u8],
    limits: impl Into<DecodeLimits>,
) -> (isize, usize, Result<(), DecodeError>) {
    let layout = layouts.get(0).unwrap();
    let (most, (length, result)) = most_in_use(|| {
        let mut arena = Arena::begin(Vec::new(), layout);
        let result = protobuf::decode(layout, bytes, &mut arena, limits);
        (arena.message_len(), result)
    });
    (most, length, result)
}

/// A field of this number and wire type 2.
fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

#[test]
fn what_a_message_takes_is_in_proportion_to_what_came() {
    // Two bytes of each element become 8000.
    let layouts = layouts(vec![repeated(message_field(1, 1))], 1000);
    let bytes = delimited(1, &[]).repeat(10_000);
    let limits = DecodeLimits::default();
    let allowed = limits.spare_bytes + limits.factor * bytes.len();
    let (most, _, result) = decode(&layouts, &bytes, limits);
    let most = usize::try_from(most).unwrap();
    assert!(most <= allowed + 8 + ASIDE, "{most} of {allowed}");
    let error = result.unwrap_err();
    let DecodeErrorKind::OutOfProportion {
        encoded,
        allowed: stated,
    } = error.kind
    else {
        panic!("{error}");
    };
    assert_eq!((encoded, stated), (bytes.len(), allowed + 8));
    assert!(error.to_string().contains("raise `DecodeLimits::factor`"));

    // As a caller who expects such messages sets it.
    let more = DecodeLimits {
        factor: 8000,
        ..limits
    };
    let (_, length, result) = decode(&layouts, &bytes, more);
    assert_eq!((length, result), (8 + 10_000 * 8000, Ok(())));
}

#[test]
fn a_short_message_may_have_a_large_part() {
    let layouts = layouts(vec![message_field(1, 1)], 8000);
    let (_, length, result) = decode(&layouts, &delimited(1, &[]), DecodeLimits::default());
    assert_eq!((length, result), (8 + 64_000, Ok(())));
}

/// How many bytes of memory each byte of an honest message becomes.
fn growth(layouts: &Layouts, bytes: &[u8]) -> usize {
    let (_, length, result) = decode(layouts, bytes, DecodeLimits::default());
    assert_eq!(result, Ok(()));
    length / bytes.len()
}

#[test]
fn the_honest_messages_that_grow_most_pass() {
    const COUNT: usize = 50_000;
    // Nothing is set in elements of 512 bytes.
    let empty = layouts(vec![repeated(message_field(1, 1))], 64);
    assert!(growth(&empty, &delimited(1, &[]).repeat(COUNT)) >= 255);
    // A map to them: keys of one byte.
    let entry = vec![field(1, Kind::Bool), message_field(2, 2)];
    let numbers = (1..=64).map(|number| field(number, Kind::Fixed64));
    let schema = schema_of(vec![
        vec![map(message_field(1, 1))],
        entry,
        numbers.collect(),
    ]);
    let bytes = delimited(1, &[0x08, 0x01, 0x12, 0x00]).repeat(COUNT);
    growth(&schema.layouts().unwrap(), &bytes);
    // Small numbers, packed and not, and of two fields by turns, so that both arrays move.
    let lists = layouts(
        vec![
            repeated(field(1, Kind::Uint64)),
            repeated(field(2, Kind::Bool)),
        ],
        0,
    );
    growth(&lists, &delimited(1, &[1; COUNT]));
    growth(&lists, &[0x08, 1].repeat(COUNT));
    growth(&lists, &[0x08, 1, 0x10, 1].repeat(COUNT));
    growth(&lists, &delimited(2, &[1; COUNT]));
    // Texts of one byte, and elements of 64 bytes with such a text each, so that the array moves.
    let texts = layouts(vec![repeated(field(1, Kind::String))], 0);
    growth(&texts, &delimited(1, b"a").repeat(COUNT));
    let mut wide = schema_of(vec![vec![repeated(message_field(1, 1))], vec![]]);
    wide.messages[1].fields = (1..=8).map(|number| field(number, Kind::String)).collect();
    let bytes = delimited(1, &delimited(1, b"a")).repeat(COUNT);
    growth(&wide.layouts().unwrap(), &bytes);
}

#[test]
fn a_limit_is_checked_before_memory_is_taken() {
    const LIMIT: usize = 1 << 20;
    let refused = |layouts: &Layouts, bytes: &[u8]| {
        // However few bytes came.
        let limits = DecodeLimits {
            factor: usize::MAX,
            ..DecodeLimits::from(LIMIT)
        };
        let (most, _, result) = decode(layouts, bytes, limits);
        assert_eq!(result.unwrap_err().kind, DecodeErrorKind::TooLarge);
        assert!(most <= (LIMIT + ASIDE) as isize, "{most} of {LIMIT}");
    };
    // One element alone is larger.
    let wide = layouts(vec![repeated(message_field(1, 1))], 1 << 15);
    refused(&wide, &delimited(1, &[]).repeat(8));
    // The vector would double.
    let packed = layouts(vec![repeated(field(1, Kind::Uint64))], 0);
    refused(&packed, &delimited(1, &vec![1; 1 << 20]));
    // The array would double: other parts are behind it.
    let texts = layouts(vec![repeated(field(1, Kind::String))], 0);
    refused(&texts, &delimited(1, b"text").repeat(1 << 17));
    // One text alone is larger.
    refused(&texts, &delimited(1, &vec![b'a'; 1 << 20]));
}
