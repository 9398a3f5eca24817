//! The trace of a run: a hash over all events, and the last events as text.
//!
//! The hash covers every byte of every datagram delivered or dropped and every application event
//! with their times: two runs with the same hash were the same run. The text is only formatted on
//! request, after a violation.

use std::collections::VecDeque;
use std::fmt;

use crate::host_id::HostId;
use crate::rng::mix;

/// How many entries are kept, in a cache, for [`Trace::recent`].
const KEPT: usize = 128;

/// How many bytes of a datagram's beginning an entry keeps.
const HEAD: usize = 40;

/// Why the fabric did not deliver a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropCause {
    /// A loss rule hit it.
    Loss,
    /// A burst-loss rule was in its bad state.
    Burst,
    /// A partition lay between the two hosts.
    Partition,
    /// It was corrupted, and the receiver's checksum or another field of its frame showed it
    /// ([`FrameCounts`](crate::fabric::FrameCounts)).
    Checksum,
    /// The receiver's queue had no room.
    QueueFull,
    /// The receiver's process was not running.
    HostDown,
    /// No host has the address.
    NoHost,
    /// A switch's buffer had no room.
    SwitchFull,
    /// The cable was out.
    LinkDown,
}

/// The kind of an entry, with its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A datagram entered a host's receive queue.
    Delivered(DatagramRecord),
    /// A datagram ended on the way.
    Dropped(DropCause, DatagramRecord),
    /// An event of the application, or of the harness in its place. The two words belong to the
    /// text (a tag and a length, for example).
    App(HostId, &'static str, u64, u64),
}

/// The part of a datagram that the trace keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRecord {
    /// The sending host; `None` for an injected datagram.
    pub from: Option<HostId>,
    /// The receiving host; `None` if no host has the address.
    pub to: Option<HostId>,
    len: u32,
    head: [u8; HEAD],
}

impl DatagramRecord {
    fn new(from: Option<HostId>, to: Option<HostId>, bytes: &[u8]) -> Self {
        let mut head = [0; HEAD];
        let kept = bytes.len().min(HEAD);
        head[..kept].copy_from_slice(&bytes[..kept]);
        Self {
            from,
            to,
            len: bytes.len() as u32,
            head,
        }
    }

    /// The datagram's first bytes.
    pub fn head(&self) -> &[u8] {
        &self.head[..HEAD.min(self.len as usize)]
    }
}

/// One entry of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Virtual time of the fabric, ns.
    pub at_ns: u64,
    /// The event.
    pub what: EntryKind,
}

/// A hash that detects differences and does not withstand attacks. It folds in words by a
/// multiplication to 128 bits, as in wyhash, in four lanes, because most input is the bytes of
/// datagrams.
#[derive(Debug)]
struct Fold(u64);

impl Default for Fold {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

impl Fold {
    const KEYS: [u64; 4] = [
        0xa076_1d64_78bd_642f,
        0xe703_7ed1_a0b4_28db,
        0x8ebc_6af0_9c88_c6e3,
        0x5899_65cc_7537_4cc3,
    ];

    fn word(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, Self::KEYS[0]).wrapping_add(Self::KEYS[1]);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let mut lanes = Self::KEYS;
        let blocks = bytes.chunks_exact(64);
        let rest = blocks.remainder();
        for block in blocks {
            for (lane, pair) in lanes.iter_mut().zip(block.chunks_exact(16)) {
                let key = *lane;
                *lane = fold(word(&pair[..8]) ^ key, word(&pair[8..]) ^ Self::KEYS[3])
                    .wrapping_add(key);
            }
        }
        for (index, chunk) in rest.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            let lane = &mut lanes[index % 4];
            *lane = fold(*lane ^ word(&padded), Self::KEYS[2]).wrapping_add(Self::KEYS[0]);
        }
        for lane in lanes {
            self.word(lane);
        }
    }
}

/// The record of a run.
#[derive(Debug)]
pub struct Trace {
    hash: Fold,
    recent: VecDeque<Entry>,
    entries: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hash: Fold::default(),
            recent: VecDeque::with_capacity(KEPT),
            entries: 0,
        }
    }
}

impl Trace {
    /// Records a datagram that entered a receive queue.
    pub fn delivered(&mut self, at_ns: u64, from: Option<HostId>, to: HostId, bytes: &[u8]) {
        self.hash.word(1);
        self.hash_datagram(at_ns, from, Some(to), bytes);
        let record = DatagramRecord::new(from, Some(to), bytes);
        self.keep(at_ns, EntryKind::Delivered(record));
    }

    /// Records a datagram that ended on the way.
    pub fn dropped(
        &mut self,
        at_ns: u64,
        cause: DropCause,
        from: Option<HostId>,
        to: Option<HostId>,
        bytes: &[u8],
    ) {
        self.hash.word(2 | (cause as u64) << 8);
        self.hash_datagram(at_ns, from, to, bytes);
        let record = DatagramRecord::new(from, to, bytes);
        self.keep(at_ns, EntryKind::Dropped(cause, record));
    }

    /// Records an event of the application at `host`.
    pub fn app(&mut self, at_ns: u64, host: HostId, text: &'static str, a: u64, b: u64) {
        self.hash.word(3 | u64::from(host.0) << 8);
        self.hash.word(at_ns);
        self.hash.bytes(text.as_bytes());
        self.hash.word(a);
        self.hash.word(b);
        self.keep(at_ns, EntryKind::App(host, text, a, b));
    }

    /// The hash over everything recorded so far.
    pub fn hash(&self) -> u64 {
        mix(self.hash.0)
    }

    /// How many entries were recorded so far.
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// True if nothing was recorded yet.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The last entries, oldest first; at most `count` of them.
    pub fn recent(&self, count: usize) -> impl Iterator<Item = &Entry> {
        self.recent
            .iter()
            .skip(self.recent.len().saturating_sub(count))
    }

    fn hash_datagram(
        &mut self,
        at_ns: u64,
        from: Option<HostId>,
        to: Option<HostId>,
        bytes: &[u8],
    ) {
        let number = |host: Option<HostId>| u64::from(host.map_or(u32::MAX, |host| host.0));
        self.hash.word(at_ns);
        self.hash.word(number(from) << 32 | number(to));
        self.hash.bytes(bytes);
    }

    fn keep(&mut self, at_ns: u64, what: EntryKind) {
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(Entry { at_ns, what });
        self.entries += 1;
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at_ns / 1000;
        write!(f, "{micros:>9}.{:03} us  ", self.at_ns % 1000)?;
        match &self.what {
            EntryKind::Delivered(record) => write!(f, "{record}"),
            EntryKind::Dropped(cause, record) => write!(f, "{record} DROPPED: {cause:?}"),
            EntryKind::App(host, text, a, b) => write!(f, "h{}: {text} {a} {b}", host.0),
        }
    }
}

impl fmt::Display for DatagramRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |host: Option<HostId>| host.map_or("?".to_owned(), |host| host.0.to_string());
        write!(
            f,
            "h{}->h{} {} B [",
            name(self.from),
            name(self.to),
            self.len
        )?;
        for chunk in self.head().chunks(8) {
            for byte in chunk {
                write!(f, "{byte:02x}")?;
            }
            f.write_str(" ")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_changes_the_hash() {
        let record = |change: u32| {
            let mut trace = Trace::default();
            let (mut at, mut host, mut a, mut bytes) = (10, HostId(1), 5, vec![1, 2, 3]);
            match change {
                1 => at += 1,
                2 => host = HostId(2),
                3 => a += 1,
                4 => bytes[2] ^= 1,
                _ => {}
            }
            trace.app(at, host, "request", a, 0);
            trace.delivered(at, Some(HostId(0)), host, &bytes);
            trace.hash()
        };
        assert_eq!(record(0), record(0));
        for change in 1..=4 {
            assert_ne!(record(0), record(change), "change {change}");
        }
    }

    #[test]
    fn every_byte_of_any_length_counts() {
        for len in [1, 7, 8, 9, 63, 64, 65, 200] {
            let hash = |bytes: &[u8]| {
                let mut hash = Fold::default();
                hash.bytes(bytes);
                hash.0
            };
            let mut bytes = vec![0; len];
            let zero = hash(&bytes);
            for index in 0..len {
                bytes[index] = 1;
                assert_ne!(hash(&bytes), zero, "byte {index} of {len}");
                bytes[index] = 0;
            }
            assert_ne!(hash(&vec![0; len + 1]), zero);
        }
    }

    #[test]
    fn the_trace_keeps_a_bounded_readable_tail() {
        let mut trace = Trace::default();
        for index in 0..KEPT as u64 + 10 {
            trace.app(index, HostId(0), "tick", index, 0);
        }
        trace.dropped(9_001, DropCause::Loss, Some(HostId(0)), None, &[0xab; 100]);
        assert_eq!(trace.recent(usize::MAX).count(), KEPT);
        assert_eq!(trace.len(), KEPT as u64 + 11);
        let last = trace.recent(1).next().unwrap().to_string();
        assert!(last.contains("9.001 us  h0->h? 100 B [abababab"), "{last}");
        assert!(last.ends_with("DROPPED: Loss"), "{last}");
    }
}
