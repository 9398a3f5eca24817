//! A packet capture at a host's network card: the round-trip time of each packet, and the message
//! bytes that arrived from each peer.
//!
//! It parses frames by PROTOCOL.md (section 3), independently of the protocol's code. It measures
//! the same as eRPC's clients do for table 5: the time from sending a packet of a large request to
//! its acknowledgement.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use starling_proto::HEADER_BYTES;

pub(super) use crate::check::jain;
use crate::frames::{
    CREDIT_RETURN, Frame, REQUEST, REQUEST_FRAGMENT, RESPONSE_FRAGMENT, frames, u32_at, u64_at,
};
pub(super) use crate::queueing::times;

/// Total and index.
const FRAGMENT_HEADER: usize = 8;
/// More fragments than any message has.
const MAX_FRAGMENTS: u32 = 1 << 20;
/// Fragments of one message that may be on their way.
const WINDOW: usize = 64;

/// Times of the fragments of one slot that are on their way.
#[derive(Clone)]
struct Flight {
    number: u64,
    /// Index and time of sending; zero if it was answered or sent twice.
    sent: [(u32, u64); WINDOW],
}

/// The fragments of a slot's last message that have arrived, to recognise copies.
#[derive(Default)]
struct Arrival {
    number: u64,
    /// A bit for each fragment.
    fragments: Vec<u64>,
}

impl Arrival {
    /// Whether this fragment arrives for the first time.
    fn is_first(&mut self, number: u64, fragment: usize) -> bool {
        if number < self.number {
            return false;
        }
        if number > self.number {
            self.number = number;
            self.fragments.clear();
        }
        let (word, bit) = (fragment / 64, 1 << (fragment % 64));
        if word >= self.fragments.len() {
            self.fragments.resize(word + 1, 0);
        }
        let first = self.fragments[word] & bit == 0;
        self.fragments[word] |= bit;
        first
    }
}

/// A session as its receiver names it, one of its slots, and the direction.
type SlotName = (u32, u8, bool);

/// A capture.
pub(super) struct Capture {
    /// Round-trip times, ns.
    pub(super) rtt_ns: Histogram<u64>,
    /// Bytes of messages that arrived, by the number of the peer they came from: those of fragments
    /// without their headers, and of copies only the first.
    pub(super) received: Vec<u64>,
    arrivals: HashMap<(u32, SlotName), Arrival>,
    flights: BTreeMap<(u32, u8), Flight>,
    /// A deliberate bug, to check that the checker finds it: a peer that goes before all others
    /// while it has frames to send, and when it last had one. A pacing wheel that is not fair does
    /// the same.
    pub(super) favours: Option<(u32, u64)>,
}

/// How long other peers wait after each frame to the favoured peer, ns.
const FAVOUR_NS: u64 = 100_000;

impl Capture {
    pub(super) fn new() -> Self {
        Self {
            rtt_ns: times(),
            received: Vec::new(),
            arrivals: HashMap::new(),
            flights: BTreeMap::new(),
            favours: None,
        }
    }

    /// Drops the measurements, but not the state of fragments on their way.
    pub(super) fn restart(&mut self) {
        self.rtt_ns.reset();
        self.received.fill(0);
    }

    /// Whether a frame for `peer` has to wait for others.
    pub(super) fn holds(&mut self, now_ns: u64, peer: u32) -> bool {
        match &mut self.favours {
            None => false,
            Some((favourite, last_ns)) if peer == *favourite => {
                *last_ns = now_ns;
                false
            }
            Some((_, last_ns)) => now_ns < *last_ns + FAVOUR_NS,
        }
    }

    /// A frame leaves for `peer`; `head` is all of it before the data.
    pub(super) fn sent(&mut self, now_ns: u64, peer: u32, head: &[u8]) {
        if head[0] & 0x1f != REQUEST_FRAGMENT {
            return;
        }
        let (Some(number), Some(index)) = (u64_at(head, 8), u32_at(head, HEADER_BYTES + 4)) else {
            return;
        };
        let empty = Flight {
            number,
            sent: [(0, 0); WINDOW],
        };
        let flight = self
            .flights
            .entry((peer, head[1]))
            .or_insert_with(|| empty.clone());
        if flight.number != number {
            *flight = empty;
        }
        let place = &mut flight.sent[index as usize % WINDOW];
        // It was sent twice, so an answer would be ambiguous (Karn's rule).
        let again = place.0 == index + 1;
        *place = (index + 1, if again { 0 } else { now_ns });
    }

    /// A datagram of `peer` was read.
    pub(super) fn read(&mut self, now_ns: u64, peer: u32, datagram: &[u8]) {
        for frame in frames(datagram) {
            if (REQUEST..=RESPONSE_FRAGMENT).contains(&frame.kind) {
                self.count(peer, &frame);
            } else if frame.kind == CREDIT_RETURN {
                self.record(now_ns, peer, &frame);
            }
        }
    }

    fn count(&mut self, peer: u32, frame: &Frame<'_>) {
        let is_request = matches!(frame.kind, REQUEST | REQUEST_FRAGMENT);
        let (fragment, data) = match frame.kind {
            REQUEST_FRAGMENT | RESPONSE_FRAGMENT => {
                let Some((head, data)) = frame.payload.split_at_checked(FRAGMENT_HEADER) else {
                    return;
                };
                (u32_at(head, 4).unwrap_or(0).min(MAX_FRAGMENTS), data)
            }
            _ => (0, frame.payload),
        };
        let slot = (frame.session, frame.slot, is_request);
        let arrival = self.arrivals.entry((peer, slot)).or_default();
        if !arrival.is_first(frame.number, fragment as usize) {
            return;
        }
        let bytes = data.len() as u64;
        let index = peer as usize;
        if index >= self.received.len() {
            self.received.resize(index + 1, 0);
        }
        self.received[index] += bytes;
    }

    fn record(&mut self, now_ns: u64, peer: u32, frame: &Frame<'_>) {
        let (Some(next), Some(sack)) = (u32_at(frame.payload, 0), u64_at(frame.payload, 8)) else {
            return;
        };
        let Some(flight) = self.flights.get_mut(&(peer, frame.slot)) else {
            return;
        };
        if frame.number != flight.number {
            return;
        }
        for place in &mut flight.sent {
            let (Some(index), sent_ns @ 1..) = (place.0.checked_sub(1), place.1) else {
                continue;
            };
            let selected = index >= next && sack.checked_shr(index - next).unwrap_or(0) & 1 == 1;
            if index < next || selected {
                self.rtt_ns.saturating_record(now_ns - sent_ns);
                place.1 = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_proto::PREAMBLE_BYTES;

    use super::*;

    fn head(kind: u8, len: u16, number: u64) -> Vec<u8> {
        let mut head = vec![kind, 2];
        head.extend(len.to_le_bytes());
        head.extend(7u32.to_le_bytes());
        head.extend(number.to_le_bytes());
        head
    }

    fn fragment(index: u32) -> Vec<u8> {
        let mut bytes = head(REQUEST_FRAGMENT, 8, 1);
        bytes.extend(100_000u32.to_le_bytes());
        bytes.extend(index.to_le_bytes());
        bytes
    }

    #[test]
    fn each_packet_is_timed_once_and_no_repeated_one_is() {
        let mut capture = Capture::new();
        for index in 0..4 {
            capture.sent(1_000 + u64::from(index), 3, &fragment(index));
        }
        capture.sent(2_000, 3, &fragment(1));
        let mut datagram = vec![0; PREAMBLE_BYTES];
        datagram.extend(head(CREDIT_RETURN, 16, 1));
        // All fragments below 2, and fragment 3.
        datagram.extend(2u32.to_le_bytes());
        datagram.extend(0u32.to_le_bytes());
        datagram.extend(0b10u64.to_le_bytes());
        capture.read(5_000, 3, &datagram);
        capture.read(6_000, 3, &datagram);
        capture.read(6_000, 4, &datagram);
        assert_eq!(capture.rtt_ns.len(), 2);
        assert!((3_990..4_010).contains(&capture.rtt_ns.max()));
    }

    #[test]
    fn payload_bytes_are_counted_once_by_peer_without_headers() {
        let mut capture = Capture::new();
        let mut datagram = vec![0; PREAMBLE_BYTES];
        for number in [1, 2, 2, 1] {
            datagram.extend(head(REQUEST, 5, number));
            datagram.extend([0; 5]);
        }
        capture.read(0, 2, &datagram);
        assert_eq!(capture.received, [0, 0, 10]);
        datagram.truncate(PREAMBLE_BYTES);
        for index in [0u32, 70, 0, 70, 3] {
            datagram.extend(head(REQUEST_FRAGMENT, 8 + 100, 3));
            datagram.extend(7_100u32.to_le_bytes());
            datagram.extend(index.to_le_bytes());
            datagram.extend([0; 100]);
        }
        capture.read(0, 2, &datagram);
        assert_eq!(capture.received, [0, 0, 310]);
        capture.read(0, 2, &[1; 30]);
        capture.restart();
        assert_eq!(capture.received, [0, 0, 0]);
    }
}
