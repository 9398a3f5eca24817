//! The places of methods in tables of recorders.

use std::sync::atomic::{AtomicU32, Ordering};

/// Places in which a method is looked for.
const LOOKS: usize = 16;

/// Methods by their ids, in places that do not change: without a lock, by open addressing. `N` is a power of two.
pub(super) struct Places<const N: usize> {
    /// 0: the place is free.
    methods: [AtomicU32; N],
}

impl<const N: usize> Default for Places<N> {
    fn default() -> Self {
        const { assert!(N.is_power_of_two() && N >= LOOKS) };
        Self {
            methods: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl<const N: usize> Places<N> {
    /// The place of a method. None: there is none for it.
    #[inline]
    pub(super) fn of(&self, method: u32) -> Option<usize> {
        let spread = method.wrapping_mul(0x9e37_79b1) >> (u32::BITS - N.trailing_zeros());
        let places = (0..LOOKS).map(|step| (spread as usize + step) % N);
        for place in places {
            let known = match self.methods[place].load(Ordering::Relaxed) {
                0 => self.take(place, method),
                known => known,
            };
            if known == method {
                return Some(place);
            }
        }
        None
    }

    /// Takes a free place, unless another thread does. Returns the method that has it then.
    #[cold]
    fn take(&self, place: usize, method: u32) -> u32 {
        let (order, known) = (Ordering::Relaxed, &self.methods[place]);
        let taken = known.compare_exchange(0, method, order, order);
        taken.map_or_else(|other| other, |_| method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_keeps_its_place_and_no_two_have_one() {
        let places = Places::<64>::default();
        let of = |method: u32| places.of(method.wrapping_mul(0x0101_4a77));
        let first: Vec<_> = (1..=200).map(of).collect();
        let second: Vec<_> = (1..=200).map(of).collect();
        assert_eq!(first, second);
        let mut taken: Vec<_> = first.iter().flatten().collect();
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), count);
        assert!((32..=64).contains(&count), "{count}");
    }

    #[test]
    fn methods_that_come_at_once_all_have_places() {
        // All are looked for at one place first.
        let first = |method: &u32| Places::<64>::default().of(*method);
        let wanted = first(&1);
        let methods: Vec<u32> = (1..).filter(|it| first(it) == wanted).take(8).collect();
        let places = Places::<64>::default();
        let barrier = std::sync::Barrier::new(methods.len());
        std::thread::scope(|scope| {
            for method in &methods {
                let (places, barrier) = (&places, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    assert!(places.of(*method).is_some());
                });
            }
        });
        let mut taken: Vec<_> = methods.iter().map(|method| places.of(*method)).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 8);
    }
}
