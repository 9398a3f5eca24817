//! `starling serve` and `starling call` from outside, over `udp` and `shm`.

mod common;

use common::{Serve, run, run_with_input, shm, text};
use serde_json::{Value, json};

/// Makes a call that must succeed. Returns its response.
fn call(address: &str, method: &str, request: &Value) -> Value {
    let output = run(&["call", address, method, &request.to_string()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that must fail. Returns its exit status and its error text.
fn fails(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    (output.status.code().expect("it ended by itself"), said)
}

#[test]
fn every_method_can_be_called_over_udp_and_shm() {
    let serve = Serve::start(
        "kv",
        &["udp://127.0.0.1:0", &shm("kv")],
        &["--records", "0"],
    );
    // "abc", "b", "v" and "w" in base64.
    let (abc, b, v, w) = ("YWJj", "Yg==", "dg==", "dw==");
    for address in &serve.addresses {
        let call =
            |method: &str, request: Value| call(address, &format!("kv.Kv/{method}"), &request);
        assert_eq!(call("Put", json!({"key": abc, "value": v})), json!({}));
        assert_eq!(call("Put", json!({"key": b, "value": w})), json!({}));
        let found = json!({"found": true, "value": v});
        assert_eq!(call("Get", json!({"key": abc})), found);
        let records = json!([{"key": abc, "value": v}, {"key": b, "value": w}]);
        assert_eq!(
            call("Scan", json!({"limit": 10})),
            json!({"records": records})
        );
        let missing = json!({"found": false, "value": ""});
        let answers = call("MultiGet", json!({"keys": ["eA==", abc]}));
        assert_eq!(answers, json!({"answers": [missing, found]}));
        for key in [abc, b] {
            assert_eq!(
                call("Delete", json!({"key": key})),
                json!({"existed": true})
            );
        }
        assert_eq!(call("Delete", json!({"key": b})), json!({"existed": false}));
    }
}

#[test]
fn a_server_with_the_option_workers_runs_scans_in_workers() {
    let serve = Serve::start(
        "kv",
        &[&shm("workers")],
        &["--records", "5", "--workers", "2"],
    );
    let records = call(&serve.addresses[0], "kv.Kv/Scan", &json!({"limit": 10}));
    assert_eq!(records["records"].as_array().unwrap().len(), 5);
}

#[test]
fn a_request_may_come_from_standard_input_or_from_a_file() {
    let serve = Serve::start("echo", &[&shm("echo")], &[]);
    let address = &serve.addresses[0];
    let request = r#"{"data": "AAECAw=="}"#;
    let echoed = |output: std::process::Output| {
        assert!(output.status.success(), "{}", text(&output.stderr));
        let response: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(response, json!({"data": "AAECAw=="}));
    };
    echoed(run_with_input(
        &["call", address, "bench.Echo/Call", "-"],
        request,
    ));
    let path = std::env::temp_dir().join(format!("starling-call-{}.json", std::process::id()));
    std::fs::write(&path, request).unwrap();
    let argument = format!("@{}", path.display());
    let more = ["--metadata", "trace=1", "--timeout", "30s"];
    let mut arguments = vec!["call", address, "bench.Echo/Call", &argument];
    arguments.extend(more);
    let output = run(&arguments);
    std::fs::remove_file(&path).unwrap();
    echoed(output);
}

#[test]
fn a_call_without_a_method_lists_services_or_describes_one() {
    let serve = Serve::start("kv", &["udp://127.0.0.1:0"], &["--records", "0"]);
    let address = &serve.addresses[0];
    let list = text(&run(&["call", address]).stdout);
    assert_eq!(
        list,
        "kv.Kv\ngrpc.health.v1.Health\nstarling.introspection.Introspection\nstarling.reflection.Reflection\n"
    );
    let service = text(&run(&["call", address, "kv.Kv"]).stdout);
    assert!(service.contains("  rpc Scan(kv.ScanRequest) returns (kv.ScanResponse);\n"));
    assert!(
        service.contains("message kv.ScanRequest {\n  bytes start = 1;\n  uint32 limit = 2;\n}")
    );
}

#[test]
fn the_exit_status_and_the_error_text_of_a_failed_call_name_the_fault() {
    let serve = Serve::start("kv", &[&shm("wrong")], &["--records", "0"]);
    let address = &serve.addresses[0];
    let get = "kv.Kv/Get";
    for (arguments, status, expected) in [
        // Faults that the server finds. The exit status is 64 plus the number of the gRPC code.
        (
            vec![get],
            67,
            "INVALID_ARGUMENT: a key has 1 to 1024 bytes, not 0",
        ),
        (
            vec!["kv.Kv/Gett"],
            76,
            "UNIMPLEMENTED: kv.Kv has no method Gett; it has Get, Put, Delete",
        ),
        (
            vec!["kv.Kw/Get"],
            76,
            "UNIMPLEMENTED: the server has no service kv.Kw; it has kv.Kv, ",
        ),
        (vec!["kv.Kw"], 76, "it has kv.Kv, "),
        // Streams, which the command does not have.
        (
            vec!["/grpc.health.v1.Health/Watch"],
            76,
            "UNIMPLEMENTED: grpc.health.v1.Health/Watch is a streaming method",
        ),
        // Faults in the command line.
        (
            vec![get, r#"{"key": 3}"#],
            2,
            "field key of kv.GetRequest takes bytes: a string in base64: invalid type: integer",
        ),
        (vec![get, r#"{"kye": ""}"#], 2, "kye"),
        (vec![get, "{"], 2, "kv.GetRequest: EOF"),
        (vec![get, "--timeout", "5"], 2, "a number and a unit"),
        (vec![get, "--metadata", "x"], 2, "KEY=VALUE"),
        (vec![get, "--metadata", "=x"], 2, "metadata"),
        (
            vec![get, "@nonexistent.json"],
            1,
            "nonexistent.json: No such file",
        ),
    ] {
        let mut command = vec!["call", address];
        command.extend(&arguments);
        let (code, said) = fails(&command);
        assert_eq!(code, status, "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn a_wrong_address_is_status_2_and_an_absent_server_status_78() {
    for (address, status, expected) in [
        (
            "nonsense",
            2,
            "write udp://HOST:PORT, shm://NAME, xdp://IFNAME/HOST:PORT, tcp://HOST:PORT or",
        ),
        ("rdma://dev/host:1", 2, "not built into this version yet"),
        (
            "xdp://starlingnone/10.0.0.7:1",
            2,
            "there is no interface starlingnone",
        ),
        ("udp://127.0.0.1", 2, "it has no port"),
        ("udp://127.0.0.1:1", 78, "UNAVAILABLE: "),
        ("shm://starling-cli-nobody-is-here", 78, "UNAVAILABLE: "),
    ] {
        let (code, said) = fails(&["call", address]);
        assert_eq!(code, status, "{address}: {said}");
        assert!(said.contains(expected), "{address}: {said}");
    }
    for address in ["nonsense", "udp://127.0.0.1", "udp://127.0.0.1:99999"] {
        let (code, said) = fails(&["serve", "echo", "--address", address]);
        assert_eq!(code, 2, "{address}: {said}");
    }
}

#[test]
fn of_several_addresses_the_first_one_that_can_be_reached_is_called() {
    let serve = Serve::start(
        "kv",
        &["udp://127.0.0.1:0", &shm("kv-list")],
        &["--records", "1"],
    );
    let (absent, missing) = (shm("absent"), json!({"found": false, "value": ""}));
    for address in &serve.addresses {
        for list in [format!("{absent},{address}"), format!("{address},{absent}")] {
            assert_eq!(call(&list, "kv.Kv/Get", &json!({"key": "eA=="})), missing);
        }
    }
    let other = shm("absent-too");
    let (status, said) = fails(&["call", &format!("{absent},{other}"), "kv.Kv"]);
    assert_eq!(status, 78, "{said}");
    assert!(said.contains(&absent) && said.contains(&other), "{said}");
    let (status, said) = fails(&["call", &format!("{absent},,"), "kv.Kv"]);
    assert_eq!(status, 2, "{said}");
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let serve = Serve::start("echo", &["udp://127.0.0.1:0", &shm("in-use")], &[]);
    for address in &serve.addresses {
        let (code, said) = fails(&["serve", "echo", "--address", address]);
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains(&format!("bind {address}: Address already in use")),
            "{said}"
        );
    }
}

#[test]
fn a_server_ends_at_a_signal_with_status_0_and_later_calls_fail() {
    for signal in ["INT", "TERM"] {
        let mut serve = Serve::start("echo", &[&shm("signal")], &[]);
        serve.signal(signal);
        assert_eq!(serve.wait().code(), Some(0), "{signal}");
        let (code, said) = fails(&["call", &serve.addresses[0]]);
        assert_eq!(code, 78, "{said}");
    }
}
