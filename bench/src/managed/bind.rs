//! What it takes a service to learn a method whose requests policies look into: the schema of its server is decoded,
//! checked, and made into layouts, by which a condition is compiled. One that is known is only found again.

use std::hint::black_box;
use std::time::Instant;

use starling_message::schema::{FieldSchema, MessageSchema, MethodSchema, Schema};
use starling_message::{Kind, Shape};
use starling_service::{PolicySpec, Schemas};

use super::MANAGED;
use crate::benchmark::{Benchmark, Context};
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};

/// Messages of the schema, each with so many fields, and in the next one.
const MESSAGES: u32 = 50;
const FIELDS: u32 = 10;
const PATH: &str = "/bind.Deep/Call";
/// Descriptions in one measurement.
const ROUNDS: usize = 200;

/// The condition that is compiled for it.
const POLICY: &str = r#"{"name": "deep", "kind": "access-control", "for": {"methods": ["bind.Deep/Call"]},
    "settings": {"deny": "request.child.child.child.text1 == 'x' || request.text1 in ['a', 'b']"}}"#;

pub(super) fn benchmarks() -> [Benchmark; 2] {
    let of = |case: &str, is_known: bool| {
        Benchmark::new("memory", MANAGED, case, move |context| {
            measure(context, is_known)
        })
    };
    [of("bind unseen", false), of("bind known", true)]
}

/// A method whose messages have these names of fields.
fn schema(suffix: &str) -> Vec<u8> {
    let text = |number: u32| FieldSchema {
        name: format!("text{number}{suffix}"),
        number,
        kind: Kind::String,
        shape: Shape::Singular,
        optional: false,
        oneof: None,
        message: None,
    };
    let message = |index: u32| {
        let child = FieldSchema {
            name: "child".to_owned(),
            kind: Kind::Message,
            message: Some(index + 1),
            ..text(FIELDS)
        };
        let is_last = index + 1 == MESSAGES;
        let last = if is_last { text(FIELDS) } else { child };
        MessageSchema {
            name: format!("bind.Message{index}"),
            fields: (1..FIELDS).map(text).chain([last]).collect(),
        }
    };
    let schema = Schema {
        messages: (0..MESSAGES).map(message).collect(),
        methods: vec![MethodSchema {
            path: PATH.to_owned(),
            client_streaming: false,
            server_streaming: false,
            request: 0,
            response: 0,
        }],
    };
    schema.to_bytes()
}

fn measure(_: &Context, is_known: bool) -> Result<Sample, BenchError> {
    let schemas = Schemas::default();
    let engine = PolicySpec::parse(POLICY)
        .map_err(failed)?
        .build()
        .map_err(failed)?;
    let [one, other] = ["", "x"].map(schema);
    let mut times_ns = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        // The other one takes its place, so that it is not known.
        let before = if is_known { &one } else { &other };
        schemas.describe(PATH, before).map_err(failed)?;
        let begun = Instant::now();
        let method = schemas.describe(PATH, black_box(&one)).map_err(failed)?;
        if !is_known {
            engine.check_method(&method).map_err(failed)?;
        }
        times_ns.push(begun.elapsed().as_nanos() as f64);
    }
    times_ns.sort_by(f64::total_cmp);
    Ok(vec![(Metric::Cost, times_ns[ROUNDS / 2])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_so_many_messages_and_the_policy_fits() {
        let parsed = Schema::parse(&schema("")).expect("a schema");
        assert_eq!(parsed.messages.len(), MESSAGES as usize);
        let schemas = Schemas::default();
        let method = schemas.describe(PATH, &schema("")).expect("a method");
        let engine = PolicySpec::parse(POLICY).and_then(|spec| spec.build());
        let checked = engine.expect("a policy").check_method(&method);
        assert_eq!(checked, Ok(()));
    }
}
