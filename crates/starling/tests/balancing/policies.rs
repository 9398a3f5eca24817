//! Each policy divides calls as it says.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use starling::{
    CallOptions, Channel, Code, FailurePercentage, InterceptedCall, InterceptedResponse,
    Interceptor, LOAD_REPORT_KEY, LoadBalancing, LoadReport, Metadata, Next, OutlierDetection,
    RingHash, Status, Weighting,
};
use starling_test_protos::test::TestClient;

use crate::common::{Gate, LONG, impatient, payload, serve, server, shm_address, wait_until};
use crate::script::{MILLI, Script, serve_script, unavailable};
use crate::{Servers, addresses_of, end_server, runs, servers, shares, until_ready, until_shares};

/// Servers on shm and in this process, which are of two devices.
fn mixed(count: usize) -> Servers {
    let addresses: Vec<_> = (0..count)
        .map(|number| match number % 2 {
            0 => shm_address(),
            _ => shm_address().replace("shm://", "mem://"),
        })
        .collect();
    servers(&addresses)
}

fn balanced(servers: &Servers, policy: LoadBalancing) -> Channel {
    let channel = Channel::balanced(addresses_of(servers)).load_balancing(policy);
    let channel = channel.lazy().expect("a channel");
    // Begins to connect.
    starling::block_on(channel.ready()).expect("a server");
    channel
}

#[test]
fn least_request_leaves_out_a_server_that_is_behind() {
    let servers = mixed(3);
    let channel = balanced(&servers, LoadBalancing::least_request_of(10));
    until_ready(&channel, 3);
    let slow = TestClient::new(channel.each_backend()[1].clone());
    let waiting: Vec<_> = (0..8).map(|_| slow.wait(&payload(b"slow"))).collect();
    let behind: &Gate = &servers[1].1;
    wait_until(|| behind.waiting.load(Ordering::SeqCst) == 8);
    assert_eq!(channel.backends()[1].outstanding, 8);

    let client = TestClient::new(channel);
    let shares = shares(&client, &servers, 300);
    // One call of 59,049 has no other choice.
    assert!(shares[1] <= 2, "{shares:?}");
    assert!(shares[0] > 50 && shares[2] > 50, "{shares:?}");
    behind.open.store(true, Ordering::SeqCst);
    for call in waiting {
        call.wait().expect("the gate is open");
    }
}

#[test]
fn servers_get_as_many_calls_as_their_load_reports_say_they_can_take() {
    let scripted: Vec<_> = (0..2).map(|_| serve_script(&shm_address())).collect();
    for ((_, _, script), utilization) in scripted.iter().zip([0.2, 0.8]) {
        let report = LoadReport {
            application_utilization: utilization,
            requests_per_second: 1000.0,
            ..LoadReport::default()
        };
        script.respond_with(LOAD_REPORT_KEY, &report.to_bytes());
    }
    let (servers, scripts): (Servers, Vec<Script>) = scripted
        .into_iter()
        .map(|(server, gate, script)| ((server, gate), script))
        .unzip();
    let weighting = Weighting::default()
        .blackout(Duration::ZERO)
        .update(100 * MILLI);
    let channel = balanced(&servers, LoadBalancing::weighted_round_robin(weighting));
    until_ready(&channel, 2);
    let client = TestClient::new(channel);
    // The first reports come with the first responses.
    until_shares(&client, &servers, &[8, 2]);
    // Bytes that are no report change nothing.
    scripts[0].respond_with(LOAD_REPORT_KEY, &[0xff; 20]);
    until_shares(&client, &servers, &[8, 2]);
}

/// Has calls fail, and reports a load with that.
struct Fails(f64);

impl Interceptor for Fails {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        next.run(call).await?;
        let report = LoadReport {
            requests_per_second: 100.0,
            cpu_utilization: self.0,
            ..LoadReport::default()
        };
        let mut metadata = Metadata::new();
        let added = metadata.set(LOAD_REPORT_KEY, report.to_bytes());
        added.expect("a valid pair");
        Err(Status::new(Code::NotFound, "as requested").with_metadata(metadata))
    }
}

#[test]
fn the_load_reports_of_calls_that_fail_count() {
    let servers: Servers = [0.2, 0.8]
        .map(|load| {
            let (builder, gate) = server(&[&shm_address()]);
            let server = builder.interceptor(Fails(load)).build().expect("a server");
            (server.spawn().expect("threads"), gate)
        })
        .into();
    let weighting = Weighting::default()
        .blackout(Duration::ZERO)
        .update(100 * MILLI);
    let policy = LoadBalancing::weighted_round_robin(weighting);
    let channel = Channel::balanced(addresses_of(&servers)).health_check(None);
    let channel = channel.load_balancing(policy).lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    wait_until(|| {
        let before = runs(&servers);
        for _ in 0..10 {
            client.echo(&payload(b"")).wait().expect_err("as requested");
        }
        let after = runs(&servers);
        [after[0] - before[0], after[1] - before[1]] == [8, 2]
    });
}

#[test]
fn calls_with_one_key_go_to_one_server_and_stay_there_when_another_one_comes() {
    let servers = mixed(4);
    // So many places that each server has 512, be they three or four.
    let places = RingHash::by_metadata("user").size(1200, 4096);
    let ring = || LoadBalancing::ring_hash(places.clone());
    let by_user = |client: &TestClient<Channel>, user: usize| {
        let before = runs(&servers);
        let options = CallOptions::default().metadata("user", format!("user-{user}"));
        let client = client.clone().with_options(options.expect("a valid pair"));
        client.echo(&payload(b"")).wait().expect("a server");
        let after = runs(&servers);
        let ran: Vec<_> = (0..4).filter(|it| after[*it] > before[*it]).collect();
        assert_eq!(ran.len(), 1);
        ran[0]
    };
    let of_three = {
        let channel = Channel::balanced(addresses_of(&servers).into_iter().take(3));
        let channel = channel.load_balancing(ring()).lazy().expect("a channel");
        let client = TestClient::new(channel);
        let places: Vec<_> = (0..100).map(|user| by_user(&client, user)).collect();
        let again: Vec<_> = (0..100).map(|user| by_user(&client, user)).collect();
        assert_eq!(places, again);
        places
    };
    let client = TestClient::new(balanced(&servers, ring()));
    let of_four: Vec<_> = (0..100).map(|user| by_user(&client, user)).collect();
    let moved = of_three.iter().zip(&of_four).filter(|(a, b)| a != b);
    assert!(moved.clone().all(|(_, to)| *to == 3), "only to the new one");
    let moved = moved.count();
    assert!((5..50).contains(&moved), "{moved}");
}

#[test]
fn pick_first_stays_at_one_server_and_goes_on_when_it_is_gone() {
    let mut servers = mixed(3);
    let addresses = addresses_of(&servers);
    let channel = balanced(&servers, LoadBalancing::pick_first());
    let client = TestClient::new(channel.clone());
    assert_eq!(shares(&client, &servers, 10), [10, 0, 0]);
    let states = channel.backends();
    assert_eq!(states.iter().filter(|it| it.takes_calls()).count(), 1);

    end_server(servers.remove(0).0);
    // No call fails: what the server did not take goes to the next one.
    assert_eq!(shares(&client, &servers, 10), [10, 0]);
    servers.insert(0, crate::common::serve(&addresses[0]));
    assert_eq!(
        shares(&client, &servers, 10),
        [0, 10, 0],
        "it works: it stays"
    );
    end_server(servers.remove(1).0);
    let gates: [&Arc<Gate>; 2] = [&servers[0].1, &servers[1].1];
    for _ in 0..10 {
        client.echo(&payload(b"")).wait().expect("a server");
    }
    let runs = gates.map(|gate| gate.runs.load(Ordering::SeqCst));
    assert!(runs == [10, 0] || runs == [0, 10], "{runs:?}");
}

/// Hands datagrams to a server and back until it is stopped. What is sent to it then is lost.
struct Relay {
    address: String,
    is_stopped: Arc<AtomicBool>,
}

impl Relay {
    fn start(server: &str) -> Self {
        let socket = || Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let (front, back) = (socket(), socket());
        let server = server.trim_start_matches("udp://");
        back.connect(server).expect("an address");
        let address = front.local_addr().expect("it is bound");
        let client = Arc::new(Mutex::new(None));
        let is_stopped = Arc::new(AtomicBool::new(false));
        std::thread::spawn({
            let (front, back) = (Arc::clone(&front), Arc::clone(&back));
            let (client, is_stopped) = (Arc::clone(&client), Arc::clone(&is_stopped));
            move || {
                let mut bytes = [0; 65_536];
                while let Ok((len, from)) = front.recv_from(&mut bytes) {
                    *client.lock() = Some(from);
                    if !is_stopped.load(Ordering::SeqCst) {
                        let _ = back.send(&bytes[..len]);
                    }
                }
            }
        });
        std::thread::spawn({
            let is_stopped = Arc::clone(&is_stopped);
            move || {
                let mut bytes = [0; 65_536];
                while let Ok(len) = back.recv(&mut bytes) {
                    let client = *client.lock();
                    if let (Some(client), false) = (client, is_stopped.load(Ordering::SeqCst)) {
                        let _ = front.send_to(&bytes[..len], client);
                    }
                }
            }
        });
        Self {
            address: format!("udp://{address}"),
            is_stopped,
        }
    }
}

#[test]
fn pick_first_does_not_wait_for_a_lost_server_that_does_not_answer() {
    let (first, first_gate) = serve("udp://127.0.0.1:0");
    let relay = Relay::start(first.address());
    let second = shm_address();
    let mut config = impatient();
    // An attempt to connect does not fail by itself.
    config.protocol.connect_timeout_ns = 10 * LONG.as_nanos() as u64;
    let channel = Channel::balanced([&relay.address, &second])
        .load_balancing(LoadBalancing::pick_first())
        .endpoint_config(config)
        .lazy()
        .expect("a channel");
    let options = CallOptions::waiting().timeout(LONG);
    let client = TestClient::new(channel).with_options(options);
    wait_until(|| client.echo(&payload(b"")).wait().is_ok());
    assert!(first_gate.runs.load(Ordering::SeqCst) > 0);
    let (_second, second_gate) = serve(&second);
    relay.is_stopped.store(true, Ordering::SeqCst);
    wait_until(|| client.echo(&payload(b"")).wait().is_ok());
    assert_eq!(second_gate.runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_channel_uses_as_many_servers_as_its_subset_has() {
    let servers = mixed(6);
    let policy = LoadBalancing::round_robin().subset_size(2);
    let channel = balanced(&servers, policy);
    until_ready(&channel, 2);
    assert_eq!(channel.backends().len(), 2);
    let client = TestClient::new(channel);
    wait_until(|| {
        let mut shares = shares(&client, &servers, 20);
        shares.sort_unstable();
        shares == [0, 0, 0, 0, 10, 10]
    });
}

#[test]
fn a_server_that_fails_more_than_the_others_is_ejected_and_comes_back() {
    let scripted: Vec<_> = (0..3).map(|_| serve_script(&shm_address())).collect();
    let (servers, scripts): (Servers, Vec<Script>) = scripted
        .into_iter()
        .map(|(server, gate, script)| ((server, gate), script))
        .unzip();
    let criterion = FailurePercentage {
        minimum_hosts: 3,
        request_volume: 5,
        ..FailurePercentage::default()
    };
    let detection = OutlierDetection::default()
        .interval(20 * MILLI)
        .ejection_time(200 * MILLI, 200 * MILLI)
        .by_failure_percentage(criterion);
    let channel = balanced(
        &servers,
        LoadBalancing::round_robin().outlier_detection(detection),
    );
    until_ready(&channel, 3);
    scripts[2].fail_always(Some(unavailable()));
    let client = TestClient::new(channel.clone());
    let mut failed = 0;
    wait_until(|| {
        failed += usize::from(client.echo(&payload(b"")).wait().is_err());
        channel.backends()[2].is_ejected
    });
    assert!(failed >= 5, "{failed}");
    assert!(!channel.backends()[2].takes_calls());
    scripts[2].fail_always(None);
    wait_until(|| !channel.backends()[2].is_ejected);
    until_shares(&client, &servers, &[10, 10, 10]);
}
