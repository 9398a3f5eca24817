//! Entries of a table by their amounts: a binary heap of their numbers. Each entry knows its place in it, so one
//! whose amount changes is found at once.

use super::{Index, NONE};

/// An entry of a table.
pub(super) trait Ranked {
    /// By which it is ranked.
    fn amount(&self) -> usize;

    /// Where it is in the ranking; [`NONE`]: nowhere. Only the ranking changes it.
    fn place(&mut self) -> &mut Index;
}

/// None is larger than the one above it.
#[derive(Clone, Debug)]
pub(super) struct Ranking(Vec<Index>);

impl Ranking {
    pub(super) const EMPTY: Self = Self(Vec::new());

    /// The entry with the largest amount.
    pub(super) fn first(&self) -> Option<Index> {
        self.0.first().copied()
    }

    /// An entry's amount has changed. It comes in, if it was not there.
    pub(super) fn update(&mut self, table: &mut [impl Ranked], entry: Index) {
        let mut place = *table[entry as usize].place();
        if place == NONE {
            place = self.0.len() as Index;
            self.0.push(entry);
            *table[entry as usize].place() = place;
        }
        self.restore(table, place as usize);
    }

    /// Takes an entry out, if it is there.
    pub(super) fn remove(&mut self, table: &mut [impl Ranked], entry: Index) {
        let place = std::mem::replace(table[entry as usize].place(), NONE);
        if place == NONE {
            return;
        }
        self.0.swap_remove(place as usize);
        if let Some(moved) = self.0.get(place as usize) {
            *table[*moved as usize].place() = place;
            self.restore(table, place as usize);
        }
    }

    /// Moves the entry at a place up or down, to where it belongs.
    fn restore(&mut self, table: &mut [impl Ranked], mut place: usize) {
        let amount_at = |order: &[Index], table: &[_], place: usize| {
            order
                .get(place)
                .map(|entry| Ranked::amount(&table[*entry as usize]))
        };
        while place > 0
            && amount_at(&self.0, table, (place - 1) / 2) < amount_at(&self.0, table, place)
        {
            self.swap(table, place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let larger = match amount_at(&self.0, table, left) < amount_at(&self.0, table, right) {
                true => right,
                false => left,
            };
            if amount_at(&self.0, table, larger) <= amount_at(&self.0, table, place) {
                return;
            }
            self.swap(table, place, larger);
            place = larger;
        }
    }

    fn swap(&mut self, table: &mut [impl Ranked], one: usize, other: usize) {
        self.0.swap(one, other);
        for place in [one, other] {
            *table[self.0[place] as usize].place() = place as Index;
        }
    }
}
