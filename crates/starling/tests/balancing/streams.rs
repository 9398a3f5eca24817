//! Streams of channels to several servers: each is at one server, and begins again at most before its first
//! response.

use std::sync::atomic::Ordering;
use std::time::Duration;

use starling::testing::{Fault, Faults};
use starling::{
    CallOptions, Channel, ChannelBuilder, Code, FailurePercentage, HedgingPolicy, LoadBalancing,
    MethodConfig, OutlierDetection, RetryPolicy, ServerHandle, ServiceConfig, Status,
    StreamReceiver,
};
use starling_endpoint::EndpointConfig;
use starling_test_protos::streams::{Number, StreamsClient};

use crate::common::{LONG, another_address, any_addresses, shm_address, wait_until};
use crate::script::{MILLI, Script, pushback, unavailable};
use crate::stream_service::{Counts, builder, end, number, range};
use crate::until_ready;

type Streaming = (ServerHandle, std::sync::Arc<Counts>, Script);

fn serve(address: &str) -> Streaming {
    serve_with(address, Faults::with_seed(0))
}

fn serve_with(address: &str, faults: Faults) -> Streaming {
    let script = Script::default();
    let (builder, counts) = builder(address);
    let builder = builder.interceptor(script.clone()).interceptor(faults);
    let server = builder.build();
    let server = server.expect("a server").spawn().expect("threads");
    (server, counts, script)
}

fn two(address: &str) -> [Streaming; 2] {
    [serve(address), serve(&another_address(address, 1))]
}

fn balanced(servers: &[Streaming], config: ServiceConfig) -> (Channel, StreamsClient<Channel>) {
    let addresses = servers.iter().map(|it| it.0.address());
    let channel = Channel::balanced(addresses).service_config(config);
    let channel = starling::block_on(channel.connect()).expect("servers");
    until_ready(&channel, servers.len());
    (channel.clone(), StreamsClient::new(channel))
}

fn retried(max_attempts: u32) -> ServiceConfig {
    let policy = RetryPolicy::default()
        .backoff(MILLI, MILLI, 1.0)
        .max_attempts(max_attempts);
    ServiceConfig::new().method("streams.Streams", MethodConfig::new().retry(policy))
}

fn all(mut numbers: StreamReceiver<Number>) -> (Vec<u64>, Option<Status>) {
    let mut seen = Vec::new();
    loop {
        match numbers.wait() {
            Ok(Some(number)) => seen.push(number.message().value()),
            Ok(None) => return (seen, None),
            Err(status) => return (seen, Some(status)),
        }
    }
}

#[test]
fn each_stream_is_at_one_server_and_streams_go_round_all() {
    for address in any_addresses() {
        let servers = two(&address);
        let (channel, client) = balanced(&servers, ServiceConfig::new());
        let (mut sender, mut receiver) = client.echo();
        for value in 0..200 {
            sender.send_wait(&number(value, 1000)).expect("room");
            let back = receiver.wait().expect("an echo").expect("an echo");
            assert_eq!(back.message().value(), value);
        }
        let read = servers
            .each_ref()
            .map(|it| it.1.read.load(Ordering::SeqCst));
        assert!(read == [200, 0] || read == [0, 200], "{read:?}");
        let mut outstanding: Vec<_> = channel.backends().iter().map(|it| it.outstanding).collect();
        outstanding.sort_unstable();
        assert_eq!(outstanding[0], 0, "of one server");
        assert!(outstanding[1] > 0, "a stream counts as long as it lives");
        drop(sender);
        assert!(receiver.wait().expect("the end").is_none());
        drop(receiver);
        wait_until(|| channel.backends().iter().all(|it| it.outstanding == 0));

        for _ in 0..20 {
            let (seen, failure) = all(client.count(&range(0, 50, 100)));
            assert_eq!((seen.len(), failure), (50, None));
        }
        let sent = servers
            .each_ref()
            .map(|it| it.1.sent.load(Ordering::SeqCst));
        assert!(sent.iter().all(|sent| *sent >= 250), "{sent:?}");
        drop((channel, client));
        for (server, ..) in servers {
            end(server);
        }
    }
}

/// A server with so many slots for a client.
fn serve_few(address: &str, slots: u16) -> Streaming {
    let script = Script::default();
    let (builder, counts) = builder(address);
    let mut config = EndpointConfig::default();
    config.protocol.slots = slots;
    config.protocol.max_sessions_per_client = 1;
    let server = builder.config(config).build().expect("a server");
    (server.spawn().expect("threads"), counts, script)
}

#[test]
fn a_stream_for_which_one_server_has_no_slot_begins_at_another() {
    for address in any_addresses() {
        let servers = [
            serve_few(&address, 4),
            serve_few(&another_address(&address, 1), 32),
        ];
        let (channel, client) = balanced(&servers, ServiceConfig::new());
        let mut all = Vec::new();
        // The watch of its health has a slot of each.
        for value in 0..25 {
            let (mut sender, mut receiver) = client.echo();
            sender.send_wait(&number(value, 0)).expect("room");
            assert!(receiver.wait().expect("an echo").is_some());
            all.push((sender, receiver));
        }
        let sent = servers[0].1.sent.load(Ordering::SeqCst);
        assert!((1..=3).contains(&sent), "{sent}");
        // Neither has one, and nothing but the end of a stream changes that.
        let refusals = (0..10).filter_map(|value| {
            let options = CallOptions::with_timeout(LONG).wait_for_ready(value % 2 == 0);
            let (mut sender, mut receiver) = client.echo_with(&options);
            let sent = sender.send_wait(&number(value, 0));
            let end = sent.and_then(|()| receiver.wait().map(drop)).err();
            all.push((sender, receiver));
            end
        });
        let refusals: Vec<Status> = refusals.collect();
        assert!(refusals.len() >= 3, "{refusals:?}");
        for refused in &refusals {
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
            assert!(!refused.may_have_run(), "{refused}");
        }
        drop((all, client, channel));
        for (server, ..) in servers {
            end(server);
        }
    }
}

#[test]
fn a_stream_that_gets_no_slot_waits_for_a_server_that_comes_back() {
    let addresses = [shm_address(), shm_address()];
    let full = serve_few(&addresses[0], 4);
    let away = serve(&addresses[1]);
    let channel = Channel::balanced(&addresses);
    let channel = starling::block_on(channel.connect()).expect("servers");
    until_ready(&channel, 2);
    end(away.0);
    until_ready(&channel, 1);
    let client = StreamsClient::new(channel.clone());
    let begin = |waits: bool| {
        let options = CallOptions::with_timeout(LONG).wait_for_ready(waits);
        let (mut sender, mut receiver) = client.echo_with(&options);
        let sent = sender.send_wait(&number(7, 0));
        let begun = sent.and_then(|()| receiver.wait().map(drop));
        begun.map(|()| (sender, receiver))
    };
    let mut all = Vec::new();
    let refused = loop {
        match begin(false) {
            Ok(stream) => all.push(stream),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| begin(true).map(drop));
        let back = serve(&addresses[1]);
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
        drop((all, channel));
        end(back.0);
    });
    end(full.0);
}

#[test]
fn a_stream_that_fails_before_its_first_response_begins_again() {
    for address in any_addresses() {
        let servers = [serve(&address)];
        let script = servers[0].2.clone();
        let (_channel, client) = balanced(&servers, retried(3));
        script.fail_once(unavailable());
        script.fail_once(pushback(unavailable(), "1"));
        let (seen, failure) = all(client.count(&range(0, 1000, 500)));
        assert_eq!((seen.len(), failure), (1000, None));
        let attempts = script.take_calls().into_iter();
        let attempts: Vec<_> = attempts.map(|it| it.previous_attempts).collect();
        assert_eq!(attempts, [None, Some("1".to_owned()), Some("2".to_owned())]);
    }
}

#[test]
fn a_stream_ends_with_its_last_failure() {
    let servers = [serve(&shm_address())];
    let (_channel, client) = balanced(&servers, retried(2));
    let script = &servers[0].2;
    script.fail_once(unavailable());
    script.fail_once(Status::unavailable("the last one"));
    let (seen, failure) = all(client.count(&range(0, 10, 0)));
    assert_eq!(seen, [] as [u64; 0]);
    assert_eq!(failure.expect("it fails").message(), "the last one");
    assert_eq!(script.take_calls().len(), 2);
    script.fail_once(Status::internal("not to be tried again"));
    let (_, failure) = all(client.count(&range(0, 10, 0)));
    assert_eq!(failure.expect("it fails").code(), Code::Internal);
    assert_eq!(script.take_calls().len(), 1);
}

#[test]
fn a_stream_that_has_begun_does_not_begin_again() {
    let servers = [serve(&shm_address())];
    let (_channel, client) = balanced(&servers, retried(3));
    let mut range = range(0, 3, 0);
    range.set_code(Code::Unavailable as u32);
    let (seen, failure) = all(client.count(&range));
    assert_eq!(seen, [0, 1, 2]);
    assert_eq!(failure.expect("it fails").code(), Code::Unavailable);
    assert_eq!(servers[0].2.take_calls().len(), 1);
}

#[test]
fn a_stream_that_waits_to_begin_again_can_be_dropped_and_has_its_deadline() {
    let hour = Duration::from_secs(3600);
    let policy = RetryPolicy::default().backoff(hour, hour, 1.0);
    let config = ServiceConfig::new().method("", MethodConfig::new().retry(policy));
    let servers = [serve(&shm_address())];
    let (channel, client) = balanced(&servers, config);
    let script = &servers[0].2;
    script.fail_once(unavailable());
    let mut receiver = client.count(&range(0, 3, 0));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    wait_until(|| {
        let next = std::pin::pin!(receiver.message());
        assert!(next.poll(&mut cx).is_pending());
        script.take_calls().len() == 1
    });
    drop(receiver);
    wait_until(|| channel.backends().iter().all(|it| it.outstanding == 0));
    // There is no time to begin it again.
    script.fail_once(unavailable());
    let options = CallOptions::with_timeout(Duration::from_secs(60));
    let (_, failure) = all(client.count_with(&range(0, 3, 0), &options));
    assert_eq!(failure.expect("it fails").code(), Code::Unavailable);
}

#[test]
fn a_stream_that_is_dropped_before_any_response_leaves_nothing() {
    let servers = [serve(&shm_address())];
    let (channel, client) = balanced(&servers, retried(2));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..20 {
        let mut receiver = client.count(&range(0, 3, 0));
        let _ = std::pin::pin!(receiver.message()).poll(&mut cx);
    }
    wait_until(|| channel.backends().iter().all(|it| it.outstanding == 0));
}

#[test]
fn streams_are_not_hedged() {
    let policy = HedgingPolicy::new(2, Duration::ZERO);
    let config = ServiceConfig::new().method("", MethodConfig::new().hedge(policy));
    let servers = [serve(&shm_address())];
    let (_channel, client) = balanced(&servers, config);
    let (_, failure) = all(client.count(&range(0, 3, 0)));
    let status = failure.expect("it is refused");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(!status.may_have_run());
    assert!(status.message().contains("hedgingPolicy"), "{status}");
}

#[test]
fn items_that_are_too_long_end_a_stream_at_both_ends() {
    let method = MethodConfig::new().max_bytes(1000, 500);
    let config = ServiceConfig::new().method("", method);
    let servers = [serve(&shm_address())];
    let (_channel, client) = balanced(&servers, config);
    let (mut sender, receiver) = client.echo();
    sender.send_wait(&number(1, 100)).expect("short");
    let status = sender.send_wait(&number(2, 2000)).expect_err("too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let (_, failure) = all(receiver);
    assert_eq!(failure.as_ref(), Some(&status));
    let (seen, failure) = all(client.count(&range(0, 3, 800)));
    let status = failure.expect("too long");
    assert!(status.message().contains("500"), "{status}");
    assert_eq!((seen.len(), status.code()), (0, Code::ResourceExhausted));
    let counts = &servers[0].1;
    wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_stream_goes_on_at_a_server_that_shuts_down_and_the_next_one_begins_elsewhere() {
    for address in any_addresses() {
        let [first, second] = two(&address);
        let (first, its_counts, _) = first;
        let addresses = [first.address().to_owned(), second.0.address().to_owned()];
        let channel = Channel::balanced(addresses)
            .load_balancing(starling::LoadBalancing::pick_first())
            .lazy()
            .expect("a channel");
        let client = StreamsClient::new(channel);
        let (mut sender, mut receiver) = client.echo();
        let echo = |sender: &mut starling::StreamSender<Number>,
                    receiver: &mut StreamReceiver<Number>,
                    value| {
            sender.send_wait(&number(value, 10)).expect("room");
            let back = receiver.wait().expect("an echo").expect("an echo");
            assert_eq!(back.message().value(), value);
        };
        echo(&mut sender, &mut receiver, 0);
        assert_eq!(its_counts.running.load(Ordering::SeqCst), 1, "{address}");
        let ending = std::thread::spawn(move || first.shutdown(LONG));
        // New streams are at the other one as soon as the first one shuts down.
        let mut value = 1;
        wait_until(|| {
            let (_, failure) = all(client.count(&range(0, 10, 0)));
            assert_eq!(failure, None);
            echo(&mut sender, &mut receiver, value);
            value += 1;
            second.1.sent.load(Ordering::SeqCst) > 0
        });
        for value in 1000..1100 {
            echo(&mut sender, &mut receiver, value);
        }
        drop(sender);
        assert!(receiver.wait().expect("the end").is_none());
        let finished = ending.join().expect("no panic").expect("no device fails");
        assert!(finished, "a stream was left behind");
    }
}

/// A channel that ejects each server of which a call fails.
fn ejecting(servers: &[Streaming]) -> (Channel, StreamsClient<Channel>) {
    ejecting_with(servers, |builder| builder)
}

fn ejecting_with(
    servers: &[Streaming],
    settings: impl FnOnce(ChannelBuilder) -> ChannelBuilder,
) -> (Channel, StreamsClient<Channel>) {
    let criterion = FailurePercentage {
        minimum_hosts: 1,
        request_volume: 1,
        ..FailurePercentage::default()
    };
    let detection = OutlierDetection::default()
        .interval(20 * MILLI)
        .ejection_time(LONG, LONG)
        .by_failure_percentage(criterion);
    let policy = LoadBalancing::round_robin().outlier_detection(detection);
    let addresses = servers.iter().map(|it| it.0.address());
    let channel = settings(Channel::balanced(addresses).load_balancing(policy));
    let channel = starling::block_on(channel.connect()).expect("servers");
    until_ready(&channel, servers.len());
    (channel.clone(), StreamsClient::new(channel))
}

/// How an echo of so many messages ends.
fn echo(client: &StreamsClient<Channel>, messages: u64) -> Result<(), Status> {
    let (mut sender, mut receiver) = client.echo();
    for value in 0..messages {
        // Its failure is the receiver's, too.
        let _ = sender.send_wait(&number(value, 0));
        let back = receiver.wait()?.expect("an echo");
        assert_eq!(back.message().value(), value);
    }
    drop(sender);
    match receiver.wait()? {
        Some(_) => panic!("more than was sent"),
        None => Ok(()),
    }
}

#[test]
fn a_server_whose_streams_fail_is_ejected() {
    // With its first message, and later. Of any server, and of this one.
    for (sent, any) in [(0, true), (3, true), (3, false)] {
        let addresses = [shm_address(), shm_address()];
        let faults = Faults::with_seed(1).add("streams.Streams", Fault::cut_stream(sent));
        let fails = [false, true];
        let servers = std::array::from_fn::<_, 2, _>(|index| match fails[index] {
            false => serve(&addresses[index]),
            true => serve_with(&addresses[index], faults.clone()),
        });
        let (channel, client) = ejecting(&servers);
        let each = channel.each_backend();
        wait_until(|| {
            match any {
                true => _ = echo(&client, 5),
                false => {
                    for one in &each {
                        _ = echo(&StreamsClient::new(one.clone()), 5);
                    }
                }
            }
            channel.backends()[1].is_ejected
        });
        assert!(!channel.backends()[0].is_ejected);
        assert_eq!(echo(&client, 5), Ok(()));
    }
}

#[test]
fn a_stream_that_its_client_gives_up_says_nothing_of_the_server() {
    let servers = two(&shm_address());
    let (channel, client) = ejecting(&servers);
    for _ in 0..20 {
        let (mut sender, mut receiver) = client.echo();
        sender.send_wait(&number(1, 0)).expect("room");
        receiver.wait().expect("an echo").expect("an echo");
        drop(receiver);
        drop(sender);
    }
    // Longer than the interval: of streams that count as failures, one is enough.
    std::thread::sleep(50 * MILLI);
    assert_eq!(echo(&client, 1), Ok(()));
    assert!(channel.backends().iter().all(|it| !it.is_ejected));
}

#[test]
fn a_stream_that_its_client_has_no_room_for_says_nothing_of_the_server() {
    let faults = Faults::with_seed(1).add("streams.Streams", Fault::cut_stream(3));
    let servers = [
        serve(&shm_address()),
        serve_with(&shm_address(), faults.clone()),
    ];
    let (channel, _) = ejecting_with(&servers, |builder| builder.max_stream_bytes(1));
    let clients = channel.each_backend().into_iter().map(StreamsClient::new);
    let clients: Vec<_> = clients.collect();
    for _ in 0..5 {
        let (_, failure) = all(clients[0].count(&range(0, 1, 1 << 20)));
        let status = failure.expect("there is no room");
        assert!(status.message().contains("max_stream_bytes"), "{status}");
    }
    // When failures of now count, those of before have counted.
    wait_until(|| {
        _ = echo(&clients[1], 5);
        channel.backends().iter().any(|it| it.is_ejected)
    });
    assert!(!channel.backends()[0].is_ejected);
}

#[test]
fn a_stream_that_its_client_gives_up_is_not_outstanding_though_its_sender_lives() {
    for address in any_addresses() {
        let servers = [serve(&address)];
        let (channel, client) = balanced(&servers, ServiceConfig::new());
        let (mut there, mut back) = client.echo();
        there.send_wait(&number(1, 0)).expect("room");
        back.wait().expect("an echo");
        assert_eq!(channel.backends()[0].outstanding, 1);
        drop(back);
        wait_until(|| channel.backends()[0].outstanding == 0);
        drop(there);
        assert_eq!(channel.backends()[0].outstanding, 0);
        servers.into_iter().for_each(|(server, ..)| end(server));
    }
}
