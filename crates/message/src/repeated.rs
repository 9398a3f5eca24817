//! Repeated fields.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;

use crate::arena::Arena;
use crate::copy::copy;
use crate::element::{Element, Value};
use crate::message::{Message, MessageView};
use crate::reader::Reader;
use crate::scalar::Scalar;
use crate::writer::Writer;

/// The values of a repeated field, for reading.
pub struct RepeatedView<'a, T: Element + ?Sized> {
    start: Reader<'a>,
    count: u32,
    of: PhantomData<fn() -> Box<T>>,
}

impl<T: Element + ?Sized> Clone for RepeatedView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element + ?Sized> Copy for RepeatedView<'_, T> {}

impl<'a, T: Element + ?Sized> RepeatedView<'a, T> {
    /// The repeated field `offset` bytes into the fixed part.
    #[inline]
    pub fn of(reader: Reader<'a>, offset: u32) -> Self {
        let (start, count) = reader.array(offset);
        RepeatedView {
            start,
            count,
            of: PhantomData,
        }
    }

    /// The number of values.
    #[inline]
    pub fn len(self) -> usize {
        self.count as usize
    }

    /// Whether there are no values.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Value `index`, if it exists.
    #[inline]
    pub fn get(self, index: usize) -> Option<T::View<'a>> {
        let index = u32::try_from(index)
            .ok()
            .filter(|index| *index < self.count)?;
        Some(T::read_element(self.start.element(index, T::STRIDE)))
    }

    /// All values, in order.
    #[inline]
    pub fn iter(self) -> RepeatedIter<'a, T> {
        RepeatedIter {
            view: self,
            next: 0,
        }
    }
}

impl<'a, T: Element + ?Sized> IntoIterator for RepeatedView<'a, T> {
    type Item = T::View<'a>;
    type IntoIter = RepeatedIter<'a, T>;
    fn into_iter(self) -> RepeatedIter<'a, T> {
        self.iter()
    }
}

impl<'a, T: Element + ?Sized> fmt::Debug for RepeatedView<'a, T>
where
    T::View<'a>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterates over a [`RepeatedView`].
pub struct RepeatedIter<'a, T: Element + ?Sized> {
    view: RepeatedView<'a, T>,
    next: u32,
}

impl<'a, T: Element + ?Sized> Iterator for RepeatedIter<'a, T> {
    type Item = T::View<'a>;

    #[inline]
    fn next(&mut self) -> Option<T::View<'a>> {
        let value = self.view.get(self.next as usize)?;
        self.next += 1;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.view.count - self.next) as usize;
        (left, Some(left))
    }
}

impl<T: Element + ?Sized> ExactSizeIterator for RepeatedIter<'_, T> {}

/// The values of a repeated field, for writing.
pub struct RepeatedMut<'a, T: Element + ?Sized> {
    arena: &'a mut Arena,
    slot: u32,
    of: PhantomData<fn() -> Box<T>>,
}

impl<'a, T: Element + ?Sized> RepeatedMut<'a, T> {
    /// The repeated field `offset` bytes into the fixed part.
    #[inline]
    pub fn of(writer: Writer<'a>, offset: u32) -> Self {
        let slot = writer.slot(offset);
        let (arena, _) = writer.into_parts();
        RepeatedMut {
            arena,
            slot,
            of: PhantomData,
        }
    }

    /// The values for reading.
    #[inline]
    pub fn view(&self) -> RepeatedView<'_, T> {
        RepeatedView::of(self.arena.reader().moved_to(self.slot), 0)
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.view().is_empty()
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.arena.clear_reference(self.slot);
    }

    /// Makes room for exactly `more` values: pushing them neither moves existing values nor leaves
    /// spare room in the message.
    pub fn reserve(&mut self, more: usize) {
        self.arena.reserve(
            self.slot,
            T::STRIDE,
            u32::try_from(more).unwrap_or(u32::MAX),
        );
    }

    #[inline]
    fn add(&mut self) -> u32 {
        self.arena.push(self.slot, T::STRIDE)
    }

    /// Position of an element.
    fn position(&self, index: usize) -> Option<u32> {
        let (start, count) = self.arena.reader().moved_to(self.slot).array(0);
        let index = u32::try_from(index).ok().filter(|index| *index < count)?;
        Some(start.element(index, T::STRIDE).position())
    }
}

impl<T: Value + ?Sized> RepeatedMut<'_, T> {
    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T::View<'_>) {
        let at = self.add();
        T::write(self.arena, at, value);
    }

    /// Replaces value `index`.
    ///
    /// # Panics
    /// If there are `index` values or fewer.
    pub fn set(&mut self, index: usize, value: T::View<'_>) {
        let at = self.position(index);
        T::write(
            self.arena,
            at.expect("index within the repeated field"),
            value,
        );
    }

    /// Appends values.
    pub fn extend<'v>(&mut self, values: impl IntoIterator<Item = T::View<'v>>) {
        for value in values {
            let at = self.add();
            T::write(self.arena, at, value);
        }
    }
}

impl<T: Value + Scalar> RepeatedMut<'_, T> {
    /// Appends a slice of scalars.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        self.reserve(values.len());
        self.arena.extend(self.slot, values);
    }
}

impl RepeatedMut<'_, [u8]> {
    /// Appends bytes without copying them. If another field of the message is already held by
    /// reference, it copies.
    pub fn push_shared(&mut self, value: Bytes) {
        let at = self.add();
        self.arena.write_shared(at, value, false);
    }
}

impl<M: Message> RepeatedMut<'_, M> {
    /// Appends an empty message and returns it for writing.
    #[inline]
    pub fn push_default(&mut self) -> M::Mut<'_> {
        let at = self.add();
        M::mut_of(Writer::new(self.arena, at))
    }

    /// Appends a copy of a view.
    pub fn push_view(&mut self, view: M::View<'_>) {
        let at = self.add();
        copy(M::LAYOUT, view.reader(), &mut Writer::new(self.arena, at));
    }

    /// Message `index`, for writing.
    pub fn get_mut(&mut self, index: usize) -> Option<M::Mut<'_>> {
        let at = self.position(index)?;
        Some(M::mut_of(Writer::new(self.arena, at)))
    }
}
