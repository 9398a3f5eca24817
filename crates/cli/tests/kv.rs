//! The key-value service over Starling and over tonic: server and load generator in processes of
//! their own, every answer checked by the model.

use std::time::Duration;

use starling_bench::kv::drive::Settings;
use starling_bench::kv::starling_roles::{KV_CLIENT, KV_SERVER};
use starling_bench::kv::{LoadProcess, Workload};
use starling_bench::pin::Cores;
use starling_bench::process::{Launcher, RoleProcess};
use starling_bench_tonic::{KV_CLIENT_ROLE, KV_SERVER_ROLE};

/// Long enough for some hundred calls.
const SECONDS: f64 = 0.05;

fn launcher() -> Launcher {
    let cores = Cores::of_this_process().unwrap();
    let program = env!("CARGO_BIN_EXE_starling").into();
    Launcher::new(program, &["role"], cores)
}

fn settings(records: u64) -> Settings {
    Settings {
        records,
        seed: 1,
        in_flight: 16,
    }
}

/// The role of a load generator, and a server with `records` records for it.
fn servers(launcher: &Launcher, records: &str) -> [(&'static str, RoleProcess); 3] {
    let shm = format!("shm://starling-kv-test-{}-{records}", std::process::id());
    let starling = |address| launcher.start(KV_SERVER, &[address, records]).unwrap();
    [
        (KV_CLIENT, starling("udp://127.0.0.1:0")),
        (KV_CLIENT, starling(&shm)),
        (
            KV_CLIENT_ROLE,
            launcher.start(KV_SERVER_ROLE, &[records]).unwrap(),
        ),
    ]
}

#[test]
fn every_workload_is_answered_right() {
    let launcher = launcher();
    for (client, server) in servers(&launcher, "2000") {
        let address = server.address();
        let mut load = LoadProcess::start(&launcher, client, address, &settings(2000)).unwrap();
        for workload in Workload::YCSB.into_iter().chain([Workload::All]) {
            let mut told = 0;
            let figures = load.run(workload, SECONDS, &mut |_| told += 1).unwrap();
            assert!(figures.calls > 0 && figures.rate() > 0.0, "{workload}");
            assert!(figures.client_cpu_ns > 0 && told > 0, "{workload}");
            assert!(
                figures.latency_ns(50.0) <= figures.latency_ns(99.0),
                "{workload}"
            );
        }
    }
}

#[test]
fn a_store_that_lost_records_is_caught() {
    let launcher = launcher();
    for (client, server) in servers(&launcher, "1000") {
        let address = server.address();
        // The load believes in twice as many records as the store holds.
        let mut load = LoadProcess::start(&launcher, client, address, &settings(2000)).unwrap();
        let error = load.run(Workload::C, SECONDS, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("not found"), "{error}");
    }
}

#[test]
fn a_load_waits_for_its_runs_without_losing_its_server() {
    let launcher = launcher();
    let (client, server) = servers(&launcher, "10").into_iter().next().unwrap();
    let address = server.address();
    let mut load = LoadProcess::start(&launcher, client, address, &settings(10)).unwrap();
    // Longer than the server keeps a session that is silent.
    std::thread::sleep(Duration::from_millis(2500));
    load.run(Workload::C, SECONDS, &mut |_| ()).unwrap();
}

#[test]
fn a_load_without_a_server_is_an_error() {
    let launcher = launcher();
    // Port 1 of the loopback: nobody listens there.
    for (client, address) in [
        (KV_CLIENT_ROLE, "http://127.0.0.1:1"),
        (KV_CLIENT, "udp://127.0.0.1:1"),
        (KV_CLIENT, "shm://starling-kv-test-nobody"),
    ] {
        let error = LoadProcess::start(&launcher, client, address, &settings(10)).unwrap_err();
        assert!(error.to_string().contains(" failed: "), "{error}");
    }
}
