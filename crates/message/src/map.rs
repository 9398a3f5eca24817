//! Map fields: sequences of entries. The last entry of a key counts.
//!
//! Lookup is a linear search. Maps in messages are small, and an order or hash from a peer could not
//! be trusted. To look up many keys in a large map, collect it into a `HashMap`.

use std::fmt;
use std::marker::PhantomData;

use crate::arena::Arena;
use crate::element::{Element, Value};
use crate::message::Message;
use crate::reader::Reader;
use crate::writer::Writer;

/// The positions of key and value in an entry: the layout rule for the fields 1 and 2.
struct Entry<K: ?Sized, V: ?Sized>(PhantomData<(Box<K>, Box<V>)>);

impl<K: Element + ?Sized, V: Element + ?Sized> Entry<K, V> {
    const VALUE_FIRST: bool = V::SLOT > K::SLOT;
    const KEY: u32 = if Self::VALUE_FIRST { V::SLOT } else { 0 };
    const VALUE: u32 = if Self::VALUE_FIRST { 0 } else { K::SLOT };
    const STRIDE: u32 = K::SLOT + V::SLOT;
}

/// The entries of a map field, for reading.
pub struct MapView<'a, K: Element + ?Sized, V: Element + ?Sized> {
    start: Reader<'a>,
    count: u32,
    of: PhantomData<fn() -> Entry<K, V>>,
}

impl<K: Element + ?Sized, V: Element + ?Sized> Clone for MapView<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Element + ?Sized, V: Element + ?Sized> Copy for MapView<'_, K, V> {}

impl<'a, K: Element + ?Sized, V: Element + ?Sized> MapView<'a, K, V> {
    /// The map field `offset` bytes into the fixed part.
    #[inline]
    pub fn of(reader: Reader<'a>, offset: u32) -> Self {
        let (start, count) = reader.array(offset);
        MapView {
            start,
            count,
            of: PhantomData,
        }
    }

    /// The number of entries. A peer may have sent several for one key.
    pub fn len(self) -> usize {
        self.count as usize
    }

    /// Whether there are no entries.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// All entries, in the order in which they were added; the last one of a key counts.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = (K::View<'a>, V::View<'a>)> {
        (0..self.count).map(move |index| {
            let entry = self.start.element(index, Entry::<K, V>::STRIDE);
            let key = K::read_field(entry, Entry::<K, V>::KEY);
            (key, V::read_field(entry, Entry::<K, V>::VALUE))
        })
    }

    /// The last index whose key is `key`.
    fn position<'k>(self, key: K::View<'k>) -> Option<u32>
    where
        K::View<'a>: PartialEq<K::View<'k>>,
    {
        (0..self.count).rev().find(|index| {
            let entry = self.start.element(*index, Entry::<K, V>::STRIDE);
            K::read_field(entry, Entry::<K, V>::KEY) == key
        })
    }

    /// The value of a key.
    pub fn get<'k>(self, key: K::View<'k>) -> Option<V::View<'a>>
    where
        K::View<'a>: PartialEq<K::View<'k>>,
    {
        let entry = self
            .start
            .element(self.position(key)?, Entry::<K, V>::STRIDE);
        Some(V::read_field(entry, Entry::<K, V>::VALUE))
    }
}

impl<'a, K: Element + ?Sized, V: Element + ?Sized> fmt::Debug for MapView<'a, K, V>
where
    K::View<'a>: fmt::Debug,
    V::View<'a>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The entries of a map field, for writing.
pub struct MapMut<'a, K: Element + ?Sized, V: Element + ?Sized> {
    arena: &'a mut Arena,
    slot: u32,
    of: PhantomData<fn() -> Entry<K, V>>,
}

impl<'a, K: Value + ?Sized, V: Element + ?Sized> MapMut<'a, K, V> {
    /// The map field `offset` bytes into the fixed part.
    #[inline]
    pub fn of(writer: Writer<'a>, offset: u32) -> Self {
        let slot = writer.slot(offset);
        let (arena, _) = writer.into_parts();
        MapMut {
            arena,
            slot,
            of: PhantomData,
        }
    }

    /// The entries for reading.
    pub fn view(&self) -> MapView<'_, K, V> {
        MapView::of(self.arena.reader().moved_to(self.slot), 0)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.arena.clear_reference(self.slot);
    }

    /// Makes room for exactly `more` entries: adding them leaves no spare room in the message.
    pub fn reserve(&mut self, more: usize) {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.arena.reserve(self.slot, Entry::<K, V>::STRIDE, more);
    }

    /// Position of the entry with this key, created if absent.
    fn entry<'k>(&mut self, key: K::View<'k>) -> u32
    where
        for<'v> K::View<'v>: PartialEq<K::View<'k>>,
    {
        let view = self.view();
        if let Some(index) = view.position(key) {
            return view.start.element(index, Entry::<K, V>::STRIDE).position();
        }
        let at = self.arena.push(self.slot, Entry::<K, V>::STRIDE);
        K::write(self.arena, at + Entry::<K, V>::KEY, key);
        at
    }
}

impl<K: Value + ?Sized, V: Value + ?Sized> MapMut<'_, K, V> {
    /// Sets the value of a key. It searches for the key first, which is linear in the map's size.
    pub fn insert<'k>(&mut self, key: K::View<'k>, value: V::View<'_>)
    where
        for<'v> K::View<'v>: PartialEq<K::View<'k>>,
    {
        let at = self.entry(key);
        V::write(self.arena, at + Entry::<K, V>::VALUE, value);
    }

    /// Adds an entry without a search, for a key that is known to be absent.
    pub fn append(&mut self, key: K::View<'_>, value: V::View<'_>) {
        let at = self.arena.push(self.slot, Entry::<K, V>::STRIDE);
        K::write(self.arena, at + Entry::<K, V>::KEY, key);
        V::write(self.arena, at + Entry::<K, V>::VALUE, value);
    }
}

impl<K: Value + ?Sized, M: Message> MapMut<'_, K, M> {
    /// The message at a key, created if absent.
    pub fn get_or_default<'k>(&mut self, key: K::View<'k>) -> M::Mut<'_>
    where
        for<'v> K::View<'v>: PartialEq<K::View<'k>>,
    {
        let at = self.entry(key);
        let writer = Writer::new(self.arena, at);
        M::mut_of(writer.child(Entry::<K, M>::VALUE, M::STRIDE))
    }
}
