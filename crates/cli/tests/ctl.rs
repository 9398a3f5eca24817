//! `starling ctl` and `starling service run` from outside.

mod common;

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use common::managed::{Service, kv, parts};
use common::{run, starling, text};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

#[test]
fn an_operator_adds_changes_and_takes_away_a_policy() {
    let (service, server) = (Service::start("change", &[]), kv());
    assert_eq!(service.done(&["list"]), "no policies\n\nno applications\n");
    let scope = ["--program", "starling", "--method", "kv.Kv/Scan"];
    let attach = ["attach", "chaos", "fault", "fail=1", "code=ABORTED"];
    let attach = [&attach[..], &scope].concat();
    let expected = [
        r#"attach {"name":"chaos","kind":"fault","#,
        r#""for":{"side":"client","program":"starling","methods":["kv.Kv/Scan"]},"#,
        r#""settings":{"code":"ABORTED","fail":1}}"#,
    ];
    let expected = expected.concat();
    let dry = [&attach[..], &["--dry-run"]].concat();
    assert_eq!(service.done(&dry), format!("would {expected}\n"));
    assert_eq!(service.call(&server).0, 0, "a dry run");
    assert_eq!(service.done(&attach), format!("{expected}\n"));
    let (code, error) = service.call(&server);
    assert_eq!(code, 64 + 10, "{error}");
    assert!(
        error.contains("ABORTED: a fault that this service injects"),
        "{error}"
    );

    service.done(&["configure", "chaos", "fail=0"]);
    assert_eq!(service.call(&server).0, 0);
    let list = service.list();
    let policy = &list["policies"][0];
    assert_eq!(
        policy["policy"]["settings"],
        json!({"code": "ABORTED", "fail": 0})
    );
    assert_eq!(
        (&policy["passed"], &policy["refused"]),
        (&json!(1), &json!(1))
    );
    let read = service.done(&["list"]);
    assert!(
        read.starts_with("POLICY  KIND   PASSED  DELAYED  REFUSED  HELD  FOR"),
        "{read}"
    );
    assert_eq!(service.done(&["upgrade", "chaos"]), "upgrade chaos\n");
    assert_eq!(service.done(&["detach", "chaos"]), "detach chaos\n");
    assert_eq!(service.list()["policies"], json!([]));
}

/// The schema comes from a `.proto` file, or from a server.
#[test]
fn an_operator_lets_calls_pass_by_their_values() {
    let proto = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../sample-services/proto/kv.proto"
    );
    let server = kv();
    for from in [proto, server.addresses[0].as_str()] {
        let service = Service::start("values", &[]);
        let attach = [
            "attach",
            "few",
            "access-control",
            "deny=request.limit > 2",
            "--method",
            "kv.Kv/Scan",
        ];
        let (code, _, error) = service.ctl(&attach);
        assert!(
            code != 0 && error.contains("starling ctl schema add"),
            "{error}"
        );
        let added = service.done(&["schema", "add", from]);
        assert!(added.lines().any(|line| line == "kv.Kv/Scan"), "{added}");
        assert_eq!(service.done(&["schema", "list"]), added);
        service.done(&attach);
        let (code, error) = service.call(&server);
        assert_eq!(code, 64 + 7, "{error}");
        service.done(&["configure", "few", "deny=request.limit > 3"]);
        assert_eq!(service.call(&server).0, 0);
        let (code, _, error) = service.ctl(&["configure", "few", "deny=request.limits > 3"]);
        assert!(
            code != 0 && error.contains("has no field limits"),
            "{error}"
        );
        assert_eq!(service.call(&server).0, 0, "nothing has changed");
    }
    let service = Service::start("wrong", &[]);
    for (from, expected) in [
        ("/no/such.proto", "no/such.proto"),
        (
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
            "Cargo.toml",
        ),
    ] {
        let (code, _, error) = service.ctl(&["schema", "add", from]);
        assert!(code == 2 && error.contains(expected), "{code} {error}");
    }
}

/// A call is in the rates of one interval, whenever it is made.
#[test]
fn top_shows_rates_once_as_json_and_live() {
    let (service, server) = (Service::start("top", &[]), kv());
    service.done(&["attach", "nothing", "null"]);
    let (code, _, error) = service.ctl(&["top"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("use --once or --json"), "{error}");
    let text = service.done(&["top", "--once", "--interval", "50ms"]);
    assert!(text.starts_with("POLICY   KIND  PASSED/s"), "{text}");
    assert!(text.ends_with("\nno applications\n"), "{text}");

    let top = [
        "ctl",
        "--service",
        &service.name,
        "top",
        "--json",
        "--interval",
        "50ms",
    ];
    let mut top = starling(&top).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("one for each interval").unwrap();
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(next()["policies"][0]["passed_per_s"], 0.0);
    assert_eq!(service.call(&server).0, 0);
    while next()["policies"][0]["passed_per_s"] == 0.0 {}
    top.kill().unwrap();
    top.wait().unwrap();
}

/// On a terminal of its own, which is as before when a key has ended it.
#[test]
fn top_has_the_terminal_until_a_key_ends_it() {
    let service = Service::start("live", &[]);
    let (mut terminal, ends) = terminal();
    let top = [
        "ctl",
        "--service",
        &service.name,
        "top",
        "--interval",
        "50ms",
    ];
    let mut top = starling(&top);
    let [input, output] = ends.map(Stdio::from);
    let mut top = top.stdin(input).stdout(output).spawn().unwrap();
    let mut said = Vec::new();
    let mut read_until = |what: &str| {
        while !text(&said).contains(what) {
            let mut bytes = [0; 4096];
            let count = terminal.read(&mut bytes).unwrap();
            said.extend_from_slice(&bytes[..count]);
        }
        text(&said)
    };
    let screen = read_until("no applications");
    assert!(screen.starts_with("\x1b[?1049h"), "{screen:?}");
    terminal.write_all(b"xq").unwrap();
    let mut said = text(&said);
    while !said.ends_with("\x1b[?1049l") {
        let mut bytes = [0; 4096];
        let count = terminal.read(&mut bytes).unwrap();
        said.push_str(&text(&bytes[..count]));
    }
    assert!(top.wait().unwrap().success());
}

/// A terminal, and two descriptors of its other end.
fn terminal() -> (File, [OwnedFd; 2]) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let terminal = openpt(flags).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let name = name.to_str().unwrap();
    let end = || {
        File::options()
            .read(true)
            .write(true)
            .open(name)
            .unwrap()
            .into()
    };
    (terminal.into(), [end(), end()])
}

#[test]
fn a_file_is_applied_as_a_whole_or_not_at_all() {
    let service = Service::start("apply", &[]);
    let file = "policies:\n- name: a\n  kind: 'null'\n- {name: b, kind: timeout, settings: {at_most: 1s}}\n";
    let would = [
        r#"would attach {"name":"a","kind":"null"}"#,
        r#"would attach {"name":"b","kind":"timeout","settings":{"at_most":"1s"}}"#,
    ];
    let would = would.map(|line| format!("{line}\n")).concat();
    let dry = service.apply(file, &["--dry-run"]);
    assert_eq!(dry, (0, would.clone(), String::new()));
    assert_eq!(service.apply(file, &[]).1, would.replace("would ", ""));
    assert_eq!(service.apply(file, &[]).1, "nothing changes\n");
    let (code, _, error) = service.apply(
        "policies: [{name: a, kind: 'null'}, {name: c, kind: x}]",
        &[],
    );
    assert_eq!(code, 64 + 3);
    assert!(
        error.contains("c: kind: \"x\" is no kind of policies"),
        "{error}"
    );
    let (code, _, error) =
        service.apply("policies: [{name: a, kind: fault, settings: {x: 1}}]", &[]);
    assert_eq!(code, 2);
    assert!(
        error.contains("-: policy 1 of the list: settings.x: "),
        "{error}"
    );
    assert_eq!(service.list()["policies"].as_array().unwrap().len(), 2);
    assert_eq!(service.apply("policies: []", &[]).1, "detach a\ndetach b\n");
}

#[test]
fn wrong_use_has_an_exit_status_and_says_what_to_do() {
    let service = Service::start("wrong", &[]);
    for (arguments, code, expected) in [
        (&["attach", "a", "nul"][..], 67, "fault, metrics, null"),
        (&["attach", "a", "null", "x"], 2, "expected KEY=VALUE"),
        (&["attach", "a", "null", "x=1"], 2, "unknown field `x`"),
        (
            &["detach", "a"],
            69,
            "no policy is named \"a\": there are none",
        ),
        (&["configure", "a", "x=1"], 2, "no policy is named \"a\""),
        (&["apply", "-f", "/no/such"], 1, "/no/such: "),
    ] {
        let (got, said, error) = service.ctl(arguments);
        assert_eq!((got, &*said), (code, ""), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let (code, _, error) = parts(&run(&["ctl", "--service", "no-such-service", "list"]));
    assert_eq!(code, 78, "{error}");
    let kinds = text(&run(&["ctl", "kinds"]).stdout);
    assert!(
        kinds.contains("rate-limit\n    lets so many calls a second pass"),
        "{kinds}"
    );
}

#[test]
fn an_operator_reads_what_policies_have_counted() {
    let directory = std::env::temp_dir().join(format!("starling-metrics-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("service.yaml");
    let file = "policies: [{name: calls, kind: metrics, for: {methods: [kv.Kv/Scan]}}]\n\
                metrics: 127.0.0.1:0\notlp: http://127.0.0.1:9\n";
    std::fs::write(&path, file).unwrap();
    let service = Service::start("metrics", &["--config", path.to_str().unwrap()]);
    std::fs::remove_dir_all(&directory).unwrap();
    let server = kv();
    assert_eq!(service.call(&server).0, 0);
    let expected = format!(
        "starling_service_call_duration_seconds_count{{policy=\"calls\",program=\"starling\",side=\"client\",\
         server_address=\"{}\",rpc_method=\"kv.Kv/Scan\",rpc_response_status_code=\"OK\"}} 1",
        server.addresses[0]
    );
    let said = service.done(&["metrics"]);
    assert!(said.lines().any(|line| line == expected), "{said}");
    // There is a collector to be, so that spans can be recorded.
    service.done(&["attach", "traces", "tracing", "share=0.5"]);
    let address = service.page.strip_prefix("metrics http://").unwrap();
    let address = address.strip_suffix("/metrics\n").unwrap();
    let mut page = TcpStream::connect(address).unwrap();
    page.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(answer.lines().any(|line| line == expected), "{answer}");
    assert!(
        answer.ends_with("starling_service_spans_dropped_total 0\n"),
        "{answer}"
    );
}

#[test]
fn an_application_is_moved_from_one_runtime_to_another() {
    let directory = std::env::temp_dir().join(format!("starling-runtimes-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("service.yaml");
    let file = path.to_str().unwrap();
    std::fs::write(&path, "runtimes: 2\ncores: [0]\n").unwrap();
    let service = Service::start("runtimes", &["--config", file]);
    let server = service.serve_kv();
    let runtime = || service.list()["datapaths"][0]["runtime"].clone();
    assert_eq!(runtime(), 0);
    let process = server.id().to_string();
    let moved = service.done(&["move", &process, "--to", "1"]);
    assert_eq!(moved, "moved one datapath to runtime 1\n");
    while runtime() != 1 {}
    assert_eq!(service.call(&server).0, 0);
    let again = service.done(&["move", &process, "--to", "1"]);
    assert_eq!(
        again,
        "nothing moves: its datapaths are in runtime 1, or it has none\n"
    );
    let listing = service.done(&["list"]);
    assert!(listing.contains("POLICIES  RUNTIME\n"), "{listing}");
    let top = service.done(&["top", "--once", "--interval", "50ms"]);
    assert!(
        top.contains("RUNTIME  BUSY  APPLICATIONS  DATAPATHS\n"),
        "{top}"
    );
    let (code, _, error) = service.ctl(&["move", &process, "--to", "2"]);
    assert_eq!(code, 64 + 3, "{error}");
    std::fs::write(&path, "runtimes: 2\ndedicated: {bulk: 1}\n").unwrap();
    let (code, _, error) = parts(&run(&["service", "run", "--config", file]));
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("dedicated.bulk: 1: no such identity"),
        "{error}"
    );
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_sets_quotas_and_a_listing_shows_them() {
    let directory = std::env::temp_dir().join(format!("starling-quotas-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("service.yaml");
    let file = path.to_str().unwrap();
    std::fs::write(&path, "quotas: {memory: 1KiB, user: {datapaths: 7}}").unwrap();
    let service = Service::start("quotas", &["--config", file]);
    let server = service.serve_kv();
    let list = service.list();
    let of_application = json!({
        "of": "application", "side": "server", "program": "starling", "refused": 0,
        "process": server.id(), "user": rustix::process::geteuid().as_raw(),
        "used": {"calls": 0, "datapaths": 1, "memory": 0},
        "quota": {"calls": 16384, "datapaths": 256, "memory": 1024},
    });
    assert_eq!(list["quotas"][0], of_application);
    assert_eq!(list["quotas"][1]["of"], "user");
    assert_eq!(list["quotas"][1]["quota"]["datapaths"], 7);
    let large = format!(r#"{{"start": "{}"}}"#, "x".repeat(2000));
    let call = run(&["call", &server.addresses[0], "kv.Kv/Scan", &large]);
    let error = text(&call.stderr);
    assert!(error.contains("quotas.memory: "), "{error}");
    let read = service.done(&["list"]);
    assert!(read.contains("0 of 16384  1 of 256   0 of 1 KiB"), "{read}");
    assert!(
        read.ends_with("\nrefused by quotas so far: 1 for their bytes\n"),
        "{read}"
    );

    std::fs::write(&path, "quotas: {user: {calls: 0}}").unwrap();
    let (code, _, error) = parts(&run(&["service", "run", "--config", file]));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("quotas.user.calls: 0 lets nobody call"),
        "{error}"
    );
}

#[test]
fn a_service_begins_with_a_file_and_refuses_a_wrong_one() {
    let directory = std::env::temp_dir().join(format!("starling-ctl-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("service.yaml");
    let file = path.to_str().unwrap();
    std::fs::write(
        &path,
        "policies: [{name: a, kind: fault, settings: {fail: 1}}]",
    )
    .unwrap();
    let (service, server) = (Service::start("file", &["--config", file]), kv());
    assert_eq!(service.call(&server).0, 64 + 14);

    std::fs::write(&path, "police: []").unwrap();
    let (code, _, error) = parts(&run(&["service", "run", "--config", file]));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(code, 2);
    assert!(
        error.contains("unknown field") && error.contains("police"),
        "{error}"
    );
}

/// A directory with plug-ins that nobody else can write, which goes with it.
struct Plugins(PathBuf);

impl Plugins {
    fn new(names: &[&str]) -> Self {
        let name = format!("starling-plugins-{}", std::process::id());
        let plugins = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&plugins.0).unwrap();
        let own = std::env::current_exe().unwrap();
        for name in names {
            let file = plugins.0.join(name);
            std::fs::copy(own.with_file_name(name), &file).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        }
        plugins
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Plugins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_operator_adds_plugins_and_sees_which_policy_has_failed() {
    let (example, faulty) = (
        "libstarling_example_plugin.so",
        "libstarling_test_plugin_faulty.so",
    );
    let plugins = Plugins::new(&[example, faulty]);
    let config = plugins.path("service.yaml");
    let file = format!(
        "plugins: [{}]\npolicies: [{{name: numbers, kind: number, settings: {{key: x}}}}]\n",
        plugins.path(example)
    );
    std::fs::write(&config, file).unwrap();
    let (service, server) = (Service::start("plugin", &["--config", &config]), kv());
    assert_eq!(service.call(&server).0, 0);
    let added = service.done(&["plugin", "add", &plugins.path(faulty)]);
    assert!(
        added.starts_with(&plugins.path(faulty)) && added.contains("\n  pass-all\n"),
        "{added}"
    );
    let listed = service.done(&["plugin", "list"]);
    assert!(
        listed.starts_with(&plugins.path(example)) && listed.ends_with(&added),
        "{listed}"
    );
    let json: Value = serde_json::from_str(&service.done(&["plugin", "list", "--json"])).unwrap();
    assert_eq!(json[0]["kinds"][0]["example"], r#"{"key": "x-number"}"#);
    let (code, _, error) = service.ctl(&["plugin", "add", &config]);
    assert_eq!(code, 64 + 9, "{error}");
    assert!(
        error.contains("service.yaml: it cannot be loaded"),
        "{error}"
    );

    let attach = [
        "attach",
        "f",
        "faulty",
        "panics=request",
        "--on-failure",
        "pass",
    ];
    service.done(&attach);
    assert_eq!(service.call(&server).0, 0, "it passes");
    let text = "f has failed, and lets all requests pass: on_request of ";
    assert!(service.done(&["list"]).contains(text));
    service.done(&["configure", "f", "--on-failure", "refuse"]);
    let (code, error) = service.call(&server);
    assert_eq!(code, 64 + 14, "{error}");
    assert!(
        error.contains("the policy f has failed: on_request of "),
        "{error}"
    );
    let policies = &service.list()["policies"];
    assert_eq!(policies[0]["failure"], Value::Null);
    let failure = policies[1]["failure"].as_str().unwrap();
    assert!(
        failure.contains("panicked: as it was told, in Request"),
        "{failure}"
    );
    service.done(&["configure", "f", "panics=nowhere"]);
    assert_eq!(service.call(&server).0, 0);
}
