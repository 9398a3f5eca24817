use std::time::Duration;

use super::*;
use crate::field::{metadata_field_len, put_metadata};
use crate::{
    CallOptions, Code, CompressedBody, Encoding, Metadata, MetadataView, MethodId, RequestCoding,
    Status, StreamFlags, StreamPosition,
};

fn full_options() -> CallOptions {
    let mut metadata = Metadata::new();
    metadata.insert("k", "value").unwrap();
    CallOptions {
        timeout: Some(Duration::from_nanos(1_500)),
        encoding: Encoding::Protobuf,
        coding: RequestCoding::default(),
        stream: Some(StreamPosition {
            id: 9,
            number: 8,
            received: 7,
            taken: 6,
            window: 0x0504,
            hold: 3,
            flags: StreamFlags::END.with_if(true, StreamFlags::ANSWER),
        }),
        metadata,
    }
}

#[test]
fn a_plain_request_costs_four_bytes_and_a_plain_response_none() {
    let mut out = Vec::new();
    let plain = CallOptions::default();
    let prefix = plain.put_header(MethodId(0x0403_0201), &mut out, 5);
    assert_eq!(
        prefix,
        HeaderSize {
            extended: false,
            continues_stream: false,
            len: 4
        }
    );
    assert_eq!(out, [1, 2, 3, 4]);
    assert_eq!(plain.header_len(), 4);
    assert!(!ResponseParts::default().needs_extension());
    assert_eq!(method_of(&out), Some(MethodId(0x0403_0201)));
}

#[test]
fn the_bytes_of_a_full_request_header() {
    let mut out = Vec::new();
    let options = full_options();
    let prefix = options.put_header(MethodId(7), &mut out, (3 << 32 | 0x0a0b) * 1000 + 999);
    assert_eq!(
        prefix,
        HeaderSize {
            extended: true,
            continues_stream: true,
            len: 79
        }
    );
    assert_eq!(out.len(), options.header_len());
    let expected: &[u8] = &[
        7, 0, 0, 0, // method
        73, 0, // length
        1, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0, // 2 us, rounded up
        128, 4, 0, 0x0b, 0x0a, 0, 0, // the clock, without its upper bits
        2, 1, 0, 1, // protobuf
        4, 38, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, // stream: id, number
        7, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, // received, taken
        4, 5, 0, 0, 3, 5, // window, hold, flags
        3, 7, 0, 1, b'k', b'v', b'a', b'l', b'u', b'e',
    ];
    assert_eq!(out, expected);
    out.extend_from_slice(b"body");
    let extension = RequestExtension::parse(&out).unwrap();
    let stamp = DeadlineStamp {
        timeout_us: 2,
        sent_us: Some(0x0a0b),
    };
    assert_eq!(extension.stamp, Some(stamp));
    assert_eq!(&out[extension.body_at..], b"body");
    let fields = fields_between(&out, REQUEST_FIELDS_AT, extension.body_at);
    let view = MetadataView::of_extension(fields);
    assert_eq!(view.to_owned(), options.metadata);
    assert!(extension.continues_stream);
    assert_eq!(stream_of(fields), options.stream);
}

#[test]
fn a_flag_that_nobody_knows_is_a_bad_value() {
    let stream = Some(StreamPosition::default());
    let options = CallOptions {
        stream,
        ..CallOptions::default()
    };
    let mut out = Vec::new();
    options.put_header(MethodId(7), &mut out, 0);
    let extension = RequestExtension::parse(&out).unwrap();
    assert!(!extension.continues_stream);
    *out.last_mut().unwrap() = 64;
    let refused = RequestExtension::parse(&out);
    assert_eq!(refused, Err(HeaderError::BadValue { tag: 4 }));
}

#[test]
fn a_status_is_the_same_after_encoding_and_decoding() {
    let mut metadata = Metadata::new();
    metadata.insert("retry-after", "3").unwrap();
    let status = Status::resource_exhausted("busy").with_metadata(metadata.clone());
    let mut out = Vec::new();
    ResponseParts::of_status(&status).put(&mut out);
    let header = ResponseHeader::parse(&out).unwrap();
    assert_eq!(
        (header.code, header.message),
        (Code::ResourceExhausted, "busy")
    );
    assert_eq!(header.body_at, out.len());
    assert_eq!(header.stream, None);
    let fields = fields_between(&out, RESPONSE_FIELDS_AT, header.body_at);
    assert_eq!(MetadataView::of_extension(fields).to_owned(), metadata);
    assert_eq!(status_of(fields), Some(status));
    assert_eq!(status_of(&[]), None);
}

#[test]
fn a_refusal_tells_that_the_handler_did_not_run() {
    for status in [Status::internal(""), Status::internal("").with_not_run()] {
        let mut out = Vec::new();
        ResponseParts::of_status(&status).put(&mut out);
        let header = ResponseHeader::parse(&out).unwrap();
        assert_eq!(header.not_run, !status.may_have_run());
    }
}

#[test]
fn the_clock_of_the_call_can_be_written_later() {
    let mut out = Vec::new();
    full_options().put_header(MethodId(7), &mut out, 0);
    set_sent(&mut out, 9_000_500);
    let extension = RequestExtension::parse(&out).unwrap();
    assert_eq!(extension.stamp.unwrap().sent_us, Some(9_000));
}

#[test]
fn the_largest_status_fits() {
    let mut metadata = Metadata::new();
    let overhead = metadata_field_len("k", &[]);
    metadata
        .insert("k", vec![1; MAX_METADATA - overhead])
        .unwrap();
    let status = Status::internal("x".repeat(5000)).with_metadata(metadata);
    let mut out = Vec::new();
    ResponseParts::of_status(&status).put(&mut out);
    let header = ResponseHeader::parse(&out).unwrap();
    assert_eq!(header.message.len(), MAX_STATUS_MESSAGE);
}

fn request_with(fields: &[u8]) -> Result<RequestExtension, HeaderError> {
    let mut payload = vec![1, 0, 0, 0];
    payload.extend_from_slice(&(fields.len() as u16).to_le_bytes());
    payload.extend_from_slice(fields);
    RequestExtension::parse(&payload)
}

#[test]
fn each_fault_has_its_own_error() {
    assert_eq!(method_of(&[1, 2, 3]), None);
    assert_eq!(
        RequestExtension::parse(&[1, 2, 3, 4, 9]),
        Err(HeaderError::Truncated)
    );
    assert_eq!(
        RequestExtension::parse(&[1, 2, 3, 4, 9, 0, 1]),
        Err(HeaderError::Truncated)
    );
    assert_eq!(
        RequestExtension::parse(&[1, 2, 3, 4, 255, 255, 1]),
        Err(HeaderError::TooLong)
    );
    assert_eq!(
        request_with(&[2, 1, 0, 2]),
        Err(HeaderError::BadValue { tag: 2 })
    );
    assert_eq!(
        request_with(&[1, 1, 0, 2]),
        Err(HeaderError::BadValue { tag: 1 })
    );
    assert_eq!(
        request_with(&[3, 0, 0]),
        Err(HeaderError::BadValue { tag: 3 })
    );
    assert_eq!(
        request_with(&[3, 2, 0, 1, b'A']),
        Err(HeaderError::BadValue { tag: 3 })
    );
    assert_eq!(
        request_with(&[5, 1, 0, 3]),
        Err(HeaderError::Misplaced { tag: 5 })
    );
    assert_eq!(
        request_with(&[2, 1, 0, 1, 2, 1, 0, 1]),
        Err(HeaderError::Misplaced { tag: 2 })
    );
    assert_eq!(
        request_with(&[0, 0, 0]),
        Err(HeaderError::Unknown { tag: 0 })
    );
    assert_eq!(
        request_with(&[127, 0, 0]),
        Err(HeaderError::Unknown { tag: 127 })
    );
    assert_eq!(
        request_with(&[128, 2, 0, 1, 2]),
        Err(HeaderError::BadValue { tag: 128 })
    );
    assert_eq!(
        request_with(&[128, 4, 0, 1, 2, 3, 4, 128, 4, 0, 1, 2, 3, 4]),
        Err(HeaderError::Misplaced { tag: 128 })
    );
    assert_eq!(
        request_with(&[129, 0, 0]),
        Err(HeaderError::Misplaced { tag: 129 })
    );
    assert_eq!(
        ResponseHeader::parse(&[7, 0, 128, 4, 0, 1, 2, 3, 4]),
        Err(HeaderError::Misplaced { tag: 128 })
    );
    assert_eq!(
        ResponseHeader::parse(&[4, 0, 129, 1, 0, 1]),
        Err(HeaderError::BadValue { tag: 129 })
    );
    // The clock is ignored without a deadline.
    let sent = request_with(&[128, 4, 0, 1, 2, 3, 4]).unwrap();
    assert_eq!(sent.stamp, None);
    assert!(request_with(&[131, 2, 0, 1, 2, 131, 0, 0, 200, 0, 0]).is_ok());
    assert_eq!(
        ResponseHeader::parse(&[4, 0, 5, 1, 0, 17]),
        Err(HeaderError::BadValue { tag: 5 })
    );
}

#[test]
fn compression_is_said_in_requests_and_responses() {
    let compressed = Some(CompressedBody {
        algorithm: 2,
        len: 0x0102_0304,
    });
    let coding = RequestCoding {
        compressed,
        accepts: 0b110,
        items: None,
    };
    let options = CallOptions {
        coding,
        ..CallOptions::default()
    };
    let mut out = Vec::new();
    options.put_header(MethodId(7), &mut out, 0);
    assert_eq!(out.len(), options.header_len());
    assert_eq!(out[6..], [7, 5, 0, 2, 4, 3, 2, 1, 130, 1, 0, 0b110]);
    assert!(RequestExtension::parse(&out).is_ok());
    assert_eq!(form_of(&out[6..]), (Encoding::Native, coding));
    let mut out = Vec::new();
    let parts = ResponseParts {
        compressed,
        ..ResponseParts::default()
    };
    parts.put(&mut out);
    let header = ResponseHeader::parse(&out).unwrap();
    assert_eq!(header.compressed, compressed);
    // A later version may send more than one byte of algorithms.
    assert!(request_with(&[130, 2, 0, 6, 1]).is_ok());
    for (fields, error) in [
        (&[7, 4, 0, 2, 4, 3, 2][..], HeaderError::BadValue { tag: 7 }),
        (&[130, 0, 0], HeaderError::BadValue { tag: 130 }),
    ] {
        assert_eq!(request_with(fields), Err(error));
    }
    assert_eq!(
        ResponseHeader::parse(&[4, 0, 130, 1, 0, 6]),
        Err(HeaderError::Misplaced { tag: 130 })
    );
    // The items of a stream are compressed one by one.
    let both = CallOptions {
        stream: Some(StreamPosition::default()),
        coding,
        ..CallOptions::default()
    };
    let mut out = Vec::new();
    both.put_header(MethodId(7), &mut out, 0);
    let refused = RequestExtension::parse(&out);
    assert_eq!(refused, Err(HeaderError::Misplaced { tag: 7 }));
}

#[test]
fn too_much_metadata_is_refused() {
    let mut fields = Vec::new();
    for _ in 0..3 {
        put_metadata(&mut fields, "k", &[0; 3000]);
    }
    assert_eq!(request_with(&fields), Err(HeaderError::TooLong));
}

#[test]
fn any_bytes_give_a_header_or_an_error() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(extension) = RequestExtension::parse(bytes) {
            assert!(extension.body_at <= bytes.len());
            assert!(method_of(bytes).is_some());
            let fields = fields_between(bytes, REQUEST_FIELDS_AT, extension.body_at);
            let view = MetadataView::of_extension(fields);
            assert!(view.to_owned().as_fields().len() <= MAX_METADATA);
        }
        if let Ok(header) = ResponseHeader::parse(bytes) {
            assert!(header.body_at <= bytes.len());
            assert!(header.message.len() <= MAX_STATUS_MESSAGE);
        }
    });
}

#[test]
fn a_position_alone_is_written_in_place_as_with_other_parts() {
    let position = full_options().stream.unwrap();
    let parts = ResponseParts {
        stream: Some(position),
        ..ResponseParts::default()
    };
    let mut out = Vec::new();
    let size = parts.put(&mut out);
    let mut place = [0xff; STREAM_RESPONSE_LEN];
    assert_eq!(put_stream_response(&mut place, position), size);
    assert_eq!(out, place);
}

#[test]
fn a_position_alone_reads_as_one_beside_a_field_that_is_skipped() {
    let position = full_options().stream.unwrap();
    let options = CallOptions {
        stream: Some(position),
        ..CallOptions::default()
    };
    let mut alone = Vec::new();
    options.put_header(MethodId(7), &mut alone, 0);
    // A field of a later version, which changes nothing.
    let mut beside = alone.clone();
    beside.extend_from_slice(&[0xff, 0, 0]);
    let length = (beside.len() - REQUEST_FIELDS_AT) as u16;
    beside[REQUEST_FIELDS_AT - 2..REQUEST_FIELDS_AT].copy_from_slice(&length.to_le_bytes());

    let read = |bytes: &[u8]| {
        let fields = &bytes[REQUEST_FIELDS_AT..];
        let request = RequestExtension::parse(bytes).unwrap();
        let response = ResponseHeader::parse(&bytes[REQUEST_FIELDS_AT - 2..]).unwrap();
        assert_eq!(request.body_at, bytes.len());
        assert_eq!(response.body_at, fields.len() + RESPONSE_FIELDS_AT);
        let metadata = MetadataView::of_extension(fields).to_owned();
        let of_both = (request.stamp, request.continues_stream, response.stream);
        (
            of_both,
            encoding_of(fields),
            stream_of(fields),
            status_of(fields),
            metadata,
        )
    };
    assert_eq!(read(&alone), read(&beside));
    assert_eq!(read(&alone).2, Some(position));
    // An unknown flag is an error in both.
    let flags_at = REQUEST_FIELDS_AT + STREAM_RESPONSE_LEN - 2 - 1;
    for bytes in [&mut alone, &mut beside] {
        bytes[flags_at] |= 0x80;
        RequestExtension::parse(bytes).unwrap_err();
        ResponseHeader::parse(&bytes[REQUEST_FIELDS_AT - 2..]).unwrap_err();
    }
}
