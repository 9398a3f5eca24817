//! Calls that a policy makes again: which, how often, and what is left of them.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{payload, wait_until};
use mesh::{LONG, Mesh};
use starling::managed::{ListRequest, OperatorClient, PolicyChange};
use starling::{
    CallOptions, Channel, ChannelCall, Code, Metadata, PREVIOUS_ATTEMPTS_KEY, PUSHBACK_KEY,
    Request, Server, ServerBuilder, ServerHandle, Status,
};
use starling_sample_services::api::bench::{EchoClient, Wanted};
use starling_service::{Quota, Quotas, ServiceConfig};
use starling_test_protos::hello::{
    Hello, HelloClient, HelloReply, HelloReplyMut, HelloRequest, HelloServer,
};
use starling_test_protos::test::TestClient;

struct Operator(OperatorClient<Channel>);

impl Operator {
    fn of(mesh: &Mesh) -> Self {
        Self(mesh.operator())
    }

    fn change(what: &str) -> PolicyChange {
        PolicyChange::new().with_what(what)
    }

    fn attach(&self, policy: &str) {
        self.0.attach(&Self::change(policy)).wait().expect(policy);
    }

    fn configure(&self, policy: &str) {
        (self.0.configure(&Self::change(policy)).wait()).expect(policy);
    }

    fn detach(&self, name: &str) {
        self.0.detach(&Self::change(name)).wait().expect(name);
    }

    /// How many requests each policy has let pass, delayed, refused, and holds.
    fn counts(&self) -> Vec<[u64; 4]> {
        let listing = self.0.list(&ListRequest::new()).wait().expect("a listing");
        let policies = listing.message().policies().iter();
        let counts = policies.map(|of| [of.passed(), of.delayed(), of.refused(), of.held()]);
        counts.collect()
    }

    /// Calls of applications that are not over, and bytes of their requests.
    fn in_use(&self) -> (u64, u64) {
        let listing = self.0.list(&ListRequest::new()).wait().expect("a listing");
        let quotas = listing.message().quotas().iter();
        let used = quotas
            .filter(|of| of.process_opt().is_some())
            .map(|of| of.used());
        used.fold((0, 0), |(calls, memory), used| {
            (calls + used.calls(), memory + used.memory())
        })
    }
}

/// A policy `retry` with these settings. `idempotent`: of the methods of the tests.
fn retry(idempotent: bool, settings: &str) -> String {
    let scope = match idempotent {
        true => r#","for":{"methods":["hello.Hello/Greet","test.Test/Wait"]}"#,
        false => "",
    };
    format!(
        r#"{{"name":"retry","kind":"retry"{scope},"settings":{{"idempotent":{idempotent}{settings}}}}}"#
    )
}

/// A policy that refuses a share of calls with UNAVAILABLE.
fn fault(share: f64) -> String {
    format!(r#"{{"name":"fault","kind":"fault","settings":{{"fail":{share},"seed":3}}}}"#)
}

/// So many attempts that the budget does not count.
const PLENTY: &str = r#","attempts":5,"pause":"1ms","floor":1000000"#;
/// Longer than a test waits.
const FAR: &str = r#","pause":"24m","longest":"24m""#;

/// What a run of the handler has seen: how many attempts came before, and how long its caller waits.
#[derive(Clone, Debug)]
struct Run {
    previous: Option<String>,
    remaining: Option<Duration>,
}

/// Fails so often, then greets.
#[derive(Default)]
struct Flaky {
    failures: AtomicU64,
    pushback: Mutex<Option<&'static str>>,
    runs: Mutex<Vec<Run>>,
}

struct Greeter(Arc<Flaky>);

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut response: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        let flaky = &self.0;
        let previous = request.metadata().value(PREVIOUS_ATTEMPTS_KEY);
        flaky.runs.lock().expect("no panic").push(Run {
            previous: previous.map(|text| String::from_utf8_lossy(text).into_owned()),
            remaining: request.remaining(),
        });
        let less = |failures: u64| failures.checked_sub(1);
        let (order, failures) = (Ordering::SeqCst, &flaky.failures);
        if failures.fetch_update(order, order, less).is_err() {
            response.set_text(request.message().name());
            return Ok(());
        }
        let status = Status::unavailable("not yet");
        Err(match *flaky.pushback.lock().expect("no panic") {
            Some(value) => {
                let mut metadata = Metadata::new();
                metadata.insert(PUSHBACK_KEY, value).expect("there is room");
                status.with_metadata(metadata)
            }
            None => status,
        })
    }
}

impl Flaky {
    fn fail(&self, times: u64) {
        self.failures.store(times, Ordering::SeqCst);
    }

    fn serve(self: &Arc<Self>, with: impl Fn(ServerBuilder) -> ServerBuilder) -> ServerHandle {
        let greeter = Greeter(Arc::clone(self));
        let server = with(Server::builder().add_service(HelloServer::new(greeter)));
        let server = server.bind("udp://127.0.0.1:0").expect("an address");
        server
            .build()
            .expect("a free port")
            .spawn()
            .expect("threads")
    }

    fn take_runs(&self) -> Vec<Run> {
        std::mem::take(&mut *self.runs.lock().expect("no panic"))
    }
}

/// A service, who manages it, a server that fails, and who calls it.
struct Scene {
    operator: Operator,
    flaky: Arc<Flaky>,
    client: HelloClient<Channel>,
    server: ServerHandle,
    mesh: Mesh,
}

impl Scene {
    fn new() -> Self {
        Self::with(ServiceConfig::default())
    }

    fn with(config: ServiceConfig) -> Self {
        let mesh = Mesh::with(config);
        let flaky = Arc::new(Flaky::default());
        let server = flaky.serve(ServerBuilder::direct);
        let scene = Self {
            operator: Operator::of(&mesh),
            flaky,
            client: HelloClient::new(mesh.channel(server.address())),
            server,
            mesh,
        };
        scene.greet().expect("it is reached");
        scene.flaky.take_runs();
        scene
    }

    fn greet(&self) -> Result<(), Status> {
        self.greet_with(&CallOptions::default())
    }

    fn greet_with(&self, options: &CallOptions) -> Result<(), Status> {
        let request = HelloRequest::new().with_name("Ada");
        let response = self.client.greet_with(&request, options).wait()?;
        assert_eq!(response.message().text(), "Ada");
        Ok(())
    }

    /// Waits until a policy, the first one, holds so many.
    fn wait_until_held(&self, count: u64) {
        wait_until(|| self.operator.counts()[0][3] == count);
    }
}

fn failure(result: Result<(), Status>) -> (Code, bool) {
    let status = result.expect_err("it fails");
    (status.code(), status.may_have_run())
}

#[test]
fn a_call_that_did_not_run_is_made_again_and_runs_once() {
    let scene = Scene::new();
    scene.operator.attach(&retry(false, PLENTY));
    scene.operator.attach(&fault(0.5));
    for _ in 0..20 {
        scene.greet().expect("one of its attempts passes");
    }
    let counts = scene.operator.counts();
    let ([passed, again, over_budget, held], [attempts, _, refused, _]) = (counts[0], counts[1]);
    assert_eq!((passed, attempts, over_budget, held), (20, 20, 0, 0));
    assert!(again > 5 && again == refused, "{counts:?}");
    assert_eq!(scene.flaky.take_runs().len(), 20);
}

#[test]
fn a_call_that_may_have_run_is_made_again_only_where_that_is_allowed() {
    let scene = Scene::new();
    scene.operator.attach(&retry(false, PLENTY));
    scene.flaky.fail(1);
    assert_eq!(failure(scene.greet()), (Code::Unavailable, true));
    assert_eq!(scene.flaky.take_runs().len(), 1);

    let unnamed = retry(true, PLENTY).replace("methods", "server");
    let unnamed = unnamed.replace(
        r#"["hello.Hello/Greet","test.Test/Wait"]"#,
        r#""udp://h:1""#,
    );
    let refused = scene
        .operator
        .0
        .configure(&Operator::change(&unnamed))
        .wait();
    let text = refused.expect_err("no methods").message().to_owned();
    assert!(
        text.contains("for.methods: retry makes calls again"),
        "{text}"
    );

    scene.operator.configure(&retry(true, PLENTY));
    scene.flaky.fail(2);
    scene.greet().expect("the third attempt");
    let previous = scene.flaky.take_runs();
    let previous: Vec<_> = previous.iter().map(|run| run.previous.as_deref()).collect();
    assert_eq!(previous, [None, Some("1"), Some("2")]);
}

#[test]
fn a_server_that_fails_gets_no_more_than_its_share() {
    let scene = Scene::new();
    let settings = r#","attempts":5,"pause":"1ms","budget":0.2,"floor":0"#;
    scene.operator.attach(&retry(true, settings));
    scene.flaky.fail(u64::MAX);
    for _ in 0..200 {
        assert_eq!(failure(scene.greet()), (Code::Unavailable, true));
    }
    let runs = scene.flaky.take_runs().len() as u64;
    assert!((201..=240).contains(&runs), "{runs}");
    let [passed, again, over_budget, held] = scene.operator.counts()[0];
    assert_eq!((passed, again, held), (200, runs - 200, 0));
    assert!(over_budget >= 150, "{over_budget}");
}

#[test]
fn the_deadline_bounds_all_attempts_and_the_server_says_when() {
    let scene = Scene::new();
    let settings = r#","pause":"40ms","floor":1000"#;
    scene.operator.attach(&retry(true, settings));
    let options = CallOptions::with_timeout(LONG);
    scene.flaky.fail(1);
    scene.greet_with(&options).expect("the second attempt");
    let runs = scene.flaky.take_runs();
    let left = |run: &Run| run.remaining.expect("a deadline");
    let between = left(&runs[0]).checked_sub(left(&runs[1]));
    assert!(between >= Some(Duration::from_millis(32)), "{runs:?}");

    // No attempt begins after the deadline: the call ends at once, as its attempt did.
    scene.operator.configure(&retry(true, FAR));
    scene.flaky.fail(1);
    assert_eq!(
        failure(scene.greet_with(&options)),
        (Code::Unavailable, true)
    );
    *scene.flaky.pushback.lock().expect("no panic") = Some("1");
    scene.flaky.fail(1);
    scene.greet_with(&options).expect("when the server says");
    *scene.flaky.pushback.lock().expect("no panic") = Some("-1");
    scene.operator.configure(&retry(true, PLENTY));
    scene.flaky.take_runs();
    scene.flaky.fail(1);
    assert_eq!(failure(scene.greet()), (Code::Unavailable, true));
    assert_eq!(scene.flaky.take_runs().len(), 1, "the server wants no more");
}

#[test]
fn a_caller_that_gives_up_leaves_nothing_behind() {
    let scene = Scene::new();
    scene.operator.attach(&retry(true, FAR));
    scene.flaky.fail(2);
    let call = scene.client.greet(&HelloRequest::new().with_name("Ada"));
    scene.wait_until_held(1);
    let (calls, memory) = scene.operator.in_use();
    assert!(calls == 1 && memory > 0);
    drop(call);
    scene.wait_until_held(0);
    wait_until(|| scene.operator.in_use() == (0, 0));
    // So does an application that ends.
    let other = scene.mesh.channel(scene.server.address());
    let other = HelloClient::new(other);
    let call = other.greet(&HelloRequest::new().with_name("Ada"));
    scene.wait_until_held(1);
    drop((call, other));
    scene.wait_until_held(0);
    wait_until(|| scene.operator.in_use() == (0, 0));
    assert_eq!(scene.flaky.take_runs().len(), 2);
}

/// The next attempt is made if the policy still allows it; else the call ends as its last attempt did.
#[test]
fn a_policy_that_changes_takes_back_what_it_has_allowed() {
    let scene = Scene::new();
    for takes_back in ["detach", "not idempotent", "other methods"] {
        scene.operator.attach(&retry(true, FAR));
        scene.flaky.fail(1);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| scene.greet());
            scene.wait_until_held(1);
            scene
                .operator
                .configure(&retry(true, &format!(r#"{FAR},"budget":0.5"#)));
            assert_eq!(scene.operator.counts()[0], [1, 1, 0, 1], "it still waits");
            match takes_back {
                "detach" => scene.operator.detach("retry"),
                "not idempotent" => scene.operator.configure(&retry(false, FAR)),
                _ => {
                    let others = retry(true, FAR).replace("Greet", "Part");
                    scene.operator.configure(&others);
                }
            }
            let ended = call.join().expect("a thread");
            assert_eq!(failure(ended), (Code::Unavailable, true), "{takes_back}");
        });
        if takes_back != "detach" {
            assert_eq!(scene.operator.counts()[0][3], 0);
            scene.operator.detach("retry");
        }
        assert_eq!(scene.flaky.take_runs().len(), 1, "{takes_back}");
        assert_eq!(scene.operator.in_use(), (0, 0));
    }
}

/// A call whose second attempt a policy behind `retry` holds, and whose first one has run.
struct HeldAttempt {
    operator: Operator,
    flaky: Arc<Flaky>,
    server: ServerHandle,
    call: ChannelCall<HelloReply>,
    _mesh: Mesh,
}

impl HeldAttempt {
    fn new() -> Self {
        let mesh = Mesh::start();
        let operator = Operator::of(&mesh);
        let flaky = Arc::new(Flaky::default());
        let server = flaky.serve(ServerBuilder::direct);
        let client = HelloClient::new(mesh.channel(server.address()));
        let ada = HelloRequest::new().with_name("Ada");
        client.greet(&ada).wait().expect("it is reached");
        operator.attach(&retry(true, PLENTY));
        // It lets the first attempt pass, and holds the second.
        let settings = r#"{"delay":0.5,"by":"24m","seed":1}"#;
        operator.attach(&format!(
            r#"{{"name":"late","kind":"fault","settings":{settings}}}"#
        ));
        flaky.fail(1);
        let call = client.greet(&ada);
        wait_until(|| operator.counts()[1][3] == 1);
        Self {
            operator,
            flaky,
            server,
            call,
            _mesh: mesh,
        }
    }
}

/// Nor is a call made elsewhere that may have run, when its policy no longer allows it and the server goes.
#[test]
fn what_was_taken_back_does_not_go_elsewhere() {
    for is_allowed in [false, true] {
        let held = HeldAttempt::new();
        if !is_allowed {
            held.operator.configure(&retry(false, PLENTY));
        }
        drop(held.server);
        let status = held.call.wait().expect_err("nobody is there");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.may_have_run(), !is_allowed, "{status}");
        assert_eq!(held.operator.in_use(), (0, 0));
        assert_eq!(held.flaky.take_runs().len(), 2);
    }
}

/// Nor does it run again when a policy behind holds its next attempt, and lets go of it.
#[test]
fn what_was_taken_back_does_not_run_when_another_policy_lets_go_of_it() {
    let narrower = retry(true, PLENTY).replace(r#""methods""#, r#""process":1,"methods""#);
    for takes_back in ["detach", &retry(false, PLENTY), &narrower] {
        let held = HeldAttempt::new();
        match takes_back {
            "detach" => held.operator.detach("retry"),
            other => held.operator.configure(other),
        }
        held.operator.detach("late");
        let status = held.call.wait().expect_err("it may not run again");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.may_have_run(), "{takes_back}: {status}");
        let text = status.message();
        assert!(text.ends_with("an earlier attempt may have run"), "{text}");
        assert_eq!(held.operator.in_use(), (0, 0));
        assert_eq!(held.flaky.take_runs().len(), 2, "{takes_back}");
    }
}

#[test]
fn policies_behind_it_see_each_attempt_and_those_before_it_one_call() {
    let scene = Scene::new();
    let limit = r#"{"name":"NAME","kind":"rate-limit","settings":{"rate":0.001,"burst":100}}"#;
    let breaker =
        r#"{"name":"NAME","kind":"circuit-breaker","settings":{"failures":3,"pause":"24m"}}"#;
    for policy in ["early limit", "early breaker"] {
        let kind = if policy.contains("limit") {
            limit
        } else {
            breaker
        };
        scene
            .operator
            .attach(&kind.replace("NAME", &policy.replace(' ', "-")));
    }
    scene.operator.attach(&retry(true, PLENTY));
    scene.operator.attach(&limit.replace("NAME", "late-limit"));
    scene.flaky.fail(3);
    scene.greet().expect("the fourth attempt");
    let passed: Vec<_> = scene.operator.counts().iter().map(|of| of[0]).collect();
    assert_eq!(passed, [1, 1, 1, 4]);
    // One behind it opens after three attempts, and refuses further ones: those did not run.
    scene
        .operator
        .attach(&breaker.replace("NAME", "late-breaker"));
    scene.flaky.take_runs();
    scene.flaky.fail(10);
    // That its last attempt did not run says nothing of those before.
    let status = scene.greet().expect_err("the breaker opens");
    assert!(status.may_have_run(), "{status}");
    assert!(
        status
            .message()
            .ends_with("an earlier attempt may have run"),
        "{status}"
    );
    assert_eq!(scene.flaky.take_runs().len(), 3);
    let counts = scene.operator.counts();
    assert_eq!((counts[4][0], counts[4][2]), (3, 2), "{counts:?}");
    // To the one before it, that was one failure.
    assert_eq!((counts[1][0], counts[1][2]), (2, 0), "{counts:?}");
}

/// The same before an application that is called, whoever calls.
#[test]
fn a_service_makes_calls_again_that_come_for_its_applications() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let flaky = Arc::new(Flaky::default());
    let server = flaky.serve(|builder| builder.managed_by(&mesh.name));
    let client = HelloClient::new(mesh::direct(server.address()));
    let ada = HelloRequest::new().with_name("Ada");
    client.greet(&ada).wait().expect("it is reached");
    let policy = retry(true, PLENTY).replace(r#"{"methods""#, r#"{"side":"server","methods""#);
    operator.attach(&policy);
    flaky.fail(2);
    client.greet(&ada).wait().expect("the third attempt");
    assert_eq!(operator.counts(), [[1, 2, 0, 0]]);
    assert_eq!(flaky.take_runs().len(), 4);
}

#[test]
fn a_timeout_behind_it_is_one_of_each_attempt() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let (server, gate) = common::serve("udp://127.0.0.1:0");
    let client = TestClient::new(mesh.channel(server.address()));
    client.echo(&payload(b"")).wait().expect("it is reached");
    operator.attach(&retry(
        true,
        &format!(r#"{PLENTY},"codes":["DEADLINE_EXCEEDED"]"#),
    ));
    operator.attach(r#"{"name":"each","kind":"timeout","settings":{"at_most":"300ms"}}"#);
    let call = client.wait(&payload(b"late"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) >= 2);
    gate.open.store(true, Ordering::SeqCst);
    let response = call.wait().expect("a later attempt");
    assert_eq!(response.message().bytes(), b"late");
}

#[test]
fn streams_and_large_requests_are_made_once() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = mesh::echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    mesh::exercise(mesh.channel(server.address()));
    operator.attach(&retry(false, PLENTY));
    operator.attach(&fault(1.0));
    let again = || operator.counts()[0][1];
    let wanted = Wanted::new().with_items(3).with_bytes(8);
    let first = client.source(&wanted).blocking().next();
    let status = first.expect("an end").expect_err("it is refused");
    assert_eq!((status.code(), again()), (Code::Unavailable, 0));
    for (bytes, attempts) in [(260 << 10, 1), (1000, 5)] {
        let data = vec![7; bytes];
        let request = starling_sample_services::api::bench::Payload::new().with_data(&data);
        let refused = operator.counts()[1][2];
        let status = client.sink(&request).wait().expect_err("it is refused");
        assert_eq!(
            (status.code(), status.may_have_run()),
            (Code::Unavailable, false)
        );
        assert_eq!(operator.counts()[1][2] - refused, attempts, "{bytes}");
    }
    operator.detach("fault");
    mesh::exercise(mesh.channel(server.address()));
}

/// What is kept of a request counts, and what finds no room is not kept.
#[test]
fn requests_that_are_kept_take_memory_of_their_application() {
    let plenty = Quota {
        calls: 1000,
        datapaths: 100,
        memory: 1 << 20,
    };
    let config = ServiceConfig {
        quotas: Quotas {
            application: Quota {
                memory: 150_000,
                ..plenty
            },
            user: plenty,
        },
        ..ServiceConfig::default()
    };
    let mesh = Mesh::with(config);
    let operator = Operator::of(&mesh);
    let (server, gate) = common::serve("udp://127.0.0.1:0");
    let client = TestClient::new(mesh.channel(server.address()));
    client.echo(&payload(b"")).wait().expect("it is reached");
    operator.attach(&retry(true, PLENTY));
    let about = |bytes: u64| bytes..bytes + 100;
    let small = client.wait(&payload(&[7; 50_000]));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    let (_, used) = operator.in_use();
    assert!(about(2 * 50_000).contains(&used), "{used}");
    drop(small);
    wait_until(|| operator.in_use() == (0, 0));
    let large = client.wait(&payload(&[7; 100_000]));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 2);
    let (_, used) = operator.in_use();
    assert!(about(100_000).contains(&used), "{used}");
    gate.open.store(true, Ordering::SeqCst);
    large.wait().expect("it passes all the same");
    wait_until(|| operator.in_use() == (0, 0));
}
