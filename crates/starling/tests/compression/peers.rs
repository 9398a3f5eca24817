//! Peers that lack an algorithm, know of no compression, or lie.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use starling::plane::{Encoding, RequestView};
use starling::{CallOptions, Channel, Code, Compression, MethodOptions, Status, block_on};
use starling_endpoint::header::ResponseParts;
use starling_endpoint::{CompressedBody, RequestCoding};
use starling_test_protos::test::TestClient;

use crate::common::{payload, server, wait_until};
use crate::raw::{RawClient, RawServer};
use crate::{algorithms, start, text};

/// What requests of a client said of compression.
#[derive(Default)]
struct Seen {
    packed: AtomicUsize,
    plain: AtomicUsize,
}

/// A server that has these algorithms, or is older than all of them.
fn picky(address: &str, accepts: Option<u8>) -> (RawServer, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let its_seen = Arc::clone(&seen);
    let server = RawServer::start(address, accepts, move |_, request, mut reply| {
        let fields = request.metadata().is_empty();
        assert!(fields, "these clients send none");
        match request.coding().compressed {
            Some(_) => {
                its_seen.packed.fetch_add(1, Ordering::SeqCst);
                let text = "field 7 of the call header is unknown here";
                reply.refuse(Status::invalid_argument(text));
            }
            None => {
                its_seen.plain.fetch_add(1, Ordering::SeqCst);
                reply.buffer().extend_from_slice(request.body());
                reply.ok();
            }
        }
    });
    (server, seen)
}

#[test]
fn a_server_that_lacks_the_algorithm_gets_requests_as_they_are() {
    for accepts in [None, Some(0)] {
        let (_server, seen) = picky("mem://peers-lacks", accepts);
        let channel = Channel::lazy("mem://peers-lacks").expect("a channel");
        for compression in algorithms() {
            let options = CallOptions::default().compression(compression);
            let client = TestClient::new(channel.clone()).with_options(options);
            let response = client.echo(&payload(&text(5_000))).wait();
            assert!(response.expect("an echo").message().bytes() == text(5_000));
        }
        assert_eq!(seen.packed.load(Ordering::SeqCst), 0, "it had said so");
        assert_eq!(seen.plain.load(Ordering::SeqCst), 3);
    }
}

/// Without generated code, nobody has asked the server before.
#[test]
fn a_call_that_is_refused_because_it_is_packed_is_made_again_as_it_is() {
    let (_server, seen) = picky("mem://peers-again", None);
    let channel = Channel::lazy("mem://peers-again").expect("a channel");
    let options = CallOptions::default().compression(Compression::lz4());
    let request = text(5_000);
    for _ in 0..2 {
        let call = channel.call_protobuf("/test.Test/Echo", &request, &options);
        assert!(call.wait().expect("an echo").body() == request);
    }
    assert_eq!(seen.packed.load(Ordering::SeqCst), 2);
    assert_eq!(seen.plain.load(Ordering::SeqCst), 2);
    // What fails otherwise fails once.
    let call = channel.call_protobuf("/test.Test/None", &request, &options);
    let status = call.wait().expect_err("there is no such method");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
}

fn packed(algorithm: u8, len: u32) -> starling_endpoint::CallOptions {
    starling_endpoint::CallOptions {
        coding: RequestCoding {
            compressed: Some(CompressedBody { algorithm, len }),
            ..RequestCoding::default()
        },
        ..starling_endpoint::CallOptions::default()
    }
}

#[test]
fn a_server_refuses_what_it_cannot_unpack_and_serves_on() {
    let (server, gate, channel) = start("mem://peers-client-lies", None);
    let mut client = RawClient::new(server.address());
    // An algorithm that nobody has; bombs; a length that cannot be; and bytes that are not packed.
    let cases = [
        (packed(6, 100), Code::Unimplemented, "gzip, zstd, lz4"),
        (packed(0, 100), Code::Unimplemented, "algorithm 0"),
        (
            packed(3, 100 << 20),
            Code::ResourceExhausted,
            "max_request_bytes",
        ),
        (packed(2, (4 << 20) + 1), Code::ResourceExhausted, "4194304"),
        (packed(3, 4 << 20), Code::InvalidArgument, "cannot be"),
        (packed(1, 1_000_000), Code::InvalidArgument, "cannot be"),
        (packed(2, 4_000_000), Code::InvalidArgument, "cannot be"),
        (packed(1, 100), Code::InvalidArgument, "not 100 bytes"),
        (packed(2, 100), Code::InvalidArgument, "not 100 bytes"),
        (packed(3, 100), Code::InvalidArgument, "not 100 bytes"),
    ];
    for path in ["/test.Test/Echo", "/test.Test/Work", "/test.Test/Wait"] {
        for (options, code, says) in &cases {
            let status = client.call(path, options, b"not packed at all");
            let status = status.expect_err(says);
            assert_eq!(status.code(), *code, "{status}");
            assert!(status.message().contains(says), "{status}");
            assert!(!status.may_have_run(), "{status}");
            let has_hint = status
                .metadata()
                .is_some_and(|it| it.value("accept-compression") == Some(b"gzip, zstd, lz4"));
            assert_eq!(has_hint, *code == Code::Unimplemented, "{status}");
        }
    }
    // Longer than all that may wait.
    for path in ["/test.Test/Work", "/test.Test/Wait"] {
        let status = client.call(path, &packed(3, u32::MAX), b"not packed at all");
        let status = status.expect_err("a bomb");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(!status.may_have_run(), "{status}");
    }
    assert_eq!(gate.runs.load(Ordering::SeqCst), 0);
    TestClient::new(channel)
        .echo(&payload(b"x"))
        .wait()
        .expect("it serves on");
}

/// A method's own bound is the bound of what is unpacked.
#[test]
fn a_bomb_is_refused_by_the_methods_bound() {
    let (builder, _gate) = server(&["mem://peers-bomb"]);
    let options = MethodOptions::default().max_request_bytes(1 << 20);
    let server = builder.method_options("test.Test/Echo", options).build();
    let server = server.expect("a server").spawn().expect("threads");
    let mut client = RawClient::new(server.address());
    for compression in algorithms() {
        // A client with the same code packs it: 2 MiB of one byte.
        let channel = Channel::lazy(server.address()).expect("a channel");
        let options = CallOptions::default().compression(compression);
        let bomb = payload(&vec![0; 2 << 20]);
        let status = TestClient::new(channel).echo_with(&bomb, &options).wait();
        let status = status.expect_err("it is too long");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(!status.may_have_run());
    }
    let status = client.call("/test.Test/Echo", &packed(2, (1 << 20) + 1), &[0; 100]);
    assert!(status.expect_err("a bomb").message().contains("1048576"));
}

/// The dispatch thread has other clients. A request is unpacked where its handler runs.
#[test]
fn what_an_executor_runs_is_unpacked_there() {
    let (builder, gate) = server(&["mem://peers-executor"]);
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let given = Arc::clone(&tasks);
    let builder = builder.nested_executor(move |task| given.lock().push(task));
    let server = builder.build().expect("a server").spawn().expect("threads");
    let calls = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let mut client = RawClient::new(server.address());
            client.call("/test.Test/Wait", &packed(2, 100), b"not packed at all")
        });
        wait_until(|| !tasks.lock().is_empty());
        assert!(!call.is_finished(), "nobody has looked at it");
        let task = tasks.lock().pop().expect("just seen");
        block_on(task);
        call.join().expect("no panic")
    });
    let status = calls.expect_err("it is not packed");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(!status.may_have_run(), "{status}");
    assert_eq!(gate.waiting.load(Ordering::SeqCst), 0);
}

/// A server that answers with a body that is packed as the header says, or not.
fn liar(address: &str, header: CompressedBody, body: &'static [u8]) -> RawServer {
    RawServer::start(address, Some(0b1110), move |_, request, mut reply| {
        let coding = request.coding();
        assert_ne!(coding.accepts, 0, "the client has asked for it");
        let parts = ResponseParts {
            compressed: Some(header),
            ..ResponseParts::default()
        };
        assert!(parts.needs_extension());
        reply.buffer().extend_from_slice(body);
        reply.set_compressed(header);
        reply.ok();
    })
}

#[test]
fn a_client_refuses_what_it_cannot_unpack() {
    let cases = [
        (6, 100, Code::Internal, "algorithm 6"),
        (3, u32::MAX, Code::ResourceExhausted, "max_response_bytes"),
        (2, (64 << 20) + 1, Code::ResourceExhausted, "67108864"),
        (3, 64 << 20, Code::Internal, "cannot be"),
        (1, 100, Code::Internal, "malformed"),
        (2, 100, Code::Internal, "malformed"),
        (3, 100, Code::Internal, "malformed"),
    ];
    for (algorithm, len, code, says) in cases {
        let header = CompressedBody { algorithm, len };
        let _server = liar("mem://peers-server-lies", header, b"not packed at all");
        let channel = Channel::lazy("mem://peers-server-lies").expect("a channel");
        let options = CallOptions::default().accept_compressed(true);
        let client = TestClient::new(channel).with_options(options);
        let status = client.echo(&payload(b"x")).wait().expect_err(says);
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(says), "{status}");
        assert!(status.may_have_run(), "{status}");
    }
}

/// Whoever has not asked for compression, and gets it, has a malformed message.
#[test]
fn a_response_that_is_packed_unasked_is_malformed() {
    let header = CompressedBody {
        algorithm: 3,
        len: 100,
    };
    let _server = RawServer::start("mem://peers-unasked", None, move |_, _, mut reply| {
        reply.buffer().extend_from_slice(b"packed?");
        reply.set_compressed(header);
        reply.ok();
    });
    let mut endpoint = starling::Endpoint::client("mem://peers-unasked").expect("an endpoint");
    let local = endpoint.channel("mem://peers-unasked").expect("a channel");
    let local = TestClient::new(local);
    let channel = Channel::lazy("mem://peers-unasked").expect("a channel");
    let of_channel = block_on(TestClient::new(channel).echo(&payload(b"x")));
    // The first call of a local channel binds, the second goes straight.
    let of_local = [local.echo(&payload(b"x")), local.echo(&payload(b"x"))];
    let [first, second] = of_local.map(|call| endpoint.block_on(call).expect("the device works"));
    for result in [of_channel, first, second] {
        let status = result.expect_err("it is malformed");
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
    let plain = RequestView::new(b"", &[], None);
    assert_eq!(plain.form().0, Encoding::Native);
}
