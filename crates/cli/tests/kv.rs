//! The key-value service over Starling and over tonic. Server and load generator are processes, and the
//! model checks every answer.

use std::time::Duration;

use starling_bench::kv::drive::Settings;
use starling_bench::kv::starling_roles::{KV_CHANNEL_CLIENT, KV_LOCAL_CLIENT, KV_SERVER};
use starling_bench::kv::{LoadProcess, Workload};
use starling_bench::pin::Cores;
use starling_bench::process::{Launcher, RoleProcess};
use starling_bench_tonic::{KV_CLIENT_ROLE, KV_SERVER_ROLE};

/// The length of a run: long enough for some hundred calls.
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

/// Starts a server of each system with `records` records. Returns each with the role of its load
/// generator.
fn servers(launcher: &Launcher, records: &str) -> [(&'static str, RoleProcess); 4] {
    let shm = format!("shm://starling-kv-test-{}-{records}", std::process::id());
    let starling = |address| launcher.start(KV_SERVER, &[address, records]).unwrap();
    [
        (KV_CHANNEL_CLIENT, starling("udp://127.0.0.1:0")),
        (KV_CHANNEL_CLIENT, starling(&shm)),
        (KV_LOCAL_CLIENT, starling("udp://127.0.0.1:0")),
        (
            KV_CLIENT_ROLE,
            launcher.start(KV_SERVER_ROLE, &[records]).unwrap(),
        ),
    ]
}

#[test]
fn every_answer_of_every_workload_is_right() {
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
fn the_model_finds_that_a_store_has_lost_records() {
    let launcher = launcher();
    for (client, server) in servers(&launcher, "1000") {
        let address = server.address();
        // The model has twice as many records as the store.
        let mut load = LoadProcess::start(&launcher, client, address, &settings(2000)).unwrap();
        let error = load.run(Workload::C, SECONDS, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("not found"), "{error}");
    }
}

#[test]
fn a_load_generator_keeps_its_session_while_it_waits_for_a_run() {
    let launcher = launcher();
    let (client, server) = servers(&launcher, "10").into_iter().next().unwrap();
    let address = server.address();
    let mut load = LoadProcess::start(&launcher, client, address, &settings(10)).unwrap();
    // The server would close a silent session sooner.
    std::thread::sleep(Duration::from_millis(2500));
    load.run(Workload::C, SECONDS, &mut |_| ()).unwrap();
}

#[test]
fn a_load_generator_without_a_server_fails() {
    let launcher = launcher();
    // No server listens at port 1 of the loopback interface.
    for (client, address) in [
        (KV_CLIENT_ROLE, "http://127.0.0.1:1"),
        (KV_CHANNEL_CLIENT, "udp://127.0.0.1:1"),
        (KV_LOCAL_CLIENT, "shm://starling-kv-test-nobody"),
    ] {
        let error = LoadProcess::start(&launcher, client, address, &settings(10)).unwrap_err();
        assert!(error.to_string().contains(" failed: "), "{error}");
    }
}
