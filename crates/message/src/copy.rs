//! Copies of messages by their table, and writing to received messages, which copies them first.

use crate::arena::Arena;
use crate::layout::{MAX_DEPTH, MessageLayout, Presence, Shape};
use crate::layouts::LayoutRef;
use crate::reader::Reader;
use crate::validate::{ValidationError, validate};
use crate::value::{ValueRef, count, is_set, raw, value};
use crate::writer::{Writer, set_raw};

/// Copies all fields of a message into an empty one of the same type.
///
/// # Panics
/// If messages are nested more than [`MAX_DEPTH`] deep. A received message never is.
pub fn copy<'l>(layout: impl Into<LayoutRef<'l>>, from: Reader<'_>, to: &mut Writer<'_>) {
    copy_at(layout.into(), from, to, 1);
}

fn copy_at(layout: LayoutRef<'_>, from: Reader<'_>, to: &mut Writer<'_>, depth: u32) {
    assert!(
        depth <= MAX_DEPTH,
        "{} is nested more than {MAX_DEPTH} deep",
        layout.name()
    );
    for field in layout.fields().filter(|field| is_set(field, from)) {
        let explicit = field.presence != Presence::Implicit;
        match field.presence {
            Presence::Bit { byte, mask } => to.set_bit(byte, mask, true),
            Presence::Oneof {
                discriminant, case, ..
            } => {
                to.set_case(discriminant, case, field.offset, field.kind.slot_size());
            }
            Presence::Implicit | Presence::Reference => {}
        }
        if field.shape == Shape::Singular {
            match value(field, from, 0) {
                ValueRef::Message(child, reader) => {
                    let mut writer = to.reborrow().child(field.offset, child.stride());
                    copy_at(child, reader, &mut writer, depth + 1);
                }
                _ if field.kind.is_reference() => {
                    to.set_bytes(field.offset, from.bytes(field.offset), explicit);
                }
                _ => {
                    let slot = to.slot(field.offset);
                    set_raw(to, slot, field.kind, raw(field.kind, from, field.offset));
                }
            }
            continue;
        }
        let (slot, stride) = (to.slot(field.offset), field.stride());
        let count = count(&field, from);
        to.arena().reserve(slot, stride, count);
        let array = from.array(field.offset).0;
        for index in 0..count {
            let element = array.element(index, stride);
            let at = to.arena().push(slot, stride);
            match field.message() {
                Some(child) => {
                    copy_at(child, element, &mut Writer::new(to.arena(), at), depth + 1);
                }
                None if field.kind.is_reference() => {
                    to.arena().write_bytes(at, element.bytes(0), false);
                }
                None => set_raw(to, at, field.kind, raw(field.kind, element, 0)),
            }
        }
    }
}

impl Arena {
    /// Takes received bytes without copying them; the message begins at `base`. The first change
    /// copies it, part by part: a peer may have made parts overlap, which is harmless until one of
    /// them is written to.
    ///
    /// The layout is a generated one, for the copy may be made at any time later. With one made from a
    /// schema, [`validate`] the bytes and [`copy`] them into an arena of your own.
    ///
    /// # Panics
    /// If `base` is beyond the end.
    pub fn adopt(
        bytes: Vec<u8>,
        base: usize,
        layout: &'static MessageLayout,
    ) -> Result<Arena, ValidationError> {
        validate(layout, &bytes[base..])?;
        Ok(Arena::received(bytes, base, layout))
    }

    #[cold]
    fn copy_adopted(&mut self, layout: &'static MessageLayout) {
        let mut own = Arena::begin(self.bytes[..self.base].to_vec(), layout);
        copy(layout, self.reader(), &mut own.root());
        *self = own;
    }

    /// A writer at the root.
    #[inline]
    pub fn root(&mut self) -> Writer<'_> {
        if let Some(layout) = self.adopted {
            self.copy_adopted(layout);
        }
        Writer::new(self, 0)
    }
}

impl<'a> Writer<'a> {
    /// A writer at the root of a message.
    #[inline]
    pub fn from_arena(arena: &'a mut Arena) -> Self {
        arena.root()
    }

    /// Sets a message field to a copy.
    pub fn set_message<'l>(
        &mut self,
        offset: u32,
        layout: impl Into<LayoutRef<'l>>,
        value: Reader<'_>,
    ) {
        let layout = layout.into();
        self.clear_reference(offset);
        copy(
            layout,
            value,
            &mut self.reborrow().child(offset, layout.stride()),
        );
    }

    /// Makes the whole message at this position a copy of another one of its type.
    pub fn copy_from<'l>(&mut self, layout: impl Into<LayoutRef<'l>>, value: Reader<'_>) {
        let layout = layout.into();
        if self.slot(0) == 0 {
            self.arena().clear(layout);
            return copy(layout, value, self);
        }
        for field in layout.fields() {
            if field.shape != Shape::Singular || field.kind.is_reference() {
                self.clear_reference(field.offset);
            }
        }
        let at = self.slot(0);
        self.arena().zero(at, layout.size());
        copy(layout, value, self);
    }
}
