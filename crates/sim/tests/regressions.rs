//! Bugs that random runs found, each with the smallest plan that shows it.

use starling_sim::harness::{
    CallPlan, ChannelPlan, HostFault, HostFaultKind, Report, RunPlan, Subset, run,
};
use starling_sim::{Fault, HostId, Rule};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn channel(client: u32, server: u32) -> ChannelPlan {
    ChannelPlan {
        client: HostId(client),
        server: HostId(server),
        close_at_ns: None,
    }
}

fn crash(host: u32, at_ns: u64, for_ns: u64) -> HostFault {
    HostFault {
        at_ns,
        host: HostId(host),
        kind: HostFaultKind::Crash { for_ns },
    }
}

#[track_caller]
fn keeps_every_promise(plan: &RunPlan) -> Report {
    run(plan).unwrap_or_else(|failure| panic!("{failure}"))
}

/// A server comes back and calls its former client before the client calls again. The client then
/// knew the new incarnation, and ignored the resets for its old session.
#[test]
fn sessions_with_a_former_incarnation_of_a_peer_end() {
    let mut plan = RunPlan::plain(2);
    plan.channels = vec![channel(1, 0), channel(0, 1)];
    plan.host_faults = vec![crash(0, MS, 10 * US)];
    plan.calls = vec![
        CallPlan::new(100 * US, 0, 40, 40),
        CallPlan::new(1_100 * US, 1, 40, 40),
        CallPlan::new(2 * MS, 0, 40, 40),
    ];
    plan.heal_ns = 3 * MS;
    let report = keeps_every_promise(&plan);
    assert_eq!(report.outcomes.abandoned, 0);
}

/// The same with the smallest possible request: a reset was larger, and so was not sent.
#[test]
fn a_reset_answers_even_the_smallest_request() {
    let mut plan = RunPlan::plain(2);
    plan.channels = vec![channel(1, 0), channel(0, 1)];
    plan.host_faults = vec![crash(0, MS, 10 * US)];
    plan.calls = vec![
        CallPlan::new(100 * US, 0, 0, 0),
        CallPlan::new(1_100 * US, 1, 0, 0),
        CallPlan::new(2 * MS, 0, 0, 0),
    ];
    plan.heal_ns = 3 * MS;
    keeps_every_promise(&plan);
}

/// The server admitted both copies of an unknown peer's CONNECT, and one of the sessions had no
/// owner.
#[test]
fn a_connect_that_arrives_twice_in_a_burst_opens_one_session() {
    let mut plan = RunPlan::plain(2);
    plan.channels = vec![channel(0, 1)];
    plan.calls = vec![CallPlan::new(0, 0, 100, 100)];
    plan.heal_ns = 5 * MS;
    let ppm = 1_000_000;
    let twice = Fault::Duplicate { ppm, delay_ns: 0 };
    plan.rules = vec![Rule::everywhere(0, MS, twice)];
    let report = keeps_every_promise(&plan);
    assert_eq!(report.outcomes.executed, 2, "the call and the probe");
}

/// A client gives up its server and connects again before the server has given up the client. The
/// server kept the client's former session for as long as the client lived.
#[test]
fn a_server_forgets_a_session_that_its_client_gave_up() {
    let mut plan = RunPlan::plain(2);
    plan.channels = vec![channel(0, 1)];
    let timeout_ns = plan.hosts[0].peer_timeout_ns;
    let silence_ns = timeout_ns + timeout_ns / 2;
    plan.calls = vec![
        CallPlan::new(0, 0, 100, 100),
        CallPlan::new(2 * MS, 0, 100, 100),
    ];
    plan.rules = vec![Rule::everywhere(MS, MS + silence_ns, Fault::Partition)];
    plan.heal_ns = 2 * MS + silence_ns;
    let report = keeps_every_promise(&plan);
    assert_eq!(
        report.outcomes.failed, 1,
        "the second call fails, since the server is silent"
    );
}

/// A large response held the session's only credit until it was complete. The client then believed
/// that the server had forgotten the request in the slot beside it.
#[test]
fn a_large_response_does_not_starve_the_session() {
    let mut plan = RunPlan::plain(2);
    for config in &mut plan.hosts {
        config.credits = 1;
        config.rto_min_ns = 100 * US;
        config.peer_timeout_ns = 60 * MS;
        config.keepalive_ns = 10 * MS;
    }
    plan.fabric.link.propagation_ns = 160 * US;
    plan.channels = vec![channel(0, 1)];
    plan.calls = vec![
        CallPlan::new(0, 0, 16, 400_000),
        CallPlan::new(US, 0, 9_000, 100),
    ];
    let report = keeps_every_promise(&plan);
    assert_eq!(report.outcomes.failed, 0);
}

/// A handler runs for longer than all timeouts, with a retransmission interval longer than the peer
/// timeout. The client gave the request up before the server could acknowledge it.
#[test]
fn a_client_waits_for_a_slow_handler() {
    let mut plan = RunPlan::plain(2);
    for config in &mut plan.hosts {
        config.peer_timeout_ns = 50 * MS;
        config.keepalive_ns = 5 * MS;
        config.rto_max_ns = 80 * MS;
    }
    plan.channels = vec![channel(0, 1)];
    let delay_us = 600_000;
    plan.calls = vec![CallPlan {
        delay_us,
        ..CallPlan::new(0, 0, 100, 100)
    }];
    let report = keeps_every_promise(&plan);
    assert_eq!(report.outcomes.failed, 0);
}

/// A switch corrupts the numbers of requests. The server took later requests for old ones, and
/// never answered again.
#[test]
fn endpoints_that_are_out_of_step_end_their_session() {
    let mut plan = RunPlan::plain(2);
    plan.channels = vec![channel(0, 1)];
    plan.calls = (0..200)
        .map(|i| CallPlan::new(i * 10 * US, 0, 0, 0))
        .collect();
    let fault = Fault::Corrupt {
        ppm: 300_000,
        undetected: true,
    };
    plan.rules = vec![Rule::everywhere(20 * US, 2 * MS, fault)];
    plan.heal_ns = 3 * MS;
    for seed in 0..20 {
        plan.fabric.seed = seed;
        keeps_every_promise(&plan);
    }
}

/// A switch flips bits in the token of an ACCEPT. Once the client had learned that no server has
/// the corrupted token, it took the server's true token for a former one, and dropped all its
/// connects. The tests of the protocol have the shortest form; these seeds found the bug.
#[test]
fn an_endpoint_is_not_taken_for_its_former_incarnation() {
    for seed in [260_888, 315_622, 352_697, 1_106_640] {
        keeps_every_promise(&RunPlan::from_seed_before_broadening(seed));
    }
}

/// The same switch flips bits in the duration that a handler is to take. The handler must still end
/// before the run.
#[test]
fn handlers_end_before_the_run_does() {
    keeps_every_promise(&RunPlan::from_seed_before_broadening(180_432_133_929_352));
}

/// A repeated CLOSE reaches a server that has forgotten the client. The server's reset arrives after the
/// client has opened another session. The reset ended that session.
#[test]
fn a_late_reset_does_not_end_a_session_that_was_opened_since() {
    keeps_every_promise(&RunPlan::from_seed_before_broadening(7_100_128_828));
}

/// Messages of megabytes over many hops with a single credit take a round trip for each packet, and
/// the bound of the harness has to allow for that.
#[test]
fn a_single_credit_may_take_its_time() {
    let subset = "calls=0".parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_endpoints(8_300_023_542),
    ));
}

/// A path of 0.6 ms is no queue: congestion control took its delay for one, and sent a packet every
/// 2.3 ms.
#[test]
fn a_long_path_alone_does_not_pace_a_session() {
    let subset = "calls=1".parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_endpoints(46_226_943_615_124),
    ));
}

/// Almost two megabytes, a packet every 1.09 ms: the bound was too short by one part in ten
/// thousand.
#[test]
fn a_single_credit_on_six_links_may_take_its_time() {
    let subset = "calls=5".parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_budgets(10_000_104_129),
    ));
}

/// A host was paused beyond the end of the load, and its late calls came after the probes had
/// begun. The harness took one that was not made for a probe, and closed before the probe was
/// answered.
#[test]
fn a_late_call_does_not_count_as_a_probe() {
    let subset = "hosts=5/calls=77,81,84-85,94,96,98-100"
        .parse()
        .expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_budgets(31_000_023_596),
    ));
}

/// A device on a link of 1 Gb/s had megabytes of retransmissions in its queue, and the endpoint
/// polled it for room without a pause.
#[test]
fn an_endpoint_with_a_full_device_does_not_spin() {
    let subset = "rules=5/calls=33,35,43-44,48".parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_budgets(50_100_062_974),
    ));
}

/// A switch that flips bits past all checksums turned a frame's header into a request for four
/// megabytes, which no server can answer. The harness ignored that error, and its server never
/// answered.
#[test]
fn a_response_keeps_to_the_message_limit() {
    let subset = concat!(
        "rules=0/calls=0-3,12,19-25,28-31,34-35,38-40,42-45,49,55-56,60-62,67,",
        "75-76,78-83,91-93,95-96,107,114,118,120-122,125-128,132,134-136,139,",
        "143,145-148,157-158,162-163,165,167,174,178",
    );
    let subset = subset.parse().expect("a subset");
    let mut plan = RunPlan::from_seed_before_budgets(50_900_015_145);
    plan.workers = false;
    keeps_every_promise(&Subset::of(&subset, &plan));
}

/// A server without memory for a request refused it, then had memory when another copy came, and
/// ran it.
#[test]
fn a_request_refused_for_lack_of_memory_is_not_run_later() {
    let subset = concat!(
        "calls=0-3,14-26,36-44,47-54,57-71,118-120,123-126,131-134,137-142,",
        "157-160,165-166,179-180,236,250,253-255,257,260-261,264,268,270,286,",
        "288",
    );
    let subset = subset.parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_budgets(70_100_120_759),
    ));
}

/// Late calls of a paused host found no place for a session. The harness stopped waiting for the
/// probe of their channel, and the probe opened a session after all had been closed.
#[test]
fn a_late_call_that_is_not_made_ends_no_probe() {
    let subset = "hosts=4/calls=1-2,4".parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_budgets(73_000_131_372),
    ));
}

/// An item filled all room of its sender's end of a stream. The request that took it away made room, and
/// the harness did not wake the writer.
#[test]
fn what_leaves_wakes_the_writer_of_a_stream() {
    keeps_every_promise(&RunPlan::from_seed_before_budgets(205_524_020_488_632));
}

/// A session ended by the clock while its turn handed out events, and a stream's call met its end there.
/// The harness asked for the report in the same turn.
#[test]
fn a_session_that_ends_while_events_are_handled_is_reported_later() {
    let subset = "hosts=2/streams=3".parse().expect("a subset");
    keeps_every_promise(&Subset::of(
        &subset,
        &RunPlan::from_seed_before_budgets(152_269_867_342_754),
    ));
}

/// A client whose connect was lost spun anew for each of the calls that its owner made meanwhile, and was taken for one
/// that never sleeps.
#[test]
fn an_endpoint_spins_for_each_call_that_its_owner_makes() {
    let subset = concat!(
        "rules=2-3/calls=407,413,415-417,419,421-423,426-427,430-433,436,438-439,442-443,446,448-455,",
        "458-459,461,463-469,472-473,475-476,478-480,482-483,485-487,491,494-500,502-505,509,511,",
        "513-517,519,522-524,526-527,529-531,533,535-536,538-543,546-548,550-553,556-561,564-567,",
        "570-571,573-577,580-581,584-585,588-589,592/closes=236",
    );
    let subset = subset.parse().expect("a subset");
    let plan = RunPlan::from_seed(105_064_990_416_923);
    keeps_every_promise(&Subset::of(&subset, &plan));
}

/// A client that has just begun to close an idle member of a group was taken for one that does not know its session.
#[test]
fn a_client_knows_of_a_session_that_it_closes() {
    keeps_every_promise(&RunPlan::from_seed(77_325_313_768_669));
}
