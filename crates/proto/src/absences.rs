//! When this endpoint did not hear its peers: their silence of that time means nothing.
//!
//! ```text
//!  caught up        caught up   asleep    woken             now
//!      ●──── 80 ms ────●─ 3 ms ─●──────────●──── 60 ms ─────▶
//!           absence      present   present    absence so far
//! ```
//!
//! Between two moments at which it had read all that had arrived, an endpoint was held up by a handler, descheduled, or
//! busy with what others sent. What a peer sent meanwhile may have lain unread until the end of it.

/// Less than this is no absence.
const LONG_NS: u64 = 50_000_000;

/// How many are known: with more in a row, the older ones count as silence.
const KNOWN: usize = 8;

/// The last absences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absences {
    /// From when to when. One that never was has no length.
    last: [(u64, u64); KNOWN],
    next: usize,
    /// Until when all was heard. Never: the owner does not say.
    heard_until: u64,
}

impl Default for Absences {
    fn default() -> Self {
        Self {
            last: [(0, 0); KNOWN],
            next: 0,
            heard_until: u64::MAX,
        }
    }
}

impl Absences {
    /// All that had arrived is read.
    #[inline]
    pub(crate) fn caught_up(&mut self, now: u64) {
        if now.saturating_sub(self.heard_until) >= LONG_NS {
            self.record(now);
        }
        self.heard_until = now;
    }

    /// Since it had caught up, the endpoint has slept: anything that arrived would have woken it.
    #[inline]
    pub(crate) fn woken(&mut self, now: u64) {
        self.heard_until = now;
    }

    #[cold]
    fn record(&mut self, now: u64) {
        self.last[self.next] = (self.heard_until, now);
        self.next = (self.next + 1) % KNOWN;
    }

    /// How much of the time since then this endpoint could have heard a peer.
    pub(crate) fn present_since(&self, since: u64, now: u64) -> u64 {
        let away = |(began, ended): &(u64, u64)| ended.saturating_sub(since.max(*began));
        let before: u64 = self.last.iter().map(away).sum();
        let until_now = match now.saturating_sub(self.heard_until) {
            long if long >= LONG_NS => away(&(self.heard_until, now)),
            _ => 0,
        };
        now.saturating_sub(since).saturating_sub(before + until_now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn time_away_does_not_count_as_silence() {
        let mut absences = Absences::default();
        let present_since =
            |absences: &Absences, since, now| absences.present_since(since * MS, now * MS) / MS;
        assert_eq!(present_since(&absences, 100, 400), 300, "nobody says");
        absences.caught_up(100 * MS);
        absences.caught_up(149 * MS);
        absences.woken(250 * MS);
        assert_eq!(present_since(&absences, 100, 250), 150, "heard all");
        assert_eq!(present_since(&absences, 100, 299), 199, "not for long");
        assert_eq!(present_since(&absences, 100, 300), 150, "away until now");
        assert_eq!(present_since(&absences, 270, 300), 0, "in the middle of it");
        absences.caught_up(310 * MS);
        assert_eq!(present_since(&absences, 100, 320), 160);
        assert_eq!(present_since(&absences, 300, 320), 10);
        assert_eq!(present_since(&absences, 315, 320), 5);
        for again in 1..=KNOWN as u64 {
            absences.caught_up((310 + 50 * again) * MS);
        }
        assert_eq!(
            present_since(&absences, 100, 710),
            210,
            "the first is forgotten"
        );
    }
}
