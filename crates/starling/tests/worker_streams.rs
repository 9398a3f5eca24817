//! Worker handlers with streams: they block, each in a thread of its own.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use starling::{
    Channel, Code, InterceptedCall, InterceptedResponse, Interceptor, NestedContext, Next,
    OwnedRequest, Server, ServerBuilder, ServerHandle, Status, StreamCall, StreamReceiver,
    StreamSender, block_on,
};
use starling_test_protos::blocking::{Blocking, BlockingClient, BlockingServer, Count, Line};

use common::{LONG, any_addresses, wait_until};

#[derive(Default)]
struct Counts {
    running: AtomicUsize,
    /// Handlers that learned that nobody waits for them.
    cancelled: AtomicUsize,
}

struct Service(Arc<Counts>);

fn line_of(text: &str) -> Line {
    Line::new().with_text(text)
}

impl Service {
    /// Runs a handler in this thread, which is no dispatch thread.
    fn run<T>(&self, handler: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
        assert_eq!(std::thread::current().name(), Some("starling-stream"));
        self.0.running.fetch_add(1, Ordering::SeqCst);
        let result = handler();
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl Blocking for Service {
    fn spell(
        &self,
        _: NestedContext,
        request: OwnedRequest<Line>,
        mut letters: StreamSender<Line>,
    ) -> Result<(), Status> {
        let text = request.message().text();
        for letter in text.chars() {
            letters.send_wait(&line_of(&letter.to_string()))?;
            if text == "panic" {
                std::panic::resume_unwind(Box::new("as asked"));
            }
        }
        match text {
            "fail" => Err(Status::data_loss("as asked")),
            _ => Ok(()),
        }
    }

    fn tally(
        &self,
        context: NestedContext,
        mut lines: StreamReceiver<Line>,
    ) -> Result<Count, Status> {
        self.run(|| {
            let mut count = 0;
            for line in lines.blocking() {
                line.inspect_err(|_| {
                    assert!(context.is_cancelled());
                    self.0.cancelled.fetch_add(1, Ordering::SeqCst);
                })?;
                count += 1;
            }
            Ok(Count::new().with_lines(count))
        })
    }

    fn repeat(
        &self,
        context: NestedContext,
        mut lines: StreamReceiver<Line>,
        mut back: StreamSender<Line>,
    ) -> Result<(), Status> {
        self.run(|| {
            while let Some(line) = lines.wait()? {
                let line = line.into_message();
                let text = line.view().text();
                let Some(address) = text.strip_prefix("relay:") else {
                    back.send_wait(&line)?;
                    continue;
                };
                // A call of the handler's own, by the dispatch thread's endpoint.
                let channel = context.channel(address).expect("an address");
                let mut letters = BlockingClient::new(channel).spell(&line_of("xyz"));
                for letter in letters.blocking() {
                    back.send_wait(&letter?.into_message())?;
                }
            }
            Ok(())
        })
    }
}

fn builder(address: &str) -> (ServerBuilder, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let builder = Server::builder().bind(address).expect("a free address");
    let service = BlockingServer::new(Service(Arc::clone(&counts)));
    (builder.add_service(service), counts)
}

fn start(builder: ServerBuilder) -> (ServerHandle, BlockingClient<Channel>) {
    let server = builder.build().expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    (server, BlockingClient::new(channel))
}

fn serve(address: &str) -> (ServerHandle, Arc<Counts>, BlockingClient<Channel>) {
    let (builder, counts) = builder(address);
    let (server, client) = start(builder);
    (server, counts, client)
}

/// A stream whose handler waits for a second line.
fn held_tally(client: &BlockingClient<Channel>, counts: &Counts) -> StreamCall<Line, Count> {
    let mut tally = client.tally();
    tally.send_wait(&line_of("a line")).expect("room");
    wait_until(|| counts.running.load(Ordering::SeqCst) == 1);
    tally
}

fn end(server: ServerHandle) {
    let finished = server.shutdown(LONG).expect("the device works");
    assert!(finished, "a stream was left behind");
}

#[test]
fn all_forms_of_streams_work_in_threads() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let mut letters = client.spell(&line_of("abc"));
        let text: String = (letters.blocking())
            .map(|letter| letter.expect("no failure").message().text().to_owned())
            .collect();
        assert_eq!(text, "abc");
        let mut tally = client.tally();
        for _ in 0..1_000 {
            tally.send_wait(&line_of("a line")).expect("room");
        }
        assert_eq!(
            tally.finish_wait().expect("a count").message().lines(),
            1_000
        );
        let (mut there, mut back) = client.repeat();
        for number in 0..100 {
            let text = number.to_string();
            there.send_wait(&line_of(&text)).expect("room");
            let line = back.wait().expect("no failure").expect("no end");
            assert_eq!(line.message().text(), text);
        }
        drop(there);
        assert!(back.wait().expect("no failure").is_none());
        // A task sees no difference.
        let text = block_on(async {
            let (mut there, mut back) = client.repeat();
            there.send(&line_of("in a task")).await?;
            let line = back.message().await?.expect("no end");
            Ok::<_, Status>(line.message().text().to_owned())
        });
        assert_eq!(text.as_deref(), Ok("in a task"));
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        end(server);
    }
}

#[test]
fn a_handler_in_a_thread_makes_calls_by_its_context() {
    for address in any_addresses() {
        let (server, _, client) = serve(&address);
        let (mut there, mut back) = client.repeat();
        let relay = format!("relay:{}", server.address());
        there.send_wait(&line_of(&relay)).expect("room");
        for letter in ["x", "y", "z"] {
            let line = back.wait().expect("no failure").expect("no end");
            assert_eq!(line.message().text(), letter);
        }
        drop((there, back));
        end(server);
    }
}

#[test]
fn a_status_and_a_panic_end_the_stream_behind_what_was_sent() {
    for address in any_addresses() {
        let (server, _, client) = serve(&address);
        let ends = [("fail", 4, Code::DataLoss), ("panic", 1, Code::Internal)];
        for (text, letters, code) in ends {
            let mut spelled = client.spell(&line_of(text));
            let mut items = spelled.blocking();
            for _ in 0..letters {
                items.next().expect("no end").expect("a letter");
            }
            let status = items.next().expect("an end").expect_err("a failure");
            assert_eq!(status.code(), code, "{status}");
            assert!(status.may_have_run());
        }
        // The thread that panicked is there for the next one.
        assert_eq!(client.spell(&line_of("ab")).blocking().count(), 2);
        end(server);
    }
}

#[test]
fn a_handler_that_blocks_learns_that_its_client_is_gone() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let tally = held_tally(&client, &counts);
        drop(tally);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        assert_eq!(counts.cancelled.load(Ordering::SeqCst), 1);
        // One that sends without end, to a client that has stopped reading.
        let mut letters = client.spell(&line_of(&"long".repeat(100_000)));
        letters.wait().expect("no failure").expect("no end");
        drop(letters);
        end(server);
    }
}

#[test]
fn streams_without_a_thread_have_not_run_and_others_go_on() {
    for address in any_addresses() {
        let (builder, counts) = builder(&address);
        let (server, client) = start(builder.stream_threads(4));
        let hold = || {
            let (mut there, mut back) = client.repeat();
            there.send_wait(&line_of("a line")).expect("room");
            back.wait().map(|line| line.is_some())?;
            Ok::<_, Status>((there, back))
        };
        let mut held = vec![hold().expect("room"), hold().expect("room")];
        let status = hold().expect_err("too many");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(!status.may_have_run());
        assert!(status.message().contains("`stream_threads`"), "{status}");
        assert_eq!(counts.running.load(Ordering::SeqCst), 2);
        // The two go on, and one that ends makes room.
        for (there, back) in &mut held {
            there.send_wait(&line_of("another")).expect("room");
            assert!(back.wait().expect("no failure").is_some());
        }
        drop(held.pop());
        wait_until(|| counts.running.load(Ordering::SeqCst) == 1);
        wait_until(|| hold().is_ok());
        drop(held);
        end(server);
    }
}

/// Looks at each message, and changes nothing.
struct Hooks;

impl Interceptor for Hooks {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        call.on_requests(|_| Ok(()))?;
        next.run(call).await
    }
}

#[test]
fn nor_have_they_behind_an_interceptor_that_sees_messages() {
    for address in any_addresses() {
        let (builder, counts) = builder(&address);
        let (server, client) = start(builder.stream_threads(0).interceptor(Hooks));
        let mut letters = client.spell(&line_of("abc"));
        let status = letters.wait().map(|_| ()).expect_err("no thread");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(!status.may_have_run(), "{status}");
        assert_eq!(counts.running.load(Ordering::SeqCst), 0);
        end(server);
    }
}

#[test]
fn hundreds_of_blocked_streams_hold_up_no_other_call() {
    const STREAMS: usize = 250;
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let mut held: Vec<_> = (0..STREAMS).map(|_| client.repeat()).collect();
        for (there, _) in &mut held {
            there.send_wait(&line_of("a line")).expect("room");
        }
        for (_, back) in &mut held {
            assert!(back.wait().expect("no failure").is_some());
        }
        assert_eq!(counts.running.load(Ordering::SeqCst), STREAMS);
        assert_eq!(client.spell(&line_of("quick")).blocking().count(), 5);
        drop(held);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        end(server);
    }
}

#[test]
fn a_server_that_ends_ends_the_waits_of_its_handlers() {
    for address in any_addresses() {
        let (server, counts, client) = serve(&address);
        let tally = held_tally(&client, &counts);
        let finished = server.shutdown(Duration::from_millis(50));
        assert!(!finished.expect("the device works"), "a stream was open");
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        let status = tally.finish_wait().expect_err("the server has ended");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

#[test]
#[should_panic(expected = "Spell has streams")]
fn only_the_proto_file_says_where_a_handler_with_streams_runs() {
    let _ = BlockingServer::new(Service(Arc::default())).inline("Spell");
}
