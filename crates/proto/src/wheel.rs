//! A timing wheel of sessions, in the manner of Carousel (SIGCOMM 2017).
//!
//! One instance keeps retransmission timers, another paces congested sessions. The wheel holds
//! sessions, never packets: a session that is due sends, or is inserted again. So no entry refers to
//! a message, and no entry must be removed before it is due (eRPC, appendix C, has packets in its
//! wheel and must drop responses for that).
//!
//! ```text
//!  cursor ──▶ [ ][ ][•]──▶ session 7 ──▶ session 2
//!             [ ][ ][•]──▶ session 9         intrusive lists: two links per session
//! ```
//!
//! Insertion, moving and expiry are O(1) per session. A session with a time beyond the horizon is
//! put at the horizon: it comes out early, is not due, and is inserted again.
//!
//! A turn of an event loop that finds nothing due compares two times and leaves the wheel alone. The
//! cursor catches up when something is due or inserted.

/// No session.
const NONE: u32 = u32::MAX;
/// The `next` of a session that is in no list.
const ABSENT: u32 = u32::MAX - 1;
/// Flag of a `previous` that is the list's bucket and not a session.
const HEAD: u32 = 1 << 31;
/// Buckets on the wheel.
const BUCKETS: usize = 1024;

/// The neighbours of a session in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    previous: u32,
}

/// A timing wheel over session indices.
#[derive(Debug)]
pub(crate) struct Wheel {
    shift: u32,
    /// The tick up to which all buckets are empty.
    cursor: u64,
    /// When a session comes out, at the earliest; `u64::MAX` if none is in.
    due_at: u64,
    heads: Box<[u32; BUCKETS]>,
    /// Which buckets are not empty.
    occupied: [u64; BUCKETS / 64],
    links: Vec<Link>,
    len: usize,
    /// Buckets and entries visited so far.
    #[cfg(test)]
    visits: std::cell::Cell<u64>,
}

impl Wheel {
    /// A wheel with ticks of 2^`shift` ns.
    pub(crate) fn new(shift: u32, now: u64) -> Self {
        Self {
            shift,
            cursor: now >> shift,
            due_at: u64::MAX,
            heads: Box::new([NONE; BUCKETS]),
            occupied: [0; BUCKETS / 64],
            links: Vec::new(),
            len: 0,
            #[cfg(test)]
            visits: std::cell::Cell::default(),
        }
    }

    /// Inserts a session, to come out at `at` or a little later. A session that is in is moved. `turned`
    /// is the last time for which [`Wheel::expire`] was called, or had nothing to do.
    pub(crate) fn insert(&mut self, session: usize, at: u64, turned: u64) {
        self.catch_up(turned);
        if session >= self.links.len() {
            let absent = Link {
                next: ABSENT,
                previous: 0,
            };
            self.links.resize(session + 1, absent);
        }
        if self.links[session].next != ABSENT {
            self.remove(session);
        }
        // Rounded up, so that a session does not come out before its time, and never into a
        // tick that has been emptied already.
        let tick =
            ((at >> self.shift) + 1).clamp(self.cursor + 1, self.cursor + BUCKETS as u64 - 1);
        let bucket = tick as usize % BUCKETS;
        let next = std::mem::replace(&mut self.heads[bucket], session as u32);
        if next != NONE {
            self.links[next as usize].previous = session as u32;
        }
        let previous = HEAD | bucket as u32;
        self.links[session] = Link { next, previous };
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        self.len += 1;
        self.due_at = self.due_at.min(tick << self.shift);
    }

    /// Nothing comes out until `turned`.
    fn catch_up(&mut self, turned: u64) {
        debug_assert!(turned < self.due_at, "expire had something to do");
        self.cursor = self.cursor.max(turned >> self.shift);
    }

    /// Removes a session that is in, to insert it elsewhere.
    #[cold]
    fn remove(&mut self, session: usize) {
        let Link { next, previous } = self.links[session];
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
        if previous & HEAD == 0 {
            self.links[previous as usize].next = next;
        } else {
            let bucket = (previous & !HEAD) as usize;
            self.heads[bucket] = next;
            if next == NONE {
                self.occupied[bucket / 64] &= !(1 << (bucket % 64));
            }
        }
        self.len -= 1;
    }

    /// When [`Wheel::expire`] has something to do, at the earliest; `u64::MAX` if no session is in.
    #[inline]
    pub(crate) fn due_at(&self) -> u64 {
        self.due_at
    }

    /// Moves all sessions that are due to `due`. Bounded by one turn of the wheel.
    pub(crate) fn expire(&mut self, now: u64, due: &mut Vec<u32>) {
        if now < self.due_at {
            return self.catch_up(now);
        }
        let tick = now >> self.shift;
        let steps = (tick - self.cursor).min(BUCKETS as u64);
        for step in 1..=steps {
            let bucket = (self.cursor + step) as usize % BUCKETS;
            #[cfg(test)]
            self.visits.update(|visits| visits + 1);
            let mut session = std::mem::replace(&mut self.heads[bucket], NONE);
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
            while session != NONE {
                #[cfg(test)]
                self.visits.update(|visits| visits + 1);
                due.push(session);
                session = std::mem::replace(&mut self.links[session as usize].next, ABSENT);
                self.len -= 1;
            }
        }
        self.cursor = tick;
        // One that was moved may have been the earliest.
        self.due_at = self.next().unwrap_or(u64::MAX);
    }

    /// When the next session comes out of [`Wheel::expire`].
    pub(crate) fn next(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let start = (self.cursor + 1) as usize % BUCKETS;
        // Word by word around the wheel; the first word twice, for its lower and upper part.
        for step in 0..=BUCKETS / 64 {
            #[cfg(test)]
            self.visits.update(|visits| visits + 1);
            let word = (start / 64 + step) % (BUCKETS / 64);
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= !0 << (start % 64);
            } else if step == BUCKETS / 64 {
                bits &= !(!0 << (start % 64));
            }
            if bits != 0 {
                let bucket = word * 64 + bits.trailing_zeros() as usize;
                let distance = (bucket + BUCKETS - start) % BUCKETS;
                return Some((self.cursor + 1 + distance as u64) << self.shift);
            }
        }
        unreachable!(
            "{} sessions on the wheel, but no bucket is occupied",
            self.len
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each session that is put in comes out once, not before its time, and (within the
        /// horizon) at most two ticks after it; `next` never lies.
        #[test]
        fn each_session_comes_out_once_and_in_time(
            start in 0u64..1 << 40,
            gaps in prop::collection::vec((0u64..3_000, 0u64..2_000), 1..200),
        ) {
            let mut wheel = Wheel::new(3, start);
            let mut now = start;
            let mut waiting: Vec<(usize, u64, u64)> = Vec::new();
            let mut due = Vec::new();
            for (session, (delay, step)) in gaps.into_iter().enumerate() {
                let horizon = now + ((BUCKETS as u64 - 2) << 3);
                wheel.insert(session, now, now);
                wheel.insert(session, now + delay * 8, now);
                waiting.push((session, (now + delay * 8).min(horizon), now));
                now += step;
                let next = wheel.next().expect("something is in");
                due.clear();
                wheel.expire(now, &mut due);
                prop_assert_eq!(due.is_empty(), next > now);
                for &session in &due {
                    let at = waiting.iter().position(|w| w.0 == session as usize);
                    let (_, at, _) = waiting.remove(at.expect("was put in, came out once"));
                    prop_assert!(now >= at.min(horizon));
                }
                prop_assert!(waiting.iter().all(|w| w.1 + 16 > now));
            }
            due.clear();
            wheel.expire(now + (1 << 20), &mut due);
            prop_assert_eq!(due.len(), waiting.len());
            prop_assert_eq!(wheel.next(), None);
        }
    }

    proptest! {
        /// However often sessions are moved, each comes out once, at its last time.
        #[test]
        fn a_moved_session_comes_out_at_its_last_time(
            moves in prop::collection::vec((0usize..12, 0u64..900), 1..300),
        ) {
            let mut wheel = Wheel::new(SHIFT, 0);
            let mut last = [None; 12];
            for (session, tick) in moves {
                wheel.insert(session, tick * TICK, 0);
                last[session] = Some(tick);
            }
            prop_assert_eq!(wheel.len, last.iter().flatten().count());
            for tick in 0..901 {
                for session in out(&mut wheel, (tick + 1) * TICK) {
                    prop_assert_eq!(last[session as usize].take(), Some(tick));
                }
            }
            prop_assert_eq!(last, [None; 12]);
            prop_assert_eq!(wheel.next(), None);
        }
    }

    const SHIFT: u32 = 4;
    const TICK: u64 = 1 << SHIFT;
    /// The furthest tick that an entry can be put in for.
    const HORIZON: u64 = BUCKETS as u64 - 1;

    /// The sessions that come out at `now`.
    fn out(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.expire(now, &mut due);
        due
    }

    /// A session due at any time within the horizon comes out at the first tick after its time,
    /// and `next` predicts that tick.
    #[test]
    fn a_session_comes_out_at_the_first_tick_after_its_time() {
        for start in [
            0,
            1,
            TICK - 1,
            1000 * TICK + 7,
            u64::from(u32::MAX) * TICK + 3,
        ] {
            for delay in (0..(HORIZON - 1) * TICK).step_by(13) {
                let mut wheel = Wheel::new(SHIFT, start);
                wheel.insert(3, start + delay, start);
                let due_at = ((start + delay) / TICK + 1) * TICK;
                assert_eq!(wheel.next(), Some(due_at), "{start} {delay}");
                assert_eq!(out(&mut wheel, due_at - 1), [], "{start} {delay}");
                assert_eq!(out(&mut wheel, due_at), [3], "{start} {delay}");
            }
        }
    }

    /// However late the wheel is turned, the order is that of the ticks.
    #[test]
    fn sessions_that_expire_together_come_out_in_the_order_of_their_times() {
        let mut wheel = Wheel::new(SHIFT, 0);
        let tick_of = |session: u64| session * 389 % HORIZON;
        for session in 0..HORIZON {
            wheel.insert(session as usize, tick_of(session) * TICK, 0);
        }
        let ticks: Vec<u64> = out(&mut wheel, HORIZON * TICK * 5)
            .into_iter()
            .map(|session| tick_of(session.into()))
            .collect();
        assert_eq!(ticks.len() as u64, HORIZON);
        assert!(ticks.is_sorted());
    }

    /// A time beyond the horizon: out at the horizon, not due yet, and in again, until it is.
    #[test]
    fn a_time_beyond_the_horizon_takes_a_few_rounds() {
        let mut wheel = Wheel::new(SHIFT, 0);
        let (at, mut now, mut rounds) = (10_000 * TICK + 5, 0, 0);
        wheel.insert(0, at, 0);
        while now < at {
            now = wheel.next().expect("it is in");
            assert_eq!(out(&mut wheel, now), [0]);
            rounds += 1;
            if now < at {
                wheel.insert(0, at, now);
            }
        }
        assert_eq!(now, 10_001 * TICK, "as exact as one within the horizon");
        assert_eq!(rounds, 10_001_u64.div_ceil(HORIZON));
    }

    /// Sessions that want the same get the same, in any order of arrival, and also where the
    /// wheel is turned late.
    #[test]
    fn sessions_of_one_rate_send_equally_often() {
        const SESSIONS: usize = 50;
        let mut wheel = Wheel::new(SHIFT, 0);
        let mut sent = [0u64; SESSIONS];
        for session in 0..SESSIONS {
            wheel.insert(session, (session as u64 * 7 % 100) * TICK, 0);
        }
        let mut now = 0;
        for turn in 0..20_000u64 {
            now += TICK * (1 + turn * turn % 9);
            for session in out(&mut wheel, now) {
                sent[session as usize] += 1;
                wheel.insert(session as usize, now + 100 * TICK, now);
            }
        }
        let (least, most) = (sent.iter().min(), sent.iter().max());
        let (least, most) = (*least.unwrap(), *most.unwrap());
        assert!(least > 500 && most - least <= most / 20, "{least} {most}");
    }

    /// An insertion has no loop. Expiry visits each bucket once and each due entry once. `next` visits
    /// one word for each 64 buckets.
    #[test]
    fn the_cost_does_not_depend_on_how_many_wait() {
        for crowd in [0, 1_000, 100_000] {
            let mut wheel = Wheel::new(SHIFT, 0);
            for session in 0..crowd {
                wheel.insert(session, (500 + session as u64 % 400) * TICK, 0);
            }
            wheel.insert(crowd, 10 * TICK, 0);
            assert_eq!(wheel.next(), Some(11 * TICK));
            assert!(wheel.visits.take() <= BUCKETS as u64 / 64 + 1);
            assert_eq!(out(&mut wheel, 11 * TICK), [crowd as u32]);
            let search = BUCKETS as u64 / 64 + 1;
            let most = 11 + 1 + search;
            assert!(
                wheel.visits.take() <= most,
                "eleven buckets, an entry, a search"
            );
            let all = out(&mut wheel, 1_000_000 * TICK);
            assert_eq!(all.len(), crowd);
            assert!(wheel.visits.take() <= BUCKETS as u64 + crowd as u64);
        }
    }

    /// Two links for each session and nothing that grows with time or with how often one is put in.
    #[test]
    fn the_wheel_has_two_links_for_each_session_and_no_more() {
        let mut wheel = Wheel::new(SHIFT, 0);
        for round in 0..10_000u64 {
            for session in 0..8 {
                wheel.insert(session, (round + 500) * TICK, round * TICK);
                wheel.insert(session, round * TICK, round * TICK);
            }
            assert_eq!(wheel.len, 8, "each is in once");
            let due = out(&mut wheel, (round + 1) * TICK);
            assert_eq!(due.len(), 8);
        }
        assert_eq!(wheel.links.len(), 8);
        assert!(wheel.links.capacity() <= 16);
    }
}
