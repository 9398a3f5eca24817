//! Some of many backends (gRPC A68, "Random subsetting").
//!
//! With rendezvous hashing, a backend that comes or goes changes at most one entry of each client's choice,
//! and the clients of a service are spread over all of its backends.

use xxhash_rust::xxh64::xxh64;

/// The indices of the `size` keys that the client with this seed uses, ascending. All of them if there are no
/// more.
pub fn subset<K: AsRef<str>>(keys: &[K], size: usize, seed: u64) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..keys.len()).collect();
    if size < keys.len() {
        chosen.sort_by_cached_key(|index| xxh64(keys[*index].as_ref().as_bytes(), seed));
        chosen.truncate(size);
        chosen.sort_unstable();
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("udp://10.0.0.{i}:9000")).collect()
    }

    fn chosen(keys: &[String], size: usize, seed: u64) -> Vec<&String> {
        let indices = subset(keys, size, seed);
        indices.into_iter().map(|index| &keys[index]).collect()
    }

    #[test]
    fn a_small_list_is_used_as_a_whole() {
        assert_eq!(subset(&keys(3), 5, 1), [0, 1, 2]);
        assert_eq!(subset(&keys(3), 3, 1), [0, 1, 2]);
        assert!(subset(&keys(0), 3, 1).is_empty());
    }

    #[test]
    fn a_backend_that_goes_changes_one_entry_at_most() {
        let all = keys(50);
        for seed in 0..100 {
            let before = chosen(&all, 10, seed);
            for gone in 0..all.len() {
                let mut rest = all.clone();
                let gone = rest.remove(gone);
                let after = chosen(&rest, 10, seed);
                let kept = before.iter().filter(|key| after.contains(key)).count();
                let expected = if before.contains(&&gone) { 9 } else { 10 };
                assert_eq!(kept, expected);
            }
        }
    }

    #[test]
    fn many_clients_are_spread_over_all_backends() {
        let all = keys(20);
        let mut counts = [0; 20];
        for client in 0..2000u64 {
            // Seeds are random numbers.
            let seed = crate::Random::new(client).next_u64();
            subset(&all, 5, seed).iter().for_each(|i| counts[*i] += 1);
        }
        assert!(counts.iter().all(|n| (400..600).contains(n)), "{counts:?}");
    }
}
