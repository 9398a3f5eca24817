//! Admission control: which requests with a deadline are worth running.
//!
//! An overloaded server has a queue that grows until callers give up; then it runs only requests
//! that no caller waits for any more. So the endpoint decides about a request with a deadline just
//! before its handler would run, by the time that the request has waited already:
//!
//! ```text
//!  caller's clock   call made ──────────── deadline
//!  this clock          ╎ own queue, network, receive queue, burst │ admit ─▶ handler ─▶ answer
//!                      └──────────────── waited ─────────────────┘
//! ```
//!
//! **How long it waited.** A caller sends its clock's time of the call. The clocks need not agree:
//! the smallest difference between the clocks in a peer's last intervals stands for a request
//! without any wait, and the excess of a request over this floor is its wait. LEDBAT measures queues
//! in this way (RFC 6817, section 3.4.2). A floor rises by 1/4096 of its age, because the clocks may
//! drift apart. If they drift by less than that, the computed wait is never longer than the true
//! one. After one of the clocks jumped, the peer's requests may be refused wrongly until two
//! intervals are over ([`INTERVAL_NS`], or [`INTERVAL_SAMPLES`] requests if they take longer). Only
//! the peer's own stamps count, so a peer that sends wrong stamps harms only itself.
//!
//! **What is refused.** A request that has expired; and, if there is a queue *here*, a request that
//! would be answered too late or nearly so. A wait here cannot be longer than the time since the
//! receive queue was last empty. So a call that waited only in its caller's queue is run.
//!
//! **Shedding.** Refusing just enough would leave a standing queue, in which every call waits until
//! it is nearly too late. The floors would rise to include that queue. So the endpoint sheds load
//! when most requests have waited for a quarter of their time, for as long as that: it then refuses
//! all such requests until the queue is empty. That is soon, because a refusal takes a fraction of
//! a microsecond. A queue that an absence left is worked off before shedding begins. CoDel tells
//! good queues from bad ones in this way (RFC 8289, section 3), and Facebook's servers by the time
//! since they were last empty (Maurer, "Fail at Scale", ACM Queue 13(8), 2015). A majority has to
//! be late, so that one caller cannot cause the refusal of the others' calls.

use std::time::Duration;

use starling_call::header::DeadlineStamp;
use starling_proto::PeerId;

use crate::cadence::FLUSH_NS;
use crate::timers::NEVER;

/// A peer's floor is the smallest difference of this interval and the one before it.
const INTERVAL_NS: u64 = 1_000_000_000;
/// An interval has at least this many requests.
const INTERVAL_SAMPLES: u32 = 8;
/// Clocks drift apart by less than one part in 2^12, 244 ppm. Two quartz oscillators drift by 100.
const DRIFT_SHIFT: u32 = 12;

/// Shedding begins when this many more requests waited long than did not.
const MAJORITY: u8 = 32;

/// The smallest difference between two clocks so far, in microseconds that may wrap.
#[derive(Clone, Copy, Debug)]
struct Floor {
    difference_us: u32,
    at_ns: u64,
}

impl Floor {
    /// How far `difference_us` is above the floor by now; negative if it is below.
    fn excess_us(&self, now_ns: u64, difference_us: u32) -> i64 {
        let drift_ns = now_ns.saturating_sub(self.at_ns) >> DRIFT_SHIFT;
        let above_us = difference_us.wrapping_sub(self.difference_us) as i32;
        i64::from(above_us) - (drift_ns / 1000) as i64
    }
}

/// The state of a peer's clock.
#[derive(Clone, Copy, Debug)]
struct PeerClock {
    /// The peer's incarnation. Another incarnation has another clock.
    token: u64,
    /// Requests in this interval.
    samples: u32,
    began_ns: u64,
    /// Of this interval.
    floor: Floor,
    /// Of the interval before.
    previous: Floor,
}

impl PeerClock {
    fn new(token: u64, now_ns: u64, difference_us: u32) -> Self {
        let floor = Floor {
            difference_us,
            at_ns: now_ns,
        };
        Self {
            token,
            samples: 1,
            began_ns: now_ns,
            floor,
            previous: floor,
        }
    }

    /// How long a request has waited, at least.
    fn waited_us(&mut self, now_ns: u64, difference_us: u32) -> u64 {
        let over = now_ns.saturating_sub(self.began_ns) >= INTERVAL_NS;
        if over && self.samples >= INTERVAL_SAMPLES {
            *self = Self {
                previous: self.floor,
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
        let waited_us = above(self.floor).max(above(self.previous));
        u64::try_from(waited_us).unwrap_or(0)
    }
}

/// How long a method's handler runs: mean and deviation, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunTime {
    mean_ns: u32,
    deviation_ns: u32,
}

impl RunTime {
    /// Records a run.
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

    /// A time that few runs exceed.
    fn likely_ns(self) -> u64 {
        u64::from(self.mean_ns) + 2 * u64::from(self.deviation_ns)
    }
}

/// When a request has to begin and to be answered, by this endpoint's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) now_ns: u64,
    /// When the caller gives up.
    pub(crate) deadline_ns: u64,
    /// If the handler has not begun by then, the answer comes too late.
    pub(crate) start_by_ns: u64,
}

impl Timing {
    /// How long the caller still waits.
    #[inline]
    pub(crate) fn remaining(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(self.now_ns))
    }

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
    /// There are more requests than the server can answer in time.
    Overloaded,
}

/// Shedding: which requests are refused, and until when.
#[derive(Clone, Copy, Debug)]
struct Shed {
    /// The end, unless the queue is empty before.
    until_ns: u64,
    /// The wait of the request that began it.
    waited_ns: u64,
}

/// The waits of one endpoint's requests.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Indexed by peer, up to the highest one that made calls with deadlines.
    clocks: Vec<Option<PeerClock>>,
    /// When the receive queue was last seen empty.
    empty_ns: u64,
    /// How many more requests waited long than did not, and since when.
    ahead: u8,
    ahead_since_ns: u64,
    shed: Option<Shed>,
}

impl Admission {
    /// Records that nothing waits to be received.
    #[inline]
    pub(crate) fn queue_is_empty(&mut self, now_ns: u64) {
        self.empty_ns = now_ns;
        self.ahead = 0;
        self.shed = None;
    }

    /// How long a request has waited since the call was made, at least. `token` is the incarnation
    /// of its peer.
    fn waited_ns(&mut self, now_ns: u64, peer: PeerId, token: u64, sent_us: u32) -> u64 {
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

    /// Whether to take a request of a stream that has begun: its handler runs already, so load is no reason
    /// to refuse it.
    pub(crate) fn admit_to_stream(
        &mut self,
        now_ns: u64,
        (peer, token): (PeerId, u64),
        stamp: DeadlineStamp,
    ) -> Result<Timing, NotAdmitted> {
        let waited_ns = match stamp.sent_us {
            Some(sent_us) => self.waited_ns(now_ns, peer, token, sent_us),
            None => 0,
        };
        match stamp
            .timeout_us
            .saturating_mul(1000)
            .saturating_sub(waited_ns)
        {
            0 => Err(NotAdmitted::Expired),
            left_ns => Ok(Timing {
                now_ns,
                deadline_ns: now_ns.saturating_add(left_ns).min(NEVER - 1),
                start_by_ns: NEVER,
            }),
        }
    }

    /// Whether to run a request, and by when a worker has to begin it.
    pub(crate) fn admit(
        &mut self,
        now_ns: u64,
        (peer, token): (PeerId, u64),
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
        // The answer may wait for its flush, but a short deadline is not reduced by that much.
        let flush_ns = (2 * FLUSH_NS).min(timeout_ns / 8);
        let needed_ns = (timeout_ns / 4).max(run.likely_ns().saturating_add(flush_ns));
        // A request that has hardly waited is run, even if the estimates are against it.
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

    /// Counts a request that has waited here for `here_ns`. Returns whether to shed it.
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
        // In that time all requests that wait now would be read, even if they were run.
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

    /// A server that was busy from the beginning. Its callers' clocks are `behind_us` behind.
    #[derive(Default)]
    struct Server {
        admission: Admission,
        behind_us: u32,
    }

    impl Server {
        /// Admits a request that has waited for `waited_ns`.
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

        /// The time that is left to a request that has waited for `waited_ns`.
        fn left_ns(&mut self, now_ns: u64, waited_ns: u64) -> u64 {
            let timing = self.admit(now_ns, ME, waited_ns).unwrap();
            timing.deadline_ns - now_ns
        }
    }

    #[test]
    fn a_stream_that_has_begun_goes_on_under_load_until_its_deadline() {
        let mut server = Server::default();
        let (mut now_ns, mut refused) = (10_000 * MS, 0);
        for _ in 0..1000 {
            now_ns += 20 * US;
            refused += u32::from(server.admit(now_ns, ME, 1_000 * US).is_err());
            let stamp = |timeout_us| DeadlineStamp {
                timeout_us,
                sent_us: Some((now_ns / US) as u32),
            };
            let admission = &mut server.admission;
            let taken = admission.admit_to_stream(now_ns, (ME, 1), stamp(2_000));
            assert!(taken.is_ok_and(|timing| timing.deadline_ns > now_ns));
            let expired = admission.admit_to_stream(now_ns, (ME, 1), stamp(0));
            assert_eq!(expired, Err(NotAdmitted::Expired));
        }
        assert!(refused > 0, "there was no load");
    }

    #[test]
    fn the_wait_is_subtracted_whatever_the_clocks_read() {
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
    fn the_computed_wait_is_never_longer_than_the_true_one_however_clocks_drift() {
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
        assert!(refused_until_ns < jumped_ns + 2 * INTERVAL_NS);
        // A jump in the other direction refuses nothing.
        server.behind_us = 0;
        assert_eq!(server.left_ns(now_ns, 0), 2 * MS);
    }

    #[test]
    fn a_restarted_peer_has_another_clock() {
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
    fn a_request_that_waited_elsewhere_is_run_until_its_deadline() {
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
        let mut admit = |waited_ns| {
            let stamp = DeadlineStamp {
                timeout_us: 2_000,
                sent_us: Some(((100 * MS - waited_ns) / US) as u32),
            };
            server.admission.admit(100 * MS, (ME, 1), stamp, run)
        };
        let begun = admit(900 * US).unwrap();
        assert_eq!(begun.deadline_ns, 101_100 * US);
        assert_eq!(begun.start_by_ns, 100 * MS + 250 * US);
        assert_eq!(admit(1_000 * US), Err(NotAdmitted::Overloaded));
        // A request that has hardly waited is run, however long its handler takes.
        run.record(1 << 40);
        let mut server = Server::default();
        let stamp = DeadlineStamp {
            timeout_us: 2_000,
            sent_us: Some(0),
        };
        assert!(server.admission.admit(0, (ME, 1), stamp, run).is_ok());
    }

    #[test]
    fn when_most_requests_have_waited_long_all_are_refused_until_the_queue_is_empty() {
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
        // A queue that is never empty: shedding ends when what waited would have been run.
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
            // Wrong stamps.
            let _ = server.admit(now_ns, ME, 1900 * US);
            assert!(server.admit(now_ns, OTHER, 0).is_ok());
        }
    }
}
