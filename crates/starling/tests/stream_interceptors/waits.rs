//! Interceptors that have streams and their messages wait, by a clock that the tests move.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::testing::TestClock;
use starling::{CallOptions, Channel, Code, Interceptor, ServerHandle, Status, block_on};
use starling_test_protos::streams::StreamsClient;

use crate::common::{any_addresses, wait_until};
use crate::kinds::{Adds, Delays, GivesUp};
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
    let serve = |builder: starling::ServerBuilder| {
        let server = builder.build().expect("a server").spawn().expect("threads");
        let channel = Channel::builder(server.address()).clock(clock).lazy();
        (server, channel.expect("a channel"))
    };
    let (server, channel) = match at_server {
        true => serve(builder.interceptor(interceptor)),
        false => {
            let (server, channel) = serve(builder);
            (server, channel.intercept(interceptor))
        }
    };
    (server, counts, StreamsClient::new(channel))
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
