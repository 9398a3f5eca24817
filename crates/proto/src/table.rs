//! A table of sessions with stable places and generations.

use std::collections::VecDeque;

use crate::SessionId;

/// Places for sessions. A freed place is used again as late as possible, so that a delayed frame
/// finds another generation there, or nothing.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: VecDeque<u32>,
    limit: usize,
}

/// What a session is told of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) id: SessionId,
    /// How often `id` was the name of another session before, times 256.
    pub(crate) round: u32,
}

#[derive(Debug)]
struct Place<T> {
    /// Times that it was used before. Its low byte is in the name of its session.
    generation: u32,
    session: Option<T>,
}

impl<T> Table<T> {
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
        let index = if self.places.len() < self.limit && self.free.len() < 256 {
            self.places.push(Place {
                generation: 0,
                session: None,
            });
            self.places.len() - 1
        } else {
            self.free.pop_front().expect("the table is not full") as usize
        };
        let place = &mut self.places[index];
        let id = SessionId::new(index, place.generation as u8);
        let round = place.generation & !0xff;
        place.session = Some(make(Name { id, round }));
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<T> {
        self.get(id)?;
        let place = &mut self.places[id.index()];
        place.generation = place.generation.wrapping_add(1);
        self.free.push_back(id.index() as u32);
        place.session.take()
    }

    #[inline]
    pub(crate) fn get(&self, id: SessionId) -> Option<&T> {
        let place = self.places.get(id.index())?;
        if place.generation as u8 != id.generation() {
            return None;
        }
        place.session.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut T> {
        let place = self.places.get_mut(id.index())?;
        if place.generation as u8 != id.generation() {
            return None;
        }
        place.session.as_mut()
    }

    /// The name of the session at a place, if there is one.
    pub(crate) fn id_at(&self, index: usize) -> Option<SessionId> {
        let place = self.places.get(index)?;
        place.session.as_ref()?;
        Some(SessionId::new(index, place.generation as u8))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let session = place.session.as_ref()?;
            Some((SessionId::new(index, place.generation as u8), session))
        })
    }

    /// Places, used or not: the bound of [`Table::id_at`].
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_dies_with_its_session() {
        let mut table = Table::new(2);
        let a = table.insert(|_| 'a').unwrap();
        let b = table.insert(|_| 'b').unwrap();
        assert_eq!(table.insert(|_| 'c'), None);
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        let c = table.insert(|_| 'c').unwrap();
        assert_eq!(c.index(), a.index());
        assert_eq!(table.get(a), None);
        assert_eq!(table.get_mut(c), Some(&mut 'c'));
        assert_eq!(table.get(b), Some(&'b'));
        assert_eq!(table.len(), 2);
    }
}
