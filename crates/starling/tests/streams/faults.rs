//! Streams that end otherwise: each has one clear status on the right side, and nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::{CallOptions, Channel, Code, Status, block_on};
use starling_endpoint::EndpointConfig;
use starling_test_protos::streams::{NumberMut, StreamsClient};

use crate::common::{LONG, any_addresses, impatient, shm_address, wait_until};
use crate::service::{Counts, builder, end, number, range, serve};

fn wait_for_idle(counts: &Arc<Counts>) {
    wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_status_comes_after_the_messages_that_were_sent_before_it() {
    for address in any_addresses() {
        let (server, _counts, client) = serve(&address);
        let request = range(0, 1000, 100).with_code(Code::DataLoss as u32);
        let mut numbers = client.count(&request);
        let mut items = numbers.blocking();
        for _ in 0..1000 {
            items.next().expect("no end").expect("a number");
        }
        let status = items.next().expect("an end").expect_err("a failure");
        assert_eq!(
            (status.code(), status.message()),
            (Code::DataLoss, "as requested")
        );
        let last = status.metadata().expect("trailers").value("last");
        assert_eq!(last, Some(&b"1000"[..]));
        assert!(items.next().is_none());
        end(server);
    }
}

#[test]
fn a_panic_of_the_handler_ends_the_stream() {
    let (server, _counts, client) = serve("mem://streams-panic");
    let mut numbers = client.panic(&range(0, 1, 0));
    // The number was not flushed when the handler panicked, or it was: both are right.
    let failure = numbers.blocking().find_map(Result::err);
    let status = failure.expect("a failure");
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("panicked"), "{status}");
    end(server);
}

#[test]
fn a_client_that_stops_reading_cancels_the_handler() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        for padding in [0, 10_000] {
            let mut numbers = client.count(&range(0, u64::MAX, padding));
            numbers.wait().expect("no end").expect("a number");
            drop(numbers);
            wait_for_idle(&counts);
        }
        // One that was never polled, one that only sends, one that only waits.
        drop(client.count(&range(0, u64::MAX, 0)));
        let (mut there, back) = client.echo();
        there.send_wait(&number(1, 0)).expect("room");
        drop(back);
        let late = there.send_wait(&number(1, 0)).expect_err("cancelled");
        assert_eq!(late.code(), Code::Cancelled);
        drop(there);
        wait_for_idle(&counts);
        assert!(counts.dropped.load(Ordering::SeqCst) >= 2);
        end(server);
    }
}

#[test]
fn an_unfinished_call_is_not_taken_for_a_finished_one() {
    let (server, counts, client) = serve("mem://streams-unfinished");
    let mut add = client.add();
    add.send_wait(&number(1, 0)).expect("room");
    wait_until(|| counts.read.load(Ordering::SeqCst) == 1);
    drop(add);
    wait_for_idle(&counts);
    assert_eq!(counts.dropped.load(Ordering::SeqCst), 1);
    end(server);
}

#[test]
fn a_deadline_ends_both_ends() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let options = CallOptions::with_timeout(Duration::from_millis(100));
        let (mut there, mut back) = client.wait_with(&options);
        there.send_wait(&number(1, 0)).expect("room");
        let status = back.wait().expect_err("the handler never answers");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        let late = there.send_wait(&number(1, 0)).expect_err("over");
        assert_eq!(late.code(), Code::DeadlineExceeded);
        wait_for_idle(&counts);
        // One that is in full swing.
        let mut numbers = client.count_with(&range(0, u64::MAX, 0), &options);
        let failure = numbers.blocking().find_map(Result::err);
        assert_eq!(failure.expect("a failure").code(), Code::DeadlineExceeded);
        wait_for_idle(&counts);
        end(server);
    }
}

#[test]
fn a_slow_reader_holds_up_its_sender_and_nobody_else() {
    const WINDOW: u64 = 100_000;
    const PADDING: u64 = 1_000;
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let options = CallOptions::default().stream_window(WINDOW as u32);
        let mut slow = client.count_with(&range(0, 100_000, PADDING as u32), &options);
        slow.wait().expect("no end").expect("a number");
        // Its handler soon has no room any more.
        let mut sent = u64::MAX;
        wait_until(|| {
            std::thread::sleep(Duration::from_millis(20));
            sent == std::mem::replace(&mut sent, counts.sent.load(Ordering::SeqCst))
        });
        // Twice the window, and a bundle on either side.
        let bound = (2 * WINDOW + 2 * 65_536) / PADDING + 2;
        assert!(sent <= bound, "{sent} messages were sent");
        let mut quick = client.count(&range(0, 5_000, PADDING as u32));
        assert_eq!(quick.blocking().filter(Result::is_ok).count(), 5_000);
        let rest = slow.blocking().filter(Result::is_ok).count();
        assert_eq!(rest, 99_999);
        wait_for_idle(&counts);
        // The other way: a handler that does not read.
        let (mut there, back) = client.wait();
        let pushed = block_on(async {
            let mut pushed = 0;
            while futures::poll!(std::pin::pin!(there.send(&number(1, 1_000)))).is_ready() {
                pushed += 1;
                assert!(pushed < 10_000, "nothing stops the sender");
            }
            pushed
        });
        assert!(pushed >= 64, "{pushed} messages were sent");
        // A server that shuts down waits for the streams that its clients keep open.
        wait_until(|| counts.running.load(Ordering::SeqCst) == 1);
        drop((there, back));
        wait_for_idle(&counts);
        end(server);
    }
}

/// A sender that waits for room goes on when what it has sent leaves, whatever else happens: here nothing
/// else does, because the handler has read everything, and the client sends nothing more.
#[test]
fn a_handler_that_waits_for_room_goes_on_when_there_is_some() {
    let (server, _counts, client) = serve("mem://streams-room");
    let options = CallOptions::with_timeout(LONG).stream_window(10_000);
    for count in 60..200 {
        let (mut there, mut back) = client.echo_with(&options);
        for value in 0..count {
            there.send_wait(&number(value, 1_000)).expect("room");
        }
        for value in 0..count {
            let echo = back.wait().expect("no end").expect("an echo");
            assert_eq!(echo.message().value(), value);
        }
    }
    end(server);
}

#[test]
fn the_end_of_the_server_ends_its_streams() {
    for address in any_addresses() {
        let (server, _counts, _client) = serve(&address);
        let channel = Channel::builder(server.address()).endpoint_config(impatient());
        let client = StreamsClient::new(channel.lazy().expect("a channel"));
        let (mut there, mut back) = client.echo();
        there.send_wait(&number(1, 0)).expect("room");
        back.wait().expect("no end").expect("an echo");
        drop(server);
        let status: Status = back.wait().expect_err("the server is gone");
        let ends = [Code::Unavailable, Code::Cancelled, Code::Internal];
        assert!(ends.contains(&status.code()), "{status}");
    }
}

#[test]
fn a_client_has_only_so_many_streams() {
    let (builder, counts) = builder("mem://streams-limit");
    let server = builder.max_streams_per_client(3).build().expect("a server");
    let server = server.spawn().expect("threads");
    let client = StreamsClient::new(Channel::lazy(server.address()).expect("a channel"));
    let mut streams: Vec<_> = (0..3).map(|_| client.echo()).collect();
    for (there, back) in &mut streams {
        there.send_wait(&number(1, 0)).expect("room");
        back.wait().expect("no end").expect("an echo");
    }
    let status = client
        .count(&range(0, 1, 0))
        .wait()
        .expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("at most 3 streams"), "{status}");
    assert!(!status.may_have_run());
    streams.pop();
    wait_until(|| counts.running.load(Ordering::SeqCst) == 2);
    let mut next = client.count(&range(0, 1, 0));
    assert!(next.wait().expect("there is room again").is_some());
    drop(streams);
    end(server);
}

#[test]
fn a_single_call_of_a_method_with_streams_is_refused() {
    let (server, counts, client) = serve("mem://streams-unary");
    let call =
        client
            .caller()
            .call_protobuf("/streams.Streams/Count", b"", &CallOptions::default());
    let status = call.wait().expect_err("a method with streams");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(!status.may_have_run());
    assert_eq!(counts.running.load(Ordering::SeqCst), 0);
    end(server);
}

#[test]
fn a_server_that_is_not_there_ends_the_stream_before_it_began() {
    let client = StreamsClient::new(Channel::lazy("mem://streams-nobody").expect("a channel"));
    let status = client
        .count(&range(0, 1, 0))
        .wait()
        .expect_err("nobody is there");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.may_have_run(), "{status}");
}

#[test]
fn an_item_that_fits_a_message_alone_is_sent_whatever_was_built_before_it() {
    const MOST: u32 = 1 << 20;
    let rising = vec![1_000, MOST as usize - 1_000, 10, 100_000, 70_000];
    // Small ones nearly fill a message, and the next one is as long as that.
    let mut nearly_full = vec![100; 400];
    nearly_full.push(59_000);
    for (most, lengths) in [(MOST, rising), (100_000, nearly_full)] {
        let mut config = EndpointConfig::default();
        config.protocol.max_message = most;
        let (builder, _) = builder(&shm_address());
        let server = builder.config(config).build().expect("a server");
        let server = server.spawn().expect("threads");
        let client = StreamsClient::new(Channel::lazy(server.address()).expect("a channel"));
        let mut add = client.add();
        let sent = add.send_each_wait(&lengths, |len, mut number: NumberMut<'_>| {
            number.set_value(1);
            number.set_padding(&vec![1; *len]);
        });
        sent.expect("each fits");
        let sum = add.finish_wait().expect("a sum");
        assert_eq!(sum.message().count(), lengths.len() as u64);
        end(server);
    }
}
