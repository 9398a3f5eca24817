use std::time::{self, SystemTime, UNIX_EPOCH};

use super::*;

fn at(seconds: i64, nanos: i32) -> Timestamp {
    let mut timestamp = Timestamp::new();
    timestamp.set_seconds(seconds);
    timestamp.set_nanos(nanos);
    timestamp
}

fn lasting(seconds: i64, nanos: i32) -> Duration {
    let mut duration = Duration::new();
    duration.set_seconds(seconds);
    duration.set_nanos(nanos);
    duration
}

#[test]
fn timestamps_convert_both_ways_before_and_after_1970() {
    let half = time::Duration::from_millis(500);
    let cases = [
        (UNIX_EPOCH, (0, 0)),
        (UNIX_EPOCH + time::Duration::new(5, 7), (5, 7)),
        (UNIX_EPOCH - time::Duration::from_secs(3), (-3, 0)),
        // Nanoseconds count forward: half a second before 1970 is second -1 and a half.
        (UNIX_EPOCH - half, (-1, 500_000_000)),
        (
            UNIX_EPOCH - time::Duration::from_secs(2) - half,
            (-3, 500_000_000),
        ),
    ];
    for (time, (seconds, nanos)) in cases {
        let timestamp = Timestamp::try_from(time).expect("within the years 1 to 9999");
        assert_eq!((timestamp.seconds(), timestamp.nanos()), (seconds, nanos));
        assert_eq!(SystemTime::try_from(timestamp.view()), Ok(time));
    }
}

#[test]
fn timestamps_out_of_range_are_errors() {
    let first = at(MIN_SECONDS, 0);
    let last = at(MAX_SECONDS, 999_999_999);
    for timestamp in [first, last] {
        let time = SystemTime::try_from(timestamp.view()).expect("the ends are within");
        assert_eq!(Timestamp::try_from(time), Ok(timestamp));
    }
    for (timestamp, error) in [
        (at(0, -1), ConversionError::Nanos { nanos: -1 }),
        (
            at(0, 1_000_000_000),
            ConversionError::Nanos {
                nanos: 1_000_000_000,
            },
        ),
        (
            at(MAX_SECONDS + 1, 0),
            ConversionError::OutOfRange {
                seconds: MAX_SECONDS + 1,
            },
        ),
        (
            at(i64::MIN, 0),
            ConversionError::OutOfRange { seconds: i64::MIN },
        ),
    ] {
        assert_eq!(SystemTime::try_from(timestamp.view()), Err(error));
    }
    let far = UNIX_EPOCH + time::Duration::from_secs(MAX_SECONDS.unsigned_abs() + 1);
    assert!(Timestamp::try_from(far).is_err());
}

#[test]
fn durations_convert_both_ways_and_negative_ones_are_errors() {
    for duration in [
        time::Duration::ZERO,
        time::Duration::new(3, 4),
        time::Duration::from_secs(MAX_DURATION_SECONDS),
    ] {
        let message = Duration::try_from(duration).expect("at most 10,000 years");
        assert_eq!(time::Duration::try_from(message.view()), Ok(duration));
    }
    assert!(Duration::try_from(time::Duration::MAX).is_err());
    for (message, error) in [
        (lasting(-1, 0), ConversionError::Negative),
        (lasting(0, -1), ConversionError::Negative),
        (lasting(1, -1), ConversionError::Nanos { nanos: -1 }),
        (lasting(-1, 1), ConversionError::Nanos { nanos: 1 }),
        (
            lasting(i64::MAX, 0),
            ConversionError::OutOfRange { seconds: i64::MAX },
        ),
    ] {
        assert_eq!(time::Duration::try_from(message.view()), Err(error));
    }
}

#[test]
fn an_any_gives_back_what_was_packed_and_names_what_it_holds() {
    let packed = Any::pack(&at(1, 2)).expect("it is small");
    assert_eq!(
        packed.type_url(),
        "type.googleapis.com/google.protobuf.Timestamp"
    );
    assert!(packed.is::<Timestamp>() && !packed.is::<Duration>());
    assert_eq!(packed.unpack::<Timestamp>(1 << 10), Ok(at(1, 2)));
    let error = packed.unpack::<Duration>(1 << 10).unwrap_err();
    assert!(error.to_string().contains("google.protobuf.Duration"));

    let mut broken = packed.clone();
    broken.set_value(&[0xff]);
    let error = broken.unpack::<Timestamp>(1 << 10).unwrap_err();
    assert!(matches!(error, UnpackError::Malformed(_)));
    assert!(!Any::new().is::<Timestamp>());
}

#[test]
fn wrappers_masks_and_json_values_are_made_of_rust_values() {
    assert_eq!(i64::from(Int64Value::from(-5).view()), -5);
    assert!(bool::from(BoolValue::from(true).view()));
    assert_eq!(StringValue::from("x").value(), "x");
    assert_eq!(BytesValue::from(&b"x"[..]).value(), b"x");

    let mask: FieldMask = ["a.b", "c"].into_iter().collect();
    assert_eq!(mask.paths().iter().collect::<Vec<_>>(), ["a.b", "c"]);

    let list: ListValue = [Value::from(1.5), Value::from("two"), Value::from(true)]
        .into_iter()
        .collect();
    let object: Struct = [("list", Value::from(&list)), ("n", Value::from(2.0))]
        .into_iter()
        .collect();
    let value = Value::from(&object);
    let Some(ValueKind::StructValue(object)) = value.kind() else {
        panic!("{value:?}");
    };
    let Some(ValueKind::ListValue(list)) = object.fields().get("list").and_then(|v| v.kind())
    else {
        panic!("{object:?}");
    };
    let second = list.values().get(1).and_then(|value| value.kind());
    assert_eq!(second, Some(ValueKind::StringValue("two")));
}
