//! The cold part of a slot: its message, if that is not a small one, and the state of a message of
//! several packets.
//!
//! A slot keeps its message for the case that it has to be sent again. A small message lies in the
//! slot itself ([`InlineMessage`]). Everything else lies here, apart from the slot, in memory that
//! is allocated when the slot first needs it. So the slots of most sessions stay small.
//!
//! Both sides of a session use it: a client's slot keeps a request, a server's slot a response.
use starling_msgbuf::Msgbuf;

use crate::inline_message::InlineMessage;
use crate::msgbuf_pool::is_bulky;

/// `L` is the state of a message of several packets. `X` is all else that the side keeps.
#[derive(Debug)]
pub(crate) struct ColdState<L, X = ()>(Option<Box<Cold<L, X>>>);

#[derive(Debug)]
struct Cold<L, X> {
    large: Option<Box<L>>,
    /// The message, unless it is inline. Then a buffer for a later message.
    message: Msgbuf,
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
            message: Msgbuf::default(),
            extra: X::default(),
        }
    }
}

impl<L, X> ColdState<L, X> {
    /// What it takes when it is allocated, beside the message.
    pub(crate) const BYTES: usize = size_of::<Cold<L, X>>() + size_of::<L>();
}

impl<L, X: Default + PartialEq> ColdState<L, X> {
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

    /// The slot's message, as two parts. It is in `inline` or here.
    pub(crate) fn message<'a>(&'a self, inline: &'a InlineMessage) -> (&'a [u8], &'a [u8]) {
        match (inline.get(), &self.0) {
            (Some(inline), _) => (inline, &[]),
            (None, Some(cold)) => (cold.message.head(), cold.message.tail()),
            (None, None) => (&[], &[]),
        }
    }

    /// A range of the slot's message, as two parts.
    pub(crate) fn message_range<'a>(
        &'a self,
        inline: &'a InlineMessage,
        from: usize,
        to: usize,
    ) -> (&'a [u8], &'a [u8]) {
        match (inline.get(), &self.0) {
            (Some(inline), _) => (&inline[from..to], &[]),
            (None, Some(cold)) => cold.message.range(from, to),
            (None, None) => (&[], &[]),
        }
    }

    /// Length of the slot's message in bytes.
    pub(crate) fn message_len(&self, inline: &InlineMessage) -> usize {
        let (head, tail) = self.message(inline);
        head.len() + tail.len()
    }

    /// Stores a message together with its buffer, in exchange for the buffer that was here.
    #[inline]
    pub(crate) fn swap_message(&mut self, message: &mut Msgbuf) {
        std::mem::swap(&mut self.0.get_or_insert_default().message, message);
    }

    /// Takes the message out. An empty one is left.
    #[inline]
    pub(crate) fn take_message(&mut self) -> Msgbuf {
        let cold = self.0.as_deref_mut();
        cold.map_or_else(Msgbuf::new, |cold| std::mem::take(&mut cold.message))
    }

    /// Whether the message here has more memory than a slot keeps for its next message.
    #[inline]
    pub(crate) fn has_bulky_message(&self) -> bool {
        let cold = self.0.as_deref();
        cold.is_some_and(|cold| is_bulky(&cold.message))
    }

    /// Whether more memory is here than a slot keeps for its next message.
    #[inline]
    pub(crate) fn is_bulky(&self) -> bool {
        let cold = self.0.as_deref();
        cold.is_some_and(|cold| cold.large.is_some() || is_bulky(&cold.message))
    }

    /// Frees what is kept for later messages: there is no message here now.
    pub(crate) fn drop_spare(&mut self) {
        let Some(cold) = &mut self.0 else {
            return;
        };
        match cold.large.is_none() && cold.extra == X::default() {
            true => self.0 = None,
            false => cold.message = Msgbuf::new(),
        }
    }

    /// Takes out the message and the state of a message of several packets, if there is any cold
    /// state.
    pub(crate) fn take_all(&mut self) -> Option<(Msgbuf, Option<L>)> {
        let cold = self.0.as_deref_mut()?;
        let message = std::mem::take(&mut cold.message);
        Some((message, cold.large.take().map(|large| *large)))
    }
}
