//! Streams of many small messages, whose ends use the forms for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling::{LocalChannel, NestedContext, OwnedRequest, Status, StreamReceiver, StreamSender};
use starling_test_protos::streams::{Number, NumberMut, Range, Streams, StreamsClient, Sum};

/// Who sends the messages, and how they come and are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    ServerAtHand,
    ServerOneByOne,
    ClientAtHand,
    ClientOneByOne,
}

pub(crate) const CASES: [Case; 4] = [
    Case::ServerAtHand,
    Case::ServerOneByOne,
    Case::ClientAtHand,
    Case::ClientOneByOne,
];

/// What the messages have in bytes.
const PADDING: [u8; 16] = [7; 16];

fn build(value: u64, mut number: NumberMut<'_>) {
    number.set_value(value);
    number.set_padding(&PADDING);
}

fn number() -> Number {
    Number::new().with_padding(&PADDING)
}

/// A service that counts the messages that it has read.
pub(crate) struct Numbers(pub(crate) Arc<AtomicU64>);

impl Streams for Numbers {
    async fn count(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        let range = request.message();
        let values = range.from()..range.to();
        if range.padding() == 0 {
            return numbers.send_each(values, build).await;
        }
        let mut number = number();
        for value in values {
            number.set_value(value);
            numbers.send(&number).await?;
        }
        Ok(())
    }

    async fn add(
        self: Arc<Self>,
        _: NestedContext,
        mut numbers: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        while let Some(bundle) = numbers.bundle().await? {
            let count = bundle.iter().count() as u64;
            self.0.fetch_add(count, Ordering::Relaxed);
        }
        Ok(Sum::new())
    }

    async fn echo(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<Number>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
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

    async fn panic(
        self: Arc<Self>,
        _: NestedContext,
        _: OwnedRequest<Range>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// A stream that does not end. `done` counts what its reader has read.
pub(crate) async fn use_stream(
    client: StreamsClient<LocalChannel>,
    case: Case,
    done: Arc<AtomicU64>,
) {
    let range = Range::new().with_to(u64::MAX);
    let ended = match case {
        Case::ServerAtHand => read_bundles(client.count(&range), &done).await,
        Case::ServerOneByOne => {
            let range = range.with_padding(PADDING.len() as u32);
            read_each(client.count(&range), &done).await
        }
        Case::ClientAtHand => client.add().send_each(0.., build).await,
        Case::ClientOneByOne => send_each(client).await,
    };
    panic!("the stream has ended: {ended:?}");
}

async fn read_bundles(mut numbers: StreamReceiver<Number>, done: &AtomicU64) -> Result<(), Status> {
    while let Some(bundle) = numbers.bundle().await? {
        done.fetch_add(bundle.iter().count() as u64, Ordering::Relaxed);
    }
    Ok(())
}

async fn read_each(mut numbers: StreamReceiver<Number>, done: &AtomicU64) -> Result<(), Status> {
    while let Some(number) = numbers.message().await? {
        assert_eq!(number.message().padding(), PADDING);
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn send_each(client: StreamsClient<LocalChannel>) -> Result<(), Status> {
    let mut add = client.add();
    let mut number = number();
    for value in 0.. {
        number.set_value(value);
        add.send(&number).await?;
    }
    Ok(())
}
