//! A table whose keys go stale: a place is reused, its key is not (for 2^31 uses).
//!
//! ```text
//! key   63        32 31         0       generation odd: in use; even: free
//!       ┌───────────┬────────────┐
//!       │generation │   index    │
//!       └───────────┴────────────┘
//! ```

/// Marks the end of the list of free places.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A bounded table with generation-checked keys. A freed place is reused first, while it is still
/// in the cache. A table of our own, because a call needs its key before the value is inserted.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    limit: usize,
}

#[inline]
fn split(key: u64) -> (usize, u32) {
    ((key & 0xffff_ffff) as usize, (key >> 32) as u32)
}

impl<T> Slab<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: NIL,
            limit: limit.min(1 << 31),
        }
    }

    /// The key that the next value will have; `None` when the table is full.
    #[inline]
    pub(crate) fn next_key(&self) -> Option<u64> {
        match self.entries.get(self.free as usize) {
            Some(entry) => {
                let generation = entry.generation.wrapping_add(1);
                Some(u64::from(generation) << 32 | u64::from(self.free))
            }
            None if self.entries.len() < self.limit => Some(1 << 32 | self.entries.len() as u64),
            None => None,
        }
    }

    /// Adds a value; gives it back when the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<u64, T> {
        let index = self.free;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            self.free = entry.next_free;
            entry.generation = entry.generation.wrapping_add(1);
            entry.value = Some(value);
            return Ok(u64::from(entry.generation) << 32 | u64::from(index));
        }
        self.grow(value)
    }

    #[cold]
    fn grow(&mut self, value: T) -> Result<u64, T> {
        if self.entries.len() >= self.limit {
            return Err(value);
        }
        let index = self.entries.len() as u64;
        self.entries.push(Entry {
            generation: 1,
            next_free: NIL,
            value: Some(value),
        });
        Ok(1 << 32 | index)
    }

    /// Removes a value; `None` for a stale key.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let (index, generation) = split(key);
        let entry = self.entries.get_mut(index)?;
        if entry.generation != generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.free;
        self.free = index as u32;
        Some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let (index, generation) = split(key);
        let entry = self.entries.get_mut(index)?;
        if entry.generation == generation {
            entry.value.as_mut()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        let (index, generation) = split(key);
        let entry = self.entries.get(index)?;
        if entry.generation == generation {
            entry.value.as_ref()
        } else {
            None
        }
    }

    /// The key of the value at a place, if there is one.
    pub(crate) fn key_at(&self, index: u32) -> Option<u64> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref()?;
        Some(u64::from(entry.generation) << 32 | u64::from(index))
    }

    /// All values.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries
            .iter_mut()
            .filter_map(|entry| entry.value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::new(2);
        let next = slab.next_key();
        let a = slab.insert('a').unwrap();
        assert_eq!(next, Some(a));
        let b = slab.insert('b').unwrap();
        assert_eq!(slab.next_key(), None);
        assert_eq!(slab.insert('c'), Err('c'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let next = slab.next_key();
        let c = slab.insert('c').unwrap();
        assert_eq!(next, Some(c));
        assert_ne!(a, c);
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.get(c), Some(&'c'));
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.key_at(0), Some(c));
        assert_eq!(slab.key_at(7), None);
        assert!(slab.values_mut().map(|value| *value).eq(['c', 'b']));
        assert_eq!(slab.get(7 << 32 | 9), None);
    }
}
