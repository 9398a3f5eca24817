//! Introspection: what a server says of its process, to whom, and what it does not say.

mod common;

use std::sync::atomic::Ordering;

use common::{any_addresses, payload, serve, server, shm_address, wait_until};
use starling::introspection::{
    GetProcessRequest, IntrospectionClient, ListCallsRequest, ListSessionsRequest, ThreadView,
};
use starling::reflection::{DescribeServiceRequest, ListServicesRequest, ReflectionClient};
use starling::{Channel, Code, Endpoint, ServerHandle};
use starling_test_protos::test::TestClient;
use starling_test_protos::v1;

fn inspector(server: &ServerHandle) -> IntrospectionClient<Channel> {
    IntrospectionClient::new(Channel::lazy(server.address()).expect("a channel"))
}

/// The thread of this process that serves at an address.
fn number_of(inspector: &IntrospectionClient<Channel>, address: &str) -> u64 {
    let process = inspector
        .get_process(&GetProcessRequest::new())
        .wait()
        .expect("a process");
    let threads = process.message().threads();
    let own = threads
        .iter()
        .find(|thread| thread.role() == "server" && thread.address() == address);
    own.expect("it serves").number()
}

/// The sessions of clients have what they have, of three calls.
fn check_server_sessions(inspector: &IntrospectionClient<Channel>, number: u64, address: &str) {
    let request = ListSessionsRequest::new().with_thread(number);
    let sessions = inspector.list_sessions(&request).wait().expect("sessions");
    let sessions = sessions.message();
    assert!(!sessions.has_client_next() && !sessions.has_server_next());
    let busy = sessions
        .server_sessions()
        .iter()
        .map(|session| session.executing())
        .sum::<u32>();
    assert!(busy >= 3, "{sessions:?}");
    for session in sessions.server_sessions().iter() {
        assert!(session.credits() > 0 && session.slots() > 0, "{session:?}");
        let has_process = session.pid_opt() == Some(std::process::id());
        let is_within_host = address.starts_with("shm") || address.starts_with("mem");
        assert_eq!(has_process, is_within_host, "{session:?}");
    }
}

/// The budgets say what four requests that wait take, and how much may be taken.
fn check_budgets(thread: &ThreadView<'_>) {
    let held = |what: &str| {
        let mut budgets = thread.budgets().iter();
        let budget = budgets.find(|budget| budget.what().starts_with(what));
        let budget = budget.unwrap_or_else(|| panic!("no budget: {what}"));
        (
            budget.unit().to_owned(),
            budget.held_opt(),
            budget.all_peers(),
        )
    };
    assert_eq!(
        held("waiting requests"),
        ("items".to_owned(), Some(4), 65_536)
    );
    assert_eq!(held("open streams"), ("items".to_owned(), Some(0), 65_536));
    let (unit, sessions, most) = held("open sessions");
    assert_eq!((unit.as_str(), most), ("items", 65_536));
    assert_eq!(sessions, Some(thread.server_sessions()));
    let (unit, bytes, most) = held("requests that wait");
    assert_eq!((unit.as_str(), most), ("bytes", 512 << 20));
    assert!((1..4096).contains(&bytes.expect("they count")), "{bytes:?}");
    let (_, bytes, most) = held("sessions, each");
    let sessions = sessions.expect("they count");
    assert_eq!(bytes, Some(sessions * most / 65_536));
    let read = held("streams: what handlers read").1;
    assert_eq!(read, None, "nobody counts it");
}

/// The thread has a session to this server.
fn check_client_session(inspector: &IntrospectionClient<Channel>, number: u64, address: &str) {
    let request = ListSessionsRequest::new().with_thread(number);
    let sessions = inspector.list_sessions(&request).wait().expect("sessions");
    let own = |session: &starling::introspection::ClientSessionView<'_>| {
        session.address() == address && session.state() == "open"
    };
    let session = sessions
        .message()
        .client_sessions()
        .iter()
        .find(own)
        .expect("a session");
    assert!(
        session.credits() > 0 && session.slots() == 32,
        "{session:?}"
    );
}

#[test]
fn a_server_tells_of_its_threads_sessions_channels_and_workers() {
    for address in any_addresses() {
        let (server, gate) = serve(&address);
        let channel = Channel::builder(server.address())
            .capacity(77)
            .lazy()
            .expect("a channel");
        let client = TestClient::new(channel);
        client.work(&payload(b"")).wait().expect("an echo");
        let waiting: Vec<_> = (0..3).map(|_| client.wait(&payload(b""))).collect();
        wait_until(|| gate.waiting.load(Ordering::SeqCst) == 3);
        let inspector = inspector(&server);
        let process = inspector
            .get_process(&GetProcessRequest::new())
            .wait()
            .expect("a process");
        let process = process.message();
        assert_eq!(process.pid(), std::process::id());
        assert_eq!(process.version(), env!("CARGO_PKG_VERSION"));
        let thread = process
            .threads()
            .iter()
            .find(|thread| thread.address() == server.address());
        let thread = thread.expect("it serves");
        assert_eq!((thread.role(), thread.answered()), ("server", true));
        // The three, and the question itself.
        assert_eq!(thread.requests_pending(), 4, "{thread:?}");
        assert!(thread.server_sessions() >= 1, "{thread:?}");
        check_budgets(&thread);
        assert_eq!(thread.workers().with_each().len(), 2);
        let requests = thread
            .endpoint_counts()
            .iter()
            .find(|count| count.name() == "requests");
        assert!(requests.is_some_and(|count| count.value() >= 5));
        let own = |channel: &starling::introspection::ChannelView<'_>| {
            channel.address() == server.address() && channel.capacity() == 77
        };
        let channel = process.channels().iter().find(own).expect("the channel");
        assert_eq!((channel.state(), channel.calls_outstanding()), ("READY", 3));
        let calls = |thread: &starling::introspection::ThreadView<'_>| {
            let is_connected = thread
                .connections()
                .iter()
                .any(|it| it.address() == server.address());
            thread.role() == "channels" && is_connected && thread.calls_outstanding() >= 3
        };
        check_server_sessions(&inspector, thread.number(), server.address());
        let channels = process.threads().iter().find(|thread| calls(thread));
        let channels = channels.expect("a thread makes the calls").number();
        check_client_session(&inspector, channels, server.address());
        gate.open.store(true, Ordering::SeqCst);
        waiting
            .into_iter()
            .for_each(|call| drop(call.wait().expect("an echo")));
    }
}

#[test]
fn a_thread_that_is_held_up_is_named_and_others_answer() {
    let (held, _) = serve("mem://introspection-held");
    let number = number_of(&inspector(&held), held.address());
    // An endpoint that nobody runs does not answer either.
    let (builder, _) = server(&["mem://introspection-asks"]);
    let asks = builder.build().expect("a server").spawn().expect("threads");
    let idle = Endpoint::builder()
        .bind("mem://introspection-idle")
        .build()
        .expect("an endpoint");
    let inspector = inspector(&asks);
    let process = inspector
        .get_process(&GetProcessRequest::new())
        .wait()
        .expect("a process");
    let threads = process.message().threads();
    let silent = threads
        .iter()
        .find(|thread| thread.role() == "endpoint" && !thread.answered());
    let silent = silent.expect("the endpoint that nobody runs").number();
    assert!(
        threads
            .iter()
            .any(|thread| thread.number() == number && thread.answered())
    );
    let sessions = |thread| {
        inspector
            .list_sessions(&ListSessionsRequest::new().with_thread(thread))
            .wait()
    };
    assert_eq!(
        sessions(silent).expect_err("silent").code(),
        Code::Unavailable
    );
    assert_eq!(sessions(u64::MAX).expect_err("none").code(), Code::NotFound);
    drop(idle);
    assert_eq!(sessions(silent).expect_err("gone").code(), Code::NotFound);
}

#[test]
fn calls_are_listed_by_method_and_shown_without_their_contents() {
    starling::metrics::enable();
    let (server, _) = serve(&shm_address());
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    for _ in 0..3 {
        client
            .echo(&payload(b"a secret message"))
            .wait()
            .expect("an echo");
    }
    let inspector = inspector(&server);
    let mut from = 0;
    let mut found = Vec::new();
    loop {
        let calls = inspector
            .list_calls(&ListCallsRequest::new().with_from(from))
            .wait();
        let calls = calls.expect("calls");
        let calls = calls.message();
        assert!(!format!("{calls:?}").contains("secret"));
        for series in calls
            .series()
            .iter()
            .filter(|series| series.address() == server.address())
        {
            if series.method() == "test.Test/Echo" {
                found.push((
                    series.side().to_owned(),
                    series.codes().iter().map(|c| c.value()).sum::<u64>(),
                ));
                assert!(series.has_p99_ns() && series.request_bytes() > 0);
            }
        }
        match calls.next_opt() {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(found, [("client".to_owned(), 3), ("server".to_owned(), 3)]);
    let process = inspector
        .get_process(&GetProcessRequest::new())
        .wait()
        .expect("a process");
    assert!(process.message().has_metrics());
    assert!(!format!("{:?}", process.message()).contains("secret"));
}

#[test]
fn a_server_can_be_closed_to_introspection_and_reflection() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = builder
            .introspection(false)
            .reflection(false)
            .build()
            .expect("a server");
        let server = server.spawn().expect("threads");
        let channel = Channel::lazy(server.address()).expect("a channel");
        let status = inspector(&server)
            .get_process(&GetProcessRequest::new())
            .wait();
        assert_eq!(status.expect_err("closed").code(), Code::Unimplemented);
        let reflection = ReflectionClient::new(channel.clone());
        let status = reflection.list_services(&ListServicesRequest::new()).wait();
        let status = status.expect_err("closed");
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(
            status.message().contains("ServerBuilder::reflection"),
            "{status}"
        );
        let request = DescribeServiceRequest::new().with_name("test.Test");
        let status = reflection
            .describe_service(&request)
            .wait()
            .expect_err("closed");
        assert_eq!(status.code(), Code::Unimplemented);
        // Those who have the .proto file are served.
        let client = TestClient::new(channel.clone());
        client.echo(&payload(b"x")).wait().expect("an echo");
        // A method that is not there does not tell which are.
        let store = v1::StoreClient::new(channel);
        let status = store
            .size(&v1::SizeRequest::new())
            .wait()
            .expect_err("another server's");
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(!status.message().contains("test.Test"), "{status}");
    }
}
