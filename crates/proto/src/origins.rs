//! Origins: the hosts and users that peers belong to.
//!
//! Shares are counted by origin first: one host can make as many peers as it has ports.

use std::collections::BTreeMap;

/// An origin, as the device numbers it: an IPv4 address, the first half of an IPv6 address, a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin(pub u64);

/// A place in the table of origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginId(pub(crate) u32);

impl OriginId {
    /// An origin without peers, which holds nothing.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

#[derive(Debug)]
struct Entry {
    origin: Origin,
    /// Peers with sessions here.
    peers: u32,
    /// Credits that they have.
    credits: usize,
}

/// The origins of all peers with sessions at this endpoint's server.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    by_number: BTreeMap<Origin, OriginId>,
    entries: Vec<Entry>,
    free: Vec<OriginId>,
}

impl Origins {
    /// A peer of this origin has its first session.
    pub(crate) fn retain(&mut self, origin: Origin) -> OriginId {
        let Self {
            by_number,
            entries,
            free,
        } = self;
        let id = *by_number.entry(origin).or_insert_with(|| {
            let entry = Entry {
                origin,
                peers: 0,
                credits: 0,
            };
            match free.pop() {
                Some(id) => {
                    entries[id.0 as usize] = entry;
                    id
                }
                None => {
                    entries.push(entry);
                    OriginId((entries.len() - 1) as u32)
                }
            }
        });
        entries[id.0 as usize].peers += 1;
        id
    }

    /// The peer's last session has ended.
    pub(crate) fn release(&mut self, id: OriginId) {
        let entry = &mut self.entries[id.0 as usize];
        entry.peers -= 1;
        if entry.peers == 0 {
            debug_assert_eq!(entry.credits, 0, "credits go with their sessions");
            self.by_number.remove(&entry.origin);
            self.free.push(id);
        }
    }

    /// The place of an origin, [`OriginId::NONE`] if none of its peers has a session.
    pub(crate) fn find(&self, origin: Origin) -> OriginId {
        self.by_number
            .get(&origin)
            .copied()
            .unwrap_or(OriginId::NONE)
    }

    /// The credits of all peers of the origin.
    pub(crate) fn credits(&self, id: OriginId) -> usize {
        let entry = self.entries.get(id.0 as usize);
        entry.map_or(0, |entry| entry.credits)
    }

    pub(crate) fn credits_mut(&mut self, id: OriginId) -> &mut usize {
        &mut self.entries[id.0 as usize].credits
    }
}
