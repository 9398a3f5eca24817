//! The order of keys: a concurrent B+ tree (scc) that begins a range in logarithmic time.
//!
//! The tree begins a range at the last key that is not above the range's start. If there is none, it
//! asks each of its leaves for one, and each leaf walks back to the first leaf, for nothing: with
//! 200,000 keys that takes seconds. So the tree always has the least key of all, which no record has.

use std::ops::Bound;

use scc::{Guard, TreeIndex};

/// Keys in order. `K::default()` is the least value of `K`, and never a key.
pub(super) struct Order<K: 'static> {
    tree: TreeIndex<K, ()>,
}

impl<K: Clone + Default + Ord + 'static> Order<K> {
    pub(super) fn new() -> Self {
        let tree = TreeIndex::new();
        let inserted = tree.insert_sync(K::default(), ());
        assert!(inserted.is_ok(), "the tree is empty");
        Self { tree }
    }

    /// Adds a key. False: it is there already.
    pub(super) fn insert(&self, key: K) -> bool {
        self.tree.insert_sync(key, ()).is_ok()
    }

    /// Removes a key. False: it is not there.
    pub(super) fn remove(&self, key: &K) -> bool {
        self.tree.remove_sync(key)
    }

    /// The keys that are not below `start`, in order.
    pub(super) fn range_from<'a>(
        &'a self,
        start: K,
        guard: &'a Guard,
    ) -> impl Iterator<Item = &'a K> {
        let start = match start == K::default() {
            true => Bound::Excluded(start),
            false => Bound::Included(start),
        };
        let keys = self.tree.range((start, Bound::Unbounded), guard);
        keys.map(|(key, ())| key)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often it is compared.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Counted(u32);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// The first `limit` keys from `start` on, and the comparisons that it took to find them.
    fn scan(order: &Order<Counted>, start: u32, limit: usize) -> (Vec<u32>, usize) {
        COMPARISONS.set(0);
        let guard = Guard::new();
        let keys = order.range_from(Counted(start), &guard).take(limit);
        let keys = keys.map(|key| key.0).collect();
        (keys, COMPARISONS.get())
    }

    /// Every tenth number, put in an order that fills all leaves alike.
    fn order_of(count: u32) -> Order<Counted> {
        let order = Order::new();
        for index in 0..count {
            assert!(order.insert(Counted(scattered(index, count) * 10)));
        }
        order
    }

    /// The numbers from 1 to `count`, scattered: 7919 is a prime, and no factor of the counts here.
    fn scattered(index: u32, count: u32) -> u32 {
        (u64::from(index) * 7919 % u64::from(count)) as u32 + 1
    }

    #[test]
    fn a_scan_compares_few_keys_wherever_it_begins() {
        for count in [100, 10_000, 100_000] {
            let order = order_of(count);
            for start in [0, 1, 10, 11, count * 5, count * 10, count * 10 + 1] {
                let (keys, comparisons) = scan(&order, start, 50);
                let first = start.div_ceil(10).max(1);
                let expected: Vec<_> = (first..=count).take(50).map(|key| key * 10).collect();
                assert_eq!(keys, expected, "from {start} of {count}");
                assert!(
                    comparisons <= 100,
                    "from {start} of {count}: {comparisons} comparisons"
                );
            }
        }
    }

    #[test]
    fn a_scan_compares_few_keys_after_the_first_ones_were_removed() {
        const COUNT: u32 = 20_000;
        let order = order_of(COUNT);
        for removed in 1..=COUNT {
            assert!(order.remove(&Counted(removed * 10)));
            if removed.is_multiple_of(1000) {
                for start in [0, 5, removed * 5, removed * 10] {
                    let (keys, comparisons) = scan(&order, start, 1);
                    let next = (removed < COUNT).then_some((removed + 1) * 10);
                    assert_eq!(keys, Vec::from_iter(next), "from {start} after {removed}");
                    assert!(
                        comparisons <= 100,
                        "from {start} after {removed}: {comparisons} comparisons"
                    );
                }
            }
        }
    }
}
