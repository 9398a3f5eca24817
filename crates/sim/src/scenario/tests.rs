//! Every scenario runs, gives the same rows for the same seed, and keeps its bounds.

use crate::queueing::SLO;

use super::*;

/// The data rate of 25 Gb/s where a packet has 1024 bytes of data in 1122 on the wire.
const ACHIEVABLE_GBPS: f64 = 25.0 * 1024.0 / 1122.0;

fn quick(name: &str, seed: u64) -> Findings {
    let named = find(name).expect("a scenario");
    let options = Options {
        seed,
        quick: true,
        nodes: Some(12),
    };
    found(&named, options)
}

fn found(named: &NamedScenario, options: Options) -> Findings {
    let ran = run(named, options, &mut |_| {});
    ran.unwrap_or_else(|broken| panic!("{broken}")).0
}

fn value(findings: &Findings, case: &str, metric: &str) -> f64 {
    let mut rows = findings.rows.iter();
    let row = rows.find(|row| row.case == case && row.metric == metric);
    row.unwrap_or_else(|| panic!("no {metric} of {case}")).value
}

#[test]
fn a_seed_gives_the_same_scenario_twice() {
    for NamedScenario { name, .. } in ALL {
        let first = quick(name, 7);
        assert_eq!(first, quick(name, 7), "{name}");
        let other = quick(name, 8).trace_hash;
        assert_ne!(first.trace_hash, other, "{name}");
    }
}

#[test]
fn a_lossless_link_is_nearly_full() {
    let findings = quick("loss", 1);
    let gbps = value(&findings, "0", "bandwidth");
    // 4096 of 4218 bytes on the wire are data, and a request begins with a round trip.
    assert!((80.0..97.1).contains(&gbps), "{gbps}");
}

#[test]
fn losses_cost_little() {
    let findings = quick("loss", 1);
    for (case, least) in [("1e-7", 99.0), ("1e-4", 95.0), ("1e-3", 80.0)] {
        let share = value(&findings, case, "share of lossless");
        assert!(share >= least, "{case}: {share}%");
    }
    assert!(
        value(&findings, "1e-3", "losses") > 0.0,
        "the link lost packets"
    );
}

/// DCTCP keeps its promises as soon as the initial queue of the clients is gone.
#[test]
fn an_incast_with_congestion_control_has_a_short_queue() {
    let findings = quick("incast", 1);
    for (case, p50_us, p99_us) in [
        ("20", 40.0, 100.0),
        ("50", 40.0, 100.0),
        ("100", 60.0, 200.0),
    ] {
        let of = |metric| value(&findings, &format!("{case} dctcp"), metric);
        assert!(of("rtt p50") <= p50_us, "{case}: {} us", of("rtt p50"));
        assert!(of("rtt p99") <= p99_us, "{case}: {} us", of("rtt p99"));
        assert!(
            of("bandwidth") >= 0.95 * ACHIEVABLE_GBPS,
            "{case}: {} Gb/s",
            of("bandwidth")
        );
        assert!(of("fairness") >= 0.95, "{case}: {}", of("fairness"));
    }
}

#[test]
fn an_incast_without_congestion_control_queues_all_credits() {
    let findings = quick("incast", 1);
    let queue_kb = value(&findings, "50 no cc", "longest queue");
    // 50 clients with 32 packets of 1122 bytes, less the packets on the cables.
    assert!((1_500.0..1_796.0).contains(&queue_kb), "{queue_kb}");
    let p50_us = value(&findings, "50 no cc", "rtt p50");
    assert!((480.0..600.0).contains(&p50_us), "{p50_us}");
    assert!(value(&findings, "50 no cc", "bandwidth") > 22.0);
}

#[test]
fn long_paths_are_no_queues_and_queues_are_short_without_marks() {
    let findings = quick("paths", 1);
    for length in ["0.6 ms", "5 ms"] {
        for control in ["dctcp", "timely", "no cc"] {
            let case = format!("{length}, {control}");
            let share = value(&findings, &case, "of what credits allow");
            assert!((90.0..=100.0).contains(&share), "{case}: {share}");
        }
    }
    let of = |case: &str, metric| {
        let of = |control| value(&findings, &format!("{case}, {control}"), metric);
        (of("dctcp"), of("no cc"))
    };
    let (delay_us, free_us) = of("50 to 1, no marks", "rtt p99");
    assert!(2.0 * delay_us < free_us, "{delay_us} and {free_us}");
    let (fair, free_for_all) = of("20 to 1, drops only", "fairness");
    assert!(fair > 2.0 * free_for_all, "{fair} and {free_for_all}");
    for case in ["50 to 1, no marks", "20 to 1, drops only"] {
        assert!(of(case, "bandwidth").0 > 0.95 * ACHIEVABLE_GBPS, "{case}");
    }
}

#[test]
fn calls_that_meet_take_longer_even_on_an_ideal_network() {
    let findings = quick("background", 1);
    let of = |case| value(&findings, case, "64 kB RPC p99");
    let ideal_us = of("no incast, ideal");
    // Without contention they take 62 us.
    assert!(ideal_us > 100.0, "{ideal_us}");
    for case in ["no incast, no cc", "no incast, dctcp"] {
        let share = of(case) / ideal_us;
        assert!((0.8..1.5).contains(&share), "{case}: {share}");
    }
}

#[test]
fn all_to_all_threads_reach_millions_of_requests_a_second() {
    let findings = quick("all-to-all", 1);
    let rate = value(&findings, "1 threads", "rate a node");
    // The paper has 4.96 M/s a thread with batches of three on eleven nodes.
    assert!((3.0..9.0).contains(&rate), "{rate}");
    assert_eq!(
        value(&findings, "2 threads", "sessions a node"),
        2.0 * 2.0 * 23.0
    );
}

#[test]
fn a_dead_node_is_noticed_and_used_again_and_delays_no_other_node() {
    let findings = quick("node-failure", 1);
    assert_eq!(
        value(&findings, "", "callers that learn of the death"),
        100.0
    );
    // The peer timeout, plus the time until the next check of peers.
    let last_ms = value(&findings, "", "the last one after");
    assert!((200.0..=250.0).contains(&last_ms), "{last_ms}");
    let slower = value(&findings, "", "others slower at p99");
    assert!(slower <= 5.0, "{slower}%");
    assert_eq!(value(&findings, "", "callers that use it again"), 100.0);
    assert_eq!(value(&findings, "", "failed calls to the living"), 0.0);
    let answered = |case| value(&findings, case, "calls to the living answered");
    assert!(answered("before") > 99.0 && answered("while it is dead") > 99.0);
}

#[test]
fn absences_of_a_core_cost_no_more_than_their_time() {
    let findings = quick("descheduled", 3);
    let mut shares = 0;
    for row in &findings.rows {
        match row.metric.as_ref() {
            "share of what remains" => {
                // 90% is promised. A Timely that believes every round-trip time reaches 95%. After
                // an absence all packets leave at once, and a switch marks them, because they are a
                // queue.
                let least = if row.case.ends_with("dctcp") {
                    90.0
                } else {
                    97.0
                };
                assert!(row.value > least, "{row:?}");
                shares += 1;
            }
            "time away" => assert!((10.0..90.0).contains(&row.value), "{row:?}"),
            // A client that waits for an answer repeats its requests a few times, not all the time.
            "retransmissions" => assert!(row.value < 5_000.0, "{row:?}"),
            _ => {}
        }
    }
    assert_eq!(shares, 33);
}

#[test]
fn an_overloaded_server_keeps_its_goodput_and_runs_nothing_in_vain() {
    let options = Options {
        seed: 1,
        quick: true,
        nodes: None,
    };
    let overload = find("overload").expect("a scenario");
    let findings = found(&overload, options);
    for threads in ["inline", "workers"] {
        for offered in ["0.8x", "1x", "1.5x", "2x", "3x"] {
            let case = format!("{threads} {offered}");
            let of = |metric| value(&findings, &case, metric);
            let least = if offered == "0.8x" { 75.0 } else { 90.0 };
            let share = of("share of the peak");
            assert!(share >= least, "{case}: {share}");
            assert_eq!(of("begun when expired"), 0.0, "{case}");
            assert_eq!(of("run, not in time"), 0.0, "{case}");
        }
    }
}

#[test]
fn dispatch_comes_close_to_an_ideal_queue_and_partitions_do_not() {
    let findings = quick("slo", 1);
    for service in ["fixed", "uniform", "exponential", "gev", "bimodal"] {
        let of = |mode| value(&findings, &format!("{service}/{mode}/16"), "of the ideal");
        let (single, grouped, parted) = (of("1x16"), of("4x4"), of("16x1"));
        // 95% is promised.
        assert!(single >= 95.0, "{service} {single}");
        assert!(grouped <= single && parted < grouped, "{service}");
    }
    // RPCValet's figure 2: the more the times vary, the more a partition loses; 25 to 73% there.
    let limit = |service, mode| {
        value(
            &findings,
            &format!("{service}/{mode}/16"),
            "throughput_under_slo",
        )
    };
    let margins = ["fixed", "uniform", "exponential", "gev"]
        .map(|service| 1.0 - limit(service, "16x1") / limit(service, "1x16"));
    assert!(margins.is_sorted(), "{margins:?}");
    assert!(margins[0] >= 0.20 && margins[3] >= 0.73, "{margins:?}");
    // The sweep goes on into saturation, and the ideal is never left out of it.
    assert_eq!(findings.plots.len(), 5);
    for plot in &findings.plots {
        for curve in &plot.curves {
            let &(load, tail) = curve.points.last().expect("a sweep");
            let name = format!("{} {}", plot.title, curve.name);
            assert!(tail > 10.0 * SLO || load > 0.94, "{name}: {tail} at {load}");
        }
    }
}

/// A failure in a scenario, of a checker or of an assertion, is an error with the command that
/// reproduces it.
#[test]
fn a_broken_promise_is_an_error_with_a_replay_command() {
    let options = Options {
        seed: 3,
        nodes: Some(12),
        quick: true,
    };
    let mut named = find("node-failure").expect("a scenario");
    named.run = |_| monitor::enforce(Err(Violation::new("at most once", "it ran twice")));
    let broken = run(&named, options, &mut |_| {}).expect_err("it was broken");
    assert_eq!(broken.violation.checker, "at most once");
    let text = broken.to_string();
    assert!(text.contains("it ran twice"), "{text}");
    let command = "replay: starling sim run node-failure --seed 3 --nodes 12 --quick";
    assert!(text.ends_with(command), "{text}");
    named.run = |_| assert_eq!(1, 2, "numbers");
    let broken = run(&named, options, &mut |_| {}).expect_err("it was broken");
    assert_eq!(broken.violation.checker, "no panic");
    assert!(broken.violation.detail.contains("numbers"), "{broken}");
}
