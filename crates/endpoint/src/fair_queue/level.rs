//! Members that take turns: the hosts, or the peers of one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Time that is owed to a peer that was away. While some is left of it, the peer is served at once and not in its
/// turn, as the sparse flows of RFC 8290, section 3.5.
pub(super) const OWED_NS: u64 = 20_000;

/// So many members with items may wait in memory that is kept for the next ones.
const FEW_MEMBERS: usize = 64;

/// Members that take turns.
#[derive(Debug)]
pub(super) struct Level {
    /// What the member had used that was served last.
    pub(super) used_ns: u64,
    /// The most that a member has used.
    most_used_ns: u64,
    /// Those with items, by what they had used when they were queued. They may have used more by now.
    pub(super) waiting: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Default for Level {
    fn default() -> Self {
        Self {
            used_ns: OWED_NS,
            most_used_ns: 0,
            waiting: BinaryHeap::new(),
        }
    }
}

impl Level {
    /// What counts as used by a member that has used so much.
    pub(super) fn counted(&self, used_ns: u64) -> u64 {
        used_ns.max(self.used_ns - OWED_NS)
    }

    /// What a member has used that used so much more.
    pub(super) fn charged(&mut self, used_ns: u64, spent_ns: u64) -> u64 {
        let used_ns = self.counted(used_ns) + spent_ns;
        self.most_used_ns = self.most_used_ns.max(used_ns);
        used_ns
    }

    /// Nothing waits: no member took time from others, and all begin anew.
    pub(super) fn forget_debts(&mut self) {
        debug_assert!(
            self.waiting.is_empty(),
            "some wait for those who have used more"
        );
        self.used_ns = self.used_ns.max(self.most_used_ns + OWED_NS);
    }

    /// Whether so much time is owed to a member.
    pub(super) fn admits(&self, used_ns: u64, cost_ns: u64) -> bool {
        self.counted(used_ns) + cost_ns <= self.used_ns
    }

    pub(super) fn push(&mut self, member: u32, used_ns: u64) {
        let at = self.counted(used_ns);
        self.waiting.push(Reverse((at, member)));
    }

    /// Removes the member whose turn it is.
    pub(super) fn pop(&mut self, used_ns: impl Fn(u32) -> u64) -> Option<u32> {
        loop {
            let Reverse((at, member)) = self.waiting.pop()?;
            let now_at = used_ns(member);
            if now_at > at {
                self.waiting.push(Reverse((now_at, member)));
                continue;
            }
            self.used_ns = self.used_ns.max(at);
            if self.waiting.is_empty() {
                self.waiting.shrink_to(FEW_MEMBERS);
            }
            return Some(member);
        }
    }
}
