//! Applications that call and are called through a service, with the stubs that they have anyway.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{far_addresses, payload, shm_address, wait_until};
use mesh::{Mesh, direct, echo_at, exercise, name};
use starling::{
    CallOptions, Channel, Code, NestedContext, OwnedRequest, Server, Status, StreamReceiver,
    StreamSender,
};
use starling_sample_services::api::bench::{EchoClient, Payload, Wanted};
use starling_test_protos::blocking::{Blocking, BlockingClient, BlockingServer, Count, Line};
use starling_test_protos::test::{Failure, TestClient};

#[test]
fn an_application_calls_a_server_that_knows_no_service() {
    let mesh = Mesh::start();
    for address in far_addresses() {
        let server = echo_at(&address);
        exercise(mesh.channel(server.address()));
    }
}

#[test]
fn an_application_is_called_by_clients_that_know_no_service() {
    let mesh = Mesh::start();
    for address in far_addresses() {
        let server = mesh.echo_at(&address);
        assert!(!server.address().ends_with(":0"), "the port is known");
        exercise(direct(server.address()));
    }
}

#[test]
fn an_application_is_called_at_the_address_of_a_host_name() {
    let mesh = Mesh::start();
    for scheme in ["udp", "tcp"] {
        let server = mesh.echo_at(&format!("{scheme}://localhost:0"));
        exercise(direct(server.address()));
    }
}

#[test]
fn both_ends_have_a_service_the_same_or_two() {
    let (one, other) = (Mesh::start(), Mesh::start());
    let server = one.echo_at("udp://127.0.0.1:0");
    exercise(one.channel(server.address()));
    exercise(other.channel(server.address()));
}

#[test]
fn clients_choose_the_ids_of_their_streams_and_do_not_meet() {
    let mesh = Mesh::start();
    let server = mesh.echo_at("udp://127.0.0.1:0");
    // Each has an endpoint of its own, and numbers its streams as the others do.
    let clients = [0, 1, 2].map(|_| {
        let builder = Channel::builder(server.address()).direct().own_endpoint();
        EchoClient::new(builder.lazy().unwrap())
    });
    let mut streams = clients.each_ref().map(|client| client.exchange());
    for round in 0..10_u8 {
        for (number, (sender, receiver)) in streams.iter_mut().enumerate() {
            let data = [number as u8, round];
            sender.send_wait(&Payload::new().with_data(&data)).unwrap();
            let item = receiver.blocking().next().unwrap().unwrap();
            assert_eq!(item.message().data(), data);
        }
    }
}

#[test]
fn statuses_metadata_and_deadlines_pass() {
    let mesh = Mesh::start();
    let (builder, _) = common::server(&["udp://127.0.0.1:0"]);
    let server = builder
        .managed_by(&mesh.name)
        .build()
        .unwrap()
        .spawn()
        .unwrap();
    let client = TestClient::new(mesh.channel(server.address()));

    let failure = Failure::new()
        .with_code(Code::Aborted as u32)
        .with_text("as asked");
    let status = client.fail(&failure).wait().unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Aborted, "as asked")
    );
    assert!(status.may_have_run());
    assert_eq!(
        status.metadata().and_then(|it| it.value("detail")),
        Some(&b"seven"[..])
    );

    let options = CallOptions::with_timeout(Duration::from_secs(60));
    let options = options.metadata("who", "me").unwrap();
    let report = client
        .clone()
        .with_options(options)
        .inspect(&payload(b""))
        .wait()
        .unwrap();
    assert_eq!(report.metadata().value("who"), Some(&b"me"[..]));
    let (remaining_us, who) = common::report_of(&report);
    assert_eq!(who, "me");
    assert!(
        (1_000_000..60_000_000).contains(&remaining_us),
        "{remaining_us}"
    );

    let options = CallOptions::with_timeout(Duration::from_millis(50));
    let status = client
        .with_options(options)
        .wait(&payload(b""))
        .wait()
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[test]
fn failures_say_what_is_missing_and_that_nothing_ran() {
    let mesh = Mesh::start();
    let fails = |channel: Channel| {
        let status = EchoClient::new(channel)
            .call(&Payload::new())
            .wait()
            .unwrap_err();
        assert_eq!(
            (status.code(), status.may_have_run()),
            (Code::Unavailable, false),
            "{status}"
        );
        status.message().to_owned()
    };
    let text = fails(mesh.channel(&shm_address()));
    assert!(text.contains("no device has this name"), "{text}");
    for nobody in ["udp://127.0.0.1:9", "tcp://127.0.0.1:9"] {
        let text = fails(mesh.channel(nobody));
        assert!(text.contains(nobody), "{text}");
    }
    let absent = Channel::builder("udp://127.0.0.1:9").managed_by(name());
    let text = fails(absent.lazy().unwrap());
    assert!(text.contains("no device has this name"), "{text}");

    let server = echo_at("udp://127.0.0.1:0");
    let wanted = Wanted::new().with_items(1).with_bytes(u32::MAX);
    let mut source = EchoClient::new(mesh.channel(server.address())).source(&wanted);
    let status = source.blocking().next().unwrap().unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[test]
fn a_call_that_is_given_up_is_given_up_behind_the_service() {
    let mesh = Mesh::start();
    for managed in [false, true] {
        let (builder, gate) = common::server(&["udp://127.0.0.1:0"]);
        let builder = match managed {
            true => builder.managed_by(&mesh.name),
            false => builder.direct(),
        };
        let server = builder.build().unwrap().spawn().unwrap();
        let client = TestClient::new(mesh.channel(server.address()));
        let call = client.wait(&payload(b""));
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
        drop(call);
        wait_until(|| gate.dropped.load(Ordering::SeqCst) == 1);
        // The application that made it goes on.
        client.echo(&payload(b"on")).wait().unwrap();
    }
}

/// Streams whose handlers block.
struct Lines;

impl Blocking for Lines {
    fn spell(
        &self,
        _: NestedContext,
        request: OwnedRequest<Line>,
        mut letters: StreamSender<Line>,
    ) -> Result<(), Status> {
        let letter = |letter: char| Line::new().with_text(&letter.to_string());
        let mut all = request.message().text().chars();
        all.try_for_each(|it| letters.send_wait(&letter(it)))
    }

    fn tally(&self, _: NestedContext, mut lines: StreamReceiver<Line>) -> Result<Count, Status> {
        let count = lines
            .blocking()
            .try_fold(0, |count, line| line.map(|_| count + 1));
        Ok(Count::new().with_lines(count?))
    }

    fn repeat(
        &self,
        _: NestedContext,
        mut lines: StreamReceiver<Line>,
        mut back: StreamSender<Line>,
    ) -> Result<(), Status> {
        while let Some(line) = lines.wait()? {
            back.send_wait(&line.into_message())?;
        }
        Ok(())
    }
}

#[test]
fn worker_handlers_with_streams_block_behind_a_service_too() {
    let mesh = Mesh::start();
    let server = Server::builder().bind("udp://127.0.0.1:0").unwrap();
    let server = server.managed_by(&mesh.name);
    let server = server.add_service(BlockingServer::new(Lines));
    let server = server.build().unwrap().spawn().unwrap();
    for channel in [direct(server.address()), mesh.channel(server.address())] {
        let client = BlockingClient::new(channel);
        let text = "lines ".repeat(200);
        let line = Line::new().with_text(&text);
        let mut letters = client.spell(&line);
        let letters: Result<String, _> = letters
            .blocking()
            .map(|letter| letter.map(|it| it.message().text().to_owned()))
            .collect();
        assert_eq!(letters.unwrap(), text);

        let mut tally = client.tally();
        for _ in 0..1_000 {
            tally.send_wait(&line).unwrap();
        }
        assert_eq!(tally.finish_wait().unwrap().message().lines(), 1_000);

        let (mut there, mut back) = client.repeat();
        for _ in 0..100 {
            there.send_wait(&line).unwrap();
            assert_eq!(back.wait().unwrap().unwrap().message().text(), text);
        }
        there.close();
        assert!(back.wait().unwrap().is_none());
    }
}
