//! Connections: how they open, fail, and open again.

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{
    Gate, LONG, Service, any_addresses, client, impatient, payload, serve, server, shm_address,
    wait_until,
};
use starling::{
    CallOptions, Channel, ChannelState, Code, Endpoint, EndpointConfig, Error, Server, Status,
    block_on,
};
use starling_test_protos::test::{TestClient, TestServer};

fn fails(address: &str) -> Status {
    let channel = Channel::lazy(address).expect("a channel");
    let client = TestClient::new(channel);
    client
        .echo(&payload(b""))
        .wait()
        .expect_err("nobody is there")
}

#[test]
fn a_call_without_a_server_is_unavailable_with_the_reason() {
    let status = fails(&shm_address());
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("start the server"), "{status}");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let udp = format!("udp://{}", socket.local_addr().expect("an address"));
    let tcp = format!("tcp://{}", listener.local_addr().expect("an address"));
    drop((socket, listener));
    for address in [udp, tcp] {
        let status = fails(&address);
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains(&address), "{status}");
        assert!(status.message().contains("start the server"), "{status}");
    }
}

#[test]
fn a_host_without_an_address_is_unavailable() {
    let status = fails("udp://no-such-host.invalid:9000");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("no-such-host.invalid"),
        "{status}"
    );
}

#[test]
fn malformed_addresses_are_refused_at_once() {
    for address in [
        "",
        "127.0.0.1:9000",
        "http://h:1",
        "xdp://h:1",
        "xdp://eth0/h",
        "rdma://mlx5_0/h:1",
        "grpc://h:1",
        "udp://127.0.0.1",
        "udp://:9000",
        "shm://",
        "shm://a/b",
    ] {
        assert!(
            matches!(Channel::lazy(address), Err(Error::Address(_))),
            "{address}"
        );
        assert!(
            matches!(Endpoint::client(address), Err(Error::Address(_))),
            "{address}"
        );
        assert!(
            matches!(Server::builder().bind(address), Err(Error::Address(_))),
            "{address}"
        );
    }
    let error = Server::builder()
        .bind("udp://127.0.0.1")
        .expect_err("no port");
    assert!(error.to_string().contains("no port"), "{error}");
    let error = Server::builder().build().expect_err("no address");
    assert!(matches!(error, Error::NoAddress));
}

#[test]
fn an_address_in_use_is_refused() {
    for address in any_addresses() {
        let server = Server::builder()
            .bind(&address)
            .expect("free")
            .build()
            .expect("a server");
        let taken = &server.addresses()[0];
        let another = Server::builder().bind(taken).expect("an address");
        let error = another.build().expect_err("taken");
        assert!(matches!(error, Error::Device(_)), "{error}");
        assert!(error.to_string().contains(taken.as_str()), "{error}");
    }
}

#[test]
fn a_service_cannot_be_added_twice() {
    let (builder, gate) = server(&[&shm_address()]);
    let again = starling_test_protos::test::TestServer::new(common::Service(gate));
    let error = builder
        .add_service(again)
        .build()
        .expect_err("both have the same methods");
    assert!(matches!(error, Error::MethodsCollide { .. }), "{error}");
}

#[test]
fn a_full_server_refuses_with_a_reason_and_others_are_undisturbed() {
    for address in any_addresses() {
        let mut config = EndpointConfig::default();
        config.protocol.max_sessions = 1;
        let (builder, _) = server(&[&address]);
        let server = builder
            .config(config)
            .build()
            .expect("a server")
            .spawn()
            .expect("threads");
        let first = client(server.address());
        first.echo(&payload(b"")).wait().expect("room for one");
        let status = fails(server.address());
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("refused"), "{status}");
        first.echo(&payload(b"")).wait().expect("it is undisturbed");
    }
}

#[test]
fn a_call_that_waits_for_ready_is_made_when_the_server_comes() {
    let address = shm_address();
    let channel = Channel::builder(&address).lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let call = client.echo_with(&payload(b"patience"), &CallOptions::waiting());
    wait_until(|| channel.state() == ChannelState::TransientFailure);
    let (_server, _) = serve(&address);
    let response = call.wait().expect("it waited");
    assert_eq!(response.message().bytes(), b"patience");
    assert_eq!(channel.state(), ChannelState::Ready);
    block_on(channel.ready()).expect("it is");
}

#[test]
fn waiting_for_ready_ends_at_the_deadline() {
    let client = client(&shm_address());
    let options = CallOptions {
        timeout: Some(std::time::Duration::from_millis(50)),
        ..CallOptions::waiting()
    };
    let status = client
        .echo_with(&payload(b""), &options)
        .wait()
        .expect_err("nobody comes");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("did not run"), "{status}");
}

#[test]
fn channels_and_endpoints_connect_again_to_a_restarted_server() {
    for address in any_addresses() {
        let (first, _) = serve(&address);
        let address = first.address().to_owned();
        let channel = Channel::builder(&address)
            .endpoint_config(impatient())
            .lazy()
            .expect("a channel");
        let client = TestClient::new(channel);
        let mut endpoint = Endpoint::builder()
            .reach(&address)
            .config(impatient())
            .build()
            .expect("an endpoint");
        let local = TestClient::new(endpoint.channel(&address).expect("a channel"));
        client.echo(&payload(b"1")).wait().expect("an echo");
        endpoint
            .block_on(local.echo(&payload(b"1")))
            .expect("a device")
            .expect("an echo");

        assert!(first.shutdown(LONG).expect("no device fails"));
        let (_second, gate) = serve(&address);
        // The first call may be lost with the old session. It is never made twice.
        let options = CallOptions::waiting();
        let lost = client.echo_with(&payload(b"2"), &options).wait();
        assert!(lost.is_ok() || lost.is_err_and(|status| status.code() == Code::Unavailable));
        client
            .echo_with(&payload(b"3"), &options)
            .wait()
            .expect("a new session");
        let calls = async {
            let lost = local.echo_with(&payload(b"2"), &options).await;
            assert!(lost.is_ok() || lost.is_err_and(|status| status.code() == Code::Unavailable));
            local
                .echo_with(&payload(b"3"), &options)
                .await
                .expect("a new session");
        };
        endpoint.block_on(calls).expect("no device fails");
        assert!(gate.runs.load(SeqCst) >= 2);
    }
}

/// The client notices a session that ended without a call, and makes later calls on a new one.
#[test]
fn calls_after_a_servers_pause_are_made_on_a_new_session() {
    for address in any_addresses() {
        let gate = Arc::new(Gate::default());
        let builder = Endpoint::builder().bind(&address);
        let builder = builder.add_service(TestServer::new(Service(Arc::clone(&gate))));
        let mut server = builder.build().expect("a server");
        // The session is to end while the server pauses, and the next one is to live on a busy host.
        let mut config = EndpointConfig::default();
        config.protocol.connect_timeout_ns = LONG.as_nanos() as u64;
        let builder = Endpoint::builder().reach(&address).config(config);
        let mut endpoint = builder.build().expect("an endpoint");
        let channel = endpoint
            .channel(&server.local_address())
            .expect("a channel");
        let ended = Arc::new(AtomicUsize::new(0));
        let spawn = |endpoint: &Endpoint, call: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let ended = Arc::clone(&ended);
            endpoint.spawn(async move {
                call.await;
                ended.fetch_add(1, Ordering::Relaxed);
            });
        };
        let begin = channel.clone();
        let connect = async move { begin.connect().await.expect("a session") };
        spawn(&endpoint, Box::pin(connect));
        wait_until(|| {
            endpoint.poll().expect("a device");
            server.poll().expect("a device");
            ended.load(Ordering::Relaxed) == 1
        });

        wait_until(|| {
            endpoint.poll().expect("a device");
            endpoint.stats().sessions_ended == 1
        });
        let client = TestClient::new(channel);
        for _ in 0..64 {
            let client = client.clone();
            let call = async move {
                let answer = client.echo(&payload(b"back")).await;
                answer.expect("a call on a new session");
            };
            spawn(&endpoint, Box::pin(call));
        }
        wait_until(|| {
            endpoint.poll().expect("a device");
            server.poll().expect("a device");
            ended.load(Ordering::Relaxed) == 65
        });
        assert_eq!(gate.runs.load(SeqCst), 64);
    }
}

#[test]
fn a_graceful_shutdown_finishes_outstanding_calls_and_refuses_new_ones() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let client = client(server.address());
        let outstanding = client.wait(&payload(b"outstanding"));
        wait_until(|| gate.waiting.load(SeqCst) == 1);
        let shutdown = std::thread::spawn(move || server.shutdown(LONG));
        let mut refused = false;
        while !refused {
            match client.echo(&payload(b"")).wait() {
                Ok(_) => {}
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable);
                    refused = true;
                }
            }
        }
        gate.open.store(true, SeqCst);
        let response = outstanding.wait().expect("it was finished");
        assert_eq!(response.message().bytes(), b"outstanding");
        assert!(shutdown.join().expect("no panic").expect("no device fails"));
    }
}

/// A call reads what has arrived before it is sent, so it knows that it did not run. If another thread
/// drives just then, that one may have read before the shutdown and send after it: so one try of ten counts.
#[test]
fn an_idle_client_learns_of_a_shutdown() {
    let learns = |address: &str| {
        let (server, _gate) = serve(address);
        let client = client(server.address());
        client.echo(&payload(b"")).wait().expect("it serves");
        assert!(server.shutdown(LONG).expect("no device fails"));
        let status = client.echo(&payload(b"")).wait().expect_err("it is gone");
        assert_eq!(status.code(), Code::Unavailable);
        let message = status.message();
        assert!(!message.contains("stopped answering"), "{message}");
        !message.contains("may have run")
    };
    for address in any_addresses() {
        assert!((0..10).any(|_| learns(&address)), "{address}");
    }
}

#[test]
fn a_shutdown_gives_up_after_its_timeout() {
    let (server, gate) = serve(&shm_address());
    let client = client(server.address());
    let call = client.wait(&payload(b""));
    wait_until(|| gate.waiting.load(SeqCst) == 1);
    let finished = server.shutdown(std::time::Duration::from_millis(50));
    assert!(!finished.expect("no device fails"));
    let status = call.wait().expect_err("its server is gone");
    assert_eq!(status.code(), Code::Unavailable);
}

#[test]
fn several_threads_of_one_server_share_a_port() {
    for address in ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        share_a_port(address);
    }
}

fn share_a_port(address: &str) {
    let gate = std::sync::Arc::new(common::Gate::default());
    let service = starling_test_protos::test::TestServer::new(common::Service(gate));
    let server = Server::builder()
        .threads(2)
        .bind(address)
        .expect("a port")
        .add_service(service)
        .build()
        .expect("a server")
        .spawn()
        .expect("threads");
    assert_eq!(server.addresses().len(), 1);
    for _ in 0..6 {
        let channel = Channel::builder(server.address()).own_endpoint().lazy();
        let client = TestClient::new(channel.expect("a channel"));
        client
            .echo(&payload(b""))
            .wait()
            .expect("whichever thread it is");
    }
}

#[test]
fn channels_that_come_and_go_quickly_find_the_server_each_time() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        // Keeps the background thread, so that links and sessions close while others open.
        let _kept = Channel::lazy(server.address()).expect("a channel");
        for _ in 0..200 {
            let client = client(server.address());
            client
                .echo(&payload(b""))
                .wait()
                .expect("the server is there");
        }
        assert_eq!(gate.runs.load(SeqCst), 200);
    }
}

/// The server learns that the last session is closed just when the next one is opened.
#[test]
fn a_channel_that_opens_while_another_one_closes_connects() {
    for address in any_addresses() {
        let (server, _) = serve(&address);
        // Never connected. It keeps the shared thread.
        let _keeper = Channel::lazy(server.address()).expect("a channel");
        for i in 0..300u32 {
            let channel = Channel::lazy(server.address()).expect("a channel");
            let client = TestClient::new(channel);
            let sent = payload(&i.to_le_bytes());
            let response = client.echo(&sent).wait().expect("an echo");
            assert_eq!(response.message().bytes(), i.to_le_bytes());
        }
    }
}

#[test]
fn a_server_that_goes_while_a_connection_opens_is_noticed_though_no_call_waits() {
    let address = shm_address();
    let (mut server, mut gate) = serve(&address);
    let channel = Channel::balanced([&address]).lazy().expect("a channel");
    let client = TestClient::new(channel);
    for _ in 0..40 {
        wait_until(|| match client.echo(&payload(b"")).wait() {
            Ok(_) => true,
            Err(status) => {
                // A connect that met the server's end ends with it, not after its timeout.
                let text = status.message();
                assert!(!text.contains("nothing answered"), "{text}");
                false
            }
        });
        // Nobody drives when the server ends.
        std::thread::sleep(Duration::from_millis(150));
        // The session ends, and the channel connects again: some of these times to the server that ends.
        assert!(server.shutdown(LONG).expect("the device works"));
        (server, gate) = serve(&address);
    }
    drop(gate);
}
