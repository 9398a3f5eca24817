//! Interceptors that have streams and their messages wait, by a clock that the tests move.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use starling::testing::TestClock;
use starling::{
    CallOptions, Channel, Code, Interceptor, ServerBuilder, ServerHandle, Status, StreamItem,
    block_on,
};
use starling_test_protos::streams::{Number, StreamsClient};

use crate::common::{another_address, any_addresses, wait_until};
use crate::kinds::{Adds, Delays, GivesUp, Holds};
use crate::service::{self, builder, end, number, range};
use crate::values;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn start(
    address: &str,
    clock: &TestClock,
    interceptor: impl Interceptor,
    at_server: bool,
) -> (ServerHandle, Arc<service::Counts>, StreamsClient<Channel>) {
    let (builder, counts) = builder(address);
    let builder = builder.clock(clock);
    let (server, channel) = match at_server {
        true => serve(builder.interceptor(interceptor), clock),
        false => {
            let (server, channel) = serve(builder, clock);
            (server, channel.intercept(interceptor))
        }
    };
    (server, counts, StreamsClient::new(channel))
}

fn serve(builder: ServerBuilder, clock: &TestClock) -> (ServerHandle, Channel) {
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::builder(server.address()).clock(clock).lazy();
    (server, channel.expect("a channel"))
}

/// Runs all kinds of streams in a thread while time is moved. Returns the time that it took.
fn time_of(clock: &TestClock, client: StreamsClient<Channel>) -> Duration {
    let begun = clock.now();
    let streams = std::thread::spawn(move || {
        assert_eq!(
            block_on(values(&mut client.count(&range(0, 3, 0)))),
            [0, 1, 2]
        );
        let mut add = client.add();
        for value in [1, 2, 3] {
            add.send_wait(&number(value, 0)).expect("room");
        }
        assert_eq!(add.finish_wait().expect("a sum").message().sum(), 6);
    });
    clock.advance_until(SECOND / 10, HOUR, || streams.is_finished());
    streams.join().expect("no panic");
    clock.now() - begun
}

#[test]
fn the_begin_and_each_message_wait() {
    for at_server in [false, true] {
        for (part, seconds) in [("begin", 2), ("request", 1 + 3), ("response", 3 + 1)] {
            let clock = TestClock::new();
            let pause = |of: &str| if of == part { SECOND } else { Duration::ZERO };
            let delays = Delays {
                begin: pause("begin"),
                request: pause("request"),
                response: pause("response"),
            };
            let address = format!("mem://stream-waits-{at_server}-{part}");
            let (server, _counts, client) = start(&address, &clock, delays, at_server);
            let took = time_of(&clock, client);
            assert!(
                took >= seconds * SECOND,
                "{part} took {took:?} at server {at_server}"
            );
            end(server);
        }
    }
}

#[test]
fn a_deadline_ends_a_stream_that_an_interceptor_does_not_begin() {
    for at_server in [false, true] {
        let clock = TestClock::new();
        let delays = Delays {
            begin: HOUR,
            request: Duration::ZERO,
            response: Duration::ZERO,
        };
        let address = format!("mem://stream-late-{at_server}");
        let (server, counts, client) = start(&address, &clock, delays, at_server);
        let options = CallOptions::with_timeout(10 * SECOND);
        let (mut there, mut back) = client.echo_with(&options);
        let writes = std::thread::spawn(move || there.send_wait(&number(1, 0)));
        let reads = std::thread::spawn(move || back.wait().map(drop));
        clock.advance_until(SECOND, HOUR, || reads.is_finished());
        let status = reads.join().expect("no panic").expect_err("it is late");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert_eq!(status.may_have_run(), at_server, "{status}");
        let written = writes.join().expect("no panic");
        // The message of a stream that the server holds up has left.
        assert_eq!(written.is_ok(), at_server, "{written:?}");
        assert_eq!(counts.read.load(Ordering::SeqCst), 0);
        end(server);
    }
}

#[test]
fn an_interceptor_that_gives_a_stream_up_ends_it_at_both_ends() {
    for at_server in [false, true] {
        let clock = TestClock::new();
        let address = format!("mem://stream-gives-up-{at_server}");
        let (server, counts, client) = start(&address, &clock, GivesUp(SECOND), at_server);
        let (mut there, mut back) = client.wait();
        there.send_wait(&number(1, 0)).expect("room");
        let reads = std::thread::spawn(move || back.wait().map(drop));
        wait_until(|| counts.running.load(Ordering::SeqCst) == 1);
        clock.advance_until(SECOND / 4, HOUR, || reads.is_finished());
        let status = reads.join().expect("no panic").expect_err("given up");
        assert_eq!(
            (status.code(), status.message()),
            (Code::Aborted, "it took too long")
        );
        wait_until(|| counts.dropped.load(Ordering::SeqCst) == 1);
        let late = there.send_wait(&number(1, 0)).expect_err("it is over");
        assert_eq!(late.code(), Code::Aborted, "{late}");
        end(server);
    }
}

fn value_of(item: Option<StreamItem<'_, Number>>) -> Option<u64> {
    item.map(|item| item.message().value())
}

fn is_late(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded
}

#[test]
fn a_deadline_ends_a_stream_whose_response_is_held() {
    for address in any_addresses() {
        let clock = TestClock::new();
        let (server, channel) = serve(builder(&address).0.clock(&clock), &clock);
        let (third, first) = (Holds::responses_from(2), Holds::responses_from(0));
        let client = StreamsClient::new(channel.intercept(third.clone()));
        let options = CallOptions::with_timeout(SECOND / 4);
        // All of them come, and so does the good end.
        let mut numbers = client.count_with(&range(0, 5, 0), &options);
        let of_count = std::thread::spawn(move || {
            let read = [(); 4].map(|()| numbers.wait().map(value_of));
            (read, numbers)
        });
        let mut echo = client.echo_with(&options);
        let of_echo = std::thread::spawn(move || {
            let read = [7, 8, 9].map(|value| {
                echo.0.send_wait(&number(value, 0))?;
                echo.1.wait().map(value_of)
            });
            (read, echo)
        });
        let client = StreamsClient::new(channel.intercept(first.clone()));
        let mut add = client.add_with(&options);
        let of_add = std::thread::spawn(move || {
            add.send_wait(&number(1, 0))?;
            add.finish_wait().map(drop)
        });
        wait_until(|| (third.held(), first.held()) == (2, 1));
        clock.advance_until(SECOND / 10, SECOND, || {
            of_count.is_finished() && of_echo.is_finished() && of_add.is_finished()
        });
        let (read, _numbers) = of_count.join().expect("no panic");
        assert_eq!(read[..2], [Ok(Some(0)), Ok(Some(1))]);
        assert!(read[2].as_ref().is_err_and(is_late), "{read:?}");
        assert_eq!(read[3], Ok(None), "it is told once");
        let (read, mut echo) = of_echo.join().expect("no panic");
        assert_eq!(read[..2], [Ok(Some(7)), Ok(Some(8))]);
        assert!(read[2].as_ref().is_err_and(is_late), "{read:?}");
        let late = echo.0.send_wait(&number(7, 0)).expect_err("it is over");
        assert!(is_late(&late), "{late}");
        let summed = of_add.join().expect("no panic");
        assert!(summed.as_ref().is_err_and(is_late), "{summed:?}");
        let held = (third.held(), first.held());
        assert_eq!(held, (0, 0), "though the halves are still there");
        end(server);
    }
}

#[test]
fn a_deadline_ends_a_stream_whose_request_is_held() {
    for address in any_addresses() {
        let (clock, holds) = (TestClock::new(), Holds::requests_from(0));
        let (server, counts, client) = start(&address, &clock, holds.clone(), false);
        let options = CallOptions::with_timeout(SECOND / 4);
        let mut numbers = client.count_with(&range(0, 3, 0), &options);
        let only = std::thread::spawn(move || {
            let first = numbers.wait().map(drop);
            (first, numbers.wait().map(|item| item.is_none()), numbers)
        });
        let mut add = client.add_with(&options);
        let sent = std::thread::spawn(move || (add.send_wait(&number(1, 0)), add));
        let (mut there, mut back) = client.echo_with(&options);
        let write = std::thread::spawn(move || (there.send_wait(&number(1, 0)), there));
        let read = std::thread::spawn(move || (back.wait().map(drop), back));
        wait_until(|| holds.held() == 3);
        clock.advance_until(SECOND / 10, SECOND, || {
            let writers = sent.is_finished() && write.is_finished();
            writers && only.is_finished() && read.is_finished()
        });
        let (first, then, _numbers) = only.join().expect("no panic");
        let (sent, add) = sent.join().expect("no panic");
        assert_eq!(then, Ok(true), "it is told once");
        // The server has heard of neither.
        for status in [first, sent, add.finish_wait().map(drop)] {
            let status = status.expect_err("it is late");
            assert!(is_late(&status) && !status.may_have_run(), "{status}");
        }
        let (written, _there) = write.join().expect("no panic");
        let (read, _back) = read.join().expect("no panic");
        for status in [written, read] {
            let status = status.expect_err("it is late");
            assert!(is_late(&status), "{status}");
        }
        assert_eq!(holds.held(), 0, "though the halves are still there");
        assert_eq!(counts.read.load(Ordering::SeqCst), 0);
        end(server);
    }
}

/// A task that waits for a response, and a thread that waits for a request to leave, with no reader.
#[test]
fn a_server_that_is_gone_ends_a_stream_whose_message_is_held() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for address in any_addresses() {
        let holds = Holds::responses_from(1);
        let (server, _counts, client) = crate::start(&address, holds.clone(), false);
        let (mut there, mut back) = client.echo();
        let task = runtime.spawn(async move {
            for value in [0, 1] {
                there.send(&number(value, 0)).await?;
            }
            let first = value_of(back.message().await?);
            let next = back.message().await.map(drop);
            let last = back.message().await.map(|item| item.is_none());
            Ok::<_, Status>((first, next, last, (there, back)))
        });
        wait_until(|| holds.held() == 1);
        server.shutdown(Duration::ZERO).expect("the device works");
        wait_until(|| task.is_finished());
        let (first, next, last, _halves) = block_on(task).expect("no panic").expect("it began");
        assert_eq!(first, Some(0));
        let gone = next.expect_err("the server is gone");
        assert_eq!(gone.code(), Code::Unavailable, "{gone}");
        assert_eq!(last, Ok(true), "it is told once");
        assert_eq!(holds.held(), 0, "though the halves are still there");

        let holds = Holds::requests_from(1);
        let address = another_address(&address, 1);
        let (server, _counts, client) = crate::start(&address, holds.clone(), false);
        let (mut there, mut back) = client.echo();
        there.send_wait(&number(0, 0)).expect("room");
        back.wait().expect("no end").expect("an echo");
        let written = std::thread::spawn(move || (there.send_wait(&number(1, 0)), there));
        wait_until(|| holds.held() == 1);
        server.shutdown(Duration::ZERO).expect("the device works");
        wait_until(|| written.is_finished());
        let (written, _there) = written.join().expect("no panic");
        let gone = written.expect_err("the server is gone");
        assert_eq!(gone.code(), Code::Unavailable, "{gone}");
        assert_eq!(holds.held(), 0, "though the halves are still there");
    }
}

/// The one who sends is told, with no reader that drives the interceptors.
#[test]
fn an_interceptor_gives_up_a_stream_whose_request_is_held() {
    for address in any_addresses() {
        let (clock, holds) = (TestClock::new(), Holds::requests_from(0));
        let (server, channel) = serve(builder(&address).0.clock(&clock), &clock);
        let channel = channel.intercept(GivesUp(SECOND / 4));
        let mut add = StreamsClient::new(channel.intercept(holds.clone())).add();
        let sent = std::thread::spawn(move || (add.send_wait(&number(1, 0)), add));
        wait_until(|| holds.held() == 1);
        clock.advance_until(SECOND / 10, SECOND, || sent.is_finished());
        let (sent, add) = sent.join().expect("no panic");
        for status in [sent, add.finish_wait().map(drop)] {
            let status = status.expect_err("given up");
            assert_eq!(status.code(), Code::Aborted, "{status}");
        }
        assert_eq!(holds.held(), 0);
        end(server);
    }
}

#[test]
fn a_dropped_receiver_lets_go_of_what_is_held() {
    for address in any_addresses() {
        let holds = Holds {
            request: 1,
            ..Holds::responses_from(0)
        };
        let (server, _counts, client) = crate::start(&address, holds.clone(), false);
        let (mut there, mut back) = client.echo();
        there.send_wait(&number(0, 0)).expect("room");
        wait_until(|| {
            let _ = back.message().now_or_never();
            holds.held() == 1
        });
        let _ = there.send(&number(1, 0)).now_or_never();
        assert_eq!(holds.held(), 2);
        drop(back);
        assert_eq!(holds.held(), 0, "though the sender is still there");
        let late = there.send_wait(&number(2, 0)).expect_err("cancelled");
        assert_eq!(late.code(), Code::Cancelled, "{late}");
        end(server);
    }
}

/// The status has come with the items, and is no reason to drop those that a hook still releases.
#[test]
fn what_a_server_says_at_the_end_waits_behind_its_messages() {
    let clock = TestClock::new();
    let delays = Delays {
        begin: Duration::ZERO,
        request: Duration::ZERO,
        response: SECOND,
    };
    let (server, _counts, client) = start("mem://stream-held-end", &clock, delays, false);
    let options = CallOptions::with_timeout(60 * SECOND);
    let range = range(0, 3, 0).with_code(Code::NotFound as u32);
    let mut numbers = client.count_with(&range, &options);
    let read = std::thread::spawn(move || {
        let items = numbers.blocking();
        let values = items.map(|item| item.map(|item| item.message().value()));
        values.collect::<Vec<_>>()
    });
    clock.advance_until(SECOND / 10, HOUR, || read.is_finished());
    let read = read.join().expect("no panic");
    assert_eq!(read[..3], [Ok(0), Ok(1), Ok(2)]);
    let status = read[3].as_ref().expect_err("the server's");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    end(server);
}

/// Whatever thread polls a stream last: no wake-up of the interceptors is lost.
#[test]
fn a_reader_and_a_writer_in_two_threads_share_the_interceptors() {
    for address in any_addresses() {
        let (server, _counts, client) = crate::start(
            &address,
            Adds {
                request: 1,
                response: 1,
            },
            false,
        );
        for _ in 0..20 {
            let (mut there, mut back) = client.echo();
            let writer = std::thread::spawn(move || -> Result<(), Status> {
                for value in 0..200 {
                    there.send_wait(&number(value, 500))?;
                }
                Ok(())
            });
            let read = block_on(values(&mut back));
            assert!(read.into_iter().eq(2..202));
            writer.join().expect("no panic").expect("room");
        }
        end(server);
    }
}
