use starling_call::Metadata;
use starling_message::{FieldChecks, Reader};

use super::*;
use crate::schema::PolicyMethod;
use crate::schema::testing::{double, int, method, request, text};

fn compile(condition: &str, method: &PolicyMethod) -> Result<Test, ExpressionError> {
    Ast::parse(condition)?.compile(method.request(), &mut Vec::new())
}

/// Whether a condition holds of a request.
fn holds(condition: &str, fields: &[Vec<u8>]) -> bool {
    let method = method();
    let request = request(&method, fields);
    let mut metadata = Metadata::new();
    metadata.insert("tenant", "blue").expect("a pair");
    let test = compile(condition, &method).unwrap_or_else(|error| panic!("{condition}: {error}"));
    test.holds(&Subject {
        method: &method,
        reader: Reader::root(&request),
        metadata: &metadata,
    })
}

fn full() -> Vec<Vec<u8>> {
    let guest = [text(1, "Ann"), int(2, 30), text(3, b"\xff\x00")].concat();
    vec![
        text(1, "Mallory"),
        text(2, "ritz"),
        text(2, "plaza"),
        int(3, (-7i64) as u64),
        double(4, 99.5),
        int(5, 1),
        text(6, guest),
        text(7, [1, 2, 200, 1]),
        int(8, u64::MAX),
        int(10, 12),
    ]
}

#[test]
fn conditions_are_about_values() {
    let fields = full();
    for condition in [
        "request.customerName == 'Mallory'",
        "request.customerName != \"mallory\"",
        "request.customerName in ['Trudy', 'Mallory']",
        "!(request.customerName in ['Trudy'])",
        "request.customerName.startsWith('Mal') && request.customerName.endsWith(\"ory\")",
        "request.customerName.contains('llo')",
        "request.customerName >= 'Mall' && request.customerName < 'Mb'",
        "size(request.customerName) == 7 && request.customerName.size() == 7",
        "'plaza' in request.hotelId && !('hilton' in request.hotelId)",
        "size(request.hotelId) == 2",
        "request.roomNumber == -7 && request.roomNumber < 0",
        "request.roomNumber in [1, -7, 0x10]",
        "request.price > 99 && request.price <= 99.5 && 100 > request.price",
        "request.price in [1, 99.5]",
        "request.vip && request.vip == true && !(request.vip != true)",
        "request.guest.name == 'Ann' && request.guest.age == 30u",
        "request.guest.key == b'\\xff\\x00' && request.guest.key.startsWith(b\"\\xff\")",
        "request.guest.friend.friend.name == ''",
        "has(request.guest) && !has(request.guest.friend) && !has(request.guest.friend.name)",
        "200 in request.ratings && !(3 in request.ratings) && size(request.ratings) == 3",
        "request.total == 18446744073709551615 && request.total > request.roomNumber",
        "request.cash == 12 && request.card == '' && has(request.cash) && !has(request.card)",
        "metadata['tenant'] == 'blue' && metadata['x'] == '' && 'tenant' in metadata",
        "has(metadata['tenant']) && !has(metadata['x'])",
        "false || true && !false",
        "!!true",
        "(true || false) && true",
        "1 == 1 && 1.5 < 2 && 'a' == '\\x61' && b'a' == b\"a\"",
    ] {
        assert!(holds(condition, &fields), "{condition}");
    }
    for condition in [
        "request.customerName == 'mallory'",
        "request.vip && request.roomNumber > 0",
        "true && false || false",
        "1.5 in [2]",
        "request.price > 100",
    ] {
        assert!(!holds(condition, &fields), "{condition}");
    }
}

#[test]
fn what_is_not_there_has_the_default_of_its_type() {
    let all = "request.customerName == '' && request.roomNumber == 0 && request.price == 0 && !request.vip && \
        request.guest.age == 0 && size(request.hotelId) == 0 && !has(request.guest) && request.cash == 0 && \
        !(0 in request.ratings) && request.guest.key == b'' && !has(request.customerName)";
    assert!(holds(all, &[]));
}

/// What is no condition, where, and why.
const WRONG: &[(&str, usize, &str)] = &[
    ("", 1, "the text ends, where a value"),
    ("request.vip &&", 15, "the text ends"),
    ("request.vip & true", 13, "write `&&`"),
    ("request.vip | true", 13, "write `||`"),
    ("request.vip = true", 13, "write `==`"),
    ("request.vip true", 13, "`true` is here, where an operator"),
    ("request", 8, "`.` and a field"),
    ("name == 1", 1, "`name` is not known"),
    (
        "request.none",
        1,
        "hotel.Request has no field none: it has customerName, hotelId",
    ),
    ("request.guest.none", 1, "hotel.Guest has no field none"),
    (
        "request.customerName.x == 1",
        1,
        "is no message, and has no x",
    ),
    (
        "request.others.name == ''",
        1,
        "hotel.Request.others is no message",
    ),
    (
        "request.customerName == 1",
        1,
        "a string cannot be compared with an integer",
    ),
    ("request.vip > false", 1, "bools have no order"),
    (
        "request.roomNumber == 1.5",
        1,
        "an integer cannot be compared with a float",
    ),
    (
        "request.customerName",
        1,
        "a string is here, where a bool is expected",
    ),
    (
        "request.guest == 1",
        1,
        "a message cannot be compared with an integer",
    ),
    (
        "request.customerName in ['a', 1]",
        31,
        "something else than a string",
    ),
    (
        "1 in request.hotelId",
        6,
        "an integer cannot be in a repeated field",
    ),
    (
        "request.customerName.lower() == ''",
        22,
        "there is no such function",
    ),
    (
        "request.guest.key.contains(b'a')",
        1,
        "bytes cannot be found in bytes",
    ),
    ("size(request.vip) == 1", 6, "a bool has no size"),
    ("has(1)", 5, "has(..) takes"),
    ("'abc", 1, "the text does not end"),
    ("'\\q' == ''", 2, "there is no such escape"),
    ("'\\xff' == ''", 1, "it is no UTF-8"),
    ("1x == 1", 1, "\"1x\" is no number"),
    ("99999999999999999999999 == 1", 1, "is no number"),
    ("# == 1", 1, "'#' has no meaning here"),
    ("- request.roomNumber == 1", 3, "where a number is expected"),
    ("metadata[1] == ''", 10, "a key in quotes"),
    ("metadata == ''", 1, "all metadata cannot be compared"),
    ("metadata['Tenant'] == ''", 1, "metadata[\"Tenant\"]: "),
    ("has(metadata['Tenant'])", 5, "metadata[\"Tenant\"]: "),
    ("'Tenant' in metadata", 1, "metadata[\"Tenant\"]: "),
];

#[test]
fn what_is_no_condition_is_refused_with_its_place() {
    let method = method();
    for (condition, at, problem) in WRONG {
        let error = compile(condition, &method).expect_err(condition);
        assert!(error.problem.contains(problem), "{condition}: {error}");
        assert_eq!(error.at, *at, "{condition}: {error}");
    }
}

#[test]
fn length_and_depth_are_bounded() {
    let deep = format!("{}true{}", "(".repeat(10_000), ")".repeat(10_000));
    let lists = format!("1 in {}", "[".repeat(10_000));
    let long = format!("'{}' == ''", "a".repeat(MAX_BYTES));
    for (condition, problem) in [
        (deep, "nested more than"),
        (lists, "nested more than"),
        (long, "more than 256 KiB"),
    ] {
        let error = Ast::parse(&condition).expect_err(problem);
        assert!(error.problem.contains(problem), "{error}");
    }
    let many = format!("{}true", "!".repeat(10_001));
    assert!(!holds(&many, &[]));
    let names: Vec<_> = (0..10_000).map(|n| format!("'name-{n}'")).collect();
    let list = format!("request.customerName in [{},]", names.join(","));
    assert!(holds(&list, &[text(1, "name-9999")]) && !holds(&list, &[text(1, "name")]));
}

#[test]
fn random_texts_are_refused_or_evaluated() {
    let method = method();
    bolero::check!()
        .with_type::<(String, Vec<u8>)>()
        .for_each(|(condition, bytes)| {
            let mut fields = Vec::new();
            let compiled =
                Ast::parse(condition).and_then(|it| it.compile(method.request(), &mut fields));
            let Ok(test) = compiled else {
                return;
            };
            // Any bytes of which the fields are sound that it reads, or none.
            let checks = FieldChecks::new(method.request(), &fields);
            let sound = checks.validate(method.request(), bytes).is_ok();
            let bytes = if sound { bytes.as_slice() } else { &[] };
            let of = &Subject {
                method: &method,
                reader: Reader::root(bytes),
                metadata: &Metadata::new(),
            };
            assert_eq!(test.holds(of), test.holds(of));
        });
}

#[test]
fn random_words_are_refused_or_evaluated() {
    const WORDS: [&str; 24] = [
        "request",
        ".",
        "customerName",
        "guest",
        "name",
        "vip",
        "(",
        ")",
        "[",
        "]",
        "&&",
        "||",
        "!",
        "==",
        "<",
        "in",
        "has",
        "size",
        "'a'",
        "1",
        "2.5",
        "-",
        "metadata",
        ",",
    ];
    let method = method();
    let request = request(&method, &full());
    bolero::check!().with_type::<Vec<u8>>().for_each(|picks| {
        let words = picks.iter().map(|pick| WORDS[*pick as usize % WORDS.len()]);
        let condition = words.collect::<Vec<_>>().join(" ");
        if let Ok(test) = compile(&condition, &method) {
            let of = &Subject {
                method: &method,
                reader: Reader::root(&request),
                metadata: &Metadata::new(),
            };
            assert_eq!(test.holds(of), test.holds(of));
        }
    });
}
