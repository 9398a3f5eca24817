use super::*;
use crate::policy::Weighting;

const N: usize = 5;

fn policies() -> [Policy; 5] {
    [
        Policy::PickFirst { shuffle: false },
        Policy::RoundRobin,
        Policy::LeastRequest { choices: 2 },
        Policy::WeightedRoundRobin(Weighting::default()),
        Policy::RingHash(crate::RingHash::by_metadata("user")),
    ]
}

fn picker(policy: &Policy, readiness: &[Readiness]) -> Picker {
    let keys: Vec<String> = (0..readiness.len())
        .map(|i| format!("shm://b{i}"))
        .collect();
    let views = keys.iter().zip(readiness).map(|(key, readiness)| View {
        key,
        readiness: *readiness,
        weight: 0.0,
    });
    let views: Vec<_> = views.collect();
    Picker::new(policy, &views, &mut Random::new(7))
}

/// How often each backend is picked in 1000 calls of as many keys.
fn counts(picker: &Picker, is_usable: impl Fn(usize) -> bool) -> [usize; N] {
    let (mut counts, mut random) = ([0; N], Random::new(11));
    for _ in 0..1000 {
        let at = random.next_u64();
        match picker.pick(Some(at), &mut random, &is_usable, |_| 0) {
            Pick::Backend(index) => counts[index] += 1,
            other => panic!("{other:?}"),
        }
    }
    counts
}

#[test]
fn every_policy_picks_ready_and_usable_backends_only() {
    use Readiness::{Failed, Ready};
    for policy in policies() {
        let picker = picker(&policy, &[Failed, Ready, Ready, Failed, Ready]);
        let counts = counts(&picker, |index| index != 2);
        let unwanted = counts[0] + counts[2] + counts[3];
        assert_eq!(unwanted, 0, "{policy:?}");
    }
}

#[test]
fn all_but_pick_first_use_all_backends() {
    for policy in policies() {
        let counts = counts(&picker(&policy, &[Readiness::Ready; N]), |_| true);
        match policy {
            Policy::PickFirst { .. } => assert_eq!(counts, [1000, 0, 0, 0, 0]),
            Policy::RoundRobin | Policy::WeightedRoundRobin(_) => assert_eq!(counts, [200; N]),
            _ => assert!(counts.iter().all(|n| (100..300).contains(n)), "{counts:?}"),
        }
    }
}

#[test]
fn a_call_waits_while_a_backend_is_being_connected_and_else_fails() {
    use Readiness::{Failed, Pending, Ready};
    for policy in policies() {
        let pick = |readiness: &[Readiness]| {
            let picker = picker(&policy, readiness);
            let picked = picker.pick(None, &mut Random::new(1), |_| true, |_| 0);
            (picked, picker.readiness())
        };
        assert_eq!(
            pick(&[Failed, Pending]),
            (Pick::Wait, Pending),
            "{policy:?}"
        );
        assert_eq!(pick(&[Failed, Failed]), (Pick::Fail, Failed), "{policy:?}");
        assert_eq!(pick(&[]), (Pick::Fail, Failed), "{policy:?}");
        assert_eq!(pick(&[Ready]), (Pick::Backend(0), Ready), "{policy:?}");
        // What the picker knows is old, or the call was there already.
        let ready = picker(&policy, &[Ready, Ready]);
        let picked = ready.pick(None, &mut Random::new(1), |_| false, |_| 0);
        assert_eq!(picked, Pick::Fail, "{policy:?}");
    }
}

#[test]
fn least_request_prefers_the_backend_with_fewer_calls() {
    let policy = Policy::LeastRequest { choices: 2 };
    let picker = picker(&policy, &[Readiness::Ready; N]);
    let mut load = [0u64; N];
    let mut random = Random::new(5);
    // The first one is slow: its calls never end.
    for call in 0..1000 {
        let picked = picker.pick(None, &mut random, |_| true, |index| load[index]);
        let Pick::Backend(index) = picked else {
            panic!("{picked:?}");
        };
        load[index] += 1;
        if call % 2 == 1 {
            (1..N).for_each(|index| load[index] = load[index].saturating_sub(1));
        }
    }
    assert!(load[0] < 60, "{load:?}");
}
