//! The messages of a stream that came together.

use std::fmt;
use std::sync::Arc;

use starling_message::{Message, MessageView, Reader, reflect};
use starling_stream::{ItemSlices, Items};

use super::item::{Decoded, malformed};

/// Messages of a stream that came together, to be read where they lie: up to 60 KiB of small ones, or one.
///
/// ```text
/// while let Some(bundle) = items.bundle().await? {
///     for item in &bundle { .. }
/// }
/// ```
#[derive(Clone)]
pub struct StreamBundle<M: Message>(Kept<M>);

#[derive(Clone)]
enum Kept<M> {
    /// All of them validated.
    Native(Items),
    /// Of a peer with another schema. One only, for in memory they may be much larger.
    Decoded(Arc<Decoded<M>>),
}

impl<M: Message> StreamBundle<M> {
    /// Items of which at least one is there.
    ///
    /// # Errors
    /// Why an item is no such message.
    pub(super) fn receive(items: Items) -> Result<Self, String> {
        let mut slices = items.slices();
        let validated = slices.try_for_each(M::validate);
        validated.map_err(|error| malformed(&error))?;
        slices.finish().map_err(|error| error.to_string())?;
        Ok(Self(Kept::Native(items)))
    }

    /// A message of a peer with another schema.
    #[cold]
    pub(super) fn decoded(decoded: Decoded<M>) -> Self {
        Self(Kept::Decoded(Arc::new(decoded)))
    }

    /// The messages, in order.
    pub fn iter(&self) -> StreamBundleIter<'_, M> {
        StreamBundleIter(match &self.0 {
            Kept::Native(items) => Rest::Native(items.slices()),
            Kept::Decoded(decoded) => Rest::Decoded(Some(&decoded.message)),
        })
    }
}

/// The messages of a [`StreamBundle`].
#[derive(Clone)]
pub struct StreamBundleIter<'a, M: Message>(Rest<'a, M>);

#[derive(Clone)]
enum Rest<'a, M> {
    Native(ItemSlices<'a>),
    Decoded(Option<&'a M>),
}

impl<'a, M: Message> Iterator for StreamBundleIter<'a, M> {
    type Item = M::View<'a>;

    #[inline]
    fn next(&mut self) -> Option<M::View<'a>> {
        match &mut self.0 {
            Rest::Native(items) => Some(M::view_of(Reader::root(items.next()?))),
            Rest::Decoded(message) => message.take().map(M::view),
        }
    }
}

impl<M: Message> fmt::Debug for StreamBundleIter<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamBundleIter(..)")
    }
}

impl<'a, M: Message> IntoIterator for &'a StreamBundle<M> {
    type Item = M::View<'a>;
    type IntoIter = StreamBundleIter<'a, M>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<M: Message> fmt::Debug for StreamBundle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self
            .iter()
            .map(|item| fmt::from_fn(move |f| reflect::debug(M::LAYOUT, item.reader(), f)));
        f.debug_list().entries(items).finish()
    }
}
