//! The cold part of a slot: the state of a message of several packets, and what else is rare.
//!
//! It lies apart from the slot, in memory that is allocated when the slot first needs it. So the slots of
//! most sessions stay small. Both sides of a session use it.

/// `L` is the state of a message of several packets. `X` is all else that the side keeps.
#[derive(Debug)]
pub(crate) struct ColdState<L, X = ()>(Option<Box<Cold<L, X>>>);

#[derive(Debug)]
struct Cold<L, X> {
    large: Option<Box<L>>,
    extra: X,
}

impl<L, X> Default for ColdState<L, X> {
    fn default() -> Self {
        Self(None)
    }
}

impl<L, X: Default> Default for Cold<L, X> {
    fn default() -> Self {
        Self {
            large: None,
            extra: X::default(),
        }
    }
}

impl<L, X> ColdState<L, X> {
    /// What it takes when it is allocated.
    pub(crate) const BYTES: usize = size_of::<Cold<L, X>>() + size_of::<L>();
}

impl<L, X: Default> ColdState<L, X> {
    /// The state of a message of several packets, if there is one.
    pub(crate) fn large(&self) -> Option<&L> {
        self.0.as_deref()?.large.as_deref()
    }

    /// As [`ColdState::large`].
    pub(crate) fn large_mut(&mut self) -> Option<&mut L> {
        self.0.as_deref_mut()?.large.as_deref_mut()
    }

    /// Replaces the state of a message of several packets; returns the former one.
    pub(crate) fn set_large(&mut self, large: Option<L>) -> Option<L> {
        if large.is_none() && self.0.is_none() {
            return None;
        }
        let cold = self.0.get_or_insert_default();
        std::mem::replace(&mut cold.large, large.map(Box::new)).map(|large| *large)
    }

    /// The side's extra state, if there is any cold state.
    pub(crate) fn extra(&self) -> Option<&X> {
        Some(&self.0.as_deref()?.extra)
    }

    /// The side's extra state; allocates the cold state.
    pub(crate) fn extra_mut(&mut self) -> &mut X {
        &mut self.0.get_or_insert_default().extra
    }

    /// Takes the side's extra state out.
    pub(crate) fn take_extra(&mut self) -> X {
        let cold = self.0.as_deref_mut();
        cold.map_or_else(X::default, |cold| std::mem::take(&mut cold.extra))
    }
}
