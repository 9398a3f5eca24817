//! One call to all servers behind a channel.

use std::sync::atomic::Ordering;

use starling::{CallOptions, Channel, ChannelState, Code, FanOut};
use starling_test_protos::test::TestClient;

use crate::common::{any_addresses, payload, shm_address, wait_until};
use crate::script::MILLI;
use crate::{addresses_of, end_server, runs, servers, two_servers, until_ready};

#[test]
fn all_servers_of_a_channel_are_called_and_each_says_how_it_went() {
    for address in any_addresses() {
        let mut servers = two_servers(&address);
        let channel = Channel::balanced(addresses_of(&servers)).lazy();
        let channel = channel.expect("a channel");
        starling::block_on(channel.ready()).expect("a server");
        until_ready(&channel, 2);
        let all = FanOut::over(&channel, TestClient::new);
        assert_eq!(all.len(), 2);
        let message = payload(b"all");
        let answers = all.call(|client| client.echo(&message)).wait();
        assert!(answers.is_enough());
        let addresses = addresses_of(&servers);
        let named: Vec<_> = answers
            .succeeded()
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(named, addresses);
        assert_eq!(runs(&servers), [1, 1]);
        // Their answers, put together.
        let lengths = answers.merge(0, |sum, it| sum + it.message().bytes().len());
        assert_eq!(lengths, Ok(6));

        // A call to one server does not go to another one.
        end_server(servers.remove(0).0);
        let answers = all.call(|client| client.echo(&message)).wait();
        let failed: Vec<_> = answers.failed().collect();
        let [(name, status)] = failed[..] else {
            panic!("one fails: {failed:?}");
        };
        assert_eq!((name, status.code()), (&*addresses[0], Code::Unavailable));
        assert!(!status.may_have_run(), "{status}");
        assert_eq!(answers.succeeded().count(), 1);
        let status = answers.successes().expect_err("not all");
        assert!(status.message().contains(&addresses[0]), "{status}");
        assert_eq!(runs(&servers), [2]);
    }
}

#[test]
fn the_first_answer_is_enough_and_the_other_calls_are_cancelled() {
    let servers = servers(&[shm_address(), shm_address(), shm_address()]);
    servers[1].1.open.store(true, Ordering::SeqCst);
    let channel = Channel::balanced(addresses_of(&servers)).lazy();
    let channel = channel.expect("a channel");
    starling::block_on(channel.ready()).expect("a server");
    until_ready(&channel, 3);
    let all = FanOut::over(&channel, TestClient::new);
    let message = payload(b"first");
    let answers = all.call(|client| client.wait(&message)).enough(1).wait();
    let first: Vec<_> = answers.succeeded().map(|(name, _)| name).collect();
    assert_eq!(first, [servers[1].0.address()]);
    for (_, gate) in [&servers[0], &servers[2]] {
        let count = || [&gate.waiting, &gate.dropped].map(|it| it.load(Ordering::SeqCst));
        wait_until(|| count()[0] == count()[1]);
    }
    assert_eq!(channel.calls_outstanding(), 0);

    // One after the other: the first one takes too long, the second one answers.
    let backends = channel.each_backend().into_iter().enumerate();
    let all = FanOut::new(backends.map(|(number, backend)| {
        let client = TestClient::new(backend);
        let client = match number {
            0 => client.with_options(CallOptions::with_timeout(20 * MILLI)),
            _ => client,
        };
        (number.to_string(), client)
    }));
    let answers = all
        .call(|client| client.wait(&message))
        .at_once(1)
        .enough(1)
        .wait();
    let failed: Vec<_> = answers.failed().map(|(_, status)| status.code()).collect();
    assert_eq!(failed, [Code::DeadlineExceeded]);
    assert!(answers.into_all().pop().expect("three").1.is_none());
}

#[test]
fn a_channel_to_one_server_fans_out_to_it() {
    let servers = servers(&[shm_address()]);
    let channel = Channel::lazy(servers[0].0.address()).expect("a channel");
    let all = FanOut::over(&channel, TestClient::new);
    let answers = all.call(|client| client.echo(&payload(b"one"))).wait();
    assert_eq!(answers.successes().expect("it is there").len(), 1);
}

#[test]
fn calls_to_each_server_keep_a_channel_from_being_idle_and_wake_an_idle_one() {
    let servers = servers(&[shm_address(), shm_address()]);
    let builder = Channel::balanced(addresses_of(&servers)).idle_timeout(40 * MILLI);
    let channel = builder.lazy().expect("a channel");
    let empty = FanOut::over(&channel, TestClient::new);
    assert!(empty.is_empty());
    let call = |fan_out: &FanOut<TestClient<Channel>>| {
        let call = fan_out.call(|client| client.echo(&payload(b"")));
        call.wait().successes().map(|answers| answers.len())
    };
    let none = call(&empty).expect_err("there is nobody");
    assert_eq!(none.code(), Code::Unavailable, "{none}");
    assert!(!none.may_have_run(), "{none}");
    // To ask for them wakes the channel.
    wait_until(|| FanOut::over(&channel, TestClient::new).len() == 2);
    until_ready(&channel, 2);
    let all = FanOut::over(&channel, TestClient::new);
    for _ in 0..30 {
        assert_eq!(call(&all).expect("both"), 2);
        assert_ne!(channel.state(), ChannelState::Idle);
        std::thread::sleep(5 * MILLI);
    }
    drop(all);
    wait_until(|| channel.state() == ChannelState::Idle);
    wait_until(|| channel.each_backend().len() == 2);
}
