//! A ring on which each backend has many places, and each call one: it goes to the backend whose place comes
//! next (gRPC A42; the pick of a call without a key is that of A76).
//!
//! A backend that comes or goes moves only the calls of its own places. The number of places of each is not
//! quite gRPC's, for the sake of that; their names are.

use xxhash_rust::xxh64::xxh64;

use super::{Pick, Readiness, View};
use crate::policy::RingHash;
use crate::random::Random;

/// The places of each backend: a power of two, so that a backend that comes or goes rarely changes it, which
/// would move calls of all. All together are between the least and the most, if there are not more backends
/// than places.
fn places_of_each(settings: &RingHash, backends: usize) -> usize {
    let backends = backends.max(1);
    let wanted = settings.min_size.div_ceil(backends).next_power_of_two();
    let allowed = (settings.max_size / backends).max(1);
    match wanted <= allowed {
        true => wanted,
        false => 1 << allowed.ilog2(),
    }
}

/// Where on a ring a call with this key is.
pub fn hash(key: &[u8]) -> u64 {
    xxh64(key, 0)
}

#[derive(Debug)]
pub(super) struct Ring {
    /// Places and the backends that have them, ascending.
    places: Vec<(u64, u32)>,
    readiness: Vec<Readiness>,
}

impl Ring {
    pub(super) fn new(settings: &RingHash, backends: &[View<'_>]) -> Self {
        let each = places_of_each(settings, backends.len());
        let mut places = Vec::with_capacity(each * backends.len());
        let mut name = String::new();
        for (index, backend) in (0..).zip(backends) {
            for place in 0..each {
                name.clear();
                // The names of the places are those of gRPC and Envoy.
                use std::fmt::Write;
                let _ = write!(name, "{}_{place}", backend.key);
                places.push((hash(name.as_bytes()), index));
            }
        }
        places.sort_unstable();
        Self {
            places,
            readiness: backends.iter().map(|backend| backend.readiness).collect(),
        }
    }

    /// A call with a key waits while its backend is being connected. One without a key goes anywhere.
    pub(super) fn pick(
        &self,
        hash: Option<u64>,
        random: &mut Random,
        is_usable: impl Fn(usize) -> bool,
    ) -> Pick {
        let at = hash.unwrap_or_else(|| random.next_u64());
        let from = self.places.partition_point(|(place, _)| *place < at);
        let (before, after) = self.places.split_at(from);
        let mut seen = Vec::new();
        let mut may_wait = false;
        for (_, index) in after.iter().chain(before) {
            let index = *index as usize;
            match self.readiness[index] {
                Readiness::Ready => {}
                Readiness::Pending if hash.is_some() => return Pick::Wait,
                Readiness::Pending => {
                    may_wait = true;
                    continue;
                }
                Readiness::Failed => continue,
            }
            // Mostly the first one is usable, and nothing is kept in mind.
            if seen.get(index).is_some_and(|seen| *seen) {
                continue;
            }
            if is_usable(index) {
                return Pick::Backend(index);
            }
            seen.resize(self.readiness.len(), false);
            seen[index] = true;
        }
        match may_wait {
            true => Pick::Wait,
            false => Pick::Fail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("udp://10.0.0.{i}:9000")).collect()
    }

    fn ring(keys: &[String], readiness: impl Fn(usize) -> Readiness) -> Ring {
        let views = keys.iter().enumerate().map(|(index, key)| View {
            key,
            readiness: readiness(index),
            weight: 0.0,
        });
        Ring::new(&RingHash::by_metadata("user"), &views.collect::<Vec<_>>())
    }

    fn pick(ring: &Ring, key: usize) -> Pick {
        let at = hash(format!("user-{key}").as_bytes());
        ring.pick(Some(at), &mut Random::new(0), |_| true)
    }

    #[test]
    fn hashes_are_those_of_xxh64_with_seed_0() {
        // From the reference implementation's test vectors.
        assert_eq!(hash(b""), 0xef46_db37_51d8_e999);
        assert_eq!(hash(b"a"), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(hash(b"abc"), 0x44bc_2cf5_ad77_0999);
    }

    #[test]
    fn a_ring_has_as_many_places_as_its_bounds_allow() {
        let size = |n: usize, min: usize, max: usize| {
            let keys = keys(n);
            let views = keys.iter().map(|key| View {
                key,
                readiness: Readiness::Ready,
                weight: 0.0,
            });
            let settings = RingHash::by_metadata("user").size(min, max);
            Ring::new(&settings, &views.collect::<Vec<_>>())
                .places
                .len()
        };
        assert_eq!(size(3, 1024, 4096), 3 * 512);
        assert_eq!(size(1, 1024, 4096), 1024);
        assert_eq!(size(1000, 1024, 4096), 2000);
        assert_eq!(size(1000, 1024, 1024), 1000);
        assert_eq!(size(1000, 8, 16), 1000);
        assert_eq!(size(3, usize::MAX, usize::MAX), 3 * 1024);
        assert_eq!(size(0, 1024, 4096), 0);
    }

    #[test]
    fn a_backend_that_fails_moves_only_its_own_calls() {
        let keys = keys(10);
        let whole = ring(&keys, |_| Readiness::Ready);
        let broken = ring(&keys, |index| match index {
            4 => Readiness::Failed,
            _ => Readiness::Ready,
        });
        let mut moved = 0;
        for key in 0..10_000 {
            let (before, after) = (pick(&whole, key), pick(&broken, key));
            match before == Pick::Backend(4) {
                true => {
                    moved += 1;
                    assert_ne!(after, before);
                }
                false => assert_eq!(after, before),
            }
        }
        assert!((500..1500).contains(&moved), "{moved}");
    }

    #[test]
    fn a_backend_that_is_removed_moves_only_its_own_calls() {
        let all = keys(10);
        let mut rest = all.clone();
        rest.remove(4);
        let (whole, smaller) = (
            ring(&all, |_| Readiness::Ready),
            ring(&rest, |_| Readiness::Ready),
        );
        for key in 0..10_000 {
            let (Pick::Backend(before), Pick::Backend(after)) =
                (pick(&whole, key), pick(&smaller, key))
            else {
                panic!("all are ready");
            };
            assert!(before == 4 || all[before] == rest[after]);
        }
    }

    #[test]
    fn a_call_waits_for_its_own_backend_and_one_without_a_key_does_not() {
        let ring = ring(&keys(2), |index| match index {
            0 => Readiness::Pending,
            _ => Readiness::Ready,
        });
        let picks: Vec<Pick> = (0..1000).map(|key| pick(&ring, key)).collect();
        assert!(picks.contains(&Pick::Wait) && picks.contains(&Pick::Backend(1)));
        let mut random = Random::new(3);
        for _ in 0..1000 {
            let anywhere = ring.pick(None, &mut random, |_| true);
            assert_eq!(anywhere, Pick::Backend(1));
        }
        assert_eq!(ring.pick(None, &mut random, |_| false), Pick::Wait);
    }

    #[test]
    fn without_a_usable_backend_a_call_fails() {
        let failed = ring(&keys(3), |_| Readiness::Failed);
        assert_eq!(pick(&failed, 1), Pick::Fail);
        let ready = ring(&keys(3), |_| Readiness::Ready);
        assert_eq!(
            ready.pick(Some(7), &mut Random::new(0), |_| false),
            Pick::Fail
        );
        assert_eq!(pick(&ring(&[], |_| Readiness::Ready), 1), Pick::Fail);
    }
}
