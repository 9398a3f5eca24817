//! Messages of several packets: what was sent, what arrived, what to send next.
//!
//! Both directions use the same two windows of at most 64 fragments above the lowest one missing.
//! The sender of a request learns from cumulative and selective credit returns what arrived. The
//! receiver of a response asks for the fragments that it wants. Either way only the client decides
//! what is sent again.
//!
//! ```text
//!        base              next            count
//!  ░░░░░░░│▓ . ▓ . . ▓ . . .│               │      ▓ sacked  . outstanding or lost
//!         └── bit 0 ... ────┘ at most 64
//! ```

use starling_msgbuf::Msgbuf;

use crate::tail::FragmentData;

/// Fragments that may be outstanding for one message: the width of the bitmaps on the wire.
pub(crate) const WINDOW: u32 = 64;
/// A fragment counts as lost when one this far above it arrived. Below that it counts as reordered.
const REORDER: u32 = 3;

/// The lowest `n` bits.
fn mask(n: u32) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

fn shift_right(bits: u64, by: u32) -> u64 {
    bits.checked_shr(by).unwrap_or(0)
}

/// The bits so far below the highest bit of `arrived` that their fragments count as lost.
fn holes(arrived: u64) -> u64 {
    if arrived == 0 {
        return 0;
    }
    let highest = 63 - arrived.leading_zeros();
    if highest < REORDER {
        return 0;
    }
    mask(highest - REORDER + 1) & !arrived
}

/// The sending side of a request of several fragments.
#[derive(Debug)]
pub(crate) struct SendWindow {
    count: u32,
    base: u32,
    next: u32,
    sacked: u64,
    lost: u64,
    /// Holes are declared lost at most once per round trip.
    recovery_at: u64,
    found_lost: bool,
}

impl SendWindow {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            count,
            base: 0,
            next: 0,
            sacked: 0,
            lost: 0,
            recovery_at: 0,
            found_lost: false,
        }
    }

    /// Fragments that are believed to be on their way.
    pub(crate) fn outstanding(&self) -> u32 {
        (self.next - self.base) - self.sacked.count_ones() - self.lost.count_ones()
    }

    /// The fragment to send now, if any.
    pub(crate) fn next_to_send(&self) -> Option<u32> {
        if self.lost != 0 {
            return Some(self.base + self.lost.trailing_zeros());
        }
        (self.next < self.count && self.next - self.base < WINDOW).then_some(self.next)
    }

    /// The fragment that [`SendWindow::next_to_send`] named was sent. Returns whether it was for
    /// the first time.
    pub(crate) fn record_sent(&mut self, index: u32) -> bool {
        let is_first = index == self.next;
        if is_first {
            self.next += 1;
        } else {
            self.lost &= !(1 << (index - self.base));
        }
        is_first
    }

    /// Handles a credit return. Returns whether it reports a fragment that newly arrived.
    pub(crate) fn handle_ack(&mut self, next: u32, sack: u64, now: u64, srtt_ns: u64) -> bool {
        if next < self.base || next > self.next {
            return false;
        }
        let shift = next - self.base;
        self.base = next;
        self.sacked = shift_right(self.sacked, shift);
        self.lost = shift_right(self.lost, shift);
        let known = self.sacked;
        self.sacked |= sack & mask(self.next - self.base);
        self.lost &= !self.sacked;
        if now >= self.recovery_at + srtt_ns {
            let holes = holes(self.sacked);
            if holes & !self.lost != 0 {
                self.lost |= holes;
                self.recovery_at = now;
                self.found_lost = true;
            }
        }
        shift > 0 || self.sacked != known
    }

    /// Whether fragments were found lost, between others that arrived, since this was last asked.
    pub(crate) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.found_lost)
    }

    /// No answer came for a timeout: all outstanding fragments count as lost.
    pub(crate) fn handle_timeout(&mut self, now: u64) {
        self.lost = mask(self.next - self.base) & !self.sacked;
        self.recovery_at = now;
    }

    /// Whether every fragment was sent at least once.
    pub(crate) fn was_sent(&self) -> bool {
        self.next == self.count
    }

    /// Whether every fragment arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.base == self.count
    }

    /// The last fragment's index.
    pub(crate) fn last(&self) -> u32 {
        self.count - 1
    }
}

/// A fragment that cannot belong to the message. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The receiving side of a message of several fragments.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    total: u32,
    fragment: u32,
    count: u32,
    next: u32,
    received: u64,
    buffer: Msgbuf,
}

/// How many fragments of `fragment` bytes a message of `total` bytes has.
pub(crate) fn fragment_count(total: u32, fragment: u32) -> u32 {
    total.div_ceil(fragment).max(1)
}

impl ReceiveWindow {
    /// `buffer` must be empty. Its memory grows as data arrives, at most a window ahead of the data.
    pub(crate) fn new(total: u32, fragment: u32, buffer: Msgbuf) -> Self {
        debug_assert!(buffer.is_empty());
        Self {
            total,
            fragment,
            count: fragment_count(total, fragment),
            next: 0,
            received: 0,
            buffer,
        }
    }

    /// Accepts fragment `index` of a message of `total` bytes. Returns whether it is new and whole.
    pub(crate) fn accept(
        &mut self,
        total: u32,
        index: u32,
        data: &FragmentData<'_>,
    ) -> Result<bool, Malformed> {
        if total != self.total || index >= self.count {
            return Err(Malformed);
        }
        let offset = index as usize * self.fragment as usize;
        if data.len() != (self.fragment as usize).min(self.total as usize - offset) {
            return Err(Malformed);
        }
        if index < self.next
            || index - self.next >= WINDOW
            || self.received & 1 << (index - self.next) != 0
        {
            return Ok(false);
        }
        let buffer = self.buffer.head_mut();
        let is_whole = if offset >= buffer.len() {
            let former = buffer.len();
            buffer.resize(offset, 0);
            let is_whole = data.append_to(buffer);
            if !is_whole {
                buffer.truncate(former);
            }
            is_whole
        } else {
            data.copy_to(&mut buffer[offset..offset + data.len()])
        };
        if !is_whole {
            return Ok(false);
        }
        self.received |= 1 << (index - self.next);
        let run = self.received.trailing_ones();
        self.next += run;
        self.received = shift_right(self.received, run);
        Ok(true)
    }

    /// All fragments below this one arrived.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// How many stretches of about so many bytes have arrived without a gap.
    pub(crate) fn stretches(&self, bytes: u32) -> u32 {
        self.next / (bytes / self.fragment).max(1)
    }

    /// Bit `i`: fragment `next + i` arrived.
    pub(crate) fn sack(&self) -> u64 {
        self.received
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.next == self.count
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn into_buffer(self) -> Msgbuf {
        self.buffer
    }
}

/// The client's side of a response of several fragments: what arrived and what was asked for.
#[derive(Debug)]
pub(crate) struct ResponseWindow {
    pub(crate) arrived: ReceiveWindow,
    /// Fragments below this one were asked for.
    requested: u32,
    /// Fragments that were asked for and count as lost.
    lost: u64,
    recovery_at: u64,
    found_lost: bool,
    /// A fragment that was asked for once, and when.
    timed: Option<(u32, u64)>,
}

impl ResponseWindow {
    /// The server sends the first fragment unasked.
    pub(crate) fn new(arrived: ReceiveWindow) -> Self {
        Self {
            arrived,
            requested: 1,
            lost: 0,
            recovery_at: 0,
            found_lost: false,
            timed: None,
        }
    }

    /// Fragments that are believed to be on their way.
    pub(crate) fn outstanding(&self) -> u32 {
        let asked = self.requested - self.arrived.next().min(self.requested);
        asked - (self.arrived.sack() & mask(asked)).count_ones() - self.lost.count_ones()
    }

    /// Accepts a fragment. Returns whether it is new.
    pub(crate) fn accept(
        &mut self,
        total: u32,
        index: u32,
        data: &FragmentData<'_>,
    ) -> Result<bool, Malformed> {
        if index >= self.requested {
            return Err(Malformed);
        }
        let before = self.arrived.next();
        let fresh = self.arrived.accept(total, index, data)?;
        self.lost = shift_right(self.lost, self.arrived.next() - before) & !self.arrived.sack();
        Ok(fresh)
    }

    /// Finds fragments that are lost. Returns how many fragments to ask for.
    pub(crate) fn find_missing(&mut self, now: u64, srtt_ns: u64) -> u32 {
        let base = self.arrived.next();
        if now >= self.recovery_at + srtt_ns {
            let holes = holes(self.arrived.sack()) & mask(self.requested.saturating_sub(base));
            if holes & !self.lost != 0 {
                self.lost |= holes;
                self.recovery_at = now;
                self.found_lost = true;
            }
        }
        let end = self.arrived.count().min(base + WINDOW);
        self.lost.count_ones() + end.saturating_sub(self.requested)
    }

    /// Whether fragments were found lost, between others that arrived, since this was last asked.
    pub(crate) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.found_lost)
    }

    /// Which fragments to ask for now, at most `credits` of them: `(base, want)`.
    pub(crate) fn next_rfr(&mut self, now: u64, credits: u32) -> Option<(u32, u64)> {
        let base = self.arrived.next();
        let mut left = credits;
        let mut want = 0;
        while left > 0 && self.lost != 0 {
            want |= self.lost & self.lost.wrapping_neg();
            self.lost &= self.lost - 1;
            left -= 1;
            self.timed = None;
        }
        if left > 0 && self.timed.is_none() && self.requested < self.arrived.count() {
            self.timed = Some((self.requested, now));
        }
        while left > 0 && self.requested < self.arrived.count() && self.requested < base + WINDOW {
            want |= 1 << (self.requested - base);
            self.requested += 1;
            left -= 1;
        }
        (want != 0).then_some((base, want))
    }

    /// The request for `want` could not be sent: it counts as lost.
    pub(crate) fn record_unsent(&mut self, want: u64) {
        self.lost |= want;
        self.timed = None;
    }

    /// The time from asking for a fragment to its arrival, if the one that is timed arrived.
    pub(crate) fn take_sample(&mut self, now: u64) -> Option<u64> {
        let next = self.arrived.next();
        let sample = self.timed.take_if(|(fragment, _)| *fragment < next);
        sample.map(|(_, asked_at)| now - asked_at)
    }

    /// No fragment came for a timeout: all fragments that were asked for count as lost.
    pub(crate) fn handle_timeout(&mut self, now: u64) {
        let asked = self.requested - self.arrived.next().min(self.requested);
        self.lost = mask(asked) & !self.arrived.sack();
        self.recovery_at = now;
        self.timed = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ZEROS: [u8; 400] = [0; 400];

    proptest! {
        /// A request crosses a channel that loses, duplicates and reorders; the receiver gets
        /// the very bytes, and the sender's count of outstanding fragments stays true.
        #[test]
        fn a_request_arrives_whole(
            total in 1u32..200_000,
            fragment in 500u32..3_000,
            dice in prop::collection::vec(0u8..10, 1..64),
        ) {
            let message: Vec<u8> = (0..total).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut sender = SendWindow::new(fragment_count(total, fragment));
            let mut receiver = ReceiveWindow::new(total, fragment, Msgbuf::new());
            // At least one in so many gets through.
            let mut roll = dice.iter().chain(&[9]).cycle();
            let mut channel = Vec::new();
            for now in 0..1_000_000u64 {
                if receiver.is_complete() {
                    break;
                }
                let mut sent = 0;
                while let Some(index) = sender.next_to_send() {
                    if sent == 8 { break }
                    sender.record_sent(index);
                    sent += 1;
                    match roll.next().unwrap() {
                        0 => {}
                        1 => channel.extend([index, index]),
                        2 => channel.insert(0, index),
                        _ => channel.push(index),
                    }
                }
                if channel.is_empty() {
                    sender.handle_timeout(now);
                    prop_assert_eq!(sender.outstanding(), 0);
                }
                for index in channel.drain(..channel.len().div_ceil(2)) {
                    let from = (index * fragment) as usize;
                    let to = (from + fragment as usize).min(total as usize);
                    receiver.accept(total, index, &(&message[from..to]).into()).unwrap();
                }
                sender.handle_ack(receiver.next(), receiver.sack(), now, 3);
                prop_assert!(sender.outstanding() <= WINDOW);
            }
            prop_assert!(receiver.is_complete());
            prop_assert!(sender.is_complete());
            prop_assert_eq!(sender.outstanding(), 0);
            let arrived = receiver.into_buffer();
            prop_assert_eq!(arrived.head(), &message[..]);
        }

        /// The same for a response, where the receiver asks.
        #[test]
        fn a_response_arrives_whole(
            total in 2_000u32..200_000,
            fragment in 500u32..1_999,
            credits in 1u32..40,
            dice in prop::collection::vec(0u8..10, 1..64),
        ) {
            let message: Vec<u8> = (0..total).map(|i| (i * 5 + i / 241) as u8).collect();
            let slice = |index: u32| {
                let from = (index * fragment) as usize;
                &message[from..(from + fragment as usize).min(total as usize)]
            };
            let mut window =
                ResponseWindow::new(ReceiveWindow::new(total, fragment, Msgbuf::new()));
            window.accept(total, 0, &slice(0).into()).unwrap();
            // At least one in so many gets through.
            let mut roll = dice.iter().chain(&[9]).cycle();
            let mut channel = Vec::new();
            for now in 0..1_000_000u64 {
                if window.arrived.is_complete() {
                    break;
                }
                let free = credits.saturating_sub(window.outstanding());
                window.find_missing(now, 3);
                if let Some((base, want)) = window.next_rfr(now, free) {
                    prop_assert!(want.count_ones() <= free);
                    for bit in (0..64).filter(|bit| want & 1 << bit != 0) {
                        match roll.next().unwrap() {
                            0 => {}
                            1 => channel.extend([base + bit, base + bit]),
                            2 => channel.insert(0, base + bit),
                            _ => channel.push(base + bit),
                        }
                    }
                }
                if channel.is_empty() {
                    window.handle_timeout(now);
                    prop_assert_eq!(window.outstanding(), 0);
                }
                for index in channel.drain(..channel.len().div_ceil(2)) {
                    window.accept(total, index, &slice(index).into()).unwrap();
                }
            }
            prop_assert!(window.arrived.is_complete());
            prop_assert_eq!(window.outstanding(), 0);
            let arrived = window.arrived.into_buffer();
            prop_assert_eq!(arrived.head(), &message[..]);
        }
    }

    fn zeros(bytes: usize) -> FragmentData<'static> {
        FragmentData::from(&ZEROS[..bytes])
    }

    #[test]
    fn fragments_that_contradict_the_message_are_malformed() {
        let mut window = ReceiveWindow::new(1000, 400, Msgbuf::new());
        assert_eq!(window.accept(1001, 0, &zeros(400)), Err(Malformed));
        assert_eq!(window.accept(1000, 3, &zeros(400)), Err(Malformed));
        assert_eq!(window.accept(1000, 2, &zeros(400)), Err(Malformed));
        assert_eq!(window.accept(1000, 0, &zeros(399)), Err(Malformed));
        assert_eq!(window.accept(1000, 2, &zeros(200)), Ok(true));
        assert_eq!(window.accept(1000, 2, &zeros(200)), Ok(false));
        let mut response = ResponseWindow::new(ReceiveWindow::new(1000, 400, Msgbuf::new()));
        assert_eq!(response.accept(1000, 1, &zeros(400)), Err(Malformed));
    }

    #[test]
    fn an_impossible_acknowledgement_changes_nothing() {
        let mut window = SendWindow::new(100);
        for index in 0..10 {
            window.record_sent(index);
        }
        assert!(!window.handle_ack(11, 0, 0, 0));
        assert!(window.handle_ack(5, !0, 0, 0));
        assert_eq!(window.outstanding(), 0);
        assert!(!window.handle_ack(4, 0, 0, 0));
    }
}
