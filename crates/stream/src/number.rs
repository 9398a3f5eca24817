//! The number of a message, where there may be none: an `Option` of it takes no more memory than the number.

use std::num::NonZeroU64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(NonZeroU64);

impl Number {
    /// Of the last number there is none: no stream comes so far.
    pub(crate) fn new(number: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(number))
    }

    pub(crate) fn get(self) -> u64 {
        self.0.get() - 1
    }
}

const _: () = assert!(size_of::<Option<Number>>() == 8);
