//! Applications with sessions, as the protocol has them, whose requests mean nothing, or end oddly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling::{CallOptions, Channel, Code, Endpoint, Status};
use starling_endpoint::MethodId;
use starling_io_shm::ShmIo;
use starling_message::method_id;
use starling_test_protos::target::{Amount, Blob, TargetClient};

use crate::common::{LONG, wait_until};
use crate::mesh::direct;
use crate::raw::{Raw, SLOTS, answered, bytes_field, kind, message};
use crate::scene::Scene;
use crate::service::builder;

/// A server that hostile applications call.
fn target() -> starling::ServerHandle {
    let server = builder().direct().bind("udp://127.0.0.1:0");
    let server = server.expect("an address").build().expect("it is free");
    server.spawn().expect("threads")
}

/// Sends requests with numbers of their own, and waits until each is answered.
fn exchange(raw: &mut Raw, requests: &[Vec<u8>]) {
    wait_until(|| {
        raw.keep_sessions(1);
        !raw.sessions.is_empty()
    });
    for requests in requests.chunks(SLOTS as usize) {
        let before = answered(std::slice::from_ref(raw));
        for (slot, request) in requests.iter().enumerate() {
            raw.request(0, slot as u8, 0, request);
        }
        raw.flush();
        wait_until(|| {
            raw.receive();
            answered(std::slice::from_ref(raw)) >= before + requests.len() as u64
        });
    }
}

/// A call header of any method with these fields, and a body.
fn with_fields(fields: &[u8]) -> Vec<u8> {
    let method = method_id("/target.Target/Echo").to_le_bytes();
    let length = (fields.len() as u16).to_le_bytes();
    [&method[..], &length, fields, b"body"].concat()
}

#[test]
fn wrong_call_headers_are_answered_one_by_one() {
    let scene = Scene::begin();
    let server = target();
    let stream = |number: u64, flags: u8| {
        let numbers = [7, number, u64::MAX, u64::MAX]
            .map(u64::to_le_bytes)
            .concat();
        [
            &[4, 38, 0][..],
            &numbers,
            &u32::MAX.to_le_bytes(),
            &[255, flags],
        ]
        .concat()
    };
    let mut requests = vec![
        vec![],
        vec![1],
        vec![1, 2, 3, 4],
        vec![1, 2, 3, 4, 255],
        vec![1, 2, 3, 4, 255, 255],
        with_fields(&[2, 1, 0, 9]),
        with_fields(&[2, 1, 0, 1, 2, 1, 0, 1]),
        with_fields(&[99, 0, 0]),
        with_fields(&[200, 0, 0]),
        with_fields(&[5, 1, 0, 0]),
        with_fields(&[3, 2, 0, 9, b'k']),
        with_fields(&[3, 3, 0, 1, b'K', b'v']),
        with_fields(&[7, 5, 0, 99, 255, 255, 255, 255]),
        with_fields(&[130, 1, 0, 255]),
        with_fields(&[3, 255, 31]),
        with_fields(&[0; 12_289]),
        // Deadlines of nothing, and of half a million years.
        with_fields(&[&[1, 8, 0][..], &[0; 8]].concat()),
        with_fields(&[&[1, 8, 0][..], &[255; 8], &[128, 4, 0], &[255; 4]].concat()),
    ];
    requests.extend([0, 1, u64::MAX].map(|number| with_fields(&stream(number, 255))));
    requests.extend([0, 1, u64::MAX].map(|number| with_fields(&stream(number, 1))));
    // As much metadata as there may be, and a byte more.
    let value = |length: u16| {
        let field = [&[3][..], &length.to_le_bytes(), &[1, b'k']].concat();
        let mut field = field;
        field.resize(usize::from(length) + 3, b'v');
        field
    };
    requests.extend([8_189, 8_190].map(|length| with_fields(&value(length))));
    let full = [value(8_189), [&[200, 0x40, 0x0f][..], &[0; 0xf40]].concat()].concat();
    requests.push(with_fields(&full));
    scene.during(|| {
        let mut raw = Raw::new(&scene.via(server.address()), 1);
        exchange(&mut raw, &requests);
        // The same at the control interface.
        exchange(&mut Raw::new(&scene.mesh.control(), 2), &requests);
    });
    drop(server);
    scene.check_nothing_left();
}

#[test]
fn who_says_no_target_or_an_impossible_one_is_told_so() {
    let scene = Scene::begin();
    for (target, code, text) in [
        ("", Code::Unimplemented, "STARLING_SERVICE"),
        (
            "?target=rdma://127.0.0.1:1",
            Code::InvalidArgument,
            "rdma://127.0.0.1:1",
        ),
        ("?target=udp://", Code::InvalidArgument, "udp://"),
        ("?target=shm://a b", Code::InvalidArgument, "a b"),
        (
            "?target=xdp://no-such/127.0.0.1:1",
            Code::Unavailable,
            "no-such",
        ),
        (
            "?target=shm://nobody-has-this-name",
            Code::Unavailable,
            "nobody-has-this-name",
        ),
    ] {
        let address = format!("shm://{}{target}", scene.mesh.name);
        let status = raw_calls(&address, &[(7, b"")])
            .remove(0)
            .expect_err(target);
        assert_eq!(
            (status.code(), status.may_have_run()),
            (code, false),
            "{status}"
        );
        assert!(status.message().contains(text), "{status}");
    }
    // Services that are asked to call themselves.
    let mut address = format!("shm://{}", scene.mesh.name);
    for _ in 0..10 {
        address = format!("shm://{}?target={address}", scene.mesh.name);
        let status = raw_calls(&address, &[(7, b"")])
            .remove(0)
            .expect_err("a loop");
        assert!(!status.may_have_run(), "{status}");
    }
    scene.check_nothing_left();
}

/// Makes calls without a schema, and returns how they end.
fn raw_calls(address: &str, calls: &[(u32, &[u8])]) -> Vec<Result<(), Status>> {
    let endpoint = Endpoint::builder().reach(address).build();
    let mut endpoint = endpoint.expect("an endpoint");
    let raw = endpoint.raw::<ShmIo>().expect("a device of this kind");
    let session = raw.connect(address).expect("it listens");
    let ends = Arc::new(Mutex::new(vec![None; calls.len()]));
    let into = Arc::clone(&ends);
    let collect = raw.register_continuation(move |_, completion| {
        into.lock()[completion.tag as usize] = Some(completion.result.map(drop));
    });
    let options = starling_endpoint::CallOptions::default();
    for (tag, (method, body)) in calls.iter().enumerate() {
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(body);
        let method = MethodId(*method);
        raw.call(session, method, &options, build, collect, tag as u64)
            .expect("it is made");
    }
    let until = Instant::now() + LONG;
    while ends.lock().iter().any(Option::is_none) {
        assert!(Instant::now() < until, "no answer");
        raw.poll().expect("a device that works");
    }
    let ends = std::mem::take(&mut *ends.lock());
    ends.into_iter().flatten().collect()
}

#[test]
fn bodies_of_another_schema_are_refused_by_whom_they_are_for() {
    let scene = Scene::begin();
    let server = target();
    let bodies: [&[u8]; 5] = [b"", b"x", &[255; 64], &[0; 7], &[1; 70_000]];
    let calls = |path: &str| bodies.map(|body| (method_id(path), body));
    let ends = scene.during(|| {
        let mut ends = raw_calls(&scene.via(server.address()), &calls("/target.Target/Echo"));
        for method in ["Publish", "Hold", "Unpublish"] {
            let path = format!("/starling.control.Control/{method}");
            ends.extend(raw_calls(&scene.mesh.control(), &calls(&path)));
        }
        for method in ["List", "Attach", "Configure", "Upgrade", "Detach", "Apply"] {
            let path = format!("/starling.control.Operator/{method}");
            ends.extend(raw_calls(&scene.mesh.control(), &calls(&path)));
        }
        // In protobuf.
        let wrong = message("Echo", &[], &[0xff; 100]);
        exchange(
            &mut Raw::new(&scene.via(server.address()), 1),
            &vec![wrong; 100],
        );
        ends
    });
    let statuses: Vec<Status> = ends.into_iter().filter_map(Result::err).collect();
    assert!(statuses.len() >= 4 * bodies.len(), "{statuses:?}");
    for status in statuses {
        let codes = [
            Code::InvalidArgument,
            Code::NotFound,
            Code::FailedPrecondition,
        ];
        assert!(codes.contains(&status.code()), "{status}");
        assert!(!status.message().is_empty());
    }
    drop(server);
    scene.check_nothing_left();
}

/// The memory of an application's messages changes after it has sent them. Its requests have some bytes; nobody
/// else's change.
#[test]
#[allow(
    unsafe_code,
    reason = "a hostile application writes where it may not any more"
)]
fn memory_that_changes_after_it_was_sent_harms_nobody() {
    let scene = Scene::begin();
    let server = target();
    let name = scene.mesh.name.clone();
    scene.during(|| {
        let channel = Channel::builder(server.address()).managed_by(&name);
        let channel = channel.own_endpoint().lazy().expect("an address");
        let memory = channel.memory().copy(&[1; 60_000]);
        let at = memory.as_ptr() as usize;
        let client = TargetClient::new(channel);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0_u8;
                while !over.load(Ordering::Relaxed) {
                    value = value.wrapping_add(1);
                    for offset in (0..60_000).step_by(61) {
                        // SAFETY: inside the memory, which lives longer than this thread.
                        let byte = unsafe { AtomicU8::from_ptr((at + offset) as *mut u8) };
                        byte.store(value, Ordering::Relaxed);
                    }
                }
            });
            for _ in 0..50 {
                let mut request = Blob::new();
                request.set_bytes_bytes(memory.clone());
                let response = client.echo(&request).wait().expect("an echo of some bytes");
                assert_eq!(response.message().bytes().len(), 60_000);
            }
            over.store(true, Ordering::Relaxed);
        });
        drop(client);
        drop(memory);
    });
    drop(server);
    scene.check_nothing_left();
}

/// An application that ends its session right behind a request leaves nothing under its number, which the next one
/// gets: neither its server nor its name.
#[test]
fn the_next_application_is_not_taken_for_one_that_has_left() {
    let scene = Scene::begin();
    let server = target();
    let echo = message("Echo", &[], &bytes_field(1, b"mine"));
    for _ in 0..20 {
        let mut raw = Raw::new(&scene.via("udp://127.0.0.1:9"), 1);
        exchange(&mut raw, &[]);
        raw.request(0, 0, 0, &echo);
        let (token, session) = (raw.server, raw.sessions[0].id);
        raw.frame(token, kind::CLOSE, 0, session, 0, &[]);
        raw.flush();
        // It is looked at, or not.
        scene.check();
        drop(raw);
        // It has the number, as long as nobody else comes.
        let address = scene.via(server.address());
        let client = TargetClient::new(direct(&address));
        let answer = client.echo(&Blob::new().with_bytes(b"own")).wait();
        assert_eq!(answer.expect("its own server").message().bytes(), b"own");
    }
    drop(server);
    scene.check_nothing_left();
}

/// A server behind the service that answers nothing: each call to it ends at its deadline, and no other waits for it.
#[test]
fn a_server_that_never_answers_holds_up_its_own_callers_only() {
    let scene = Scene::begin();
    let silent = builder()
        .managed_by(&scene.mesh.name)
        .bind("udp://127.0.0.1:0");
    let silent = silent.expect("an address").build().expect("it is free");
    let silent = silent.spawn().expect("threads");
    let client = TargetClient::new(scene.mesh.channel(silent.address()));
    let soon = CallOptions::with_timeout(Duration::from_millis(200));
    scene.during(|| {
        let calls: Vec<_> = (0..200)
            .map(|_| client.wait_with(&Blob::new(), &soon))
            .collect();
        for call in calls {
            let status = call.wait().expect_err("nobody answers");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        }
        client
            .scan(&Amount::new())
            .wait()
            .expect("it answers others");
    });
    drop((client, silent));
    scene.check_nothing_left();
}
