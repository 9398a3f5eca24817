//! Typed calls over AF_XDP, between two network namespaces joined by veth.

mod common;

use common::xdp::{channel, from_a, pair, serve, serve_in};
use common::{LONG, any_addresses, payload, server};
use starling::{Bytes, Channel, Endpoint, Error};
use starling_netns::{IPV4, IPV6, Shape, inside};
use starling_test_protos::test::{RelayRequest, TestClient};

/// Echoes of all sizes.
fn check(client: &TestClient<Channel>) {
    for size in [0, 1, 100, 1400, 1500, 10_000, 1 << 20] {
        let bytes = Bytes::from_iter((0..size).map(|i: u32| (i * 31 / 7) as u8));
        let response = client.echo(&payload(&bytes)).wait().expect("an echo");
        assert!(response.message().bytes() == bytes);
    }
    let response = client
        .work(&payload(b"in a worker"))
        .wait()
        .expect("an echo");
    assert_eq!(response.message().bytes(), b"in a worker");
}

#[test]
fn calls_of_all_sizes_work_over_both_ip_versions() {
    let test = "calls_of_all_sizes_work_over_both_ip_versions";
    for mtu in [1500, 9000, 57_000] {
        let Some(pair) = pair(
            test,
            Shape {
                mtu,
                ..Shape::default()
            },
        ) else {
            return;
        };
        for host in [IPV4[1].to_owned(), format!("[{}]", IPV6[1])] {
            let server = serve(&pair, 1, &format!("xdp://vb/{host}:0"));
            check(&TestClient::new(channel(&pair, &from_a(&server))));
        }
    }
}

/// The kernel drops a datagram that is larger than the other interface's MTU, and reports nothing.
#[test]
fn ends_with_different_mtus_understand_each_other() {
    let test = "ends_with_different_mtus_understand_each_other";
    let shape = Shape {
        mtu: 9000,
        ..Shape::default()
    };
    let Some(pair) = pair(test, shape) else {
        return;
    };
    starling_netns::run(&pair.b, "ip link set dev vb mtu 1500").expect("root");
    for scheme in ["xdp", "udp"] {
        for (server_at, client_at, ip) in [
            ((&pair.b, "vb"), (&pair.a, "va"), IPV4[1]),
            ((&pair.a, "va"), (&pair.b, "vb"), IPV4[0]),
        ] {
            let at = |interface: &str| match scheme {
                "xdp" => format!("xdp://{interface}/{ip}"),
                _ => format!("udp://{ip}"),
            };
            let (server, _) = serve_in(server_at.0, 1, &format!("{}:0", at(server_at.1)));
            let address = &server.addresses()[0];
            let port = address.rsplit(':').next().expect("a port");
            let address = format!("{}:{port}", at(client_at.1));
            let made = inside(client_at.0, || {
                Channel::builder(&address).own_endpoint().lazy()
            });
            let client = TestClient::new(made.expect("a channel"));
            // So many at a time that requests share datagrams, and responses do.
            let request = payload(&[7; 300]);
            for _ in 0..20 {
                let calls: Vec<_> = (0..100).map(|_| client.echo(&request)).collect();
                for call in calls {
                    let echoed = call.wait().expect("an echo");
                    assert_eq!(echoed.message().bytes(), [7; 300]);
                }
            }
            check(&client);
        }
    }
}

#[test]
fn typed_calls_are_steered_to_workers() {
    let test = "typed_calls_are_steered_to_workers";
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let Some(pair) = pair(test, shape) else {
        return;
    };
    let steered = inside(&pair.b, || {
        let (builder, _) = server(&[]);
        let builder = builder.steered().threads(2);
        let server = builder.bind("xdp://vb/0.0.0.0:0").expect("an address");
        server.build().expect("a server").spawn().expect("threads")
    });
    for _ in 0..4 {
        let client = TestClient::new(channel(&pair, &from_a(&steered)));
        check(&client);
        for size in 0..200 {
            let bytes = vec![size as u8; size * 7];
            let response = client.work(&payload(&bytes)).wait().expect("an echo");
            assert!(response.message().bytes() == bytes);
        }
    }
    assert!(steered.shutdown(LONG).expect("healthy devices"));
}

#[test]
fn only_xdp_addresses_can_be_steered() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let error = builder.steered().build().expect_err("no such device");
        let Error::Device(error) = error else {
            panic!("{error}");
        };
        assert_eq!(error.fault, starling_io::Fault::Caller);
        assert!(error.remedy.contains("xdp://"), "{error}");
    }
}

#[test]
fn udp_and_af_xdp_understand_each_other() {
    let Some(pair) = pair("udp_and_af_xdp_understand_each_other", Shape::default()) else {
        return;
    };
    let xdp = serve(&pair, 1, "xdp://vb/0.0.0.0:0");
    let address = from_a(&xdp).replace("xdp://va/", "udp://");
    check(&TestClient::new(channel(&pair, &address)));

    let udp = serve(&pair, 1, "udp://0.0.0.0:0");
    let address = udp.addresses()[0].replace("udp://0.0.0.0", &format!("xdp://va/{}", IPV4[1]));
    check(&TestClient::new(channel(&pair, &address)));
}

#[test]
fn each_queue_has_a_thread() {
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let Some(pair) = pair("each_queue_has_a_thread", shape) else {
        return;
    };
    let server = serve(&pair, 2, "xdp://vb/0.0.0.0:0");
    assert_eq!(server.addresses().len(), 1, "all the same for clients");
    // One after the other: the ports that they get spread over the queues.
    for _ in 0..8 {
        check(&TestClient::new(channel(&pair, &from_a(&server))));
    }
}

/// Two devices of a process need a queue each. Without one, the error names the remedy.
#[test]
fn a_server_and_a_channel_of_one_process_take_a_queue_each() {
    let shape = Shape {
        queues: 2,
        ..Shape::default()
    };
    let test = "a_server_and_a_channel_of_one_process_take_a_queue_each";
    let Some(pair) = pair(test, shape) else {
        return;
    };
    let far = serve(&pair, 1, "udp://0.0.0.0:0");
    let far = far.addresses()[0].replace("udp://0.0.0.0", &format!("xdp://va/{}", IPV4[1]));
    let (near, _) = server(&[]);
    let near = near.bind("xdp://va/0.0.0.0:0").expect("an address");
    let near = inside(&pair.a, || near.build()).expect("a server");
    // The error names the address as it was written.
    let (another, _) = server(&[]);
    let taken = &near.addresses()[0];
    let another = another.bind(taken).expect("an address");
    let Err(Error::Device(error)) = inside(&pair.a, || another.build()) else {
        panic!("{taken} is there twice");
    };
    assert_eq!(error.attempt, format!("bind {taken}"));
    for address in [far.as_str(), "xdp://va/[fd77::2]:1"] {
        let refused = inside(&pair.a, || Channel::lazy(address));
        let Err(Error::Device(error)) = refused else {
            panic!("{address} has the server's queue");
        };
        assert_eq!(error.fault, starling_io::Fault::Caller);
        assert!(error.remedy.contains("?queue=N in its address"), "{error}");
    }
    check(&TestClient::new(channel(&pair, &format!("{far}?queue=1"))));
    drop(near);
    check(&TestClient::new(channel(&pair, &far)));
}

#[test]
fn an_endpoint_serves_and_calls_on_one_queue() {
    let Some(pair) = pair(
        "an_endpoint_serves_and_calls_on_one_queue",
        Shape::default(),
    ) else {
        return;
    };
    let far = serve(&pair, 1, "udp://0.0.0.0:0");
    let far = far.addresses()[0].replace("udp://0.0.0.0", &format!("xdp://va/{}", IPV4[1]));
    // A relay in `a` that calls the server in `b` by its own queue.
    let relay = inside(&pair.a, || {
        let (builder, _) = server(&[]);
        let server = builder.bind("xdp://va/0.0.0.0:0").expect("an address");
        server.build().expect("a server").spawn().expect("threads")
    });
    let address = relay.addresses()[0].replace("xdp://va/", "udp://");
    let client = inside(&pair.b, || {
        Endpoint::client(&address).map(|mut endpoint| {
            let client = TestClient::new(endpoint.channel(&address).expect("a channel"));
            let mut request = RelayRequest::new();
            request.set_address(&far);
            request.set_bytes(b"relayed");
            let response = endpoint.block_on(async { client.relay(&request).await });
            let response = response.expect("a healthy device").expect("an echo");
            response.message().bytes().to_vec()
        })
    });
    assert_eq!(client.expect("an endpoint"), b"relayed");
}
