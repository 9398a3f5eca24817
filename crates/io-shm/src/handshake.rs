//! The handshake by which two devices connect.
//!
//! ```text
//!   connector                                       acceptor
//!   make memory, map it
//!   connect ───────────────────────────────────────▶ accept, check the peer's user
//!   HELLO {ring_bytes, .., target} + memfd ────────▶ check, map; or a refusal with the reason
//!   datagrams in ring 0 ...                         ◀ WELCOME {flags}
//! ```
//!
//! The connector does not wait: its datagrams are already in the ring when the acceptor maps it.
//! Every message is one packet of the socket. Integers are little-endian.
//!
//! ```text
//!  HELLO    0: magic (8)  8: version (2)  10: flags (2)  12: max_datagram (4)  16: ring_bytes (8)  24: target
//!  ANSWER   0: magic (8)  8: version (2)  10: flags (2)  12: code (4)
//!  HEAP     0: magic (8)  8: bytes (8)
//! ```
//!
//! The target is nothing, or the address, in UTF-8, that the connector wants to reach through the acceptor, which then
//! is a service that calls others on. Only a device that is set to takes one.
//!
//! Bit 0 of the flags: the process has registered for `membarrier`. Bits 8 to 13: the largest message
//! heap that the device maps of its peer, as a power of two; zero if none.
//!
//! Either side may send HEAP with a memfd once, after it has such flags of the other, and before it
//! publishes the first record with a descriptor. A device that does not know of heaps sends zeros
//! there and ignores what it gets there, so it works with one that does.

use std::sync::Arc;

use starling_io::PeerRefusal;

use crate::config::{MAX_DATAGRAM, MIN_DATAGRAM, ShmConfig, valid_ring_bytes};
use crate::ring::max_datagram_for;
use crate::sys;

const MAGIC: [u8; 8] = *b"STRLshm\0";

/// Version of the handshake and of the memory layout.
const VERSION: u16 = 1;

const HEAP_MAGIC: [u8; 8] = *b"STRLheap";

/// Flag: the process has registered for `membarrier`.
const HAS_MEMBARRIER: u16 = 1;

/// Where the flags have the logarithm of the largest heap, and its bits.
const MAX_HEAP_SHIFT: u32 = 8;
const MAX_HEAP_MASK: u16 = 0x3f;

/// Bytes of a hello without a target.
const HELLO_BYTES: usize = 24;

/// The longest target, in bytes.
pub(crate) const MAX_TARGET_BYTES: usize = 512;

/// Bytes of the longest hello.
pub(crate) const MAX_HELLO_BYTES: usize = HELLO_BYTES + MAX_TARGET_BYTES;

/// Bytes of an answer.
pub(crate) const ANSWER_BYTES: usize = 16;

/// The doorbell message: a byte in the socket that ends the other side's sleep.
pub(crate) const DOORBELL: [u8; 1] = [1];

/// What a process tells its peer about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) has_membarrier: bool,
    /// The largest message heap of the peer that it maps, in bytes: zero or a power of two.
    pub(crate) max_heap: u64,
}

impl Abilities {
    /// Those of this process, which may map one more heap or not.
    pub(crate) fn own(config: &ShmConfig, maps_heap: bool) -> Self {
        let max_heap = if maps_heap {
            config.max_accepted_heap_bytes
        } else {
            0
        };
        Self {
            has_membarrier: sys::register_membarrier(),
            max_heap: max_heap as u64,
        }
    }

    fn to_flags(self) -> u16 {
        let max_heap = self.max_heap.checked_ilog2().unwrap_or(0) as u16;
        let has_membarrier = u16::from(self.has_membarrier) * HAS_MEMBARRIER;
        has_membarrier | (max_heap << MAX_HEAP_SHIFT)
    }

    fn from_flags(flags: u16) -> Self {
        let max_heap = (flags >> MAX_HEAP_SHIFT) & MAX_HEAP_MASK;
        Self {
            has_membarrier: flags & HAS_MEMBARRIER != 0,
            max_heap: if max_heap == 0 { 0 } else { 1 << max_heap },
        }
    }
}

/// The first message of a connector, about the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) abilities: Abilities,
    pub(crate) max_datagram: usize,
    pub(crate) ring_bytes: usize,
    /// Whom the connector wants to reach through the acceptor, if that is another.
    pub(crate) target: Option<Arc<str>>,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HELLO_BYTES];
        let max_datagram = u32::try_from(self.max_datagram).expect("checked by the configuration");
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.abilities.to_flags().to_le_bytes());
        bytes[12..16].copy_from_slice(&max_datagram.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.ring_bytes as u64).to_le_bytes());
        bytes.extend_from_slice(self.target.as_deref().unwrap_or_default().as_bytes());
        bytes
    }

    /// Decodes a hello, and refuses one that the configuration does not allow.
    pub(crate) fn decode(bytes: &[u8], config: &ShmConfig) -> Result<Self, Answer> {
        let (bytes, target) = bytes
            .split_first_chunk::<HELLO_BYTES>()
            .ok_or(Answer::BadHello)?;
        if bytes[..8] != MAGIC {
            return Err(Answer::BadHello);
        }
        if u16::from_le_bytes([bytes[8], bytes[9]]) != VERSION {
            return Err(Answer::OtherVersion);
        }
        let flags = u16::from_le_bytes([bytes[10], bytes[11]]);
        let max_datagram = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes"));
        let ring_bytes = u64::from_le_bytes(bytes[16..].try_into().expect("eight bytes"));
        let ring_bytes = usize::try_from(ring_bytes).map_err(|_| Answer::BadRing)?;
        if !valid_ring_bytes(ring_bytes, config.max_accepted_ring_bytes) {
            return Err(Answer::BadRing);
        }
        let max_datagram = max_datagram as usize;
        let largest = max_datagram_for(ring_bytes).min(MAX_DATAGRAM);
        if !(MIN_DATAGRAM..=largest).contains(&max_datagram) {
            return Err(Answer::BadHello);
        }
        if target.len() > MAX_TARGET_BYTES {
            return Err(Answer::BadHello);
        }
        let target = std::str::from_utf8(target).map_err(|_| Answer::BadHello)?;
        if !target.is_empty() && !config.takes_targets {
            return Err(Answer::TakesNoTargets);
        }
        Ok(Self {
            abilities: Abilities::from_flags(flags),
            max_datagram,
            ring_bytes,
            target: (!target.is_empty()).then(|| target.into()),
        })
    }
}

/// The answer of an acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection is established.
    Welcome(Abilities),
    /// The hello is malformed.
    BadHello,
    /// The hello is of another version.
    OtherVersion,
    /// The rings have an invalid size, or one too large for the acceptor.
    BadRing,
    /// The memory is not sealed, or has the wrong size or kind.
    BadMemory,
    /// The acceptor has as many peers, or as many open files, as it may.
    Full,
    /// The acceptor accepts no process of the connector's user.
    NotPermitted,
    /// The acceptor calls nobody on.
    TakesNoTargets,
}

impl Answer {
    fn code(self) -> u32 {
        match self {
            Self::Welcome(_) => 0,
            Self::BadHello => 1,
            Self::OtherVersion => 2,
            Self::BadRing => 3,
            Self::BadMemory => 4,
            Self::Full => 5,
            Self::NotPermitted => 6,
            Self::TakesNoTargets => 7,
        }
    }

    pub(crate) fn encode(self) -> [u8; ANSWER_BYTES] {
        let abilities = match self {
            Self::Welcome(abilities) => abilities,
            _ => Abilities::default(),
        };
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&abilities.to_flags().to_le_bytes());
        bytes[12..].copy_from_slice(&self.code().to_le_bytes());
        bytes
    }

    /// Decodes an answer; `None` if it is malformed. Magic and version have the same place in all
    /// versions.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC {
            return None;
        }
        if u16::from_le_bytes([bytes[8], bytes[9]]) != VERSION {
            return Some(Self::OtherVersion);
        }
        let flags = u16::from_le_bytes([bytes[10], bytes[11]]);
        match u32::from_le_bytes(bytes[12..].try_into().expect("four bytes")) {
            0 => Some(Self::Welcome(Abilities::from_flags(flags))),
            1 => Some(Self::BadHello),
            2 => Some(Self::OtherVersion),
            3 => Some(Self::BadRing),
            4 => Some(Self::BadMemory),
            5 => Some(Self::Full),
            6 => Some(Self::NotPermitted),
            7 => Some(Self::TakesNoTargets),
            _ => None,
        }
    }

    /// The error of a connector that gets an answer other than a welcome.
    pub(crate) fn refusal(answer: Option<Self>) -> PeerRefusal {
        match answer {
            Some(Self::Full) => PeerRefusal::Full,
            Some(Self::NotPermitted) => PeerRefusal::NotPermitted,
            Some(Self::OtherVersion) => PeerRefusal::OtherVersion,
            Some(Self::TakesNoTargets) => PeerRefusal::TakesNoTargets,
            Some(Self::BadRing | Self::BadMemory) => PeerRefusal::Unacceptable,
            Some(Self::BadHello | Self::Welcome(_)) | None => PeerRefusal::Nonsense,
        }
    }
}

/// The message that comes with a message heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapMessage {
    pub(crate) bytes: u64,
}

impl HeapMessage {
    pub(crate) fn encode(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&HEAP_MAGIC);
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Decodes the message; `None` if it is another one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().ok()?;
        let (magic, bytes) = bytes.split_at(8);
        (magic == HEAP_MAGIC).then(|| Self {
            bytes: u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        abilities: Abilities {
            has_membarrier: true,
            max_heap: 64 << 20,
        },
        max_datagram: 9000,
        ring_bytes: 1 << 20,
        target: None,
    };

    #[test]
    fn messages_decode_to_what_was_encoded() {
        let config = ShmConfig::default();
        assert_eq!(Hello::decode(&HELLO.encode(), &config), Ok(HELLO));
        for answer in [
            Answer::Welcome(HELLO.abilities),
            Answer::Welcome(Abilities::default()),
            Answer::BadHello,
            Answer::OtherVersion,
            Answer::BadRing,
            Answer::BadMemory,
            Answer::Full,
            Answer::NotPermitted,
            Answer::TakesNoTargets,
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        // The codes of a later version may mean anything.
        let mut later = Answer::Full.encode();
        later[8] = 2;
        later[12] = 77;
        assert_eq!(Answer::decode(&later), Some(Answer::OtherVersion));
        later[8] = 1;
        assert_eq!(Answer::decode(&later), None);
    }

    #[test]
    fn wrong_hellos_are_refused_with_the_reason() {
        let config = ShmConfig::default();
        let changed = |change: fn(&mut [u8])| {
            let mut bytes = HELLO.encode();
            change(&mut bytes);
            Hello::decode(&bytes, &config).unwrap_err()
        };
        assert_eq!(Hello::decode(&[], &config), Err(Answer::BadHello));
        let short = &HELLO.encode()[1..];
        assert_eq!(Hello::decode(short, &config), Err(Answer::BadHello));
        assert_eq!(changed(|b| b[0] = b'X'), Answer::BadHello);
        assert_eq!(changed(|b| b[8] = 2), Answer::OtherVersion);
        assert_eq!(changed(|b| b[12..16].fill(0)), Answer::BadHello);
        assert_eq!(changed(|b| b[12..16].fill(0xff)), Answer::BadHello);
        let larger_than_any = |b: &mut [u8]| b[12..16].copy_from_slice(&65_560u32.to_le_bytes());
        assert_eq!(changed(larger_than_any), Answer::BadHello);
        assert_eq!(changed(|b| b[16..].fill(0)), Answer::BadRing);
        assert_eq!(changed(|b| b[16..].fill(0xff)), Answer::BadRing);
        assert_eq!(changed(|b| b[16] = 64), Answer::BadRing);
        let too_large = |b: &mut [u8]| {
            b[16..].copy_from_slice(&(2u64 << 20).to_le_bytes());
        };
        assert_eq!(changed(too_large), Answer::BadRing);
    }

    #[test]
    fn a_target_is_for_devices_that_take_one() {
        let services = ShmConfig {
            takes_targets: true,
            ..ShmConfig::default()
        };
        let wants = |target: &str| Hello {
            target: Some(target.into()),
            ..HELLO
        };
        let hello = wants("udp://10.0.0.7:9000");
        assert_eq!(Hello::decode(&hello.encode(), &services), Ok(hello.clone()));
        assert_eq!(Hello::decode(&HELLO.encode(), &services), Ok(HELLO));
        let refused = Hello::decode(&hello.encode(), &ShmConfig::default());
        assert_eq!(refused, Err(Answer::TakesNoTargets));
        let longest = wants(&"x".repeat(MAX_TARGET_BYTES));
        assert_eq!(longest.encode().len(), MAX_HELLO_BYTES);
        assert!(Hello::decode(&longest.encode(), &services).is_ok());
        let too_long = wants(&"x".repeat(MAX_TARGET_BYTES + 1));
        assert_eq!(
            Hello::decode(&too_long.encode(), &services),
            Err(Answer::BadHello)
        );
        let mut no_text = hello.encode();
        no_text[HELLO_BYTES] = 0xff;
        assert_eq!(Hello::decode(&no_text, &services), Err(Answer::BadHello));
    }

    /// Devices from before heaps set and read bit 0 of the flags only.
    #[test]
    fn the_largest_heap_is_in_flags_that_older_devices_ignore() {
        for max_heap in [0, 64 << 10, 64 << 20, 1 << 32] {
            for has_membarrier in [false, true] {
                let abilities = Abilities {
                    has_membarrier,
                    max_heap,
                };
                let flags = abilities.to_flags();
                assert_eq!(Abilities::from_flags(flags), abilities);
                assert_eq!(flags & 1 != 0, has_membarrier);
            }
        }
        let older = Abilities::from_flags(1);
        assert!(older.has_membarrier && older.max_heap == 0);
        let message = HeapMessage { bytes: 4096 };
        assert_eq!(HeapMessage::decode(&message.encode()), Some(message));
        assert_eq!(Answer::decode(&message.encode()), None);
        assert_eq!(HeapMessage::decode(&Answer::Full.encode()), None);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_decoded() {
        let config = ShmConfig::default();
        bolero::check!()
            .with_iterations(2000)
            .for_each(|bytes: &[u8]| {
                let _ = Answer::decode(bytes);
                let heap = HeapMessage::decode(bytes);
                assert!(heap.is_none_or(|heap| heap.encode() == *bytes));
                if let Ok(hello) = Hello::decode(bytes, &config) {
                    assert!(hello.max_datagram <= (hello.ring_bytes / 4).min(65_559));
                }
            });
    }
}
