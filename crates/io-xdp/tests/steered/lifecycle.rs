//! Servers with steered workers that end, calls that are cancelled, interfaces that are removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use starling_endpoint::{CallOptions, Code, Endpoint, EndpointConfig, Idle, WorkerConfig};
use starling_io::{Fault, MonotonicClock};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Shape, inside, run};

use crate::common::Net;
use crate::harness::{
    Client, ECHO, INLINE, PATIENCE, Server, Shared, UNTIL_CANCELLED, WORK, body, echo_inline,
    patient, secrets, steered,
};

#[test]
fn a_server_that_shuts_down_finishes_what_its_workers_claimed() {
    let test = "a_server_that_shuts_down_finishes_what_its_workers_claimed";
    let Some(pair) = Net::new(test) else {
        return;
    };
    let shared = Shared::new(20_000);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = Client::xdp(port, patient());
        client.echo_and_block(&shared);
        server.stop();
        // A later call comes to a server that drains, or is not made because the server has said so.
        let mut number = 2;
        let begun = Instant::now();
        while client.work_unless_draining(number, ECHO) {
            client.run_until(number as usize);
            number += 1;
            let mut ends = client.ends.lock();
            if let Some(Err(status)) = ends.insert((number - 1).into(), Ok(Vec::new())) {
                assert_eq!(status.code(), Code::Unavailable);
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not drain");
            std::thread::sleep(Duration::from_millis(10));
        }
        shared.gate.store(true, Ordering::SeqCst);
        client.run_until(number as usize);
        client.check_echoes(1..2);
    });
    server.end();
}

#[test]
fn a_server_that_ends_while_a_handler_blocks_frees_its_port() {
    let Some(pair) = Net::new("a_server_that_ends_while_a_handler_blocks_frees_its_port") else {
        return;
    };
    let shared = Shared::new(2);
    let server = Server::start_with(&pair, &shared, steered(2), Duration::ZERO);
    let port = server.port;
    inside(&pair.a, || {
        Client::xdp(port, patient()).echo_and_block(&shared);
    });
    let (stats, drained) = server.join();
    assert!(!drained, "{stats:?}");
    // The blocked worker still has the queue, but another socket at the port is reached.
    let address = format!("udp://10.77.0.2:{port}");
    let bind = || UdpIo::bind(&address, UdpConfig::default()).expect("the port is free");
    let io = inside(&pair.b, bind);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let mut endpoint =
                Endpoint::new(io, MonotonicClock::new(), patient(), secrets(3)).expect("sound");
            echo_inline(&mut endpoint);
            let begun = Instant::now();
            while !over.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
                endpoint.poll().expect("a healthy device");
                std::thread::yield_now();
            }
        });
        inside(&pair.a, || {
            let mut client = Client::xdp(port, patient());
            client.call(INLINE, &CallOptions::default(), 0, ECHO);
            client.run_until(1);
            client.check_echoes(0..1);
        });
        over.store(true, Ordering::SeqCst);
        next.join().expect("no panic");
    });
    assert!(!shared.gate.swap(true, Ordering::SeqCst));
}

#[test]
fn a_handler_learns_that_its_call_is_cancelled_or_its_session_closed() {
    let test = "a_handler_learns_that_its_call_is_cancelled_or_its_session_closed";
    let Some(pair) = Net::new(test) else {
        return;
    };
    let shared = Shared::new(10);
    let server = Server::start(&pair, &shared, steered(2));
    let port = server.port;
    inside(&pair.a, || {
        let mut client = Client::xdp(port, patient());
        client.work(0, ECHO);
        client.run_until(1);
        let options = CallOptions::default();
        let body = body(1, UNTIL_CANCELLED);
        let build = |out: &mut Vec<u8>| out.extend(&body);
        let (session, collect) = (client.session, client.collect);
        let call = (client.endpoint).call(session, WORK, &options, build, collect, 1);
        client.wait_for(&shared.blocked, 1);
        assert!(client.endpoint.cancel(call.expect("room")));
        client.wait_for(&shared.cancelled, 1);
        client.work(2, UNTIL_CANCELLED);
        client.wait_for(&shared.blocked, 2);
        client.endpoint.close(session);
        client.wait_for(&shared.cancelled, 2);
    });
    let stats = server.end();
    assert!(stats.claimed >= 2, "{stats:?}");
}

#[test]
fn workers_end_when_their_interface_is_removed() {
    let Some(pair) = Net::new("workers_end_when_their_interface_is_removed") else {
        return;
    };
    for idle in [Idle::Block, Idle::Spin] {
        let (started, start) = mpsc::channel();
        let handler: Arc<()> = Arc::default();
        let held = Arc::downgrade(&handler);
        let namespace = pair.b.try_clone().expect("a file");
        let serve = move || {
            let io = XdpIo::bind("xdp://vb/10.77.0.2:0", XdpConfig::default()).expect("a device");
            let config = EndpointConfig::default();
            let mut endpoint =
                Endpoint::new(io, MonotonicClock::new(), config, secrets(2)).expect("sound");
            endpoint.register_worker(
                WORK,
                Arc::new(move |_, _| {
                    let _ = &handler;
                }),
            );
            let config = WorkerConfig { idle, ..steered(3) };
            endpoint.start_workers(&config).expect("workers");
            started.send(()).expect("the test waits");
            endpoint
                .run_until(|_| false)
                .expect_err("its interface is gone")
        };
        let thread = std::thread::spawn(move || inside(&namespace, serve));
        start.recv().expect("the server starts");
        run(&pair.b, "ip link del vb").expect("the interface is there");
        let error = thread.join().expect("no panic");
        assert_eq!(error.fault, Fault::Host);
        assert!(held.upgrade().is_none(), "threads are left");
        pair.join(Shape::default()).expect("there is none");
    }
}

#[test]
fn a_device_that_cannot_steer_refuses_steered_workers() {
    let io = UdpIo::bind("udp://127.0.0.1:0", UdpConfig::default()).expect("a socket");
    let config = EndpointConfig::default();
    let mut endpoint = Endpoint::new(io, MonotonicClock::new(), config, secrets(2)).expect("sound");
    let error = endpoint.start_workers(&steered(2));
    let error = error.expect_err("UDP cannot steer");
    assert_eq!(error.fault, Fault::Caller);
    assert!(error.remedy.contains("xdp://"), "{error}");
    let mut partitioned = steered(2);
    partitioned.model = starling_endpoint::jbsq::QueueModel::Partitioned;
    let error = endpoint.start_workers(&partitioned);
    let error = error.expect_err("steered workers have one queue");
    assert_eq!(error.fault, Fault::Caller);
    assert!(error.remedy.contains("SingleQueue"), "{error}");
}
