//! The memory that a message is built in.
//!
//! ```text
//!   Vec<u8>:  │ caller's header │ root's fixed part │ parts, in the order they were set │   tail: Bytes
//!             0                base                                                     │  (at most one)
//!                               ◀──────────────────── the message ────────────────────────────────────▶
//! ```
//!
//! A message is sent by handing these bytes over; there is no encoding step. One large bytes field
//! may be held by reference: its bytes stay where they are and count as the end of the message, and
//! the transport gathers them. Its offset is [`TAIL_OFFSET`], which means the end of the message.
//!
//! Parts are appended and do not move, except growing arrays. A full array that is not the last part
//! moves to the end, with room for twice its elements. That room is sent too, unless it was reserved
//! exactly. Bytes that are set again reuse their old place if they fit.

use std::collections::BTreeMap;

use bytes::Bytes;
use starling_msgbuf::spare;

use crate::layout::{MessageLayout, TAIL_OFFSET};
use crate::layouts::LayoutRef;
use crate::reader::Reader;
use crate::scalar::Scalar;

/// The largest message that can be built, in bytes. Transports allow less.
pub const MAX_MESSAGE_BYTES: usize = 1 << 31;

/// Offset of a set but empty string or bytes field. Any offset but zero within the message would do;
/// a message that holds a reference is at least this large.
const EMPTY_OFFSET: u32 = 8;

/// Elements that an array has room for when it first moves.
const FIRST_CAPACITY: u32 = 4;

/// A new message has room for so many bytes of parts; and the least that a decoder's vector grows to.
const FIRST_BYTES: usize = 64;

/// One message under construction, at the end of a vector.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    pub(crate) bytes: Vec<u8>,
    pub(crate) base: usize,
    /// The bytes were received. Their parts may overlap, so they are copied before the first write.
    pub(crate) adopted: Option<&'static MessageLayout>,
    /// State that small messages do not need. It is boxed so that arenas are cheap to make and move.
    extra: Option<Box<Extra>>,
}

#[derive(Clone, Debug, Default)]
struct Extra {
    tail: Option<Tail>,
    /// The start of each array with spare room, and the elements that it has room for.
    capacities: BTreeMap<u32, u32>,
}

impl Drop for Arena {
    #[inline]
    fn drop(&mut self) {
        spare::give(std::mem::take(&mut self.bytes));
    }
}

/// A bytes field held by reference.
#[derive(Clone, Debug)]
struct Tail {
    /// Position of the reference to it.
    slot: u32,
    bytes: Bytes,
}

impl Arena {
    /// Begins an empty message of this layout, in memory of an earlier one if this thread has some.
    #[inline]
    pub fn new<'l>(layout: impl Into<LayoutRef<'l>>) -> Arena {
        let layout = layout.into();
        let room = layout.size() as usize + FIRST_BYTES;
        Self::begin(spare::take(room), layout)
    }

    /// Begins an empty message of this layout at the end of `bytes`, whose content stays in front.
    // Where the layout is a constant, its fixed part is a few stores.
    #[inline(always)]
    pub fn begin<'l>(mut bytes: Vec<u8>, layout: impl Into<LayoutRef<'l>>) -> Arena {
        let base = bytes.len();
        append_zeros(&mut bytes, layout.into().size() as usize);
        Arena {
            bytes,
            base,
            adopted: None,
            extra: None,
        }
    }

    /// Bytes that [`Arena::begin_next`] begins a message behind.
    #[inline]
    pub fn behind(bytes: Vec<u8>) -> Arena {
        let base = bytes.len();
        Arena {
            bytes,
            base,
            adopted: None,
            extra: None,
        }
    }

    /// Begins another message behind this one and `gap` zeros. What was built stays, in front of it.
    #[inline(always)]
    pub fn begin_next<'l>(&mut self, gap: usize, layout: impl Into<LayoutRef<'l>>) {
        append_zeros(&mut self.bytes, gap);
        self.base = self.bytes.len();
        append_zeros(&mut self.bytes, layout.into().size() as usize);
        self.adopted = None;
        if self.extra.is_some() {
            self.extra = None;
        }
    }

    /// Received bytes, validated already, whose message begins at `base`.
    pub(crate) fn received(bytes: Vec<u8>, base: usize, layout: &'static MessageLayout) -> Arena {
        Arena {
            bytes,
            base,
            adopted: Some(layout),
            extra: None,
        }
    }

    /// Makes this an empty message of the layout. Keeps the memory, and the bytes in front.
    pub fn clear<'l>(&mut self, layout: impl Into<LayoutRef<'l>>) {
        self.bytes.truncate(self.base);
        append_zeros(&mut self.bytes, layout.into().size() as usize);
        self.extra = None;
        self.adopted = None;
    }

    /// The message: its head, and the bytes that follow it.
    #[inline]
    pub fn parts(&self) -> (&[u8], Option<&Bytes>) {
        (
            &self.bytes[self.base..],
            self.tail().map(|tail| &tail.bytes),
        )
    }

    /// Hands the memory over: the whole vector, with the bytes in front of the message, and the
    /// bytes that follow it.
    pub fn into_parts(mut self) -> (Vec<u8>, Option<Bytes>) {
        let tail = self.extra.take().and_then(|extra| extra.tail);
        (std::mem::take(&mut self.bytes), tail.map(|tail| tail.bytes))
    }

    /// The bytes in front of the message.
    #[inline]
    pub fn front_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.base]
    }

    /// Size of the message in bytes, head and tail.
    pub fn message_len(&self) -> usize {
        self.head_len() + self.tail().map_or(0, |tail| tail.bytes.len())
    }

    /// Bytes of memory that it takes, with room for more. What is held by reference is not its own.
    pub fn memory_len(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether a part of the message is held by reference.
    #[inline]
    pub fn has_tail(&self) -> bool {
        self.tail().is_some()
    }

    /// Number of bytes in front of the message.
    pub fn base(&self) -> usize {
        self.base
    }

    /// A reader at the root.
    #[inline]
    pub fn reader(&self) -> Reader<'_> {
        let (head, tail) = self.parts();
        Reader::in_parts(head, tail)
    }

    #[inline]
    fn tail(&self) -> Option<&Tail> {
        self.extra.as_ref()?.tail.as_ref()
    }

    fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Elements that the array at `start` has room for, if that is recorded.
    #[inline]
    fn capacity(&self, start: u32) -> Option<u32> {
        self.extra.as_ref()?.capacities.get(&start).copied()
    }

    #[inline]
    fn head_len(&self) -> usize {
        self.bytes.len() - self.base
    }

    /// Makes room for `more` bytes at the end.
    ///
    /// # Panics
    /// If the message would exceed [`MAX_MESSAGE_BYTES`].
    #[inline]
    fn end_for(&self, more: usize) -> u32 {
        let end = self.head_len();
        if more > MAX_MESSAGE_BYTES - end.min(MAX_MESSAGE_BYTES) {
            too_large(end, more);
        }
        end as u32
    }

    fn append_zeros(&mut self, count: usize) -> u32 {
        let at = self.end_for(count);
        append_zeros(&mut self.bytes, count);
        at
    }

    /// Writes a scalar at a position.
    #[inline]
    pub fn write<T: Scalar>(&mut self, at: u32, value: T) {
        let from = self.base + at as usize;
        value.to_le(&mut self.bytes[from..from + T::WIDTH]);
    }

    #[inline]
    pub(crate) fn read<T: Scalar>(&self, at: u32) -> T {
        let from = self.base + at as usize;
        T::from_le(&self.bytes[from..from + T::WIDTH])
    }

    /// Zeroes a slot.
    pub(crate) fn zero(&mut self, at: u32, length: u32) {
        self.drop_tail(at);
        let from = self.base + at as usize;
        self.bytes[from..from + length as usize].fill(0);
    }

    #[inline]
    fn reference(&self, slot: u32) -> (u32, u32) {
        let both = self.read::<u64>(slot);
        (both as u32, (both >> 32) as u32)
    }

    #[inline]
    fn set_reference(&mut self, slot: u32, offset: u32, length: u32) {
        self.write(slot, u64::from(offset) | (u64::from(length) << 32));
    }

    /// Sets the reference at `slot` to a copy of `value`. With `explicit`, an empty value counts as
    /// set.
    #[inline]
    pub(crate) fn write_bytes(&mut self, slot: u32, value: &[u8], explicit: bool) {
        if self.read::<u64>(slot) != 0 {
            return self.rewrite_bytes(slot, value, explicit);
        }
        if value.is_empty() {
            return self.set_reference(slot, if explicit { EMPTY_OFFSET } else { 0 }, 0);
        }
        let at = self.end_for(value.len());
        self.bytes.extend_from_slice(value);
        self.set_reference(slot, at, value.len() as u32);
    }

    #[inline(never)]
    fn rewrite_bytes(&mut self, slot: u32, value: &[u8], explicit: bool) {
        let (at, length) = self.reference(slot);
        if at != TAIL_OFFSET && length as usize == value.len() && length > 0 {
            let from = self.base + at as usize;
            return self.bytes[from..from + value.len()].copy_from_slice(value);
        }
        self.drop_tail(slot);
        let (at, length) = self.reference(slot);
        let (at, length) = (at as usize, length as usize);
        if length > 0 && !value.is_empty() {
            let from = self.base + at;
            let is_last = at + length == self.head_len();
            if value.len() < length && !is_last {
                self.bytes[from..from + value.len()].copy_from_slice(value);
                return self.set_reference(slot, at as u32, value.len() as u32);
            }
            if is_last {
                self.bytes.truncate(from);
            }
        }
        self.set_reference(slot, 0, 0);
        self.write_bytes(slot, value, explicit);
    }

    /// Sets the reference at `slot` to `value` without copying it, if no other field is held by
    /// reference yet; otherwise copies.
    pub(crate) fn write_shared(&mut self, slot: u32, value: Bytes, explicit: bool) {
        self.drop_tail(slot);
        if value.is_empty() || self.tail().is_some() || value.len() > MAX_MESSAGE_BYTES {
            return self.write_bytes(slot, &value, explicit);
        }
        self.set_reference(slot, TAIL_OFFSET, value.len() as u32);
        self.extra().tail = Some(Tail { slot, bytes: value });
    }

    /// Drops the tail if the reference at `slot` refers to it.
    #[inline]
    fn drop_tail(&mut self, slot: u32) {
        if self.tail().is_some_and(|tail| tail.slot == slot) {
            self.extra().tail = None;
            self.set_reference(slot, 0, 0);
        }
    }

    /// Unsets the reference at `slot`.
    pub(crate) fn clear_reference(&mut self, slot: u32) {
        self.drop_tail(slot);
        self.set_reference(slot, 0, 0);
    }

    /// The sub-message behind the reference at `slot`, created if absent.
    #[inline]
    pub(crate) fn child(&mut self, slot: u32, stride: u32) -> u32 {
        let (at, _) = self.reference(slot);
        if at != 0 {
            return at;
        }
        let at = self.append_zeros(stride as usize);
        self.set_reference(slot, at, 1);
        at
    }

    /// Takes memory for `more` bytes at the end of the message, unless it would then have more than `limit`
    /// bytes. The vector grows as vectors do, but never beyond the limit.
    #[inline]
    pub(crate) fn reserve_within(&mut self, more: usize, limit: usize) -> bool {
        let fits = more <= limit && self.message_len() <= limit - more;
        if fits && more > self.bytes.capacity() - self.bytes.len() {
            let needed = self.bytes.len() + more;
            let doubled = (self.bytes.capacity() * 2).max(FIRST_BYTES);
            let wanted = doubled.min(self.base + limit).max(needed);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        fits
    }

    /// Bytes by which the next [`Arena::push`] makes the message longer.
    pub(crate) fn growth_of_push(&self, slot: u32, stride: u32) -> usize {
        let (start, count) = self.reference(slot);
        let used = count as usize * stride as usize;
        let capacity = self.capacity(start);
        if (count == 0 && capacity.is_none()) || start as usize + used == self.head_len() {
            return stride as usize;
        }
        match capacity.is_some_and(|capacity| count < capacity) {
            true => 0,
            false => next_capacity(count) as usize * stride as usize,
        }
    }

    /// Appends a zeroed element to the array behind the reference at `slot`; returns its position.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32, stride: u32) -> u32 {
        let (start, count) = self.reference(slot);
        let used = count as usize * stride as usize;
        if count == 0 && self.capacity(start).is_none() {
            let at = self.append_zeros(stride as usize);
            self.set_reference(slot, at, 1);
            return at;
        }
        if start as usize + used == self.head_len() {
            let at = self.append_zeros(stride as usize);
            self.set_reference(slot, start, count + 1);
            return at;
        }
        let has_room = self
            .capacity(start)
            .is_some_and(|capacity| count < capacity);
        let start = if has_room {
            start
        } else {
            self.relocate(slot, stride, next_capacity(count))
        };
        self.set_reference(slot, start, count + 1);
        start + used as u32
    }

    /// Makes room for at least `more` elements beyond those of the array behind `slot`.
    pub(crate) fn reserve(&mut self, slot: u32, stride: u32, more: u32) {
        let (start, count) = self.reference(slot);
        let wanted = count.saturating_add(more);
        let capacity = self.capacity(start).unwrap_or(count);
        if more > 0 && capacity < wanted {
            self.relocate(slot, stride, wanted);
        }
    }

    /// Moves an array to the end, with room for `capacity` elements; returns its new start.
    fn relocate(&mut self, slot: u32, stride: u32, capacity: u32) -> u32 {
        let (start, count) = self.reference(slot);
        let used = count as usize * stride as usize;
        let to = self.append_zeros(capacity as usize * stride as usize);
        let from = self.base + start as usize;
        self.bytes
            .copy_within(from..from + used, self.base + to as usize);
        let extra = self.extra();
        extra.capacities.remove(&start);
        extra.capacities.insert(to, capacity);
        if let Some(tail) = &mut extra.tail
            && (start..start + used as u32).contains(&tail.slot)
        {
            tail.slot += to - start;
        }
        self.set_reference(slot, to, count);
        to
    }

    /// Appends scalars to the array behind `slot`.
    pub(crate) fn extend<T: Scalar>(&mut self, slot: u32, values: &[T]) {
        let stride = T::WIDTH as u32;
        for value in values {
            let at = self.push(slot, stride);
            self.write(at, *value);
        }
    }
}

/// Apart from its caller, which then needs fewer registers.
#[cold]
#[inline(never)]
fn too_large(end: usize, more: usize) -> ! {
    panic!(
        "a message of {end} bytes cannot grow by {more}: the limit is {MAX_MESSAGE_BYTES} bytes"
    );
}

/// Elements that a full array of `count` has room for after it moved.
fn next_capacity(count: u32) -> u32 {
    FIRST_CAPACITY.max(count.saturating_mul(2))
}

/// Appends zeros. Small constant counts, as those of fixed parts are, become a few stores.
#[inline]
fn append_zeros(bytes: &mut Vec<u8>, count: usize) {
    const ZEROS: [u8; 64] = [0; 64];
    match ZEROS.get(..count) {
        Some(zeros) => bytes.extend_from_slice(zeros),
        None => bytes.resize(bytes.len() + count, 0),
    }
}
