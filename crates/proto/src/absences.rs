//! When this endpoint's thread was away: what peers sent meanwhile was not read, so their silence means nothing.

/// How many are known: with more in a row, the older ones count as silence.
const KNOWN: usize = 8;

/// The last absences.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Absences {
    /// From when to when. One that never was has no length.
    last: [(u64, u64); KNOWN],
    next: usize,
}

impl Absences {
    /// The thread was away from `began` to `ended`. The same time may be recorded again, with more of it.
    pub(crate) fn record(&mut self, began: u64, ended: u64) {
        let latest = &mut self.last[(self.next + KNOWN - 1) % KNOWN];
        if (latest.0..latest.1).contains(&began) {
            latest.1 = latest.1.max(ended);
            return;
        }
        self.last[self.next] = (began, ended);
        self.next = (self.next + 1) % KNOWN;
    }

    /// How much of the time since then the thread could have heard a peer.
    pub(crate) fn present_since(&self, since: u64, now: u64) -> u64 {
        let away = |(began, ended): &(u64, u64)| ended.saturating_sub(since.max(*began));
        let away: u64 = self.last.iter().map(away).sum();
        now.saturating_sub(since).saturating_sub(away)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_away_does_not_count_as_silence() {
        let mut absences = Absences::default();
        assert_eq!(absences.present_since(100, 400), 300);
        absences.record(150, 250);
        absences.record(300, 390);
        assert_eq!(absences.present_since(100, 400), 110);
        assert_eq!(absences.present_since(200, 400), 60, "in the middle of one");
        assert_eq!(absences.present_since(395, 400), 5);
        absences.record(300, 395);
        assert_eq!(
            absences.present_since(100, 400),
            105,
            "more of the last one"
        );
        for _ in 0..KNOWN {
            absences.record(0, 0);
        }
        assert_eq!(absences.present_since(100, 400), 300, "forgotten");
    }
}
