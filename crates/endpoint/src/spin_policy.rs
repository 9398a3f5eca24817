//! How long an event loop without work spins before it sleeps.
//!
//! To sleep and be woken takes 5 to 50 us, and up to 200 us in a virtual machine. So a loop spins for long while
//! that pays: while work comes before the end of the spin. If it does not, because peers are silent for longer or
//! wait for this very core, the loop spins for [`SHORT_NS`] only. It tries again after some idle times, after twice
//! as many if that fails, and so on. A loop that spins yields its core, so that a peer that waits for the core can
//! answer before the end of the spin, and neither has to be woken. (KVM polls in a like way before it halts a
//! processor, but goes by the last idle time. Two loops that sleep make each other's idle times long, so these say
//! nothing.)

use crate::config::Idle;

/// A loop spins for so long in any case, if [`Idle`] allows it: longer than a round trip between two loops that are
/// awake. So of two loops that sleep it is enough if one tries a long spin.
const SHORT_NS: u64 = 20_000;
/// So many long spins in a row that bring no work are the last ones.
const MISSES: u32 = 4;
/// After so many short spins a loop tries a long one, at least and at most.
const FEW: u32 = 16;
const MANY: u32 = 1 << 8;

/// A loop that has spun for so long yields its core in each turn: the one that it waits for may wait for that core. If
/// its last yields found nobody, it begins later.
const EARLY_NS: u64 = 3_000;
const LATE_NS: u64 = 24_000;
/// A yield that takes less found nobody, and the loop yields again after this pause only.
const VAIN_YIELD_NS: u64 = 1_000;
const VAIN_PAUSE_NS: u64 = 2_000;
/// A yield that takes longer has given the core to another program, for a slice of the scheduler. The loop does not
/// yield for this time then.
const LONG_YIELD_NS: u64 = 500_000;
const LONG_PAUSE_NS: u64 = 10_000_000;

/// A loop that never sleeps has a core of its own, and yields to nobody.
const FOR_EVER_NS: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct SpinPolicy {
    longest_ns: u64,
    length: Length,
    /// Long spins in a row that brought no work.
    misses: u32,
    /// Short spins since the last long one.
    short_spins: u32,
    /// The loop tries a long one after so many of them. Doubles whenever spins become short.
    enough: u32,
    /// When the loop last had work.
    active_ns: u64,
    /// When it first looked for work after that and found none.
    idle_ns: u64,
    phase: Phase,
    /// The loop yields after it has spun for so long, and not before this time.
    yields_after_ns: u64,
    yields_from_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Long,
    Short,
    /// Twice as long as others: the peer may have to be woken.
    Try,
}

/// Of an idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Spinning,
    /// The loop has spun for long enough.
    Over,
    /// That is counted.
    Counted,
}

impl SpinPolicy {
    pub(crate) fn new(idle: Idle) -> Self {
        Self {
            longest_ns: idle.spin_ns(),
            length: Length::Long,
            misses: 0,
            short_spins: 0,
            enough: FEW / 2,
            // Not yet.
            active_ns: u64::MAX,
            idle_ns: 0,
            phase: Phase::Counted,
            yields_after_ns: EARLY_NS,
            yields_from_ns: 0,
        }
    }

    /// Whether a loop spins that has looked for work now, and had some last at `active_ns`.
    #[inline]
    pub(crate) fn spins(&mut self, active_ns: u64, now_ns: u64) -> bool {
        if active_ns != self.active_ns {
            self.begin(active_ns, now_ns);
        }
        let spin_ns = match self.length {
            Length::Long => self.longest_ns,
            Length::Short => self.longest_ns.min(SHORT_NS),
            Length::Try => self.longest_ns.saturating_mul(2),
        };
        let spins = now_ns.saturating_sub(self.idle_ns) < spin_ns;
        if !spins && self.phase == Phase::Spinning {
            self.phase = Phase::Over;
        }
        spins
    }

    /// Whether a loop that spins lets others run that wait for its core.
    #[inline]
    pub(crate) fn yields(&self, now_ns: u64) -> bool {
        self.longest_ns < FOR_EVER_NS
            && now_ns.saturating_sub(self.idle_ns) >= self.yields_after_ns
            && now_ns >= self.yields_from_ns
    }

    /// The loop has let others run.
    pub(crate) fn record_yield(&mut self, before_ns: u64, after_ns: u64) {
        let pause_ns = match after_ns.saturating_sub(before_ns) {
            0..VAIN_YIELD_NS => {
                self.yields_after_ns = (2 * self.yields_after_ns).min(LATE_NS);
                VAIN_PAUSE_NS
            }
            VAIN_YIELD_NS..LONG_YIELD_NS => {
                self.yields_after_ns = EARLY_NS;
                0
            }
            LONG_YIELD_NS.. => LONG_PAUSE_NS,
        };
        self.yields_from_ns = after_ns + pause_ns;
    }

    /// The loop sleeps now: because it has spun for long enough, or for another reason.
    pub(crate) fn record_sleep(&mut self) {
        if self.phase != Phase::Over {
            return;
        }
        self.phase = Phase::Counted;
        match self.length {
            Length::Short => self.record_short_spin(),
            Length::Long if self.misses + 1 < MISSES => self.misses += 1,
            Length::Long | Length::Try => {
                self.length = Length::Short;
                self.short_spins = 0;
                self.enough = (2 * self.enough).min(MANY);
            }
        }
    }

    /// Another idle time begins.
    fn begin(&mut self, active_ns: u64, now_ns: u64) {
        self.active_ns = active_ns;
        self.idle_ns = now_ns;
        let phase = std::mem::replace(&mut self.phase, Phase::Spinning);
        if phase != Phase::Spinning {
            return;
        }
        // The last one has ended before the spin did.
        match self.length {
            Length::Short => self.record_short_spin(),
            Length::Long => {
                self.misses = 0;
                self.enough = FEW / 2;
            }
            Length::Try => {
                self.length = Length::Long;
                self.misses = 0;
            }
        }
    }

    fn record_short_spin(&mut self) {
        self.short_spins += 1;
        if self.short_spins >= self.enough {
            self.length = Length::Try;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const US: u64 = 1_000;
    const LONG_NS: u64 = 200 * US;

    /// A loop that is idle again and again, and what it does meanwhile.
    struct Loop {
        policy: SpinPolicy,
        now_ns: u64,
    }

    impl Loop {
        fn new() -> Self {
            let spin = Duration::from_nanos(LONG_NS);
            Self {
                policy: SpinPolicy::new(Idle::Adaptive { spin }),
                now_ns: 0,
            }
        }

        /// Works for a while, and is idle until work comes, so long after that, or after the loop sleeps. Returns
        /// for how long the loop span.
        fn idle(&mut self, after_ns: u64, after_sleep_ns: u64) -> u64 {
            let active_ns = self.now_ns;
            self.now_ns += 30 * US;
            let since_ns = self.now_ns;
            while self.now_ns < since_ns + after_ns {
                if self.policy.spins(active_ns, self.now_ns) {
                    self.now_ns += US;
                    continue;
                }
                let span_ns = self.now_ns - since_ns;
                self.now_ns = (since_ns + after_ns).min(self.now_ns + after_sleep_ns);
                self.policy.record_sleep();
                self.now_ns += US;
                return span_ns;
            }
            self.now_ns += US;
            after_ns
        }
    }

    const NEVER: u64 = u64::MAX / 2;

    #[test]
    fn a_loop_spins_as_long_as_that_brings_work() {
        let mut endless = Loop::new();
        for _ in 0..10_000 {
            assert_eq!(endless.idle(100 * US, NEVER), 100 * US);
            assert_eq!(endless.idle(150 * US, NEVER), 150 * US);
            // Now and then a peer thinks.
            assert_eq!(endless.idle(5_000 * US, NEVER), LONG_NS);
        }
    }

    #[test]
    fn a_loop_that_gets_work_seldom_hardly_spins() {
        let mut seldom = Loop::new();
        let spins: Vec<u64> = (0..1_000).map(|_| seldom.idle(1_000 * US, NEVER)).collect();
        let first = &spins[..MISSES as usize];
        assert!(first.iter().all(|spin| *spin == LONG_NS), "{first:?}");
        let long = spins.iter().filter(|spin| **spin >= LONG_NS).count();
        assert!(long < 16, "{long}");
        // It spins again when that pays.
        let spins: Vec<u64> = (0..1_000).map(|_| seldom.idle(60 * US, NEVER)).collect();
        let last = &spins[MANY as usize..];
        assert!(last.iter().all(|spin| *spin == 60 * US), "{last:?}");
    }

    #[test]
    fn a_loop_whose_peers_need_its_core_hardly_spins() {
        // They answer 10 us after it sleeps, never before.
        let mut shared = Loop::new();
        let spins: Vec<u64> = (0..20_000).map(|_| shared.idle(NEVER, 10 * US)).collect();
        let long = spins.iter().filter(|spin| **spin >= LONG_NS).count();
        assert!(long < 100, "{long}");
    }

    #[test]
    fn two_loops_that_have_put_each_other_to_sleep_spin_again() {
        // To wake either takes 190 us.
        let wake_ns = |slept| if slept { 190 * US } else { 0 };
        let (mut client, mut server) = (Loop::new(), Loop::new());
        for of in [&mut client, &mut server] {
            (0..20).for_each(|_| assert!(of.idle(5_000 * US, NEVER) > 0));
        }
        let mut client_gap_ns = 390 * US;
        for _ in 0..2_000 {
            let server_slept = server.idle(client_gap_ns, NEVER) < client_gap_ns;
            let back_ns = 10 * US + wake_ns(server_slept);
            let client_slept = client.idle(back_ns, NEVER) < back_ns;
            client_gap_ns = 10 * US + wake_ns(client_slept);
        }
        assert_eq!(server.policy.length, Length::Long);
        assert_eq!(client.policy.length, Length::Long);
    }

    #[test]
    fn a_loop_that_sleeps_for_another_reason_has_not_spun_in_vain() {
        let mut spinning = Loop::new();
        for work in 1..100 {
            assert!(spinning.policy.spins(work, work));
            // The work came in another way, and a reactor waits.
            spinning.policy.record_sleep();
        }
        assert_eq!(spinning.policy.length, Length::Long);
    }

    /// Spins from time 0 for 100 us, by turns of 0.1 us. Its yields take so long. Returns when it yields.
    fn yields(policy: &mut SpinPolicy, from_ns: u64, takes_ns: u64) -> Vec<u64> {
        let (mut now_ns, mut at) = (from_ns, Vec::new());
        assert!(policy.spins(from_ns, from_ns));
        while now_ns < from_ns + 100 * US {
            now_ns += 100;
            if policy.yields(now_ns) {
                at.push(now_ns - from_ns);
                policy.record_yield(now_ns, now_ns + takes_ns);
                now_ns += takes_ns;
            }
        }
        at
    }

    #[test]
    fn a_loop_yields_to_those_that_wait_for_its_core_and_hardly_in_vain() {
        let idle = Idle::Adaptive {
            spin: Duration::from_nanos(LONG_NS),
        };
        let mut policy = SpinPolicy::new(idle);
        let shared = yields(&mut policy, 0, 2 * US);
        assert_eq!(shared[0], EARLY_NS);
        assert!(shared.len() >= 45, "in each turn: {}", shared.len());
        // Nobody waits: what it misses by a yield is a tenth of its time.
        let alone = yields(&mut policy, 1000 * US, 200);
        assert!((2..45).contains(&alone.len()), "{}", alone.len());
        let alone = yields(&mut policy, 2000 * US, 200);
        assert_eq!(alone[0], LATE_NS);
        // Somebody waits again.
        let shared = yields(&mut policy, 3000 * US, 2 * US);
        assert_eq!(shared[0], LATE_NS);
        assert_eq!(yields(&mut policy, 4000 * US, 2 * US)[0], EARLY_NS);
        // Another program takes the core for milliseconds.
        assert_eq!(yields(&mut policy, 5000 * US, 3000 * US).len(), 1);
        assert_eq!(yields(&mut policy, 9000 * US, 3000 * US), []);
        // The core is the loop's own.
        assert_eq!(yields(&mut SpinPolicy::new(Idle::Spin), 0, 2 * US), []);
    }

    #[test]
    fn what_may_not_spin_does_not() {
        let mut block = SpinPolicy::new(Idle::Block);
        for work in 1..100 {
            assert!(!block.spins(work, work));
            block.record_sleep();
        }
        let mut spin = SpinPolicy::new(Idle::Spin);
        for work in 1..100 {
            assert!(spin.spins(work, work + 1_000_000 * US));
            spin.record_sleep();
        }
    }
}
