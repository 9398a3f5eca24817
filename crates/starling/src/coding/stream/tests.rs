//! An end of a stream whose messages are packed, on one that hands out anything.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_core::Stream;
use parking_lot::Mutex;
use starling_compress::Algorithm;
use starling_endpoint::Code;
use starling_message::Message;
use starling_message::well_known::StringValue;

use super::*;
use crate::method_options::MethodOptions;
use crate::options::MessageOptions;
use crate::streaming::{ByteAccount, HeldBytes, StreamReceiver};

/// Hands out what was pushed.
#[derive(Default)]
struct Loop {
    items: Mutex<VecDeque<Bytes>>,
    failed: Mutex<Option<Status>>,
    is_coded: bool,
    is_protobuf: bool,
    account: Option<Arc<ByteAccount>>,
}

impl StreamEnd for Loop {
    fn poll_ready(&self, _: &mut Context<'_>, _: &mut Waiting) -> Poll<()> {
        Poll::Ready(())
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, _: bool) -> Result<(), Status> {
        let tail = tail.map_or(&[][..], |tail| tail);
        let item = [head, tail].concat();
        self.items.lock().push_back(Bytes::from(item));
        Ok(())
    }

    fn encoding(&self) -> Encoding {
        Encoding::Native
    }

    fn close(&self) {}

    fn abort(&self) {}

    fn fail(&self, status: Status) {
        *self.failed.lock() = Some(status);
    }

    fn poll_items(
        &self,
        _: &mut Context<'_>,
        _: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        let item = self.items.lock().pop_front();
        let encoding = match self.is_protobuf {
            true => Encoding::Protobuf,
            false => Encoding::Native,
        };
        Poll::Ready(Ok(item.map(|item| (Items::one(&item), encoding))))
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        let unbounded = || ByteAccount::of_client(None);
        let account = self.account.clone().unwrap_or_else(unbounded);
        let held = account.hold(None, bytes);
        held.ok_or_else(|| Status::resource_exhausted("no room"))
    }

    fn decode_limits(&self) -> DecodeLimits {
        DecodeLimits::default()
    }

    fn reject(&self, why: &str) -> Status {
        Status::internal(why.to_owned())
    }

    fn stop_reading(&self) {}

    fn headers(&self) -> Option<Metadata> {
        None
    }

    fn trailers(&self) -> Option<Metadata> {
        None
    }

    fn send_headers(&self, _: Metadata) -> Result<(), Status> {
        Ok(())
    }

    fn set_trailers(&self, _: Metadata) -> Result<(), Status> {
        Ok(())
    }

    fn is_coded(&self) -> bool {
        self.is_coded
    }
}

fn coded() -> Arc<Loop> {
    Arc::new(Loop {
        is_coded: true,
        ..Loop::default()
    })
}

fn read(end: &dyn StreamEnd) -> Result<Option<Bytes>, Status> {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(items) = end.poll_items(&mut cx, &mut Waiting::default()) else {
        panic!("a loop is always ready");
    };
    items.map(|items| items.and_then(|(mut items, _)| items.next()))
}

fn client(end: &Arc<Loop>, options: &MessageOptions) -> Arc<dyn StreamEnd> {
    let end: Arc<dyn StreamEnd> = Arc::<Loop>::clone(end);
    coded_at_client(end, Some(&CallCoding::of(options)))
}

fn all(compression: Compression) -> MessageOptions {
    MessageOptions {
        compression: Some(compression),
        max_request_bytes: Some(50_000),
        max_response_bytes: Some(40_000),
        ..MessageOptions::default()
    }
}

#[test]
fn what_is_decoded_counts_until_the_reader_drops_it() {
    let message = StringValue::from("a".repeat(5_000).as_str());
    let protobuf = message.to_protobuf().expect("it is small");
    let next = |items: &mut StreamReceiver<StringValue>| {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match Pin::new(items).poll_next(&mut cx) {
            Poll::Ready(next) => next.expect("no end"),
            Poll::Pending => panic!("a loop is always ready"),
        }
    };
    let inner = Arc::new(Loop {
        is_protobuf: true,
        account: Some(ByteAccount::of_client(Some(2 * 5_500))),
        ..Loop::default()
    });
    let end: Arc<dyn StreamEnd> = Arc::<Loop>::clone(&inner);
    for _ in 0..4 {
        end.push(&protobuf, None, false).expect("it is open");
    }
    let mut items = StreamReceiver::new(end);
    let first = next(&mut items).expect("room");
    let copy = first.clone();
    let second = next(&mut items).expect("room");
    drop((first, second));
    let third = next(&mut items).expect("room");
    assert_eq!(
        (copy.message().value().len(), third.message().value().len()),
        (5_000, 5_000)
    );
    let status = next(&mut items).expect_err("no room");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let failed = inner.failed.lock().clone().expect("the stream has ended");
    assert_eq!(failed.code(), Code::ResourceExhausted);
}

/// Whether it is packed or not: what a reader gets has memory of its own.
#[test]
fn what_is_unpacked_counts_until_the_reader_drops_it() {
    for len in [50, 5_000] {
        let inner = Arc::new(Loop {
            is_coded: true,
            account: Some(ByteAccount::of_client(Some(2 * len))),
            ..Loop::default()
        });
        let end = client(&inner, &all(Compression::lz4().min_bytes(100)));
        for _ in 0..4 {
            end.push(&vec![1; len], None, false).expect("it is open");
        }
        let first = read(&*end).expect("room").expect("an item");
        let part = first.slice(7..);
        let second = read(&*end).expect("room").expect("an item");
        drop((first, second));
        let third = read(&*end).expect("room").expect("an item");
        assert_eq!((part.len(), third.len()), (len - 7, len));
        let status = read(&*end).expect_err("no room");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let failed = inner.failed.lock().clone().expect("the stream has ended");
        assert_eq!(failed.code(), Code::ResourceExhausted);
        drop((part, third));
    }
}

#[test]
fn messages_come_back_packed_or_not() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| it.is_available()) {
        let inner = coded();
        let end = client(&inner, &all(Compression::again(algorithm).min_bytes(100)));
        let tail = Bytes::from(vec![2; 7_000]);
        let cases: [(&[u8], Option<&Bytes>); 4] = [
            (b"", None),
            (b"short", None),
            (&[1; 3_000], None),
            (&[1; 3_000], Some(&tail)),
        ];
        for (head, tail) in cases {
            end.push(head, tail, false).expect("within the bound");
            let was_packed = inner.items.lock()[0][0] == algorithm.number();
            assert_eq!(was_packed, head.len() >= 100);
            let whole = [head, tail.map_or(&[][..], |tail| tail)].concat();
            assert_eq!(read(&*end), Ok(Some(whole.into())));
        }
        assert_eq!(read(&*end), Ok(None));
        assert!(inner.failed.lock().is_none());
    }
}

#[test]
fn a_message_beyond_a_bound_ends_the_stream() {
    let inner = coded();
    let end = client(&inner, &all(Compression::off()));
    let status = end.push(&[0; 50_001], None, false).expect_err("too long");
    assert!(status.message().contains("max_request_bytes"), "{status}");
    assert_eq!(inner.failed.lock().take(), Some(status));
    assert!(inner.items.lock().is_empty());
    let long = [&[PLAIN], &[0; 40_001][..]].concat();
    inner.items.lock().push_back(long.into());
    let status = read(&*end).expect_err("too long");
    assert!(status.message().contains("max_response_bytes"), "{status}");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(inner.failed.lock().take(), Some(status));
}

#[test]
fn bombs_and_nonsense_are_refused_at_both_ends() {
    let end_of_server = |inner: &Arc<Loop>| {
        let options = MethodOptions::default().max_request_bytes(40_000);
        let end: Arc<dyn StreamEnd> = Arc::<Loop>::clone(inner);
        coded_at_server(
            end,
            &MethodCoding::new("/a.B/C", &options, DecodeLimits::default()),
        )
    };
    let cases: [(&[u8], Code, Code); 6] = [
        (b"", Code::Internal, Code::InvalidArgument),
        (b"\x03\x01", Code::Internal, Code::InvalidArgument),
        (b"\x06\0\0\0\0", Code::Internal, Code::Unimplemented),
        (
            b"\x03\xff\xff\xff\xff..",
            Code::ResourceExhausted,
            Code::ResourceExhausted,
        ),
        (
            b"\x03\x41\x9c\0\0....",
            Code::ResourceExhausted,
            Code::ResourceExhausted,
        ),
        (
            b"\x03\x20\0\0\0.........",
            Code::Internal,
            Code::InvalidArgument,
        ),
    ];
    for (item, at_client, at_server) in cases {
        let inner = coded();
        let ends = [
            (client(&inner, &all(Compression::off())), at_client),
            (end_of_server(&inner), at_server),
        ];
        for (end, code) in ends {
            inner.items.lock().push_back(Bytes::from_static(item));
            let status = read(&*end).expect_err("it is refused");
            assert_eq!(status.code(), code, "{status}");
            assert!(status.may_have_run(), "a stream has run");
            assert_eq!(inner.failed.lock().take(), Some(status));
        }
    }
}

#[test]
fn fuzz_any_bytes_are_a_message_within_the_bound_or_refused() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let inner = coded();
        let end = client(&inner, &all(Compression::off()));
        inner.items.lock().push_back(bytes.clone().into());
        match read(&*end) {
            Ok(item) => assert!(item.expect("there is one").len() <= 40_000),
            Err(status) => assert_eq!(inner.failed.lock().take(), Some(status)),
        }
    });
}
