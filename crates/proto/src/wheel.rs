//! A timing wheel of sessions, in the manner of Carousel (SIGCOMM 2017).
//!
//! One instance keeps retransmission timers, another paces congested sessions. What is in the
//! wheel are sessions, never packets: a session that is due is looked at and sends, or is put
//! back. So nothing in the wheel refers to a message, and nothing must ever be taken out of it
//! (eRPC's appendix C has to drop responses for the lack of this).
//!
//! ```text
//!  cursor ──▶ [ ][ ][•]──▶ session 7 ──▶ session 2
//!             [ ][ ][•]──▶ session 9         intrusive lists: one link per session
//! ```
//!
//! Insertion and expiry are O(1) per session. A time beyond the horizon is put at the horizon:
//! the session comes out early, finds that it is not due, and goes back.

/// No session.
const NONE: u32 = u32::MAX;
/// The link of a session that is in no list.
const ABSENT: u32 = u32::MAX - 1;
/// Places on the wheel.
const PLACES: usize = 1024;

/// A timing wheel over session indices.
#[derive(Debug)]
pub(crate) struct Wheel {
    shift: u32,
    /// The tick up to which all places have been emptied.
    cursor: u64,
    heads: Box<[u32; PLACES]>,
    /// Which places are not empty.
    occupied: [u64; PLACES / 64],
    links: Vec<u32>,
    len: usize,
}

impl Wheel {
    /// A wheel with ticks of 2^`shift` ns.
    pub(crate) fn new(shift: u32, now: u64) -> Self {
        Self {
            shift,
            cursor: now >> shift,
            heads: Box::new([NONE; PLACES]),
            occupied: [0; PLACES / 64],
            links: Vec::new(),
            len: 0,
        }
    }

    /// Puts a session in, to come out at `at` or a little later, unless it is in already.
    pub(crate) fn insert(&mut self, session: usize, at: u64) {
        if session >= self.links.len() {
            self.links.resize(session + 1, ABSENT);
        }
        if self.links[session] != ABSENT {
            return;
        }
        // Rounded up, so that a session does not come out before its time, and never into a
        // tick that has been emptied already.
        let tick = ((at >> self.shift) + 1).clamp(self.cursor + 1, self.cursor + PLACES as u64 - 1);
        let place = tick as usize % PLACES;
        self.links[session] = self.heads[place];
        self.heads[place] = session as u32;
        self.occupied[place / 64] |= 1 << (place % 64);
        self.len += 1;
    }

    /// Takes out all that is due and hands it to `due`. Bounded by one turn of the wheel.
    #[inline]
    pub(crate) fn expire(&mut self, now: u64, due: &mut Vec<u32>) {
        let tick = now >> self.shift;
        if tick > self.cursor {
            self.advance(tick, due);
        }
    }

    fn advance(&mut self, tick: u64, due: &mut Vec<u32>) {
        if self.len == 0 {
            self.cursor = tick;
            return;
        }
        let steps = (tick - self.cursor).min(PLACES as u64);
        for step in 1..=steps {
            let place = (self.cursor + step) as usize % PLACES;
            let mut session = std::mem::replace(&mut self.heads[place], NONE);
            self.occupied[place / 64] &= !(1 << (place % 64));
            while session != NONE {
                due.push(session);
                session = std::mem::replace(&mut self.links[session as usize], ABSENT);
                self.len -= 1;
            }
        }
        self.cursor = tick;
    }

    /// When [`Wheel::expire`] has something to hand out next.
    pub(crate) fn next(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let start = (self.cursor + 1) as usize % PLACES;
        // Word by word around the wheel; the first word twice, for its lower and upper part.
        for step in 0..=PLACES / 64 {
            let word = (start / 64 + step) % (PLACES / 64);
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= !0 << (start % 64);
            } else if step == PLACES / 64 {
                bits &= !(!0 << (start % 64));
            }
            if bits != 0 {
                let place = word * 64 + bits.trailing_zeros() as usize;
                let distance = (place + PLACES - start) % PLACES;
                return Some((self.cursor + 1 + distance as u64) << self.shift);
            }
        }
        unreachable!(
            "{} sessions on the wheel, but no place is occupied",
            self.len
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is put in comes out once, not before its time, and (within the horizon) at
        /// most two ticks after it; `next` never lies.
        #[test]
        fn each_comes_out_once_and_in_time(
            start in 0u64..1 << 40,
            gaps in prop::collection::vec((0u64..3_000, 0u64..2_000), 1..200),
        ) {
            let mut wheel = Wheel::new(3, start);
            let mut now = start;
            let mut waiting: Vec<(usize, u64, u64)> = Vec::new();
            let mut due = Vec::new();
            for (session, (delay, step)) in gaps.into_iter().enumerate() {
                let horizon = now + ((PLACES as u64 - 2) << 3);
                wheel.insert(session, now + delay * 8);
                wheel.insert(session, now);
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
}
