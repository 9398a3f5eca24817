//! The forms for many small messages, mixed with the others, at both ends.

use std::sync::Arc;

use futures::channel::oneshot;
use starling::{
    Channel, Code, NestedContext, OwnedRequest, Server, Status, StreamReceiver, StreamSender,
    block_on,
};
use starling_test_protos::streams::{
    Number, NumberMut, NumberView, Range, Streams, StreamsClient, StreamsServer, Sum,
};

use crate::common::any_addresses;
use crate::service::{end, number, range};

struct Forms;

/// The padding of each number.
fn padding_of(value: u64, length: u32) -> Vec<u8> {
    vec![value as u8; length as usize]
}

fn copy(from: NumberView<'_>, mut to: NumberMut<'_>) {
    to.set_value(from.value());
    to.set_padding(from.padding());
}

impl Streams for Forms {
    /// Sends a third of the numbers one at a time, a third in a thread, and the rest at once.
    async fn count(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        let range = request.message();
        let (from, to, length) = (range.from(), range.to(), range.padding());
        let third = (to - from) / 3;
        for value in from..from + third {
            numbers.send(&number(value, length as usize)).await?;
        }
        let (done, sent) = oneshot::channel();
        std::thread::spawn(move || {
            let sent = (from + third..from + 2 * third)
                .try_for_each(|value| numbers.send_wait(&number(value, length as usize)));
            let _ = done.send(sent.map(|()| numbers));
        });
        let mut numbers = sent.await.expect("the thread does not panic")?;
        let build = |value, mut number: NumberMut<'_>| {
            number.set_value(value);
            number.set_padding(&padding_of(value, length));
        };
        numbers.send_each(from + 2 * third..to, build).await
    }

    /// Takes one number, then all that came with it, and so on.
    async fn add(
        self: Arc<Self>,
        _: NestedContext,
        mut numbers: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        let (mut sum, mut count) = (0, 0);
        while let Some(first) = numbers.message().await? {
            sum += first.message().value();
            count += 1;
            for number in numbers.bundle().await?.iter().flatten() {
                sum += number.value();
                count += 1;
            }
        }
        Ok(Sum::new().with_sum(sum).with_count(count))
    }

    async fn echo(
        self: Arc<Self>,
        _: NestedContext,
        mut numbers: StreamReceiver<Number>,
        mut back: StreamSender<Number>,
    ) -> Result<(), Status> {
        while let Some(bundle) = numbers.bundle().await? {
            back.send_each(&bundle, copy).await?;
        }
        Ok(())
    }

    async fn wait(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<Number>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Panics in the middle of a bundle.
    async fn panic(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        let build = |value, mut number: NumberMut<'_>| {
            number.set_value(value);
            if value == request.message().to() {
                std::panic::resume_unwind(Box::new("as requested"));
            }
        };
        numbers.send_each(request.message().from().., build).await
    }
}

pub(crate) fn serve(address: &str) -> (starling::ServerHandle, StreamsClient<Channel>) {
    let builder = Server::builder().bind(address).expect("a free address");
    let server = builder.add_service(StreamsServer::new(Forms)).build();
    let server = server.expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, StreamsClient::new(channel))
}

async fn read(mut numbers: StreamReceiver<Number>, count: u64, length: u32, one_each: bool) {
    let mut expected = 0;
    let mut check = |number: NumberView<'_>| {
        assert_eq!(number.value(), expected);
        assert_eq!(number.padding(), padding_of(expected, length));
        expected += 1;
    };
    loop {
        if one_each {
            let Some(one) = numbers.message().await.expect("no failure") else {
                break;
            };
            check(one.message());
        }
        match numbers.bundle().await.expect("no failure") {
            Some(bundle) => bundle.iter().for_each(&mut check),
            None => break,
        }
    }
    assert_eq!(expected, count);
    assert!(numbers.bundle().await.expect("a good end").is_none());
}

async fn use_all(client: &StreamsClient<Channel>, count: u64, length: u32) {
    for one_each in [false, true] {
        read(
            client.count(&range(0, count, length)),
            count,
            length,
            one_each,
        )
        .await;
        let build = |value, mut number: NumberMut<'_>| {
            number.set_value(value);
            number.set_padding(&padding_of(value, length));
        };
        let mut add = client.add();
        add.send_each(0..count, build).await.expect("room");
        add.send(&number(count, 0)).await.expect("room");
        add.send_each(None, build).await.expect("nothing to send");
        let sum = add.finish().await.expect("a sum");
        assert_eq!(sum.message().count(), count + 1);
        assert_eq!(sum.message().sum(), (0..=count).sum::<u64>());

        let (mut there, back) = client.echo();
        let sending = async {
            there.send_each(0..count, build).await.expect("room");
            there.close();
        };
        futures::join!(sending, read(back, count, length, one_each));
    }
}

#[test]
fn all_forms_carry_the_same_messages_at_both_ends() {
    for address in any_addresses() {
        let (server, client) = serve(&address);
        for (count, length) in [(0, 0), (1, 3), (20_000, 0), (3_000, 100), (20, 70_000)] {
            block_on(use_all(&client, count, length));
        }
        end(server);
    }
}

#[test]
fn messages_by_reference_come_as_any_other() {
    let (server, client) = serve("mem://streams-by-reference");
    let data = starling::Bytes::from(padding_of(7, 50_000));
    let mut add = client.add();
    for length in [10, 8_000, 8_500, 50_000] {
        let mut build = |value, mut number: NumberMut<'_>| {
            number.set_value(value);
            number.set_padding_bytes(data.slice(..length));
        };
        add.send_each_wait(0..5, &mut build).expect("room");
        add.send_wait(&Number::new().with_padding_bytes(data.slice(..length)))
            .expect("room");
    }
    let sum = add.finish_wait().expect("a sum");
    assert_eq!((sum.message().count(), sum.message().sum()), (24, 40));
    end(server);
}

#[test]
fn a_panic_while_a_message_is_built_ends_the_stream() {
    let (server, client) = serve("mem://streams-build-panics");
    for at in [0, 100, 100_000] {
        let mut numbers = client.panic(&range(0, at, 0));
        let status = loop {
            match numbers.bundle_wait() {
                Ok(Some(bundle)) => assert!(bundle.iter().all(|number| number.value() < at)),
                end => break end.expect_err("a failure"),
            }
        };
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
    end(server);
}

/// The limit is a message of 64 MiB, and the items that travel together are one.
#[test]
fn an_item_that_is_too_large_ends_its_stream_with_a_status() {
    let (server, client) = serve("mem://streams-too-large");
    let large = number(1, 65 << 20);
    let (mut there, mut back) = client.echo();
    there.send_wait(&number(0, 0)).expect("room");
    back.wait().expect("no end").expect("an echo");
    let sent = there.send_wait(&large);
    let status = back.wait().expect_err("too large");
    assert!(sent.is_ok() || sent == Err(status.clone()));
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");

    let mut numbers = client.count(&range(0, 9, 65 << 20));
    let status = numbers.wait().expect_err("too large");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // Others go on.
    block_on(use_all(&client, 10, 10));
    end(server);
}
