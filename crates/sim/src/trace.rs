//! What happened in a run: a hash over all of it, and the last of it in words.
//!
//! The hash covers every datagram delivered or dropped and every application event with their
//! times: two runs with the same hash were the same run. The words are only made when somebody
//! asks for them, after a violation.

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::fabric::HostId;

/// How many entries are kept for [`Trace::recent`].
const KEPT: usize = 4096;

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
    /// It was corrupted and the receiver's checksum told.
    Checksum,
    /// The receiver's queue had no room.
    QueueFull,
    /// The receiver's process was not running.
    HostDown,
    /// Nobody has the address.
    NoHost,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A datagram entered a host's receive queue.
    Delivered(DatagramNote),
    /// A datagram ended on the way.
    Dropped(DropCause, DatagramNote),
    /// The application, or the harness in its place, did or saw something; the two words
    /// belong to the text (a tag and a length, for example).
    App(HostId, &'static str, u64, u64),
}

/// What the trace keeps of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramNote {
    /// The sending host; `None` for an injected datagram of a stranger.
    pub from: Option<HostId>,
    /// The receiving host; `None` if nobody has the address.
    pub to: Option<HostId>,
    len: u32,
    head: [u8; HEAD],
}

impl DatagramNote {
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

/// One entry: when, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Virtual time of the fabric, ns.
    pub at_ns: u64,
    /// What happened.
    pub what: What,
}

/// The record of a run.
#[derive(Debug)]
pub struct Trace {
    hasher: SipHasher13,
    recent: VecDeque<Entry>,
    entries: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hasher: SipHasher13::new_with_keys(0, 0),
            recent: VecDeque::with_capacity(KEPT),
            entries: 0,
        }
    }
}

impl Trace {
    /// Records a datagram that entered a receive queue.
    pub fn delivered(&mut self, at_ns: u64, from: Option<HostId>, to: HostId, bytes: &[u8]) {
        self.hasher.write_u8(1);
        self.hash_datagram(at_ns, from, Some(to), bytes);
        let note = DatagramNote::new(from, Some(to), bytes);
        self.keep(at_ns, What::Delivered(note));
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
        self.hasher.write_u8(2);
        self.hasher.write_u8(cause as u8);
        self.hash_datagram(at_ns, from, to, bytes);
        let note = DatagramNote::new(from, to, bytes);
        self.keep(at_ns, What::Dropped(cause, note));
    }

    /// Records an event of the application at `host`.
    pub fn app(&mut self, at_ns: u64, host: HostId, text: &'static str, a: u64, b: u64) {
        self.hasher.write_u8(3);
        self.hasher.write_u64(at_ns);
        self.hasher.write_u32(host.0);
        self.hasher.write(text.as_bytes());
        self.hasher.write_u64(a);
        self.hasher.write_u64(b);
        self.keep(at_ns, What::App(host, text, a, b));
    }

    /// The hash over everything recorded so far.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
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
        let number = |host: Option<HostId>| host.map_or(u32::MAX, |host| host.0);
        self.hasher.write_u64(at_ns);
        self.hasher.write_u32(number(from));
        self.hasher.write_u32(number(to));
        self.hasher.write_usize(bytes.len());
        self.hasher.write(bytes);
    }

    fn keep(&mut self, at_ns: u64, what: What) {
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
            What::Delivered(note) => write!(f, "{note}"),
            What::Dropped(cause, note) => write!(f, "{note} DROPPED: {cause:?}"),
            What::App(host, text, a, b) => write!(f, "h{}: {text} {a} {b}", host.0),
        }
    }
}

impl fmt::Display for DatagramNote {
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
    fn every_field_moves_the_hash() {
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
    fn the_past_is_bounded_and_readable() {
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
