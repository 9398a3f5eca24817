//! The policies that a call has to pass, and which of them it has passed.

use std::sync::Arc;

/// One policy of a runtime. A place is used again, an id is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyId {
    pub(crate) place: u32,
    pub(crate) id: u32,
}

/// The policies of a route, in the order in which requests pass them.
pub(crate) type Chain = Arc<[PolicyId]>;

/// The policies that a call has passed, which hear of its end. None for most calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed {
    chain: Option<Chain>,
    count: usize,
    /// Which call it is, to them.
    pub(crate) call: u64,
}

impl Passed {
    /// None of a chain yet.
    pub(crate) fn none_of(chain: &Chain, call: u64) -> Self {
        Self {
            chain: Some(Arc::clone(chain)),
            count: 0,
            call,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether it has not begun to pass any.
    pub(crate) fn is_fresh(&self) -> bool {
        self.chain.is_none()
    }

    /// The policy that is next.
    pub(crate) fn next(&self) -> Option<PolicyId> {
        self.chain.as_ref()?.get(self.count).copied()
    }

    /// The next one is passed.
    pub(crate) fn advance(&mut self) {
        self.count += 1;
    }

    /// The last one that was passed is asked again.
    pub(crate) fn step_back(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Those that are passed, the last one first.
    pub(crate) fn reversed(&self) -> impl Iterator<Item = PolicyId> + '_ {
        let chain = self.chain.as_deref().unwrap_or(&[]);
        chain[..self.count.min(chain.len())].iter().rev().copied()
    }
}
