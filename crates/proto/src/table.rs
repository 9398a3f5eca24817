//! A table of sessions with stable places and generations.
//!
//! A lookup by a name from a frame reads one word of the place, its session's name, in the cache
//! line that the fast path reads anyway. With many sessions that line is in no cache, so the
//! names in a datagram can be asked for before its first frame is handled: the misses overlap
//! then, instead of one for each frame.

use std::collections::VecDeque;

use starling_prefetch::{prefetch_element, prefetch_lines};

use crate::SessionId;

/// What a session is told of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) id: SessionId,
    /// How often `id` was the name of another session before, times 256.
    pub(crate) round: u32,
}

impl Name {
    /// Of a place without a session.
    pub(crate) const NONE: Self = Self {
        id: SessionId::NONE,
        round: 0,
    };

    /// The name of the `uses`th session at a place, counted from zero.
    fn new(index: usize, uses: u32) -> Self {
        Self {
            id: SessionId::new(index, uses as u8),
            round: uses & !0xff,
        }
    }

    /// The name of the next session at the same place.
    fn next(self) -> Self {
        let uses = self.round | u32::from(self.id.generation());
        Self::new(self.id.index(), uses.wrapping_add(1))
    }
}

/// What a place holds.
pub(crate) trait Place {
    /// A place without a session. Its name is [`Name::NONE`].
    fn vacant() -> Self;

    /// The name of the session here.
    fn name(&self) -> Name;
}

/// Places beyond those that can be in use at a time, so that a name of a table of few sessions does
/// not come round before 65,536 others were used: a packet may be long on its way.
pub(crate) const SPARE: usize = 256;

/// Fewer sessions than this stay in a core's caches: there is nothing to ask for early.
const CROWD: usize = 1024;

/// Places for sessions. A freed place is used again as late as possible, so that a delayed frame
/// finds another generation there, or nothing.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<T>,
    /// The names that the next sessions in freed places will have.
    free: VecDeque<Name>,
    limit: usize,
}

impl<T: Place> Table<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            places: Vec::new(),
            free: VecDeque::new(),
            limit,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Puts a session in, unless the table is full. It learns its own name.
    pub(crate) fn insert(&mut self, make: impl FnOnce(Name) -> T) -> Option<SessionId> {
        if self.is_full() {
            return None;
        }
        // Fresh places first while there are few, then the one that was freed longest ago.
        let room = (self.limit + SPARE).min(SessionId::MAX_INDEX);
        let name = if self.places.len() < room && self.free.len() < SPARE {
            self.places.push(T::vacant());
            Name::new(self.places.len() - 1, 0)
        } else {
            self.free.pop_front().expect("the table is not full")
        };
        let session = make(name);
        debug_assert_eq!(session.name(), name, "a session knows its name");
        self.places[name.id.index()] = session;
        Some(name.id)
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<T> {
        let session = std::mem::replace(self.get_mut(id)?, T::vacant());
        self.free.push_back(session.name().next());
        Some(session)
    }

    #[inline]
    pub(crate) fn get(&self, id: SessionId) -> Option<&T> {
        self.places
            .get(id.index())
            .filter(|place| place.name().id == id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut T> {
        self.places
            .get_mut(id.index())
            .filter(|place| place.name().id == id)
    }

    /// Whether it is worth while to ask for sessions before they are needed.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.places.len() > CROWD
    }

    /// Asks for the first line of a place. Any number will do.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        prefetch_element(&self.places, index);
    }

    /// Asks for the first lines of a place that exists.
    #[inline]
    pub(crate) fn prefetch_lines(&self, index: usize, lines: usize) {
        if let Some(place) = self.places.get(index) {
            prefetch_lines(place, lines);
        }
    }

    /// The name of the session at a place, if there is one.
    pub(crate) fn id_at(&self, index: usize) -> Option<SessionId> {
        let id = self.places.get(index)?.name().id;
        (id != SessionId::NONE).then_some(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &T)> {
        self.places
            .iter()
            .map(|place| (place.name().id, place))
            .filter(|(id, _)| *id != SessionId::NONE)
    }

    /// Places, used or not: the bound of [`Table::id_at`].
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Named(Name);

    impl Place for Named {
        fn vacant() -> Self {
            Self(Name::NONE)
        }

        fn name(&self) -> Name {
            self.0
        }
    }

    #[test]
    fn a_handle_dies_with_its_session() {
        let mut table = Table::new(2);
        let a = table.insert(Named).unwrap();
        let b = table.insert(Named).unwrap();
        assert_eq!(table.insert(Named), None);
        assert_eq!(table.remove(a).map(|named| named.0.id), Some(a));
        assert_eq!(table.remove(a), None);
        assert_eq!(table.id_at(a.index()), None);
        let c = table.insert(Named).unwrap();
        assert_ne!(c, a);
        assert_eq!(table.get(a), None);
        assert_eq!(table.get_mut(c), Some(&mut Named(Name { id: c, round: 0 })));
        assert_eq!(table.get(b).map(|named| named.0.id), Some(b));
        assert_eq!(table.len(), 2);
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [b, c]);
    }

    #[test]
    fn a_name_comes_back_after_65536_others_and_the_round_counts_how_often() {
        let mut table = Table::new(1);
        let mut seen = std::collections::HashMap::new();
        for uses in 0..3 * 65_536_u32 {
            let id = table.insert(Named).unwrap();
            let Name { round, .. } = table.get(id).unwrap().0;
            assert_eq!(round, uses / 65_536 * 256);
            let before = seen.insert(id, uses);
            assert_eq!(before, uses.checked_sub(65_536));
            table.remove(id);
        }
        assert_eq!(table.places(), SPARE);
    }

    #[test]
    fn a_full_table_has_as_many_sessions_as_it_may() {
        let mut table = Table::new(3);
        for _ in 0..1000 {
            let ids: Vec<_> = (0..3).map(|_| table.insert(Named).unwrap()).collect();
            assert_eq!(table.insert(Named), None);
            for id in ids {
                table.remove(id).expect("it is there");
            }
        }
    }

    #[test]
    fn no_name_from_the_wire_finds_a_vacant_place() {
        let mut table = Table::new(2);
        let a = table.insert(Named).unwrap();
        table.remove(a);
        assert_eq!(table.get(SessionId::NONE), None);
        table.prefetch(SessionId::NONE.index());
        for generation in 0..=255 {
            assert_eq!(table.get(SessionId::new(a.index(), generation)), None);
        }
    }
}
