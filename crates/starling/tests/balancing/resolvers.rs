//! Resolvers: good answers, and every kind of bad one.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use parking_lot::Mutex;
use starling::{
    CallOptions, Channel, ChannelBuilder, ChannelState, Code, Error, LoadBalancing, Resolved,
    Resolver, Resolving, Status,
};
use starling_test_protos::test::TestClient;

use crate::common::{any_addresses, impatient, payload, serve, shm_address, wait_until};
use crate::script::MILLI;
use crate::{Servers, addresses_of, end_server, servers, two_servers, until_ready, until_shares};

type Answer = Result<Vec<Resolved>, Status>;

/// A resolver whose answers a test sets.
#[derive(Clone)]
struct Fake(Arc<Mutex<Answer>>, Arc<AtomicUsize>);

impl Fake {
    fn new(answer: Answer) -> Self {
        Self(Arc::new(Mutex::new(answer)), Arc::default())
    }

    fn set(&self, answer: Answer) {
        *self.0.lock() = answer;
    }

    /// Waits until the channel has heard what was set.
    fn until_asked_again(&self) {
        let before = self.1.load(Ordering::SeqCst);
        wait_until(|| self.1.load(Ordering::SeqCst) >= before + 2);
    }
}

impl Resolver for Fake {
    async fn resolve(&self, request: Resolving) -> Answer {
        request.due(10 * MILLI).await;
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.lock().clone()
    }
}

fn named(addresses: &[String]) -> Vec<Resolved> {
    let addresses = addresses.iter();
    addresses.map(|it| Resolved::from(it.as_str())).collect()
}

fn resolved_by(resolver: impl Resolver) -> ChannelBuilder {
    let channel = Channel::builder("the test's servers").resolver(resolver);
    channel.load_balancing(LoadBalancing::round_robin())
}

fn three_servers() -> Servers {
    servers(&[shm_address(), shm_address(), shm_address()])
}

#[test]
fn a_channel_follows_its_resolver() {
    let servers = three_servers();
    let all = named(&addresses_of(&servers));
    let fake = Fake::new(Ok(all[..2].to_vec()));
    let channel = resolved_by(fake.clone()).lazy().expect("a channel");
    assert_eq!(channel.address(), "the test's servers");
    assert_eq!(channel.state(), ChannelState::Idle);
    assert!(channel.backends().is_empty());
    let client = TestClient::new(channel.clone());
    until_shares(&client, &servers, &[5, 5, 0]);
    fake.set(Ok(all[1..].to_vec()));
    until_shares(&client, &servers, &[0, 5, 5]);
    // The others stay although nothing can be said of them any more.
    for bad in [
        Err(Status::unavailable("no name server")),
        Ok(Vec::new()),
        Ok(named(&["udp//typo".to_owned()])),
    ] {
        fake.set(bad);
        fake.until_asked_again();
        until_shares(&client, &servers, &[0, 5, 5]);
        fake.set(Ok(all[1..].to_vec()));
        fake.until_asked_again();
    }
    fake.set(Ok(all));
    until_shares(&client, &servers, &[5, 5, 5]);
}

#[test]
fn calls_that_have_no_servers_fail_with_what_is_wrong_with_the_resolver() {
    let garbage = ["no scheme", "", "udp://", "smoke://signal"].map(str::to_owned);
    let cases: [(Answer, &[&str]); 3] = [
        (Ok(Vec::new()), &["named no backend"]),
        (
            Ok(named(&garbage)),
            &["no usable backend: 4 malformed", "no scheme"],
        ),
        (
            Err(Status::permission_denied("who are you?")),
            &["PERMISSION_DENIED", "who are you?"],
        ),
    ];
    for (answer, words) in cases {
        let fake = Fake::new(answer);
        let channel = resolved_by(fake.clone()).lazy().expect("a channel");
        let client = TestClient::new(channel.clone());
        let status = client.echo(&payload(b"")).wait().expect_err("no server");
        assert!(!status.may_have_run());
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        for word in words {
            assert!(status.message().contains(word), "{status}");
        }
        assert!(status.message().contains("the test's servers"), "{status}");
        assert_eq!(channel.state(), ChannelState::TransientFailure);
        // A call that waits gets the servers when they are known.
        let (server, _gate) = serve(&shm_address());
        let waiting = client.with_options(CallOptions::waiting());
        let call = waiting.echo(&payload(b"later"));
        fake.set(Ok(named(&[server.address().to_owned()])));
        let response = call.wait().expect("a server");
        assert_eq!(response.message().bytes(), b"later");
    }
}

#[test]
fn duplicates_and_garbage_among_good_answers_are_left_out() {
    let servers = three_servers();
    let good = addresses_of(&servers);
    let mut answer = good.clone();
    answer.extend(good.iter().cloned());
    answer.insert(1, "udp://no port".to_owned());
    let fake = Fake::new(Ok(named(&answer)));
    let channel = resolved_by(fake).lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().expect("a server");
    until_ready(&channel, 3);
    assert_eq!(channel.backends().len(), 3);
    until_shares(&client, &servers, &[3, 3, 3]);
}

#[test]
fn no_more_servers_are_used_than_the_bound() {
    let (server, _gate) = serve(&shm_address());
    let many = (0..10_000).map(|number| format!("shm://starling-test-nobody-{number}"));
    let all: Vec<_> = std::iter::once(server.address().to_owned())
        .chain(many)
        .collect();
    let fake = Fake::new(Ok(named(&all)));
    let channel = resolved_by(fake).load_balancing(LoadBalancing::pick_first());
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    client.echo(&payload(b"")).wait().expect("the first server");
    assert!(channel.backends().len() <= 4096);
}

/// Panics when it is asked for the first time.
struct Panics(Fake);

impl Resolver for Panics {
    async fn resolve(&self, request: Resolving) -> Answer {
        if self.0.1.load(Ordering::SeqCst) == 0 {
            self.0.1.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("as requested"));
        }
        self.0.resolve(request).await
    }
}

#[test]
fn a_resolver_that_panics_is_asked_again() {
    let (server, _gate) = serve(&shm_address());
    let fake = Fake::new(Ok(named(&[server.address().to_owned()])));
    let channel = resolved_by(Panics(fake)).lazy().expect("a channel");
    let client = TestClient::new(channel);
    let status = client.echo(&payload(b"")).wait().expect_err("no server");
    assert!(status.message().contains("panicked"), "{status}");
    wait_until(|| client.echo(&payload(b"")).wait().is_ok());
}

/// Never answers.
struct Silent(Arc<()>);

impl Resolver for Silent {
    async fn resolve(&self, _: Resolving) -> Answer {
        let _own = Arc::clone(&self.0);
        std::future::pending().await
    }
}

#[test]
fn calls_wait_for_a_silent_resolver_until_their_deadlines_and_it_ends_with_the_channel() {
    let own = Arc::new(());
    let channel = resolved_by(Silent(Arc::clone(&own)));
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let dropped = client.echo(&payload(b"dropped"));
    let patient = client.clone();
    let patient = patient.with_options(CallOptions::with_timeout(30 * MILLI));
    let status = patient.echo(&payload(b"")).wait().expect_err("no server");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let says = "the resolver of the test's servers has not answered in time";
    assert!(status.message().starts_with(says), "{status}");
    assert!(!status.may_have_run());
    assert_eq!(channel.state(), ChannelState::Connecting);
    assert_eq!(channel.calls_outstanding(), 1);
    drop(dropped);
    assert_eq!(channel.calls_outstanding(), 0);
    drop((client, patient, channel));
    wait_until(|| Arc::strong_count(&own) == 1);
}

#[test]
fn each_address_of_a_host_name_is_a_server() {
    let address = format!("udp://{}:0", Ipv4Addr::LOCALHOST);
    let (server, _gate) = serve(&address);
    let port = server.address().rsplit_once(':').expect("a port").1;
    let named = format!("udp://localhost:{port}");
    // A host's IPv6 address may be another one, where nobody listens.
    let channel = Channel::balanced([&named]).endpoint_config(impatient());
    let channel = channel.lazy().expect("a channel");
    let client = TestClient::new(channel.clone()).with_options(CallOptions::waiting());
    client.echo(&payload(b"")).wait().expect("a server");
    let backends = channel.backends();
    assert!(
        backends
            .iter()
            .any(|it| it.address == server.address() && it.takes_calls()),
        "{backends:?}"
    );
    end_server(server);
}

#[test]
fn a_host_name_that_nobody_has_is_said() {
    let channel = Channel::balanced(["udp://starling.invalid:9"]);
    let client = TestClient::new(channel.lazy().expect("a channel"));
    let status = client.echo(&payload(b"")).wait().expect_err("no server");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("starling.invalid"), "{status}");
    assert!(!status.may_have_run());
}

#[test]
fn a_channel_without_addresses_is_not_made() {
    let none: [&str; 0] = [];
    let error = Channel::balanced(none).lazy().expect_err("no address");
    assert!(matches!(error, Error::NoBackends), "{error}");
    let error = Channel::balanced(["shm://good", "nonsense"]).lazy();
    let error = error.expect_err("a bad address");
    assert!(error.to_string().contains("nonsense"), "{error}");
}

/// Answers once, and then waits for a change that never comes.
struct Waits {
    answer: Vec<Resolved>,
    asked: AtomicUsize,
    _lives: Arc<()>,
}

impl Resolver for Waits {
    async fn resolve(&self, _: Resolving) -> Answer {
        match self.asked.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(self.answer.clone()),
            _ => std::future::pending().await,
        }
    }
}

#[test]
fn a_resolver_that_waits_for_a_change_goes_with_its_channel() {
    let servers = three_servers();
    let all = named(&addresses_of(&servers));
    // The loop that asks the resolvers goes on.
    let other = resolved_by(Fake::new(Ok(all.clone()))).lazy();
    let other = TestClient::new(other.expect("a channel"));
    other.echo(&payload(b"")).wait().expect("a server");
    let lives = Arc::new(());
    let waits = Waits {
        answer: all,
        asked: AtomicUsize::new(0),
        _lives: Arc::clone(&lives),
    };
    let channel = resolved_by(waits).lazy().expect("a channel");
    let client = TestClient::new(channel);
    client.echo(&payload(b"")).wait().expect("a server");
    assert_eq!(Arc::strong_count(&lives), 2);
    drop(client);
    wait_until(|| Arc::strong_count(&lives) == 1);
    drop(other);
}

/// A resolver that another thread tells of changes.
struct Told(Mutex<Option<UnboundedReceiver<Vec<Resolved>>>>);

impl Resolver for Told {
    async fn resolve(&self, _: Resolving) -> Answer {
        let taken = self.0.lock().take();
        let mut changes = taken.expect("one question at a time");
        let next = changes.next().await;
        *self.0.lock() = Some(changes);
        match next {
            Some(answer) => Ok(answer),
            None => std::future::pending().await,
        }
    }
}

#[test]
fn a_resolver_that_another_thread_tells_is_heard_at_once() {
    for address in any_addresses() {
        let servers = two_servers(&address);
        let named: Vec<_> = named(&addresses_of(&servers));
        let (tell, changes) = futures::channel::mpsc::unbounded();
        let resolver = Told(Mutex::new(Some(changes)));
        let channel = resolved_by(resolver).lazy().expect("a channel");
        let client = TestClient::new(channel.clone());
        for one in named {
            let (tell, name) = (tell.clone(), one.address.clone());
            let telling = std::thread::spawn(move || {
                std::thread::sleep(100 * MILLI);
                tell.unbounded_send(vec![one]).expect("it listens");
            });
            // Nothing else wakes the loop.
            if channel.backends().is_empty() {
                let soon = CallOptions::with_timeout(Duration::from_secs(4));
                let response = client.echo_with(&payload(b""), &soon).wait();
                response.expect("it is told before");
            }
            wait_until(|| channel.backends().iter().any(|it| it.address == name));
            telling.join().expect("no panic");
        }
        drop((client, channel));
        for (server, _) in servers {
            end_server(server);
        }
    }
}
