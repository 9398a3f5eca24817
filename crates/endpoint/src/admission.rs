//! Which requests with a deadline are worth running.
//!
//! A server that is asked for more than it can do has a queue that grows until callers give up,
//! and then runs only what nobody waits for any more. So a request with a deadline is judged just
//! before its handler would run, by the time that it has waited already:
//!
//! ```text
//!  caller's clock   call made ──────────── deadline
//!  this clock          ╎ own queue, network, receive queue, burst │ judged ─▶ handler ─▶ answer
//!                      └──────────────── waited ─────────────────┘
//! ```
//!
//! **How long it waited.** A caller sends along what its clock read when it made the call. The
//! clocks need not agree: the smallest difference of a peer's last windows stands for one without
//! any wait, and what a request has above it is its wait. So LEDBAT measures queues (RFC 6817,
//! section 3.4.2). A floor rises by 1/4096 of the time that it is old, for the clocks may drift
//! apart: as long as they do so by less than that, no request is ever thought to have waited
//! longer than it did. After one of the clocks jumped, the peer's requests may be refused wrongly
//! until two windows are over ([`WINDOW_NS`], or [`WINDOW_SAMPLES`] requests if they take longer).
//! Only the peer's own stamps are used, so who lies about them harms itself.
//!
//! **What is refused.** What has expired; and, if there is a queue *here*, what would be answered
//! too late or nearly so. A wait cannot have been here that is longer than the time since the
//! receive queue was last seen empty: where a call waited in its caller's queue only, it is run.
//!
//! **Shedding.** Refusing just enough would leave a standing queue, in which every call waits until
//! it is nearly too late, and which the floors would come to take for no queue at all. So when most
//! requests have waited for a quarter of their time, and have for as long, everything like them is
//! refused until the queue is empty: a refusal takes a fraction of a microsecond, so that is soon.
//! A queue that is left by an absence is worked off before it comes to that. CoDel tells good
//! queues from bad ones in this way (RFC 8289, section 3), and Facebook's servers by when they were
//! last empty (Maurer, "Fail at Scale", ACM Queue 13(8), 2015). That it is a majority that counts
//! keeps one caller from having the others' calls refused.

use starling_call::header::DeadlineStamp;
use starling_proto::PeerId;

use crate::cadence::FLUSH_NS;
use crate::timers::NEVER;

/// A peer's floor is the smallest difference of this window and the one before it.
const WINDOW_NS: u64 = 1_000_000_000;
/// A window has at least so many requests.
const WINDOW_SAMPLES: u32 = 8;
/// Clocks drift apart by less than one part in 2^12, 244 ppm. Two quartz oscillators do by 100.
const DRIFT_SHIFT: u32 = 12;

/// Shedding begins when the requests that waited long are so many more than the others.
const MAJORITY: u8 = 32;

/// The smallest difference of two clocks that was seen, microseconds that may wrap.
#[derive(Clone, Copy, Debug)]
struct Floor {
    difference_us: u32,
    at_ns: u64,
}

impl Floor {
    /// How far `difference_us` is above the floor by now; negative: below.
    fn excess_us(&self, now_ns: u64, difference_us: u32) -> i64 {
        let drift_ns = now_ns.saturating_sub(self.at_ns) >> DRIFT_SHIFT;
        let above_us = difference_us.wrapping_sub(self.difference_us) as i32;
        i64::from(above_us) - (drift_ns / 1000) as i64
    }
}

/// What is known of a peer's clock.
#[derive(Clone, Copy, Debug)]
struct PeerClock {
    /// The peer's incarnation; another one has another clock.
    token: u32,
    /// Requests in this window.
    samples: u32,
    began_ns: u64,
    floor: Floor,
    former: Floor,
}

impl PeerClock {
    fn new(token: u32, now_ns: u64, difference_us: u32) -> Self {
        let floor = Floor {
            difference_us,
            at_ns: now_ns,
        };
        Self {
            token,
            samples: 1,
            began_ns: now_ns,
            floor,
            former: floor,
        }
    }

    /// How long a request has waited at least.
    fn waited_us(&mut self, now_ns: u64, difference_us: u32) -> u64 {
        let over = now_ns.saturating_sub(self.began_ns) >= WINDOW_NS;
        if over && self.samples >= WINDOW_SAMPLES {
            *self = Self {
                former: self.floor,
                ..Self::new(self.token, now_ns, difference_us)
            };
        } else {
            self.samples = self.samples.saturating_add(1);
            if self.floor.excess_us(now_ns, difference_us) <= 0 {
                self.floor = Floor {
                    difference_us,
                    at_ns: now_ns,
                };
            }
        }
        let above = |floor: Floor| floor.excess_us(now_ns, difference_us);
        let waited_us = above(self.floor).max(above(self.former));
        u64::try_from(waited_us).unwrap_or(0)
    }
}

/// How long a method's handler runs: mean and deviation, smoothed as RFC 6298 does it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunTime {
    mean_ns: u32,
    deviation_ns: u32,
}

impl RunTime {
    /// It ran so long.
    pub(crate) fn record(&mut self, ran_ns: u64) {
        let ran_ns = u32::try_from(ran_ns).unwrap_or(u32::MAX);
        if self.mean_ns == 0 {
            self.mean_ns = ran_ns;
            return;
        }
        let off_ns = ran_ns.abs_diff(self.mean_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + off_ns / 4;
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + ran_ns / 8;
    }

    /// It will hardly run longer.
    fn likely_ns(self) -> u64 {
        u64::from(self.mean_ns) + 2 * u64::from(self.deviation_ns)
    }
}

/// When a request has to be begun and answered, by this endpoint's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) now_ns: u64,
    /// The caller gives up then.
    pub(crate) deadline_ns: u64,
    /// If it is not begun by then, the answer comes too late.
    pub(crate) start_by_ns: u64,
}

impl Timing {
    #[inline]
    pub(crate) fn without_deadline(now_ns: u64) -> Self {
        Self {
            now_ns,
            deadline_ns: NEVER,
            start_by_ns: NEVER,
        }
    }
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// Its deadline has passed.
    Expired,
    /// There are more requests than can be answered in time.
    Overloaded,
}

/// Everything like this is refused for a while.
#[derive(Clone, Copy, Debug)]
struct Shed {
    /// At the latest.
    until_ns: u64,
    /// What the request had waited that set it off.
    waited_ns: u64,
}

/// What one endpoint knows about waits.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// By peer; no more than the highest number of one that made calls with deadlines.
    clocks: Vec<Option<PeerClock>>,
    /// When the receive queue was last seen empty.
    empty_ns: u64,
    /// By how many requests those that waited long are ahead of the others, and since when.
    ahead: u8,
    ahead_since_ns: u64,
    shed: Option<Shed>,
}

impl Admission {
    /// Nothing waits to be received.
    #[inline]
    pub(crate) fn queue_is_empty(&mut self, now_ns: u64) {
        self.empty_ns = now_ns;
        self.ahead = 0;
        self.shed = None;
    }

    /// How long a request has waited at least, since the call was made. `token` is the
    /// incarnation of its peer.
    fn waited_ns(&mut self, now_ns: u64, peer: PeerId, token: u32, sent_us: u32) -> u64 {
        let difference_us = ((now_ns / 1000) as u32).wrapping_sub(sent_us);
        let index = peer.0 as usize;
        if index >= self.clocks.len() {
            self.clocks.resize(index + 1, None);
        }
        let known = self.clocks[index].filter(|clock| clock.token == token);
        let mut clock = known.unwrap_or_else(|| PeerClock::new(token, now_ns, difference_us));
        let waited_us = clock.waited_us(now_ns, difference_us);
        self.clocks[index] = Some(clock);
        waited_us * 1000
    }

    /// Whether to run a request now, and by when a worker has to begin it.
    pub(crate) fn admit(
        &mut self,
        now_ns: u64,
        (peer, token): (PeerId, u32),
        stamp: DeadlineStamp,
        run: RunTime,
    ) -> Result<Timing, NotAdmitted> {
        let timeout_ns = stamp.timeout_us.saturating_mul(1000);
        let waited_ns = match stamp.sent_us {
            Some(sent_us) => self.waited_ns(now_ns, peer, token, sent_us),
            None => 0,
        };
        let here_ns = waited_ns.min(now_ns.saturating_sub(self.empty_ns));
        let overloaded = self.is_overloaded(now_ns, here_ns, timeout_ns);
        let left_ns = timeout_ns.saturating_sub(waited_ns);
        if left_ns == 0 {
            return Err(NotAdmitted::Expired);
        }
        // The answer may wait for its flush, but that much of a short deadline is not kept back.
        let flush_ns = (2 * FLUSH_NS).min(timeout_ns / 8);
        let needed_ns = (timeout_ns / 4).max(run.likely_ns().saturating_add(flush_ns));
        // Whatever the estimates say: what has hardly waited is run.
        let hardly_ns = timeout_ns / 8;
        if overloaded || (here_ns > hardly_ns && left_ns < needed_ns) {
            return Err(NotAdmitted::Overloaded);
        }
        let spare_ns = left_ns
            .saturating_sub(needed_ns)
            .max(hardly_ns.min(left_ns));
        Ok(Timing {
            now_ns,
            deadline_ns: now_ns.saturating_add(left_ns).min(NEVER - 1),
            start_by_ns: now_ns.saturating_add(spare_ns),
        })
    }

    /// Counts a request that has waited here for `here_ns`; whether those like it are refused.
    fn is_overloaded(&mut self, now_ns: u64, here_ns: u64, timeout_ns: u64) -> bool {
        let long_ns = timeout_ns / 4;
        if let Some(shed) = self.shed {
            if now_ns < shed.until_ns {
                return long_ns <= shed.waited_ns;
            }
            self.shed = None;
            self.ahead = 0;
        }
        if here_ns <= long_ns {
            self.ahead = self.ahead.saturating_sub(1);
            return false;
        }
        if self.ahead == 0 {
            self.ahead_since_ns = now_ns;
        }
        self.ahead = (self.ahead + 1).min(MAJORITY);
        let lasted_ns = now_ns.saturating_sub(self.ahead_since_ns);
        if self.ahead < MAJORITY || lasted_ns < long_ns {
            return false;
        }
        // In that time everything that waits now would be read even if it was run.
        self.shed = Some(Shed {
            until_ns: now_ns.saturating_add(here_ns),
            waited_ns: here_ns,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;
    const ME: PeerId = PeerId(3);
    const OTHER: PeerId = PeerId(0);

    /// A server that was busy from the beginning, and callers whose clocks are `behind_us` behind.
    #[derive(Default)]
    struct Server {
        admission: Admission,
        behind_us: u32,
    }

    impl Server {
        /// A request that has waited for so long.
        fn admit(
            &mut self,
            now_ns: u64,
            peer: PeerId,
            waited_ns: u64,
        ) -> Result<Timing, NotAdmitted> {
            let sent_us = (now_ns.wrapping_sub(waited_ns) / US) as u32;
            let stamp = DeadlineStamp {
                timeout_us: 2_000,
                sent_us: Some(sent_us.wrapping_sub(self.behind_us)),
            };
            let run = RunTime::default();
            self.admission.admit(now_ns, (peer, 1), stamp, run)
        }

        /// How much time is left to a request that has waited for so long.
        fn left_ns(&mut self, now_ns: u64, waited_ns: u64) -> u64 {
            let timing = self.admit(now_ns, ME, waited_ns).unwrap();
            timing.deadline_ns - now_ns
        }
    }

    #[test]
    fn the_wait_is_taken_off_whatever_the_clocks_read() {
        for behind_us in [0, 5, 1 << 31, u32::MAX, 123_456_789] {
            let mut server = Server {
                behind_us,
                ..Server::default()
            };
            // Around a wrap of the stamp.
            for now_ns in [10_000 * MS, (1 << 32) * US - MS, (1 << 32) * US + MS] {
                assert_eq!(server.left_ns(now_ns, 0), 2 * MS);
                assert_eq!(server.left_ns(now_ns + MS, 400 * US), 1600 * US);
                let late = server.admit(now_ns + MS, ME, 1600 * US);
                assert_eq!(late, Err(NotAdmitted::Overloaded));
                let late = server.admit(now_ns + MS, ME, 2 * MS);
                assert_eq!(late, Err(NotAdmitted::Expired));
            }
        }
    }

    #[test]
    fn no_request_is_thought_to_have_waited_longer_than_it_did_however_clocks_drift() {
        // 200 ppm in either direction: 1 us in 5 ms; calls now and then, for a minute.
        for (gap_ns, drift_us) in [(5 * MS, 1), (5 * MS, -1), (1_000 * MS, 200)] {
            let mut server = Server::default();
            let mut most_ns = 0;
            for index in 0..60_000 * MS / gap_ns {
                let now_ns = 1_000 * MS + index * gap_ns;
                server.behind_us = server.behind_us.wrapping_add_signed(drift_us);
                most_ns = most_ns.max(2 * MS - server.left_ns(now_ns, 0));
            }
            assert!(most_ns <= 2 * US, "{most_ns}");
        }
    }

    #[test]
    fn a_clock_that_jumps_is_found_again() {
        let mut server = Server::default();
        let mut now_ns = 1_000 * MS;
        let mut refused_until_ns = 0;
        for _ in 0..20 {
            server.left_ns(now_ns, 0);
            now_ns += 100 * MS;
        }
        let jumped_ns = now_ns;
        server.behind_us = 600_000_000;
        for _ in 0..40 {
            if server.admit(now_ns, ME, 0).is_err() {
                refused_until_ns = now_ns;
            }
            now_ns += 100 * MS;
        }
        assert!(refused_until_ns > jumped_ns, "it is not noticed at once");
        assert!(refused_until_ns < jumped_ns + 2 * WINDOW_NS);
        // The other way round nothing is refused at all.
        server.behind_us = 0;
        assert_eq!(server.left_ns(now_ns, 0), 2 * MS);
    }

    #[test]
    fn a_peer_that_has_started_anew_has_another_clock() {
        let mut server = Server::default();
        server.left_ns(MS, 0);
        let stamp = DeadlineStamp {
            timeout_us: 2_000,
            sent_us: Some(77),
        };
        let (admission, run) = (&mut server.admission, RunTime::default());
        let late = admission.admit(2_000 * MS, (ME, 1), stamp, run);
        assert_eq!(late, Err(NotAdmitted::Expired));
        let timing = admission.admit(2_000 * MS, (ME, 2), stamp, run).unwrap();
        assert_eq!(timing.deadline_ns, 2_002 * MS);
    }

    #[test]
    fn what_waited_elsewhere_is_run_as_long_as_it_can_be() {
        let mut server = Server::default();
        server.left_ns(10 * MS, 0);
        server.admission.queue_is_empty(10 * MS);
        assert_eq!(server.left_ns(10 * MS + US, 1_990 * US), 10 * US);
        let late = server.admit(10 * MS + US, ME, 2 * MS);
        assert_eq!(late, Err(NotAdmitted::Expired));
    }

    #[test]
    fn a_handler_that_takes_long_has_to_be_begun_earlier() {
        let mut run = RunTime::default();
        for _ in 0..50 {
            run.record(MS);
        }
        let mut server = Server::default();
        server.left_ns(100 * MS, 0);
        let mut judge = |waited_ns| {
            let stamp = DeadlineStamp {
                timeout_us: 2_000,
                sent_us: Some(((100 * MS - waited_ns) / US) as u32),
            };
            server.admission.admit(100 * MS, (ME, 1), stamp, run)
        };
        let begun = judge(900 * US).unwrap();
        assert_eq!(begun.deadline_ns, 101_100 * US);
        assert_eq!(begun.start_by_ns, 100 * MS + 250 * US);
        assert_eq!(judge(1_000 * US), Err(NotAdmitted::Overloaded));
        // However long it takes: what has hardly waited is run.
        run.record(1 << 40);
        let mut server = Server::default();
        let stamp = DeadlineStamp {
            timeout_us: 2_000,
            sent_us: Some(0),
        };
        assert!(server.admission.admit(0, (ME, 1), stamp, run).is_ok());
    }

    #[test]
    fn when_most_have_waited_long_everything_is_refused_until_the_queue_is_empty() {
        let mut server = Server::default();
        server.left_ns(MS, 0);
        let now_ns = 100 * MS;
        // A queue that is worked off soon, however long it is.
        for _ in 0..1000 {
            assert!(server.admit(now_ns - 500 * US, ME, 600 * US).is_ok());
        }
        assert!(server.admit(now_ns - US, ME, 600 * US).is_ok());
        let late = Err(NotAdmitted::Overloaded);
        assert_eq!(server.admit(now_ns, ME, 600 * US), late);
        assert_eq!(server.admit(now_ns, OTHER, 0), late);
        let patient = DeadlineStamp {
            timeout_us: 10_000,
            sent_us: None,
        };
        let run = RunTime::default();
        assert!(
            server
                .admission
                .admit(now_ns, (ME, 1), patient, run)
                .is_ok()
        );
        server.admission.queue_is_empty(now_ns + US);
        assert!(server.admit(now_ns + US, ME, 0).is_ok());
        // A queue that never is: what waited then would have been run by now.
        let now_ns = now_ns + MS;
        for _ in 0..MAJORITY {
            assert!(server.admit(now_ns, ME, 600 * US).is_ok());
        }
        assert_eq!(server.admit(now_ns + 500 * US, ME, 600 * US), late);
        assert_eq!(server.admit(now_ns + 500 * US, ME, 0), late);
        assert!(server.admit(now_ns + 1_101 * US, ME, 0).is_ok());
    }

    #[test]
    fn one_caller_of_two_cannot_have_the_others_calls_refused() {
        let mut server = Server::default();
        for peer in [ME, OTHER] {
            assert!(server.admit(MS, peer, 0).is_ok());
        }
        for index in 0..10_000 {
            let now_ns = 100 * MS + index * US;
            // This one's stamp are lies.
            let _ = server.admit(now_ns, ME, 1900 * US);
            assert!(server.admit(now_ns, OTHER, 0).is_ok());
        }
    }
}
