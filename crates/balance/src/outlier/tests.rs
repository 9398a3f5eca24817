use std::time::Duration;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Of 100 calls to each backend, so many fail. Backends have the ids 0, 1, ...
fn interval(failures: &[u32]) -> Vec<(u64, Counts)> {
    let counts = failures.iter().map(|failures| Counts {
        successes: 100 - failures,
        failures: *failures,
    });
    (0..).zip(counts).collect()
}

fn by_failures() -> OutlierDetection {
    OutlierDetection::default()
        .max_ejection_percent(50)
        .by_failure_percentage(FailurePercentage {
            threshold: 50,
            ..FailurePercentage::default()
        })
}

fn by_success_rate() -> OutlierDetection {
    OutlierDetection::default()
        .max_ejection_percent(50)
        .by_success_rate(SuccessRate::default())
}

struct Run {
    outliers: Outliers,
    settings: OutlierDetection,
    random: Random,
}

impl Run {
    fn new(settings: OutlierDetection) -> Self {
        Self {
            outliers: Outliers::default(),
            settings,
            random: Random::new(5),
        }
    }

    fn sweep(&mut self, second: u64, counts: &[(u64, Counts)]) -> (Vec<u64>, Vec<u64>) {
        let now = second * SECOND;
        let changes = self
            .outliers
            .sweep(&self.settings, now, counts, &mut self.random);
        (changes.ejected, changes.returned)
    }
}

#[test]
fn a_backend_that_fails_more_than_the_threshold_is_ejected() {
    let mut run = Run::new(by_failures());
    let changes = run.sweep(10, &interval(&[0, 50, 51, 100, 10]));
    assert_eq!(changes, (vec![2, 3], vec![]));
    assert!(run.outliers.is_ejected(3) && !run.outliers.is_ejected(1));
}

#[test]
fn a_backend_far_below_the_mean_is_ejected_and_equally_bad_ones_are_not() {
    let mut run = Run::new(by_success_rate());
    let changes = run.sweep(10, &interval(&[1, 2, 1, 0, 2, 1, 30]));
    assert_eq!(changes, (vec![6], vec![]));
    let mut run = Run::new(by_success_rate());
    let changes = run.sweep(10, &interval(&[60, 61, 60, 59, 60, 61]));
    assert_eq!(changes, (vec![], vec![]));
}

#[test]
fn too_few_backends_or_calls_say_nothing() {
    for settings in [by_failures(), by_success_rate()] {
        let mut run = Run::new(settings);
        assert_eq!(run.sweep(10, &interval(&[0, 0, 0, 100])).0, [0; 0]);
        let mut few = interval(&[0, 0, 0, 0, 0, 100]);
        few[5].1 = Counts {
            successes: 0,
            failures: 49,
        };
        assert_eq!(run.sweep(20, &few).0, [0; 0]);
        assert_eq!(run.sweep(30, &[]), (vec![], vec![]));
    }
}

#[test]
fn no_more_than_the_share_is_ejected_but_one_always_may_be() {
    let all_bad = [100; 20];
    for (percent, most) in [(0, 0), (1, 1), (10, 2), (50, 10), (100, 20)] {
        let mut run = Run::new(by_failures().max_ejection_percent(percent));
        assert_eq!(run.sweep(10, &interval(&all_bad)).0.len(), most);
        // Those that are out count the next time, too.
        assert_eq!(run.sweep(20, &interval(&all_bad)).0.len(), 0);
    }
}

#[test]
fn a_backend_returns_after_its_time_which_grows_and_shrinks_again() {
    let base = Duration::from_secs(30);
    let settings = by_failures().ejection_time(base, Duration::from_secs(100));
    let mut run = Run::new(settings);
    let (bad, good) = (interval(&[0, 0, 0, 0, 100]), interval(&[0; 5]));
    let mut now = 0;
    // The last one is bounded by the longest time.
    for seconds in [30, 60, 90, 100, 100] {
        now += 10;
        assert_eq!(run.sweep(now, &bad), (vec![4], vec![]));
        let until = now + seconds;
        while now + 10 <= until {
            now += 10;
            assert_eq!(run.sweep(now, &good), (vec![], vec![]), "at {now}");
        }
        now += 10;
        assert_eq!(run.sweep(now, &good), (vec![], vec![4]), "at {now}");
    }
    // One good interval less for each time that it was out: after five, it is as if it never was.
    for _ in 0..5 {
        now += 10;
        run.sweep(now, &good);
    }
    now += 10;
    assert_eq!(run.sweep(now, &bad).0, [4]);
    assert_eq!(run.sweep(now + 31, &good).1, [4]);
}

#[test]
fn backends_that_are_gone_are_forgotten() {
    let mut run = Run::new(by_failures());
    assert_eq!(run.sweep(10, &interval(&[0, 0, 0, 0, 100])).0, [4]);
    run.sweep(20, &interval(&[0; 4]));
    assert!(!run.outliers.is_ejected(4));
    assert_eq!(run.outliers.states.len(), 4);
}

#[test]
fn the_chance_of_ejection_is_what_it_is_set_to() {
    let criterion = FailurePercentage {
        enforcement_percentage: 30,
        ..FailurePercentage::default()
    };
    let settings = OutlierDetection::default()
        .max_ejection_percent(100)
        .by_failure_percentage(criterion);
    let mut run = Run::new(settings);
    let ejected = run.sweep(10, &interval(&[100; 1000])).0.len();
    assert!((250..350).contains(&ejected), "{ejected}");
}

#[test]
fn without_a_criterion_nobody_is_ejected() {
    let mut run = Run::new(OutlierDetection::default());
    assert_eq!(run.sweep(10, &interval(&[100; 10])), (vec![], vec![]));
    assert!(!run.settings.is_active());
}
