//! Policies that an operator attaches, changes and takes away while applications call.

mod mesh;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mesh::{Mesh, direct, echo_at};
use starling::managed::{ListRequest, OperatorClient, PolicyChange};
use starling::{CallOptions, Channel, Code, Endpoint, Status};
use starling_endpoint::{MethodId, StreamPosition};
use starling_io_shm::ShmIo;
use starling_message::method_id;
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_service::{Service, ServiceConfig};

/// Longer than any test waits for what it expects.
const LONG: Duration = Duration::from_secs(60);

/// Who manages a service.
struct Operator(OperatorClient<Channel>);

impl Operator {
    fn of(mesh: &Mesh) -> Self {
        Self(mesh.operator())
    }

    fn change(what: &str) -> PolicyChange {
        PolicyChange::new().with_what(what)
    }

    fn attach(&self, json: &str) {
        self.0.attach(&Self::change(json)).wait().expect(json);
    }

    fn configure(&self, json: &str) {
        self.0.configure(&Self::change(json)).wait().expect(json);
    }

    fn detach(&self, name: &str) {
        self.0.detach(&Self::change(name)).wait().expect(name);
    }

    fn apply(&self, json: &str, dry_run: bool) -> Result<Vec<String>, Status> {
        let change = Self::change(json).with_dry_run(dry_run);
        let response = self.0.apply(&change).wait()?;
        let changes = response.message().changes().iter();
        Ok(changes.map(str::to_owned).collect())
    }

    /// The policies, and how many requests each has let pass, delayed, refused, and holds.
    fn counts(&self) -> Vec<(String, [u64; 4])> {
        let listing = self.0.list(&ListRequest::new()).wait().expect("a listing");
        let policies = listing.message().policies().iter();
        policies
            .map(|policy| {
                let counts = [
                    policy.passed(),
                    policy.delayed(),
                    policy.refused(),
                    policy.held(),
                ];
                (policy.policy().to_owned(), counts)
            })
            .collect()
    }
}

fn echo(client: &EchoClient<Channel>) -> Result<(), Status> {
    let data = [7; 32];
    let response = client.call(&Payload::new().with_data(&data)).wait()?;
    assert_eq!(response.message().data(), data);
    Ok(())
}

fn code(result: Result<(), Status>) -> Code {
    result.err().map_or(Code::Ok, |status| {
        assert!(!status.may_have_run(), "{status}");
        status.code()
    })
}

#[test]
fn a_policy_acts_from_when_it_is_attached_until_it_is_detached() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    echo(&client).expect("no policy");

    operator.attach(r#"{"name":"few","kind":"rate-limit","settings":{"rate":0.001,"burst":2}}"#);
    let codes: Vec<Code> = (0..4).map(|_| code(echo(&client))).collect();
    let refused = Code::ResourceExhausted;
    assert_eq!(codes, [Code::Ok, Code::Ok, refused, refused]);
    let counts = operator.counts();
    assert_eq!(counts[0].1, [2, 0, 2, 0]);

    operator.configure(r#"{"name":"few","kind":"rate-limit","settings":{"rate":1e9,"burst":2}}"#);
    let until = Instant::now() + LONG;
    // It goes on with the bucket, which is empty.
    while code(echo(&client)) != Code::Ok {
        assert!(Instant::now() < until, "the new rate is high");
    }
    operator.attach(r#"{"name":"all","kind":"fault","settings":{"fail":1,"code":"ABORTED"}}"#);
    assert_eq!(code(echo(&client)), Code::Aborted);
    operator.detach("all");
    operator.detach("few");
    echo(&client).expect("no policy");
    assert_eq!(operator.counts(), []);
}

/// Policies are for the methods of applications: without the library's own, no channel could begin.
#[test]
fn a_policy_for_all_calls_keeps_no_channel_from_opening() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    operator.attach(r#"{"name":"all","kind":"fault","settings":{"fail":1,"code":"ABORTED"}}"#);
    let client = EchoClient::new(mesh.channel(server.address()));
    assert_eq!(code(echo(&client)), Code::Aborted);
}

#[test]
fn a_policy_acts_in_its_scope_only() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let [one, other] = [0, 1].map(|_| mesh.echo_at("udp://127.0.0.1:0"));
    let managed = [&one, &other].map(|server| EchoClient::new(mesh.channel(server.address())));
    let outside = EchoClient::new(direct(one.address()));
    let attach = |name: &str, scope: &str| {
        let settings = r#"{"fail":1,"code":"ABORTED"}"#;
        operator.attach(&format!(
            r#"{{"name":"{name}","kind":"fault","for":{scope},"settings":{settings}}}"#
        ));
        let calls = [&managed[0], &managed[1], &outside].map(|client| code(echo(client)));
        operator.detach(name);
        calls
    };
    let (ok, aborted) = (Code::Ok, Code::Aborted);
    let pid = std::process::id();
    assert_eq!(attach("client", "{}"), [aborted, aborted, ok]);
    // It stands before the application that is called, whoever calls.
    let side = r#"{"side":"server"}"#;
    assert_eq!(attach("server", side), [aborted, aborted, aborted]);
    let at = format!(r#"{{"server":"{}"}}"#, one.address());
    assert_eq!(attach("address", &at), [aborted, ok, ok]);
    let own = format!(r#"{{"process":{pid}}}"#);
    assert_eq!(attach("process", &own), [aborted, aborted, ok]);
    let another = format!(r#"{{"process":{}}}"#, pid + 1);
    assert_eq!(attach("other-process", &another), [ok; 3]);
    let methods = r#"{"methods":["bench.Echo/Call"]}"#;
    assert_eq!(attach("method", methods), [aborted, aborted, ok]);
    let methods = r#"{"methods":["bench.Echo/Other"]}"#;
    assert_eq!(attach("other-method", methods), [ok; 3]);
}

/// What a policy holds goes on when it is taken away, and at its deadline it ends.
#[test]
fn held_calls_are_let_go_and_none_is_lost() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    echo(&client).expect("no policy");
    operator.attach(r#"{"name":"slow","kind":"fault","settings":{"delay":1,"by":"24m"}}"#);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..16).map(|_| scope.spawn(|| echo(&client))).collect();
        let until = Instant::now() + LONG;
        while operator.counts()[0].1[3] < 16 {
            assert!(Instant::now() < until, "{:?}", operator.counts());
        }
        // One that gives up leaves the others alone.
        let options = CallOptions::default().timeout(Duration::from_millis(20));
        let late = client.clone().with_options(options);
        let late = late.call(&Payload::new()).wait();
        assert_eq!(late.expect_err("it is held").code(), Code::DeadlineExceeded);
        assert!(calls.iter().all(|call| !call.is_finished()));
        operator.detach("slow");
        for call in calls {
            call.join().expect("a thread").expect("it goes on");
        }
    });
}

#[test]
fn a_list_is_applied_as_a_whole_or_not_at_all() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    let (a, b) = (
        r#"{"name":"a","kind":"null"}"#,
        r#"{"name":"b","kind":"timeout","settings":{"at_most":"1s"}}"#,
    );
    let list = format!("[{a},{b}]");
    let expected = [format!("attach {a}"), format!("attach {b}")];
    assert_eq!(operator.apply(&list, true).expect("a list"), expected);
    assert_eq!(operator.counts(), [], "a dry run");
    assert_eq!(operator.apply(&list, false).expect("a list"), expected);
    assert_eq!(operator.apply(&list, false).expect("a list"), [""; 0]);
    echo(&client).expect("an echo");

    let wrong = r#"[{"name":"a","kind":"null"},{"name":"c","kind":"rate-limit","settings":{"rate":"much"}}]"#;
    let error = operator.apply(wrong, false).expect_err("a wrong setting");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(
        error
            .message()
            .starts_with("policy 2 of the list: settings.rate"),
        "{error}"
    );
    let counts = operator.counts();
    let names: Vec<_> = counts.iter().map(|(policy, _)| policy.as_str()).collect();
    assert_eq!(names, [a, b], "nothing has changed");
    assert_eq!(counts[0].1[0], 1, "it goes on counting");

    let absent = operator.0.detach(&Operator::change("c")).wait();
    let absent = absent.expect_err("no such policy");
    assert!(absent.message().contains("there are a, b"), "{absent}");
    let twice = operator.0.attach(&Operator::change(a)).wait();
    assert_eq!(twice.expect_err("twice").code(), Code::AlreadyExists);
    let changed = r#"{"name":"a","kind":"fault"}"#;
    let changed = operator.0.configure(&Operator::change(changed)).wait();
    let changed = changed.expect_err("another kind");
    assert_eq!(changed.code(), Code::FailedPrecondition);
}

/// Attached, configured, upgraded and detached a hundred times, under load from several threads: no call fails.
#[test]
fn changes_under_load_fail_no_call() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = mesh.echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    echo(&client).expect("no call fails");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..100 {
            let before = calls.load(Ordering::Relaxed);
            let settings = |rate: u32| format!(r#"{{"rate":{rate},"queue":1000}}"#);
            let policy = |rate| {
                let settings = settings(rate);
                format!(r#"{{"name":"limit","kind":"rate-limit","settings":{settings}}}"#)
            };
            operator.attach(&policy(1000 + round));
            operator.configure(&policy(2000 + round));
            let upgrade = operator.0.upgrade(&Operator::change("limit")).wait();
            upgrade.expect("it is attached");
            // Some are held when it is detached.
            while calls.load(Ordering::Relaxed) < before + 8 {
                std::thread::yield_now();
            }
            operator.detach("limit");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(calls.load(Ordering::Relaxed) >= 800);
}

/// A turn has many requests, of several callers: none is asked before those count that are held before it.
#[test]
fn requests_that_come_together_do_not_pass_a_queue_by_more_than_its_length() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = mesh.echo_at("udp://127.0.0.1:0");
    // Past the service: they come to the policy of the server's side by one link.
    let callers = [0; 8].map(|_| EchoClient::new(direct(server.address())));
    callers
        .iter()
        .for_each(|caller| echo(caller).expect("no policy"));
    operator.attach(
        r#"{"name":"few","kind":"rate-limit","for":{"side":"server"},
            "settings":{"rate":0.001,"burst":1,"queue":5}}"#,
    );
    let call = async |caller: &EchoClient<Channel>| {
        let payload = Payload::new().with_data(&[7; 32]);
        let call = caller.call(&payload).await;
        call.err().map_or(Code::Ok, |status| status.code())
    };
    let calls = callers.iter().flat_map(|caller| [caller; 16]).map(call);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| starling::block_on(futures::future::join_all(calls)));
        let until = Instant::now() + LONG;
        // Those that are held wait until the policy is gone.
        while operator.counts()[0].1 != [6, 5, 122, 5] {
            assert!(Instant::now() < until, "{:?}", operator.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
        operator.detach("few");
        let codes = calls.join().expect("no panic");
        let refused = codes
            .iter()
            .filter(|code| **code == Code::ResourceExhausted);
        assert_eq!(refused.count(), 122);
    });
}

/// A policy changes as a whole: the engine for one scope is not asked about calls of the other.
#[test]
fn calls_never_meet_the_settings_that_are_for_others() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    let policy = |method: &str, fail: u8| {
        format!(
            r#"{{"name":"only","kind":"fault","for":{{"methods":["bench.Echo/{method}"]}},
                "settings":{{"fail":{fail}}}}}"#
        )
    };
    operator.attach(&policy("Call", 0));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    echo(&client).expect("the fault is for others");
                }
            });
        }
        for _ in 0..200 {
            operator.configure(&policy("Sink", 1));
            operator.configure(&policy("Call", 0));
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_breaker_hears_how_the_policies_behind_it_refuse() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    echo(&client).expect("no policy");
    operator.attach(
        r#"{"name":"breaker","kind":"circuit-breaker","settings":{"failures":2,"pause":"24m"}}"#,
    );
    operator.attach(r#"{"name":"ill","kind":"fault","settings":{"fail":1,"code":"UNAVAILABLE"}}"#);
    let texts: Vec<_> = (0..3)
        .map(|_| echo(&client).expect_err("ill").message().to_owned())
        .collect();
    assert!(
        texts[..2].iter().all(|text| text.contains("a fault")),
        "{texts:?}"
    );
    assert!(texts[2].contains("circuit breaker"), "{texts:?}");
}

#[test]
fn a_service_begins_with_the_policies_that_it_is_given() {
    let policies = r#"[{"name":"all","kind":"fault","settings":{"fail":1,"code":"ABORTED"}}]"#;
    let config = ServiceConfig {
        name: mesh::name(),
        policies: starling_service::parse_policies(policies).expect("a list"),
        ..ServiceConfig::default()
    };
    let name = config.name.clone();
    let _service = Arc::new(Service::start(config).expect("the name is free"));
    let server = echo_at("udp://127.0.0.1:0");
    let channel = Channel::builder(server.address()).managed_by(&name);
    let client = EchoClient::new(channel.lazy().expect("an address"));
    assert_eq!(code(echo(&client)), Code::Aborted);
}

/// Callers are not believed that a call goes on with a stream.
#[test]
fn a_position_in_a_stream_is_no_way_past_a_policy() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let address = format!("shm://{}?target={}", mesh.name, server.address());
    let mut endpoint = Endpoint::builder()
        .reach(&address)
        .build()
        .expect("an endpoint");
    let raw = endpoint.raw::<ShmIo>().expect("a device of this kind");
    let session = raw.connect(&address).expect("it listens");
    let ends = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&ends);
    let collect = raw.register_continuation(move |_, completion| {
        let code = completion.result.err().map(|status| status.code());
        into.lock().expect("no panic").push((completion.tag, code));
    });
    operator.attach(r#"{"name":"all","kind":"fault","settings":{"fail":1,"code":"ABORTED"}}"#);
    let echo = MethodId(method_id("/bench.Echo/Call"));
    for number in 0..3 {
        let stream = StreamPosition {
            id: 7,
            number,
            ..StreamPosition::default()
        };
        let options = starling_endpoint::CallOptions {
            stream: Some(stream),
            ..Default::default()
        };
        raw.call(session, echo, &options, |_| {}, collect, number)
            .expect("it is made");
        let until = Instant::now() + LONG;
        while ends.lock().expect("no panic").len() as u64 <= number {
            assert!(Instant::now() < until, "no answer");
            raw.poll().expect("a device that works");
        }
    }
    let ends = ends.lock().expect("no panic").clone();
    let aborted = Some(Code::Aborted);
    assert_eq!(ends, [(0, aborted), (1, aborted), (2, aborted)]);
}

/// A stream that runs goes on, whatever is attached meanwhile.
#[test]
fn a_stream_that_runs_passes_a_policy_that_is_attached() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = mesh.echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    let (mut sender, mut receiver) = client.exchange();
    for number in 0..40_u8 {
        if number == 20 {
            let settings = r#""settings":{"fail":1,"code":"ABORTED"}"#;
            operator.attach(&format!(r#"{{"name":"a","kind":"fault",{settings}}}"#));
            let side = r#""for":{"side":"server"}"#;
            operator.attach(&format!(
                r#"{{"name":"b","kind":"fault",{side},{settings}}}"#
            ));
        }
        let item = Payload::new().with_data(&[number]);
        sender.send_wait(&item).expect("it goes on");
        let item = receiver
            .blocking()
            .next()
            .expect("an item")
            .expect("no failure");
        assert_eq!(item.message().data(), [number]);
    }
    assert_eq!(code(echo(&client)), Code::Aborted);
}

/// What a policy holds is asked again when it is configured, and ends with its server without having run.
#[test]
fn held_calls_are_asked_again_and_end_with_their_server() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    echo(&client).expect("no policy");
    let held = |count: u64| {
        let until = Instant::now() + LONG;
        while operator.counts()[0].1[3] != count {
            assert!(Instant::now() < until, "{:?}", operator.counts());
        }
    };
    operator.attach(r#"{"name":"slow","kind":"fault","settings":{"delay":1,"by":"24m"}}"#);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| echo(&client));
        held(1);
        operator.configure(r#"{"name":"slow","kind":"fault","settings":{"delay":0}}"#);
        call.join().expect("a thread").expect("it goes on");
        assert_eq!(operator.counts()[0].1, [1, 0, 0, 0], "counted once");
        operator.configure(r#"{"name":"slow","kind":"fault","settings":{"delay":1,"by":"24m"}}"#);
        let call = scope.spawn(|| echo(&client));
        held(1);
        drop(server);
        let status = call.join().expect("a thread").expect_err("nobody serves");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.may_have_run(), "{status}");
        held(0);
    });
}

/// Large requests go behind small ones, and all of them go on: also those whose policy is taken away.
#[test]
fn large_requests_go_on_behind_small_ones() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    echo(&client).expect("no policy");
    operator.attach(r#"{"name":"qos","kind":"small-first"}"#);
    let call = |bytes: usize| {
        let call = client.sink(&Payload::new().with_data(&vec![7; bytes]));
        async move { call.await.map(drop) }
    };
    let sizes = [40_000, 32].repeat(40);
    let all = |sizes: &[usize]| {
        let calls = futures::future::join_all(sizes.iter().map(|bytes| call(*bytes)));
        for result in starling::block_on(calls) {
            result.expect("it goes on");
        }
    };
    all(&sizes);
    assert_eq!(operator.counts()[0].1, [80, 40, 0, 0]);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| (0..5).for_each(|_| all(&sizes)));
        for _ in 0..5 {
            operator.detach("qos");
            operator.attach(r#"{"name":"qos","kind":"small-first"}"#);
        }
        calls.join().expect("no call fails");
    });
}
