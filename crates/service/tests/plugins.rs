//! Plug-ins in a service, with applications that call: their policies work, change versions, and fail in their place.
//!
//! `cargo` builds the plug-ins beside this program, because they are among its dev-dependencies.

mod mesh;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mesh::Mesh;
use starling::managed::{
    ListRequest, MetricsRequest, OperatorClient, PluginAddition, PolicyChange,
};
use starling::{Channel, Code, Request, Response, Server, ServerHandle, Status};
use starling_service::{Service, ServiceConfig, parse_policies};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};

const EXAMPLE: &str = "libstarling_example_plugin.so";
const NEXT: &str = "libstarling_test_plugin_next.so";
const FAULTY: &str = "libstarling_test_plugin_faulty.so";

/// A directory of a test's own, which goes with it.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(mesh::name());
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// A file that nobody else can write.
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("its own directory");
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, mode).expect("its own");
        path
    }

    /// A plug-in, as it was built.
    fn plugin(&self, name: &str) -> PathBuf {
        self.file(name, &built(name))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn built(name: &str) -> Vec<u8> {
    let own = std::env::current_exe().expect("a path");
    let path = own.parent().expect("a directory").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

struct Operator(OperatorClient<Channel>);

type Changed = Result<(), Status>;

impl Operator {
    fn of(mesh: &Mesh) -> Self {
        Self(mesh.operator())
    }

    /// Returns the kinds that the plug-in has.
    fn add(&self, file: &Path) -> Result<Vec<String>, Status> {
        let file = file.to_str().expect("a text");
        let added = self.0.add_plugin(&PluginAddition::new().with_file(file));
        let added = added.wait()?;
        let plugin = added.message().plugins().iter().next().expect("one");
        assert_eq!(plugin.file(), file);
        Ok(plugin
            .kinds()
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect())
    }

    fn attach(&self, json: &str) -> Changed {
        let change = PolicyChange::new().with_what(json);
        self.0.attach(&change).wait().map(drop)
    }

    fn configure(&self, json: &str) -> Changed {
        let change = PolicyChange::new().with_what(json);
        self.0.configure(&change).wait().map(drop)
    }

    fn upgrade(&self, name: &str) -> Changed {
        let change = PolicyChange::new().with_what(name);
        self.0.upgrade(&change).wait().map(drop)
    }

    /// Why the engine of the first policy has failed.
    fn failure(&self) -> String {
        let listing = self.0.list(&ListRequest::new()).wait().expect("a listing");
        let policy = listing.message().policies().iter().next().expect("one");
        policy.failure().to_owned()
    }

    /// The value of a sample.
    fn metric(&self, sample: &str) -> String {
        let response: Response<_> = self
            .0
            .metrics(&MetricsRequest::new())
            .wait()
            .expect("a text");
        let mut lines = response.message().text().lines();
        let line = lines.find_map(|line| line.strip_prefix(sample));
        line.unwrap_or_default().trim().to_owned()
    }
}

/// Replies the number that the policy gave the request.
struct Greeter;

impl Hello for Greeter {
    fn greet(&self, request: Request<'_, HelloRequest>, mut reply: HelloReplyMut<'_>) -> Changed {
        let number = request.metadata().value("x-number").unwrap_or_default();
        reply.set_text(&String::from_utf8_lossy(number));
        Ok(())
    }
}

fn serve() -> ServerHandle {
    let server = Server::builder()
        .add_service(HelloServer::new(Greeter))
        .direct();
    let server = server.bind("udp://127.0.0.1:0").expect("an address");
    server
        .build()
        .expect("a free port")
        .spawn()
        .expect("threads")
}

fn greet(client: &HelloClient<Channel>) -> Result<String, Status> {
    let reply = client.greet(&HelloRequest::new()).wait()?;
    Ok(reply.message().text().to_owned())
}

const NUMBERS: &str = r#"{"name":"numbers","kind":"number","settings":{"key":"x-number"}}"#;

#[test]
fn a_policy_of_a_plugin_works_as_one_that_is_built_in() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server) = (Operator::of(&mesh), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    let unknown = operator.attach(NUMBERS).expect_err("there is no such kind");
    assert!(
        unknown
            .message()
            .starts_with("numbers: kind: \"number\" is no kind of policies"),
        "{unknown}"
    );
    assert_eq!(
        operator.add(&files.plugin(EXAMPLE)),
        Ok(vec!["number".to_owned()])
    );
    let unknown = operator.attach(&NUMBERS.replace("\"number\"", "\"numbr\""));
    let unknown = unknown.expect_err("there is no such kind");
    assert!(
        unknown.message().ends_with("timeout, tracing, number"),
        "{unknown}"
    );
    let wrong = operator
        .attach(&NUMBERS.replace("key", "kee"))
        .expect_err("no setting");
    assert!(
        wrong
            .message()
            .contains("numbers: settings: unknown field `kee`"),
        "{wrong}"
    );

    operator.attach(NUMBERS).expect("a policy");
    assert_eq!(
        [(); 2].map(|()| greet(&client)),
        ["1", "2"].map(|n| Ok(n.to_owned()))
    );
    // The file may go, or be another one: the service has its own copy.
    files.file(EXAMPLE, b"something else");
    let scoped = NUMBERS.replace("\"settings\"", r#""for":{"program":"nobody"},"settings""#);
    operator.configure(&scoped).expect("another scope");
    assert_eq!(greet(&client), Ok(String::new()));
    operator.configure(NUMBERS).expect("the scope of before");
    assert_eq!(greet(&client), Ok("3".to_owned()));
    assert_eq!(operator.failure(), "");
}

#[test]
fn a_service_begins_with_plugins_and_their_policies() {
    let files = Directory::new();
    let config = |plugins| ServiceConfig {
        plugins,
        policies: parse_policies(&format!("[{NUMBERS}]")).expect("a list"),
        ..ServiceConfig::default()
    };
    let (mesh, server) = (Mesh::with(config(vec![files.plugin(EXAMPLE)])), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    assert_eq!(greet(&client), Ok("1".to_owned()));
    let none = files.0.join("none.so");
    let error = Service::start(config(vec![none.clone()])).expect_err("no file");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("plugins: {}: No such file", none.display())),
        "{text}"
    );
}

/// Both ways under load: to the later version with the state, not back, and no call fails.
#[test]
fn a_policy_moves_to_a_later_version_under_load_and_not_back() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server) = (Operator::of(&mesh), serve());
    let (example, next) = (files.plugin(EXAMPLE), files.plugin(NEXT));
    operator.add(&example).expect("a plug-in");
    operator.attach(NUMBERS).expect("a policy");
    let client = HelloClient::new(mesh.channel(server.address()));
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let wait_for_calls = || {
        let before = calls.load(Ordering::Relaxed);
        while calls.load(Ordering::Relaxed) < before + 20 {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    greet(&client).expect("no call fails");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_for_calls();
        operator.add(&next).expect("a plug-in");
        wait_for_calls();
        operator.upgrade("numbers").expect("it reads the state");
        wait_for_calls();
        operator.add(&example).expect("a plug-in");
        let back = operator.upgrade("numbers").expect_err("an earlier version");
        let text = "numbers: the state is of version 2, and this engine knows versions up to 1";
        assert!(back.message().starts_with(text), "{back}");
        assert!(back.message().ends_with("nothing has changed"), "{back}");
        wait_for_calls();
        over.store(true, Ordering::Relaxed);
    });
    // No number was lost or given twice: the later version went on where the earlier one was.
    let calls = calls.load(Ordering::Relaxed);
    assert_eq!(greet(&client), Ok(format!("v2-{}", calls + 1)));
    let listed = operator
        .0
        .list_plugins(&ListRequest::new())
        .wait()
        .expect("a list");
    let plugins = listed.message().plugins().iter().map(|plugin| {
        let kind = plugin.kinds().iter().next().expect("one");
        (
            plugin.version().to_owned(),
            kind.state_version(),
            kind.is_superseded(),
        )
    });
    let expected = [("0.1.0", 1, true), ("0.2.0", 2, true), ("0.1.0", 1, false)];
    let expected = expected.map(|(version, state, old)| (version.to_owned(), state, old));
    assert_eq!(plugins.collect::<Vec<_>>(), expected);
}

#[test]
fn files_that_are_no_plugins_of_this_version_are_refused() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let operator = Operator::of(&mesh);
    let refused = |path: &Path, expected: &str| {
        let status = operator.add(path).expect_err("no plug-in");
        let text = status.message();
        assert!(text.starts_with(path.to_str().expect("a text")), "{text}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(status.code(), Code::FailedPrecondition);
    };
    refused(Path::new("plugin.so"), "path from the root");
    refused(&files.file("text.so", b"no library"), "cannot be loaded");
    let cut = &built(EXAMPLE)[..20_000];
    refused(&files.file("cut.so", cut), "it is cut");
    let open = files.plugin(EXAMPLE);
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&open, mode).expect("its own");
    refused(&open, "chmod go-w");
    // The header of its table is followed by the version.
    let patched = |at: usize, with: u8| {
        let mut bytes = built(EXAMPLE);
        let header = [&b"STARPLUG"[..], &1_u32.to_le_bytes()].concat();
        let places: Vec<_> = (0..bytes.len() - header.len())
            .filter(|at| bytes[*at..].starts_with(&header))
            .collect();
        assert!(!places.is_empty(), "the table is in the file");
        places.iter().for_each(|place| bytes[place + at] = with);
        bytes
    };
    refused(
        &files.file("later.so", &patched(8, 2)),
        "built for version 2",
    );
    refused(
        &files.file("layout.so", &patched(16, 0)),
        "its layout is another one",
    );
    refused(
        &files.file("other.so", &patched(0, b'X')),
        "does not begin as one",
    );
    assert_eq!(
        operator.metric(r#"starling_plugin_faults_total{fault="file"}"#),
        "7"
    );
    let listed = operator
        .0
        .list_plugins(&ListRequest::new())
        .wait()
        .expect("a list");
    assert!(listed.message().plugins().is_empty());
}

fn faulty(settings: &str) -> String {
    format!(r#"{{"name":"f","kind":"faulty","settings":{settings}}}"#)
}

fn refusal(client: &HelloClient<Channel>) -> Status {
    let status = greet(client).expect_err("the engine has failed");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.may_have_run());
    status
}

/// The calls of its scope end with the reason, all others go on, and another engine works.
#[test]
fn a_plugin_that_panics_fails_alone() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server, other) = (Operator::of(&mesh), serve(), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    let beside = HelloClient::new(mesh.channel(other.address()));
    operator.add(&files.plugin(FAULTY)).expect("a plug-in");
    for place in ["request", "end"] {
        let scope = format!(r#""for":{{"server":"{}"}},"settings""#, server.address());
        let policy = |settings: &str| faulty(settings).replace("\"settings\"", &scope);
        operator
            .attach(&policy(&format!(r#"{{"panics":"{place}"}}"#)))
            .expect("a policy");
        if place == "end" {
            greet(&client).expect("it panics when this call is over");
        }
        let status = refusal(&client);
        let text = status.message();
        assert!(text.starts_with("the policy f has failed: on_"), "{text}");
        assert!(
            text.contains("panicked: as it was told, in ") && text.contains("faulty/src/lib.rs:"),
            "{text}"
        );
        assert_eq!(refusal(&client).message(), text);
        greet(&beside).expect("it is not in the scope");
        assert!(
            text.ends_with(&operator.failure()),
            "{}",
            operator.failure()
        );
        let failed = r#"starling_policy_failed{policy="f",kind="faulty"}"#;
        assert_eq!(operator.metric(failed), "1");
        // Another engine, with the same settings, and then with others.
        operator.upgrade("f").expect("an engine that begins anew");
        assert_eq!(
            (
                operator.failure().as_str(),
                operator.metric(failed).as_str()
            ),
            ("", "0")
        );
        operator.configure(&policy("{}")).expect("other settings");
        greet(&client).expect("it works");
        operator
            .0
            .detach(&PolicyChange::new().with_what("f"))
            .wait()
            .expect("attached");
    }
    assert_eq!(
        operator.metric(r#"starling_plugin_faults_total{fault="panic"}"#),
        "2"
    );
}

#[test]
fn a_policy_may_let_calls_pass_when_it_has_failed() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server) = (Operator::of(&mesh), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    operator.add(&files.plugin(FAULTY)).expect("a plug-in");
    let policy = faulty(r#"{"panics":"request"}"#)
        .replace("\"settings\"", r#""on_failure":"pass","settings""#);
    operator.attach(&policy).expect("a policy");
    for _ in 0..3 {
        greet(&client).expect("it passes");
    }
    assert!(
        operator.failure().contains("panicked"),
        "{}",
        operator.failure()
    );
}

/// A change that fails in the plug-in changes nothing, and no other policy is touched by it.
#[test]
fn a_plugin_that_panics_in_a_change_leaves_all_as_it_is() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server) = (Operator::of(&mesh), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    operator.add(&files.plugin(FAULTY)).expect("a plug-in");
    let built = operator
        .attach(&faulty(r#"{"panics":"build"}"#))
        .expect_err("it panics");
    assert!(
        built.message().contains("f: settings: build of "),
        "{built}"
    );
    operator
        .attach(&faulty(r#"{"panics":"save"}"#))
        .expect("a policy");
    for settings in ["{}", r#"{"ms":1}"#] {
        let saved = operator
            .configure(&faulty(settings))
            .expect_err("it cannot save");
        assert!(saved.message().contains("save of "), "{saved}");
        greet(&client).expect("nothing has changed");
    }
    // The engines of other policies are not built again.
    operator
        .attach(r#"{"name":"other","kind":"null"}"#)
        .expect("a policy");
    operator
        .0
        .detach(&PolicyChange::new().with_what("f"))
        .wait()
        .expect("attached");
    operator
        .attach(&faulty(r#"{"panics":"drop"}"#))
        .expect("a policy");
    for (settings, expected) in [
        (r#"{"panics":"restore"}"#, "f: restore of "),
        (
            r#"{"refuses":true}"#,
            "f: it cannot read 5 bytes; nothing has changed",
        ),
    ] {
        let restored = operator
            .configure(&faulty(settings))
            .expect_err("it does not restore");
        assert!(restored.message().starts_with(expected), "{restored}");
        greet(&client).expect("nothing has changed");
    }
    operator
        .configure(&faulty("{}"))
        .expect("it panics when it is dropped");
    greet(&client).expect("the new one works");
    assert!(mesh.is_running());
}

/// It cannot be interrupted. But it is named, and is not asked again.
#[test]
fn a_plugin_that_blocks_fails() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server) = (Operator::of(&mesh), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    operator.add(&files.plugin(FAULTY)).expect("a plug-in");
    operator
        .attach(&faulty(r#"{"blocks":"request","ms":400}"#))
        .expect("a policy");
    // The first time it may be the processor that was not there.
    let status = (0..20)
        .find_map(|_| greet(&client).err())
        .expect("it blocks");
    assert!(status.message().contains("blocked for "), "{status}");
    assert!(
        operator.failure().contains("it may take 100 ms"),
        "{}",
        operator.failure()
    );
    assert_eq!(
        operator.metric(r#"starling_plugin_faults_total{fault="block"}"#),
        "1"
    );
    operator.configure(&faulty("{}")).expect("other settings");
    greet(&client).expect("it works");
}

/// Whoever asks the service meanwhile hears which policy it waits for.
#[test]
fn a_plugin_that_has_not_returned_is_named() {
    let (mesh, files) = (Mesh::start(), Directory::new());
    let (operator, server) = (Operator::of(&mesh), serve());
    let client = HelloClient::new(mesh.channel(server.address()));
    let plugin = files.plugin(FAULTY);
    operator.add(&plugin).expect("a plug-in");
    let until = files.0.join("until");
    let settings = serde_json::json!({"blocks": "request", "until": until});
    operator
        .attach(&faulty(&settings.to_string()))
        .expect("a policy");
    std::thread::scope(|scope| {
        let call = scope.spawn(|| greet(&client));
        let text = loop {
            // The request may not be there yet.
            match operator.0.list(&ListRequest::new()).wait() {
                Ok(_) => std::thread::yield_now(),
                Err(status) => break status.message().to_owned(),
            }
        };
        let expected = format!(
            "does not answer: the policy \"f\", of {}, has not",
            plugin.display()
        );
        assert!(text.contains(&expected), "{text}");
        files.file("until", b"");
        // It passes if the time was spent waiting for a processor; else the engine has failed.
        let _ = call.join().expect("no panic");
        operator.configure(&faulty("{}")).expect("it answers again");
        greet(&client).expect("it works");
    });
}
