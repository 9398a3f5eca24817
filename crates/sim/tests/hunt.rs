//! The hunt: thousands of random runs of the session protocol, with checkers on each.
//!
//! For each failing seed the test prints the command that replays it. `STARLING_SEEDS=n` sets how
//! many seeds the fixed set has, `STARLING_FRESH_SEEDS=n` how many are drawn afresh. With
//! `STARLING_ONLY=streams`, `hostile` or `threads` only those of them run that have streams, hostile hosts or threads
//! that share an endpoint.

use std::hash::{BuildHasher, RandomState};

use starling_sim::harness::{
    Attack, Branches, Failure, Outcomes, PlantedBug, Report, RunPlan, run, run_with_bug, shrink,
};

/// Seeds of the fixed set.
const FIXED_SEEDS: u64 = 3_000;
/// Seeds drawn afresh each time.
const FRESH_SEEDS: u64 = 200;
/// Runs that shrinking may take.
const SHRINKING_RUNS: usize = 300;

fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

fn run_seed(seed: u64) -> Result<Report, Box<Failure>> {
    run(&RunPlan::from_seed(seed))
}

/// Whether a run is to be made.
fn is_wanted(plan: &RunPlan) -> bool {
    match std::env::var("STARLING_ONLY").as_deref() {
        Ok("streams") => !plan.streams.is_empty(),
        Ok("hostile") => !plan.attacks.is_empty(),
        Ok("threads") => plan.threads,
        _ => true,
    }
}

/// Runs all seeds and fails at the end, with every failing seed named and the first one shrunk. Returns the branches
/// that were taken.
fn hunt(seeds: impl Iterator<Item = u64>) -> Branches {
    let (mut sum, mut taken) = (Outcomes::default(), Branches::default());
    let (mut runs, mut stream_runs) = (0, 0);
    let mut failures = Vec::new();
    for seed in seeds {
        let plan = RunPlan::from_seed(seed);
        if !is_wanted(&plan) {
            continue;
        }
        runs += 1;
        stream_runs += u64::from(!plan.streams.is_empty());
        match run(&plan) {
            Ok(Report {
                outcomes, branches, ..
            }) => {
                taken.add(&branches);
                sum.answered += outcomes.answered;
                sum.streams_ended += outcomes.streams_ended;
                sum.streams_failed += outcomes.streams_failed;
                sum.items += outcomes.items;
            }
            Err(failure) => failures.push(failure),
        }
    }
    println!("{runs} runs, {stream_runs} of them with streams: {sum:?}");
    let Some(first) = failures.first() else {
        return taken;
    };
    for failure in &failures {
        println!("{}: {}", failure.replay_command(), failure.violation);
    }
    let smallest = shrink(first.clone(), None, SHRINKING_RUNS);
    panic!(
        "{} seeds failed; the first, shrunk:\n{smallest}",
        failures.len()
    );
}

#[test]
fn fixed_seeds_keep_every_promise() {
    let end = number_from_environment("STARLING_SEEDS").unwrap_or(FIXED_SEEDS);
    println!("seeds: 0 to {end}, fixed");
    let taken = hunt(0..end);
    if end == FIXED_SEEDS && std::env::var_os("STARLING_ONLY").is_none() {
        let untaken = taken.untaken();
        let attacks = Attack::ALL.map(Attack::name);
        assert!(
            !attacks.iter().any(|it| untaken.contains(it)),
            "{untaken:?}"
        );
    }
}

#[test]
fn fresh_seeds_keep_every_promise() {
    // Any random start will do, since the seeds are printed.
    let start = RandomState::new().hash_one(0u8) >> 16;
    let end = start + number_from_environment("STARLING_FRESH_SEEDS").unwrap_or(FRESH_SEEDS);
    println!("seeds: {start} to {end}, fresh");
    let _ = hunt(start..end);
}

#[test]
fn the_same_seed_is_the_same_run_to_the_bit() {
    let hash = |seed| run_seed(seed).map_or_else(|_| 0, |report| report.trace_hash);
    for seed in [1, 7, 42, 15] {
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
    assert_ne!(hash(1), hash(2));
}

/// The checker for each planted bug finds it within a few random runs.
#[test]
fn planted_bugs_are_caught() {
    for planted_bug in PlantedBug::ALL {
        let mut plans = (0..3_000).map(RunPlan::from_seed).filter(|plan| {
            // In a very lossy network, a call may fail because a retransmission is missing.
            planted_bug != PlantedBug::LostRetransmission
                || plan.is_survivable() && !plan.is_faultless()
        });
        let caught = plans.find_map(|plan| {
            let failure = run_with_bug(&plan, Some(planted_bug)).err()?;
            Some((plan.seed, failure.violation))
        });
        let (seed, violation) = caught.unwrap_or_else(|| panic!("{planted_bug:?} was not caught"));
        println!("{planted_bug:?} at seed {seed}: {violation}");
        assert_eq!(
            violation.checker,
            planted_bug.caught_by(),
            "{planted_bug:?}"
        );
    }
}
