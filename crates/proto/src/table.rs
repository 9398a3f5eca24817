//! A table of sessions with stable places and generations.
//!
//! A lookup by the session id in a frame reads one word of the place, in the cache line that the fast
//! path reads anyway. With many sessions that line is in no cache. So the places that a datagram
//! names can be prefetched before its first frame is handled, and the misses overlap.

use std::collections::VecDeque;

use starling_prefetch::{prefetch_element, prefetch_lines};

use crate::{RequestId, SessionId};

/// A session's id, and the *round* that makes it unique: how often the id was that of another session
/// before, times 256. One word, so that both are compared at once.
///
/// ```text
///  63    56 55                      32 31                      0
/// ┌────────┬──────────────────────────┬─────────────────────────┐
/// │   0    │ round, upper 24 bits     │           id            │
/// └────────┴──────────────────────────┴─────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionHandle(u64);

impl SessionHandle {
    /// The handle of a place without a session.
    pub(crate) const NONE: Self = Self(SessionId::NONE.to_wire() as u64);

    /// `round` is a multiple of 256.
    #[inline]
    pub(crate) fn new(id: SessionId, round: u32) -> Self {
        Self(u64::from(round >> 8) << 32 | u64::from(id.to_wire()))
    }

    /// The word. Its highest byte is zero.
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// The handle of the `uses`th session at a place, counted from zero.
    fn at(index: usize, uses: u32) -> Self {
        Self::new(SessionId::new(index, uses as u8), uses & !0xff)
    }

    #[inline]
    pub(crate) fn id(self) -> SessionId {
        SessionId::from_wire(self.0 as u32)
    }

    #[inline]
    pub(crate) fn round(self) -> u32 {
        (self.0 >> 24) as u32 & !0xff
    }

    /// The handle of the next session at the same place.
    fn next(self) -> Self {
        let uses = self.round() | u32::from(self.id().generation());
        Self::at(self.id().index(), uses.wrapping_add(1))
    }
}

/// A place of the table: a session, or vacant.
pub(crate) trait Place {
    /// A place without a session. Its handle is [`SessionHandle::NONE`].
    fn vacant() -> Self;

    /// The handle of the session here.
    fn handle(&self) -> SessionHandle;
}

/// Places beyond those that can be in use at a time. With them, also a table of few sessions uses
/// 65,536 other ids before it uses an id again: a packet may be long on its way.
pub(crate) const SPARE: usize = 256;

/// Fewer sessions than this stay in a core's caches: prefetching them is useless.
const CROWD: usize = 1024;

/// Places for sessions. A freed place is used again as late as possible, so that a delayed frame
/// finds another generation there, or nothing.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<T>,
    /// The handles that the next sessions in freed places will have.
    free: VecDeque<SessionHandle>,
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

    /// Inserts a session, unless the table is full. `make` gets the session's handle.
    pub(crate) fn insert(&mut self, make: impl FnOnce(SessionHandle) -> T) -> Option<SessionId> {
        if self.is_full() {
            return None;
        }
        // Fresh places first while there are few; then the place that was freed longest ago.
        let room = (self.limit + SPARE).min(SessionId::MAX_INDEX);
        let handle = if self.places.len() < room && self.free.len() < SPARE {
            self.places.push(T::vacant());
            SessionHandle::at(self.places.len() - 1, 0)
        } else {
            self.free.pop_front().expect("the table is not full")
        };
        let session = make(handle);
        debug_assert_eq!(session.handle(), handle, "a session knows its handle");
        self.places[handle.id().index()] = session;
        Some(handle.id())
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<T> {
        let session = std::mem::replace(self.get_mut(id)?, T::vacant());
        self.free.push_back(session.handle().next());
        Some(session)
    }

    #[inline]
    pub(crate) fn get(&self, id: SessionId) -> Option<&T> {
        self.places
            .get(id.index())
            .filter(|place| place.handle().id() == id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut T> {
        self.places
            .get_mut(id.index())
            .filter(|place| place.handle().id() == id)
    }

    /// The session of a request, not a later one with the same id.
    #[inline]
    pub(crate) fn get_exact_mut(&mut self, request: RequestId) -> Option<&mut T> {
        self.places
            .get_mut(request.session().index())
            .filter(|place| request.is_of(place.handle()))
    }

    /// Whether there are so many sessions that prefetching helps.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.places.len() > CROWD
    }

    /// Prefetches the first line of a place. Any index will do.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        prefetch_element(&self.places, index);
    }

    /// Prefetches the first lines of a place, if it exists.
    #[inline]
    pub(crate) fn prefetch_lines(&self, index: usize, lines: usize) {
        if let Some(place) = self.places.get(index) {
            prefetch_lines(place, lines);
        }
    }

    /// The handle of the session at a place, if there is one.
    pub(crate) fn id_at(&self, index: usize) -> Option<SessionId> {
        let id = self.places.get(index)?.handle().id();
        (id != SessionId::NONE).then_some(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &T)> {
        self.places
            .iter()
            .map(|place| (place.handle().id(), place))
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
    struct Named(SessionHandle);

    impl Place for Named {
        fn vacant() -> Self {
            Self(SessionHandle::NONE)
        }

        fn handle(&self) -> SessionHandle {
            self.0
        }
    }

    #[test]
    fn a_handle_is_invalid_after_its_session() {
        let mut table = Table::new(2);
        let a = table.insert(Named).unwrap();
        let b = table.insert(Named).unwrap();
        assert_eq!(table.insert(Named), None);
        assert_eq!(table.remove(a).map(|named| named.0.id()), Some(a));
        assert_eq!(table.remove(a), None);
        assert_eq!(table.id_at(a.index()), None);
        let c = table.insert(Named).unwrap();
        assert_ne!(c, a);
        assert_eq!(table.get(a), None);
        assert_eq!(table.get_mut(c), Some(&mut Named(SessionHandle::new(c, 0))));
        assert_eq!(table.get(b).map(|named| named.0.id()), Some(b));
        assert_eq!(table.len(), 2);
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [b, c]);
    }

    #[test]
    fn an_id_is_used_again_after_65536_others_and_the_round_counts_how_often() {
        let mut table = Table::new(1);
        let mut seen = std::collections::HashMap::new();
        for uses in 0..3 * 65_536_u32 {
            let id = table.insert(Named).unwrap();
            let handle = table.get(id).unwrap().0;
            assert_eq!(handle.round(), uses / 65_536 * 256);
            assert!(table.get_exact_mut(RequestId::new(handle, 63, 1)).is_some());
            assert!(
                table
                    .get_exact_mut(RequestId::new(handle.next(), 63, 1))
                    .is_none()
            );
            let before = seen.insert(id, uses);
            assert_eq!(before, uses.checked_sub(65_536));
            table.remove(id);
        }
        assert_eq!(table.places(), SPARE);
    }

    #[test]
    fn a_full_table_accepts_sessions_up_to_its_limit() {
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
    fn no_id_from_the_wire_finds_a_vacant_place() {
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
