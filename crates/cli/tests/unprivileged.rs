//! A service that is an unprivileged user's, and applications of its user and of others. The tests need root, to be
//! several users.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use common::{Serve, starling, text};
use serde_json::Value;
use starling_netns::{Pair, inside};

/// Users who own nothing here.
const OWN: u32 = 23_456;
const OTHER: u32 = 23_457;

/// Whether this test can be several users. It says so if not.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: {test} needs root");
    }
    is_root
}

/// The command, as a user.
fn starling_of(user: u32, arguments: &[&str]) -> Command {
    let mut command = starling(arguments);
    command.uid(user).gid(user);
    command
}

/// A service of [`OWN`], which is killed when this is dropped.
struct Service {
    name: String,
    child: Child,
}

impl Service {
    fn start(name: &str, more: &[&str]) -> Self {
        let name = format!("unprivileged-{name}-{}", std::process::id());
        let run = ["service", "run", "--idle", "block", "--name", &name];
        let mut command = starling_of(OWN, &[&run[..], more].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, format!("service {name}\n"));
        Self { name, child }
    }

    /// As those name it that trust its user.
    fn trusted(&self) -> String {
        format!("{}?users={OWN}", self.name)
    }

    /// Runs the command to its end as an application of a user. Returns its exit status and its error text.
    fn run(&self, user: u32, named: &str, arguments: &[&str]) -> (i32, String) {
        let mut command = starling_of(user, arguments);
        let output = command.env("STARLING_SERVICE", named).output().unwrap();
        let code = output.status.code().expect("it ended by itself");
        (code, text(&output.stderr))
    }

    fn serve(&self, user: u32, named: &str) -> Serve {
        let serve = [
            "serve",
            "kv",
            "--records",
            "0",
            "--address",
            "udp://127.0.0.1:0",
        ];
        let mut command = starling_of(user, &serve);
        let command = command
            .env("STARLING_SERVICE", named)
            .stdout(Stdio::piped());
        Serve::of(command.spawn().unwrap(), 1)
    }

    /// The users of its datapaths of a side, as this test's user sees them: root.
    fn users(&self, side: &str) -> Vec<Value> {
        let output = starling(&["ctl", "--service", &self.trusted(), "list", "--json"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let datapaths = list["datapaths"].as_array().unwrap().iter();
        let of_side = datapaths.filter(|datapath| datapath["side"] == side);
        of_side.map(|datapath| datapath["user"].clone()).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_unprivileged_service_is_its_users() {
    if !is_root("an_unprivileged_service_is_its_users") {
        return;
    }
    let service = Service::start("own", &[]);
    let server = service.serve(OWN, &service.name);
    assert_eq!(service.users("server"), [OWN]);
    let list = ["call", &server.addresses[0]];
    let (code, error) = service.run(OWN, &service.name, &list);
    assert_eq!(code, 0, "{error}");
    let attach = ["ctl", "attach", "limit", "rate-limit", "rate=1000"];
    let (code, error) = service.run(OWN, &service.name, &attach);
    assert_eq!(code, 0, "its user is its operator: {error}");

    // Another user does not trust the service by its name alone, and is refused if it does.
    let (code, error) = service.run(OTHER, &service.name, &list);
    assert_ne!(code, 0);
    assert!(
        error.contains("another user's process has this name"),
        "{error}"
    );
    let (code, error) = service.run(OTHER, &service.trusted(), &list);
    assert_ne!(code, 0);
    assert!(error.contains("have it allow other users"), "{error}");
}

#[test]
fn an_unprivileged_service_takes_other_users_if_it_is_told_to() {
    if !is_root("an_unprivileged_service_takes_other_users_if_it_is_told_to") {
        return;
    }
    let service = Service::start("any", &["--any-user"]);
    let server = service.serve(OTHER, &service.trusted());
    assert_eq!(service.users("server"), [OTHER]);
    let list = ["call", &server.addresses[0]];
    let (code, error) = service.run(OTHER, &service.trusted(), &list);
    assert_eq!(code, 0, "{error}");
    for ask in [
        &["list"][..],
        &["plugin", "list"],
        &["plugin", "add", "/a.so"],
    ] {
        let ask = [&["ctl"], ask].concat();
        let (code, error) = service.run(OTHER, &service.trusted(), &ask);
        assert_ne!(code, 0);
        assert!(error.contains("policies are the operator's"), "{error}");
    }
}

#[test]
fn what_an_unprivileged_service_lacks_for_xdp_is_said() {
    let pair = match Pair::new() {
        Ok(pair) => pair,
        Err(problem) => {
            let test = "what_an_unprivileged_service_lacks_for_xdp_is_said";
            println!("skipped: {test} needs root and `ip` of iproute2 ({problem})");
            return;
        }
    };
    inside(&pair.b, lacks_capabilities);
}

fn lacks_capabilities() {
    let service = Service::start("xdp", &[]);
    let serve = [
        "serve",
        "kv",
        "--records",
        "0",
        "--address",
        "xdp://vb/0.0.0.0:0",
    ];

    let (code, error) = service.run(OWN, &service.name, &serve);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("interface vb") && error.contains("CAP_NET_RAW"),
        "{error}"
    );
    // It goes on.
    let (code, error) = service.run(OWN, &service.name, &["ctl", "list"]);
    assert_eq!(code, 0, "{error}");
}
