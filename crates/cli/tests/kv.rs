//! The key-value service over tonic: server and load generator in processes of their own, every
//! answer checked by the model.

use starling_bench::kv::drive::Settings;
use starling_bench::kv::{LoadProcess, Workload};
use starling_bench::pin::Cores;
use starling_bench::process::Launcher;
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

#[test]
fn every_workload_is_answered_right() {
    let launcher = launcher();
    let server = launcher.start(KV_SERVER_ROLE, &["2000"]).unwrap();
    let address = server.address();
    let mut load = LoadProcess::start(&launcher, KV_CLIENT_ROLE, address, &settings(2000)).unwrap();
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

#[test]
fn a_store_that_lost_records_is_caught() {
    let launcher = launcher();
    // The load believes in twice as many records as the store holds.
    let server = launcher.start(KV_SERVER_ROLE, &["1000"]).unwrap();
    let address = server.address();
    let mut load = LoadProcess::start(&launcher, KV_CLIENT_ROLE, address, &settings(2000)).unwrap();
    let error = load.run(Workload::C, SECONDS, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("not found"), "{error}");
}

#[test]
fn a_load_without_a_server_is_an_error() {
    let launcher = launcher();
    // Port 1 of the loopback: nobody listens there.
    let error = LoadProcess::start(
        &launcher,
        KV_CLIENT_ROLE,
        "http://127.0.0.1:1",
        &settings(10),
    )
    .unwrap_err();
    assert!(error.to_string().contains("did not go on"), "{error}");
}
