//! The memory of layouts made at run time: it goes with the last reference, and a hostile schema cannot
//! make it large.

mod common;

use std::alloc::System;
use std::thread;

use common::counting::{self, Counting};
use common::{field, message_field, schema_of, structs};
use starling_message::schema::{MAX_FIELDS, MAX_MESSAGES, Schema};
use starling_message::{Kind, validate};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Bytes that `made` keeps, and what it returns.
fn kept<T>(make: impl FnOnce() -> T) -> (isize, T) {
    let before = counting::in_use();
    let made = make();
    (counting::in_use() - before, made)
}

#[test]
fn layouts_go_with_the_last_reference() {
    let bytes = structs().to_bytes();
    let (left, ()) = kept(|| {
        let (taken, methods) = kept(|| {
            let schema = Schema::parse(&bytes).unwrap();
            schema.owned_methods().unwrap()
        });
        assert!(taken > 0);
        // Each method keeps the set. An error keeps its names, not the set.
        let (freed, last) = kept(|| methods.into_iter().last().unwrap());
        assert!(-freed < taken / 4, "{freed} of {taken}");
        let error = validate(last.request(), &[]).unwrap_err();
        let (freed, ()) = kept(|| drop(last));
        assert!(-freed > taken / 2, "{freed} of {taken}");
        assert_eq!(error.message, "s.Struct");
    });
    assert_eq!(left, 0);
}

#[test]
fn a_service_that_takes_schemas_and_lets_them_go_does_not_grow() {
    // In a thread of its own, whose count nothing else changes.
    let grown = thread::spawn(|| {
        let bytes = structs().to_bytes();
        let round = || {
            let layouts = Schema::parse(&bytes).unwrap().layouts().unwrap();
            let clone = layouts.clone();
            drop(layouts);
            assert_eq!(clone.iter().len(), 4);
        };
        round();
        kept(|| (0..1000).for_each(|_| round())).0
    });
    assert_eq!(grown.join().unwrap(), 0);
}

#[test]
fn the_largest_schemas_take_some_ten_megabytes() {
    let of_fields = |messages: usize, each: usize| {
        let fields = |index: usize| {
            let other = (index + 1) % messages;
            let field = |number| match number {
                1 => message_field(1, u32::try_from(other).unwrap()),
                _ => field(number, Kind::Bool),
            };
            (1..=u32::try_from(each).unwrap()).map(field).collect()
        };
        let mut schema = schema_of((0..messages).map(fields).collect());
        for field in schema.messages.iter_mut().flat_map(|m| &mut m.fields) {
            field.name = "f".to_owned();
        }
        schema
    };
    let largest = [
        of_fields(1, MAX_FIELDS),
        of_fields(MAX_MESSAGES, MAX_FIELDS / MAX_MESSAGES),
        of_fields(MAX_MESSAGES, 0),
    ];
    for bytes in largest.map(|schema| schema.to_bytes()) {
        let (parsed, schema) = kept(|| Schema::parse(&bytes).unwrap());
        let (made, layouts) = kept(|| schema.layouts().unwrap());
        assert!(parsed < 6 << 20, "{parsed}");
        assert!(made < 10 << 20, "{made}");
        drop(layouts);
    }
}
