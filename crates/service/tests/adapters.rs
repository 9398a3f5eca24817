//! Adapters that are replaced under load: what goes on, what stays, what is refused.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::collections::HashSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{payload, wait_until};
use mesh::{Mesh, direct, echo_at, exercise};
use starling::introspection::{GetProcessRequest, IntrospectionClient};
use starling::managed::{AdapterUpgrade, ListRequest, MoveRequest, PolicyChange};
use starling::{Channel, Code, Request, Server, ServerHandle, Status};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_service::ServiceConfig;
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};
use starling_test_protos::test::TestClient;

/// Descriptors are those of the process: one test has it at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// What its handler has seen: each name once.
#[derive(Default)]
struct Seen {
    names: Mutex<HashSet<String>>,
    twice: AtomicUsize,
}

struct Greeter(Arc<Seen>);

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut response: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let name = request.message().name();
        let is_new = self.0.names.lock().expect("no panic").insert(name.into());
        self.0
            .twice
            .fetch_add(usize::from(!is_new), Ordering::SeqCst);
        response.set_text(name);
        Ok(())
    }
}

impl Seen {
    /// A server that greets, and echoes. Managed by a service, or by none.
    fn serve(self: &Arc<Self>, mesh: Option<&Mesh>, address: &str) -> ServerHandle {
        let builder = Server::builder()
            .add_service(HelloServer::new(Greeter(Arc::clone(self))))
            .add_service(starling_sample_services::echo::server());
        let builder = match mesh {
            Some(mesh) => builder.managed_by(&mesh.name),
            None => builder.direct(),
        };
        let server = builder.bind(address).expect("an address").build();
        server.expect("it is free").spawn().expect("threads")
    }

    fn check(&self, calls: u64) {
        assert_eq!(self.twice.load(Ordering::SeqCst), 0, "no call runs twice");
        assert_eq!(self.names.lock().expect("no panic").len() as u64, calls);
    }
}

/// How many adapters and datapaths have moved, and what has not.
type Upgraded = (u32, u32, Vec<String>);

fn upgrade(mesh: &Mesh, kind: &str, settings: &str) -> Result<Upgraded, Status> {
    ask(
        mesh,
        &AdapterUpgrade::new()
            .with_kind(kind)
            .with_settings(settings),
    )
}

fn ask(mesh: &Mesh, upgrade: &AdapterUpgrade) -> Result<Upgraded, Status> {
    let upgraded = mesh.operator().upgrade_adapters(upgrade).wait()?;
    let upgraded = upgraded.message();
    let stayed = upgraded.stayed().iter().map(str::to_owned).collect();
    Ok((upgraded.adapters(), upgraded.datapaths(), stayed))
}

/// Kind, settings, datapaths, whether it is replaced: of all.
fn adapters(mesh: &Mesh) -> Vec<(String, String, u32, bool)> {
    let operator = mesh.operator();
    let adapters = operator.list_adapters(&ListRequest::new()).wait();
    let adapters = adapters.expect("a listing");
    let all = adapters.message().adapters().into_iter();
    all.map(|of| {
        assert_eq!(of.process(), std::process::id());
        let (kind, settings) = (of.kind().to_owned(), of.settings().to_owned());
        (kind, settings, of.datapaths(), of.is_replaced())
    })
    .collect()
}

/// The states of all datapaths.
fn states(mesh: &Mesh) -> Vec<String> {
    let operator = mesh.operator();
    let listing = operator.list(&ListRequest::new()).wait();
    let listing = listing.expect("a listing");
    let datapaths = listing.message().datapaths().into_iter();
    datapaths.map(|of| of.state().to_owned()).collect()
}

/// Calls and memory of this application that are not given back.
fn in_use(mesh: &Mesh) -> (u64, u64) {
    let operator = mesh.operator();
    let listing = operator.list(&ListRequest::new()).wait();
    let listing = listing.expect("a listing");
    let used = listing.message().quotas().into_iter();
    used.map(|of| (of.used().calls(), of.used().memory()))
        .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
}

/// The requests that the first policy has let pass.
fn passed(mesh: &Mesh) -> u64 {
    let operator = mesh.operator();
    let listing = operator.list(&ListRequest::new()).wait();
    let policies = listing.expect("a listing").into_message();
    let first = policies.policies().iter().next();
    first.expect("a policy").passed()
}

/// The sessions that a server has.
fn sessions_of(server: &ServerHandle) -> u64 {
    let inspector = IntrospectionClient::new(direct(server.address()));
    let process = inspector.get_process(&GetProcessRequest::new()).wait();
    let process = process.expect("a process");
    let mut threads = process.message().threads().iter();
    let thread = threads.find(|thread| thread.address() == server.address());
    thread.expect("it serves").server_sessions()
}

/// Calls from threads, until it is told to end.
#[derive(Default)]
struct Load {
    ends: AtomicBool,
    calls: AtomicU64,
}

impl Load {
    fn run(&self, channel: Channel) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        let client = HelloClient::new(channel);
        while !self.ends.load(Ordering::Relaxed) {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            let name = format!("{thread}-{number}");
            let reply = client.greet(&HelloRequest::new().with_name(&name)).wait();
            assert_eq!(reply.expect("a greeting").message().text(), name);
        }
    }

    /// Waits until there have been some more.
    fn goes_on(&self) {
        let before = self.calls.load(Ordering::Relaxed);
        wait_until(|| self.calls.load(Ordering::Relaxed) > before + 20);
    }
}

/// Ends the load, also when the test fails.
struct Ends<'a>(&'a Load);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.ends.store(true, Ordering::Relaxed);
    }
}

/// Has calls of all kinds made of which none may fail, while `during` runs.
fn under_load(channels: &[Channel], load: &Load, during: impl FnOnce()) {
    std::thread::scope(|scope| {
        for channel in channels {
            for _ in 0..2 {
                scope.spawn(|| load.run(channel.clone()));
            }
            scope.spawn(|| {
                while !load.ends.load(Ordering::Relaxed) {
                    exercise(channel.clone());
                }
            });
        }
        load.goes_on();
        let ends = Ends(load);
        during();
        drop(ends);
    });
}

#[test]
fn adapters_are_replaced_under_load_and_no_call_fails() {
    let _alone = alone();
    for runtimes in [1, 2] {
        let mesh = Mesh::with(ServiceConfig {
            runtimes,
            ..ServiceConfig::default()
        });
        let (seen, load) = (Arc::new(Seen::default()), Load::default());
        let outside = seen.serve(None, "udp://127.0.0.1:0");
        let over_tcp = seen.serve(None, "tcp://127.0.0.1:0");
        let called = seen.serve(Some(&mesh), "udp://127.0.0.1:0");
        let counting = r#"{"name":"all","kind":"null","for":{"methods":["hello.Hello/Greet"]}}"#;
        let counting = PolicyChange::new().with_what(counting);
        mesh.operator().attach(&counting).wait().expect("a policy");
        let channels = [&outside, &over_tcp, &called].map(|it| mesh.channel(it.address()));
        // Its items and their echoes go by one session, whatever becomes of adapters meanwhile.
        let (mut sender, mut receiver) = EchoClient::new(channels[0].clone()).exchange();
        let mut echoes = receiver.blocking();
        let mut exchange = |number: u8| {
            let item = Payload::new().with_data(&[number; 100]);
            sender.send_wait(&item).expect("it takes items");
            let echo = echoes.next().expect("an echo").expect("an item");
            assert_eq!(echo.message().data(), [number; 100]);
        };
        exchange(0);
        let mut files = 0;
        under_load(&channels, &load, || {
            wait_until(|| states(&mesh).iter().filter(|it| *it == "open").count() >= 4);
            for turn in 1..=40_u8 {
                let kind = ["udp", "tcp", "shm"][usize::from(turn % 3)];
                let settings = [r#"{"congestion":"timely"}"#, r#"{"congestion":null}"#];
                let settings = settings[usize::from(turn % 2)];
                let upgraded = upgrade(&mesh, kind, settings).expect("it can be");
                assert_eq!(upgraded, (1, 1, Vec::new()), "{kind}");
                if runtimes > 1 {
                    let to = MoveRequest::new().with_process(std::process::id());
                    let to = to.with_runtime(u32::from(turn / 3 % 2));
                    mesh.operator()
                        .move_application(&to)
                        .wait()
                        .expect("it is known");
                }
                load.goes_on();
                exchange(turn);
                if turn == 10 {
                    files = descriptors();
                }
            }
        });
        assert!(adapters(&mesh).len() > 3, "the stream still runs");
        sender.close();
        assert!(echoes.next().is_none());
        wait_until(|| adapters(&mesh).len() == 3);
        assert!(
            adapters(&mesh)
                .iter()
                .all(|(.., datapaths, is_replaced)| { !is_replaced && *datapaths == 1 })
        );
        let calls = load.calls.load(Ordering::Relaxed);
        seen.check(calls);
        assert_eq!(passed(&mesh), calls);
        wait_until(|| in_use(&mesh) == (0, 0));
        wait_until(|| descriptors() <= files);
        drop((channels, receiver));
        wait_until(|| adapters(&mesh).is_empty());
        // That of the question itself is left.
        wait_until(|| sessions_of(&outside) == 1 && sessions_of(&over_tcp) == 1);
        assert!(mesh.is_running());
    }
}

#[test]
fn what_runs_stays_where_it_is_and_ends_there() {
    let _alone = alone();
    let mesh = Mesh::start();
    let (builder, gate) = common::server(&["udp://127.0.0.1:0"]);
    let server = builder.direct().build().unwrap().spawn().unwrap();
    let client = TestClient::new(mesh.channel(server.address()));
    client.echo(&payload(b"")).wait().expect("an echo");
    let waits = client.wait(&payload(b"slow"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    for turn in 0..3 {
        assert_eq!(upgrade(&mesh, "udp", ""), Ok((1, 1, Vec::new())), "{turn}");
        client.echo(&payload(b"")).wait().expect("an echo");
    }
    let replaced = || adapters(&mesh).iter().filter(|(.., it)| *it).count();
    assert_eq!((adapters(&mesh).len(), replaced()), (2, 1));
    // One more of each: a session of before for each call that runs.
    let more: Vec<_> = (0..7_usize)
        .map(|number| {
            let waits = client.wait(&payload(b"more"));
            wait_until(|| gate.waiting.load(Ordering::SeqCst) == 2 + number);
            assert_eq!(upgrade(&mesh, "udp", ""), Ok((1, 1, Vec::new())));
            waits
        })
        .collect();
    assert_eq!(replaced(), 8);
    let (upgraded, moved, stayed) = upgrade(&mesh, "udp", r#"{"credits":8}"#).expect("an answer");
    assert_eq!((upgraded, moved, stayed.len()), (0, 0, 1));
    assert!(
        stayed[0].contains("in 8 sessions that earlier upgrades"),
        "{}",
        stayed[0]
    );
    assert_eq!(adapters(&mesh).len(), 9, "nothing has changed");
    client.echo(&payload(b"")).wait().expect("an echo");
    // A call that is given up is over.
    drop(waits);
    wait_until(|| gate.dropped.load(Ordering::SeqCst) == 1);
    wait_until(|| replaced() == 7);
    gate.open.store(true, Ordering::SeqCst);
    for call in more {
        assert_eq!(call.wait().expect("it ends").message().bytes(), b"more");
    }
    wait_until(|| adapters(&mesh) == [("udp".to_owned(), "{}".to_owned(), 1, false)]);
    assert_eq!(
        upgrade(&mesh, "udp", r#"{"credits":8}"#),
        Ok((1, 1, Vec::new()))
    );
    assert_eq!(adapters(&mesh)[0].1, r#"{"credits":8}"#);
}

/// Hands datagrams on: those of the first client to the first server, and so on, those of some to nobody.
struct Crossroads {
    address: String,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Crossroads {
    fn to(servers: &[Option<&str>]) -> Self {
        let local = |address: &str| address.strip_prefix("udp://").expect("udp").to_owned();
        let servers: Vec<Option<String>> = servers.iter().map(|it| it.map(local)).collect();
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .expect("a socket");
        let address = format!("udp://{}", socket.local_addr().expect("bound"));
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let run = move || {
            // For each client a socket that is the client to its server.
            let mut ways: Vec<(std::net::SocketAddr, Option<UdpSocket>)> = Vec::new();
            let mut buffer = vec![0; 1 << 16];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    if !ways.iter().any(|(client, _)| *client == from) {
                        let to = servers.get(ways.len()).and_then(Option::as_ref);
                        let way = to.map(|to| {
                            let way = UdpSocket::bind("127.0.0.1:0").expect("a port");
                            way.connect(to).expect("an address");
                            way.set_nonblocking(true).expect("a socket");
                            way
                        });
                        ways.push((from, way));
                    }
                    let way = ways.iter().find(|(client, _)| *client == from);
                    if let Some((_, Some(way))) = way {
                        let _ = way.send(&buffer[..len]);
                    }
                }
                for (client, way) in &ways {
                    while let Some(Ok(len)) = way.as_ref().map(|way| way.recv(&mut buffer)) {
                        let _ = socket.send_to(&buffer[..len], client);
                    }
                }
            }
        };
        Self {
            address,
            ends,
            thread: Some(std::thread::spawn(run)),
        }
    }
}

impl Drop for Crossroads {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn a_route_stays_as_it_is_if_there_is_no_other_way_to_the_same_server() {
    let _alone = alone();
    let mesh = Mesh::start();
    let seen = Arc::new(Seen::default());
    let server = seen.serve(None, "udp://127.0.0.1:0");
    let (builder, _gate) = common::server(&["udp://127.0.0.1:0"]);
    let other = builder.direct().build().unwrap().spawn().unwrap();
    for (others, why) in [
        (None, "connect udp://127.0.0.1:"),
        (Some(other.address()), "does not say what methods it has"),
        (Some(server.address()), ""),
    ] {
        let crossroads = Crossroads::to(&[Some(server.address()), others]);
        let client = HelloClient::new(mesh.channel(&crossroads.address));
        let greet = |name: &str| {
            let reply = client.greet(&HelloRequest::new().with_name(name)).wait();
            reply.map(|reply| reply.message().text().to_owned())
        };
        assert_eq!(greet(&format!("{why} 1")), Ok(format!("{why} 1")));
        let before = adapters(&mesh);
        let settings = r#"{"gso":false}"#;
        let (upgraded, moved, stayed) = upgrade(&mesh, "udp", settings).expect("an answer");
        match why.is_empty() {
            true => assert_eq!((upgraded, moved, stayed.len()), (1, 1, 0)),
            false => {
                assert_eq!((upgraded, moved, stayed.len()), (0, 0, 1));
                let own = format!("process {} to {}", std::process::id(), crossroads.address);
                assert!(
                    stayed[0].starts_with(&own) && stayed[0].contains(why),
                    "{}",
                    stayed[0]
                );
                assert_eq!(adapters(&mesh), before);
            }
        }
        assert_eq!(greet(&format!("{why} 2")), Ok(format!("{why} 2")));
        drop(client);
        wait_until(|| adapters(&mesh).is_empty());
    }
    seen.check(6);
}

#[test]
fn a_route_that_had_to_stay_moves_with_a_later_upgrade() {
    let _alone = alone();
    let mesh = Mesh::start();
    let seen = Arc::new(Seen::default());
    let server = seen.serve(None, "udp://127.0.0.1:0");
    let own = Some(server.address());
    let crossroads = Crossroads::to(&[own, None, own]);
    let addresses = [server.address(), &crossroads.address];
    let clients = addresses.map(|address| HelloClient::new(mesh.channel(address)));
    let greet = |name: &str| {
        for (number, client) in clients.iter().enumerate() {
            let name = format!("{name} {number}");
            let reply = client.greet(&HelloRequest::new().with_name(&name)).wait();
            assert_eq!(reply.expect("a greeting").message().text(), name);
        }
    };
    greet("before");
    let (upgraded, moved, stayed) = upgrade(&mesh, "udp", "").expect("an answer");
    assert_eq!((upgraded, moved, stayed.len()), (1, 1, 1));
    assert!(stayed[0].contains(&crossroads.address), "{}", stayed[0]);
    greet("between");
    assert_eq!(adapters(&mesh).len(), 2);
    assert_eq!(upgrade(&mesh, "udp", ""), Ok((1, 2, Vec::new())));
    greet("after");
    wait_until(|| adapters(&mesh).len() == 1);
    seen.check(6);
}

#[test]
fn settings_are_for_those_who_come_later_too_unless_one_application_has_its_own() {
    let _alone = alone();
    let mesh = Mesh::start();
    let server = echo_at("udp://127.0.0.1:0");
    let of = |channel: &Channel| {
        exercise(channel.clone());
        let mut udp = adapters(&mesh)
            .into_iter()
            .filter(|(kind, ..)| kind == "udp");
        udp.next().expect("an adapter").1
    };
    let gso = r#"{"gso":false}"#;
    assert_eq!(
        upgrade(&mesh, "udp", gso),
        Ok((0, 0, Vec::new())),
        "there are none"
    );
    let channel = mesh.channel(server.address());
    assert_eq!(of(&channel), gso);
    let own = || {
        let own = AdapterUpgrade::new().with_kind("udp");
        own.with_process(std::process::id())
    };
    let both = own().with_settings(r#"{"max_datagram":1400}"#);
    assert_eq!(ask(&mesh, &both), Ok((1, 1, Vec::new())));
    assert_eq!(of(&channel), r#"{"gso":false,"max_datagram":1400}"#);
    drop(channel);
    wait_until(|| adapters(&mesh).is_empty());
    assert_eq!(
        of(&mesh.channel(server.address())),
        gso,
        "it is the next one"
    );
    wait_until(|| adapters(&mesh).is_empty());
    let error = ask(&mesh, &own()).expect_err("it has none");
    assert_eq!(error.code(), Code::NotFound, "{error}");
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    let _alone = alone();
    let mesh = Mesh::start();
    let server = echo_at("udp://127.0.0.1:0");
    let channel = mesh.channel(server.address());
    exercise(channel.clone());
    let before = adapters(&mesh);
    for (kind, settings, said) in [
        ("mem", "", "write udp, tcp, shm or xdp"),
        ("", "", "write udp, tcp, shm or xdp"),
        ("udp", r#"{"mtu":1}"#, "udp has none named \"mtu\""),
        ("udp", r#"{"gso":false,"credits":0}"#, "credits is 0"),
        ("udp", "gso", "settings: "),
    ] {
        let error = upgrade(&mesh, kind, settings).expect_err(said);
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(said), "{error}");
    }
    assert_eq!(adapters(&mesh), before);
    exercise(channel.clone());
    // Who is called by the network is not reached by an adapter.
    let called = mesh.echo_at("udp://127.0.0.1:0");
    exercise(direct(called.address()));
    assert_eq!(adapters(&mesh).len(), 1);
}

#[test]
fn an_upgrade_beside_ends_of_servers_and_callers_harms_nobody() {
    let _alone = alone();
    let mesh = Mesh::with(ServiceConfig {
        runtimes: 2,
        ..ServiceConfig::default()
    });
    let (seen, load) = (Arc::new(Seen::default()), Load::default());
    let stays = seen.serve(None, "udp://127.0.0.1:0");
    let channel = mesh.channel(stays.address());
    under_load(std::slice::from_ref(&channel), &load, || {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    upgrade(&mesh, "udp", "").expect("an answer");
                }
            });
            for round in 0..30 {
                // Sessions that begin, and servers and callers that go, in the middle of it.
                let server = echo_at("udp://127.0.0.1:0");
                let (one, other) = (
                    mesh.channel(server.address()),
                    mesh.channel(stays.address()),
                );
                exercise(one.clone());
                exercise(other);
                drop(server);
                wait_until(|| starling::block_on(one.ready()).is_err());
                if round % 5 == 4 {
                    let to = MoveRequest::new().with_process(std::process::id());
                    let to = to.with_runtime(round / 5 % 2);
                    mesh.operator()
                        .move_application(&to)
                        .wait()
                        .expect("it is known");
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
    seen.check(load.calls.load(Ordering::Relaxed));
    drop(channel);
    wait_until(|| adapters(&mesh).is_empty());
    assert!(mesh.is_running());
}
