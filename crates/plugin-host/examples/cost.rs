//! What a request costs in an engine of a plug-in, beside the built-in `null`:
//! `cargo run --release -p starling-plugin-host --example cost`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use starling_call::{CallOptions, MethodId};
use starling_io::MonotonicClock;
use starling_plugin_host::Plugins;
use starling_policy::{Datapath, PolicyEngine, PolicyRequest, PolicySpec, Side, Verdict};

const REQUESTS: u64 = 10_000_000;

/// The test's plug-in, which `cargo` builds beside this program.
fn plugin() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let target = own.parent().and_then(Path::parent).expect("a directory");
    target.join("deps/libstarling_test_plugin_faulty.so")
}

/// Nanoseconds of a request.
fn measure(engine: &mut dyn PolicyEngine) -> f64 {
    let datapath = Datapath {
        id: 1,
        side: Side::Client,
        program: "frontend".to_owned(),
        server: "udp://h:1".to_owned(),
    };
    let mut options = CallOptions::default();
    let begin = Instant::now();
    for call in 0..REQUESTS {
        let mut request = PolicyRequest {
            now_ns: call,
            call,
            method: MethodId(7),
            datapath: &datapath,
            options: &mut options,
            body: &[7; 32],
            message: None,
        };
        let verdict = std::hint::black_box(&mut *engine).on_request(&mut request, 0);
        assert!(matches!(verdict, Verdict::Pass), "{verdict:?}");
    }
    begin.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn main() {
    let plugins = Plugins::new(MonotonicClock::new());
    plugins.add(&plugin()).expect("a plug-in: chmod go-w");
    let build = |kind: &str| {
        let spec = PolicySpec::parse(&format!(r#"{{"name":"a","kind":"{kind}"}}"#));
        plugins.build(&spec.expect("a policy")).expect("an engine")
    };
    let kinds = ["null", "pass-all"];
    let mut engines = kinds.map(build);
    for _ in 0..5 {
        for (kind, engine) in kinds.iter().zip(&mut engines) {
            println!("{kind} {:.1} ns", measure(&mut **engine));
        }
    }
}
