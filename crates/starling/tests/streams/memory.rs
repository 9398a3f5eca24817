//! What streams hold is bounded at both ends: messages that wait, and those that their readers have.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use futures::FutureExt;
use starling::stub::{MessageLayout, MethodDescriptor, send_only};
use starling::{CallOptions, Caller, Channel, Code, Message, Server, Status, StreamReceiver};
use starling::{NestedContext, OwnedRequest, ServerHandle, StreamSender};
use starling_test_protos::streams::{
    Number, Range, STREAMS_SERVICE, Streams, StreamsClient, StreamsServer, Sum,
};

use crate::common::wait_until;
use crate::service::{builder, end, number, range, serve};

/// Bytes of each message.
const LARGE: usize = 1 << 20;
/// Streams of each test, with a message each. Of four such messages a client may have two: then it has as
/// many as are free.
const STREAMS: usize = 6;
const BOUND: usize = 4 * LARGE + 100_000;
const FIT: usize = 2;

/// Waits until the streams are over that do not fit. Returns those that go on.
fn rest_of<M: Message>(streams: Vec<StreamReceiver<M>>, fit: usize) -> Vec<StreamReceiver<M>> {
    let mut open: Vec<_> = streams.into_iter().collect();
    wait_until(|| {
        open.retain_mut(|stream| match stream.message().now_or_never() {
            None => true,
            Some(Ok(_)) => panic!("nobody sends"),
            Some(Err(status)) => {
                assert_is_full(&status);
                false
            }
        });
        open.len() <= fit
    });
    open
}

type BothWays = (StreamSender<Number>, StreamReceiver<Number>);

/// Begins streams with a message each. What fits goes on, and is returned.
fn fill(begin: impl Fn() -> BothWays) -> (Vec<StreamSender<Number>>, Vec<StreamReceiver<Number>>) {
    let begin = |_| {
        let (mut there, back) = begin();
        there.send_wait(&number(1, LARGE)).expect("room");
        (there, back)
    };
    let (there, back) = (0..STREAMS).map(begin).unzip();
    let open = rest_of(back, FIT);
    assert_eq!(open.len(), FIT, "what fits goes on");
    (there, open)
}

fn assert_is_full(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("max_stream_bytes"), "{status}");
}

#[test]
fn messages_that_wait_for_their_handlers_are_bounded_in_all() {
    let (builder, counts) = builder("mem://streams-memory-unread");
    let builder = builder.stream_window(1).max_stream_bytes(BOUND);
    let server = builder.build().expect("a server").spawn().expect("threads");
    let client = StreamsClient::new(Channel::lazy(server.address()).expect("a channel"));
    for _ in 0..2 {
        drop(fill(|| client.wait()));
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
    }
    // One that is read goes on, however much it is in all.
    let mut add = client.add();
    for value in 0..20 {
        add.send_wait(&number(value, LARGE)).expect("room");
    }
    assert_eq!(add.finish_wait().expect("a sum").message().count(), 20);
    end(server);
}

/// Handlers that keep what they get.
struct Keeper;

impl Streams for Keeper {
    /// Of a range that does not begin with 0, it makes the message its own and says so.
    async fn count(
        self: Arc<Self>,
        context: NestedContext,
        request: OwnedRequest<Range>,
        mut numbers: StreamSender<Number>,
    ) -> Result<(), Status> {
        let _kept = match request.message().from() {
            0 => Err(request),
            from => {
                let message = request.into_message();
                numbers.send(&number(from, 0)).await?;
                Ok(message)
            }
        };
        context.sleep(crate::common::LONG * 100).await;
        Ok(())
    }

    async fn add(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<Number>,
    ) -> Result<Sum, Status> {
        Ok(Sum::new())
    }

    async fn echo(
        self: Arc<Self>,
        context: NestedContext,
        mut numbers: StreamReceiver<Number>,
        _: StreamSender<Number>,
    ) -> Result<(), Status> {
        let _kept = numbers.message().await?;
        context.sleep(crate::common::LONG * 100).await;
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

fn keeper(address: &str) -> (ServerHandle, StreamsClient<Channel>) {
    let server = Server::builder().bind(address).expect("a free name");
    let server = server
        .add_service(StreamsServer::new(Keeper))
        .stream_window(1)
        .max_stream_bytes(BOUND)
        .build()
        .expect("a server")
        .spawn()
        .expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, StreamsClient::new(channel))
}

#[test]
fn a_message_that_its_handler_has_counts_until_it_is_dropped() {
    let (_server, client) = keeper("mem://streams-memory-held");
    for _ in 0..2 {
        drop(fill(|| client.echo()));
        // The next streams fit when the handlers of these have gone.
        wait_until(|| {
            let (mut there, mut back) = client.wait();
            there
                .send_wait(&number(1, LARGE + LARGE / 2))
                .expect("room");
            back.wait().is_ok()
        });
    }
}

#[test]
fn the_only_request_of_a_stream_counts_as_long_as_its_handler_has_it() {
    let (_server, client) = keeper("mem://streams-memory-only");
    let request = range(0, 1, 0).with_note(&vec![7; LARGE]);
    let streams: Vec<_> = (0..STREAMS).map(|_| client.count(&request)).collect();
    let open = rest_of(streams, FIT);
    assert_eq!(open.len(), FIT, "what fits goes on");
}

/// `Count`, of a client with another version of the schema: its request comes in protobuf.
fn count_of_another_version() -> &'static MethodDescriptor {
    static REQUEST: LazyLock<MessageLayout> = LazyLock::new(|| MessageLayout {
        name: Range::LAYOUT.name.clone(),
        size: Range::LAYOUT.size,
        fields: Range::LAYOUT.fields.clone(),
        schema_hash: !Range::LAYOUT.schema_hash,
    });
    static METHOD: LazyLock<MethodDescriptor> = LazyLock::new(|| MethodDescriptor {
        request: &REQUEST,
        ..STREAMS_SERVICE.methods[0]
    });
    &METHOD
}

#[test]
fn the_only_request_of_a_stream_counts_as_long_as_its_handler_runs_when_it_was_decoded() {
    let (server, _) = keeper("mem://streams-memory-only-decoded");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let request = range(1, 2, 0).with_note(&vec![7; LARGE]);
    let begin = || {
        let (method, options) = (count_of_another_version(), CallOptions::default());
        let (requests, mut numbers) = channel.streams::<Range, Number>(method, &options, None);
        send_only(requests, &request);
        let first = numbers.wait()?;
        first.expect("its handler has the request");
        Ok::<_, Status>(numbers)
    };
    let mut running = Vec::new();
    let status = loop {
        assert!(running.len() < STREAMS, "all have room");
        match begin() {
            Ok(numbers) => running.push(numbers),
            Err(status) => break status,
        }
    };
    assert_is_full(&status);
    assert!(!running.is_empty());
    drop(running);
    wait_until(|| begin().is_ok());
}

#[test]
fn messages_that_wait_for_a_client_are_bounded_for_its_channel() {
    let (server, counts, _) = serve("mem://streams-memory-client");
    let channel = Channel::builder(server.address())
        .max_stream_bytes(2 * LARGE + 100_000)
        .lazy()
        .expect("a channel");
    let client = StreamsClient::new(channel);
    let request = range(0, 1, LARGE as u32);
    let mut streams: Vec<_> = (0..STREAMS).map(|_| client.count(&request)).collect();
    let kept: Vec<_> = (streams.iter_mut())
        .filter_map(|stream| match stream.wait() {
            Ok(item) => Some(item.expect("a number")),
            Err(status) => {
                assert_is_full(&status);
                None
            }
        })
        .collect();
    assert_eq!(kept.len(), FIT, "what fits goes on");
    drop(kept);
    drop(streams);
    for _ in 0..STREAMS {
        let mut numbers = client.count(&request);
        assert!(numbers.wait().expect("room").is_some());
    }
    wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
    end(server);
}
