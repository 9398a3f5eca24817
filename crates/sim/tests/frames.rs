//! Random runs whose datagrams cross as Ethernet frames: the packet code that AF_XDP devices have
//! changes nothing, and takes no damaged frame.

use std::collections::BTreeMap;

use starling_sim::harness::{Report, RunPlan, run};
use starling_sim::net::Marking;
use starling_sim::{Fault, FrameCounts, Framing, Rule};

/// Seeds whose runs are compared.
const SEEDS: u64 = 100;

fn run_in(framing: Option<Framing>, plan: &RunPlan) -> Report {
    let mut plan = plan.clone();
    plan.fabric.framing = framing;
    run(&plan).unwrap_or_else(|failure| panic!("{framing:?}: {failure}"))
}

/// The report without its frame counts, and the counts.
fn without(mut report: Report) -> (Report, FrameCounts) {
    let frames = std::mem::take(&mut report.counters.frames);
    (report, frames)
}

fn is_damage(rule: &Rule) -> bool {
    matches!(rule.fault, Fault::Corrupt { undetected, .. } if !undetected)
}

/// Senders, marks, bytes, times and the actions of switches are the same, to the bit.
#[test]
fn a_run_is_the_same_run_with_frames() {
    let mut marked = 0;
    for seed in 0..SEEDS {
        let mut plan = RunPlan::from_seed(seed);
        plan.rules.retain(|rule| !is_damage(rule));
        for switch in &mut plan.fabric.topology.switches {
            switch.marking = Marking::Threshold { bytes: 0 };
        }
        let framing = Framing::ALL[seed as usize % Framing::ALL.len()];
        let (framed, frames) = without(run_in(Some(framing), &plan));
        assert_eq!(frames, FrameCounts::default(), "seed {seed}");
        assert_eq!(framed, run_in(None, &plan), "seed {seed}");
        marked += framed.marked;
    }
    println!("{marked} frames were marked by switches");
    assert!(marked > 1_000, "{marked}");
}

/// A tenth of all frames is damaged. Runs of whole endpoints and of bare protocols continue as if
/// these frames had been lost, and a device reports a reason to drop each.
#[test]
fn damaged_frames_are_lost_and_nothing_else() {
    let mut dropped = BTreeMap::new();
    let mut endpoints = 0;
    for seed in 0..SEEDS {
        let mut plan = RunPlan::from_seed(seed);
        let (ppm, undetected) = (100_000, false);
        let damage = Fault::Corrupt { ppm, undetected };
        let rule = Rule::everywhere(0, plan.heal_ns, damage);
        plan.rules.push(rule);
        let framing = Framing::ALL[seed as usize % Framing::ALL.len()];
        let (mut framed, frames) = without(run_in(Some(framing), &plan));
        let plain = run_in(None, &plan);
        // The trace has the bytes of dropped frames.
        framed.trace_hash = plain.trace_hash;
        assert_eq!(framed, plain, "seed {seed}");
        assert_eq!(frames.damaged, frames.dropped.values().sum::<u64>());
        endpoints += u64::from(plan.endpoints && frames.damaged > 0);
        for (reason, count) in frames.dropped {
            *dropped.entry(reason).or_insert(0) += count;
        }
    }
    println!("dropped: {dropped:?}; {endpoints} runs of whole endpoints");
    assert!(dropped.len() >= 7, "{dropped:?}");
    assert!(endpoints >= 10, "{endpoints}");
}
