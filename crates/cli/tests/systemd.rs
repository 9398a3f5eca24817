//! `starling service` as systemd runs it.

mod common;

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{run, starling, text};

/// Ended when this is dropped, also by a panic.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn heard(by: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let length = by.recv(&mut bytes).expect("the service says it");
    text(&bytes[..length])
}

#[test]
fn systemd_hears_when_the_service_serves_and_when_it_stops() {
    let name = format!("starling-systemd-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut command = starling(&["service", "run", "--idle", "block", "--name", &name]);
    let command = command.env("NOTIFY_SOCKET", format!("@{name}"));
    let mut service = Ended(command.stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(heard(&manager), "READY=1");
    let list = run(&["ctl", "--service", &name, "list"]);
    assert!(list.status.success(), "{}", text(&list.stderr));
    let pid = service.0.id().to_string();
    let kill = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(kill.unwrap().success());
    assert_eq!(heard(&manager), "STOPPING=1");
    assert!(service.0.wait().unwrap().success());
}

#[test]
fn systemd_finds_no_fault_in_the_unit() {
    let folder = std::env::temp_dir().join(format!("starling-unit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("starling.service");
    let unit = run(&[
        "service",
        "unit",
        "--config",
        "/etc/starling.yaml",
        "--user",
        "mesh",
    ]);
    assert!(unit.status.success(), "{}", text(&unit.stderr));
    std::fs::write(&path, &unit.stdout).unwrap();
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output();
    std::fs::remove_dir_all(&folder).unwrap();
    match verified {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: systemd_finds_no_fault_in_the_unit needs systemd-analyze");
        }
        verified => {
            let verified = verified.unwrap();
            let said = text(&verified.stderr);
            assert!(verified.status.success() && said.is_empty(), "{said}");
        }
    }
    let unit = text(&unit.stdout);
    let expected = " service run --any-user --config /etc/starling.yaml\n";
    assert!(
        unit.contains(expected) && unit.contains("\nUser=mesh\n"),
        "{unit}"
    );
    let relative = run(&["service", "unit", "--config", "starling.yaml"]);
    assert_eq!(relative.status.code(), Some(2));
}
