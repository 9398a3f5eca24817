//! Settings, and the reasons for their defaults.

use starling_io::{Fault, IoError};

use crate::ring::{LINE, max_datagram_for};

/// The smallest ring, in bytes per direction.
pub(crate) const MIN_RING_BYTES: usize = 64 << 10;

/// The largest ring, in bytes per direction.
pub(crate) const MAX_RING_BYTES: usize = 64 << 20;

/// The largest that [`ShmConfig::max_datagram`] and a peer's may be, in bytes. No user of a device
/// fills a larger one, and it bounds what one header word of a peer makes this process copy.
pub(crate) const MAX_DATAGRAM: usize = 65_559;

/// The smallest that [`ShmConfig::max_datagram`] may be, in bytes.
pub(crate) const MIN_DATAGRAM: usize = 256;

/// The smallest message heap that is not none, in bytes.
pub(crate) const MIN_HEAP_BYTES: usize = 64 << 10;

/// The largest message heap, in bytes.
pub(crate) const MAX_HEAP_BYTES: usize = 1 << 30;

/// Settings of a [`ShmIo`](crate::ShmIo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Size of the ring of each direction of a connection that this device opens, in bytes: a
    /// power of two from 64 KiB to 64 MiB.
    ///
    /// Default: 512 KiB. Both rings then stay in a core's second-level cache or close to it, and
    /// a ring holds eight datagrams of the default largest size, enough for both cores to work at
    /// once. Larger rings are slower, not faster: every pass misses the cache.
    pub ring_bytes: usize,
    /// The largest ring, in bytes per direction, that a connecting peer may bring along: it
    /// bounds the memory that a peer can make this process map.
    ///
    /// Default: 1 MiB, which is twice what a device brings along by default.
    pub max_accepted_ring_bytes: usize,
    /// The largest datagram this device sends, in bytes, from 256 to 65,559. A connection takes at
    /// most a quarter of its ring.
    ///
    /// Default: 65,536.
    pub max_datagram: usize,
    /// The most peers at once, opened and accepted together.
    ///
    /// Default: 1,024. Each costs a file descriptor, and memory as far as its rings were used. A device
    /// that accepts peers leaves a quarter of the process's descriptors to others, and an eighth of all to the
    /// message heaps of its peers if it maps any: with a limit of 1,024, it has 640 peers. The heaps that it makes
    /// for its clients take an eighth of that quarter, 64 at most.
    ///
    /// When a peer connects and no place is free, the one goes that has been silent for longest, of
    /// those that have not sent anything since they connected, or since the device's user closed them.
    pub max_peers: usize,
    /// The most accepted peers at once from one process; or, of users that only
    /// [`ShmConfig::allow_other_users`] lets in, from one user.
    ///
    /// Default: 512, so that no process alone keeps all others out.
    pub max_peers_of_one: usize,
    /// Talk to processes of other users as well. Without it a peer must run as this process's
    /// user or as root.
    ///
    /// Default: false. A peer can read and change what is in the rings shared with it, and
    /// nothing else. But any process on the host may take a name. Users that have no id in this
    /// process's user namespace count as other users.
    pub allow_other_users: bool,
    /// Talk to processes of this user as well.
    ///
    /// Default: none.
    pub other_user: Option<u32>,
    /// A peer may say whom it wants to reach through this device's process
    /// ([`PeerInfo::target`](starling_io::PeerInfo::target)).
    ///
    /// Default: false. A peer that says so is refused, because this process would answer in another's place.
    pub takes_targets: bool,
    /// Size of the device's message heap: the memory for large parts of messages, out of which a peer copies
    /// them once. Zero for none, or a power of two from 64 KiB to 1 GiB. While it is full, messages are made in
    /// ordinary memory.
    ///
    /// Default: 64 MiB, which is eight messages of 8 MiB. A heap is made with the first such message, and takes
    /// memory as far as it was used.
    ///
    /// A device without a name has one heap ([`PacketIo::memory`](starling_io::PacketIo::memory)), which it shares
    /// with the devices that it opens. Channels put single requests from [`LARGE_BYTES`](starling_io::LARGE_BYTES)
    /// on there by themselves, for the first peer that can read them and to which they do so, if no other peer has the
    /// heap. From then on it is shared with this peer's process alone, which may also be of the user that
    /// [`ShmConfig::other_user`] names; and not at all with one of another user if messages were made there by hand.
    /// **Every peer that the heap is shared with can read everything that is made in it by hand**, also what
    /// is meant for other peers. It is shared only with peers that run as this process's user or as root.
    ///
    /// A device with a name has a heap for each client that runs as this process's user or as root
    /// ([`PeerInfo::memory`](starling_io::PeerInfo::memory)), which nobody but that client can read. Each is a quarter
    /// as large, but 64 KiB at least; all together use no more than this size, and those of one process no more than
    /// half of that.
    pub heap_bytes: usize,
    /// The largest message heap of a peer that this device maps: zero for none, or a power of two up
    /// to 1 GiB. A peer with a larger one has its messages copied through the ring. It bounds the
    /// memory that a peer can make this process map, as `max_accepted_ring_bytes` does. The pages are
    /// the peer's: this process makes none by reading.
    ///
    /// Each heap costs a file descriptor. A device that accepts peers has as many heaps as descriptors
    /// are left for them, see [`ShmConfig::max_peers`], and at most half of these for one process or
    /// other user. Further peers have their messages copied through the ring.
    ///
    /// Default: 64 MiB.
    pub max_accepted_heap_bytes: usize,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 512 << 10,
            max_accepted_ring_bytes: 1 << 20,
            max_datagram: 64 << 10,
            max_peers: 1024,
            max_peers_of_one: 512,
            allow_other_users: false,
            other_user: None,
            takes_targets: false,
            heap_bytes: 64 << 20,
            max_accepted_heap_bytes: 64 << 20,
        }
    }
}

impl ShmConfig {
    /// Refuses invalid settings.
    pub(crate) fn check(&self, attempt: &str) -> Result<(), IoError> {
        let wrong = |problem: String, remedy: &str| {
            Err(IoError::new(Fault::Caller, attempt, problem, remedy))
        };
        let page = rustix::param::page_size();
        if !valid_ring_bytes(self.ring_bytes, MAX_RING_BYTES) {
            return wrong(
                format!("ring_bytes is {}", self.ring_bytes),
                "set a power of two from 64 KiB to 64 MiB, at least a page",
            );
        }
        if self.max_accepted_ring_bytes < MIN_RING_BYTES.max(page)
            || self.max_accepted_ring_bytes > MAX_RING_BYTES
        {
            return wrong(
                format!(
                    "max_accepted_ring_bytes is {}",
                    self.max_accepted_ring_bytes
                ),
                "set 64 KiB to 64 MiB",
            );
        }
        if !(MIN_DATAGRAM..=MAX_DATAGRAM).contains(&self.max_datagram) {
            return wrong(
                format!("max_datagram is {}", self.max_datagram),
                "set 256 to 65,559 bytes, and ring_bytes to at least four times as much",
            );
        }
        for (name, peers) in [
            ("max_peers", self.max_peers),
            ("max_peers_of_one", self.max_peers_of_one),
        ] {
            if peers == 0 || peers > 1 << 16 {
                return wrong(format!("{name} is {peers}"), "set 1 to 65,536");
            }
        }
        for (name, bytes) in [
            ("heap_bytes", self.heap_bytes),
            ("max_accepted_heap_bytes", self.max_accepted_heap_bytes),
        ] {
            if bytes != 0 && !valid_heap_bytes(bytes, MAX_HEAP_BYTES) {
                return wrong(
                    format!("{name} is {bytes}"),
                    "set zero, or a power of two from 64 KiB to 1 GiB",
                );
            }
        }
        Ok(())
    }

    /// The largest datagram on a connection with rings of `ring_bytes`.
    pub(crate) fn max_datagram_on(&self, ring_bytes: usize) -> usize {
        self.max_datagram.min(max_datagram_for(ring_bytes))
    }
}

/// Whether a ring may have this size.
pub(crate) fn valid_ring_bytes(ring_bytes: usize, most: usize) -> bool {
    ring_bytes.is_power_of_two()
        && ring_bytes >= MIN_RING_BYTES
        && ring_bytes <= most
        && ring_bytes.is_multiple_of(rustix::param::page_size().max(LINE))
}

/// Whether a message heap may have this size.
pub(crate) fn valid_heap_bytes(heap_bytes: usize, most: usize) -> bool {
    heap_bytes.is_power_of_two() && heap_bytes >= MIN_HEAP_BYTES && heap_bytes <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_bad_settings_are_refused() {
        assert!(ShmConfig::default().check("bind").is_ok());
        let with = |change: fn(&mut ShmConfig)| {
            let mut config = ShmConfig::default();
            change(&mut config);
            config.check("bind shm://x").unwrap_err().fault
        };
        assert_eq!(with(|c| c.ring_bytes = 0), Fault::Caller);
        assert_eq!(with(|c| c.ring_bytes = 100_000), Fault::Caller);
        assert_eq!(with(|c| c.ring_bytes = 1 << 40), Fault::Caller);
        assert_eq!(with(|c| c.max_accepted_ring_bytes = 0), Fault::Caller);
        assert_eq!(with(|c| c.max_datagram = 255), Fault::Caller);
        assert_eq!(with(|c| c.max_datagram = 65_560), Fault::Caller);
        assert_eq!(with(|c| c.max_peers = 0), Fault::Caller);
        assert_eq!(with(|c| c.max_peers_of_one = 0), Fault::Caller);
        assert_eq!(with(|c| c.heap_bytes = 4096), Fault::Caller);
        assert_eq!(with(|c| c.heap_bytes = 65 << 20), Fault::Caller);
        assert_eq!(
            with(|c| c.max_accepted_heap_bytes = usize::MAX),
            Fault::Caller
        );
    }

    #[test]
    fn a_datagram_is_at_most_a_quarter_of_the_ring() {
        let config = ShmConfig::default();
        assert_eq!(config.max_datagram_on(64 << 10), 16 << 10);
        assert_eq!(config.max_datagram_on(512 << 10), 64 << 10);
    }
}
