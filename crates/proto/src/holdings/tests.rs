use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Peers 0 and 3 are of origin 0, peers 1 and 4 of origin 1, and so on.
fn holding(peer: u32, what: u8, amount: u32) -> Holding<u8> {
    Holding {
        holder: Holder {
            origin: OriginId(peer % 3),
            peer: PeerId(peer),
        },
        amount,
        what,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Hold(Holding<u8>),
    /// Removes one of those that are held.
    Remove(prop::sample::Index),
    Renew(prop::sample::Index),
    Evict,
    GiveWay(Option<u32>, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..30_u32, any::<u8>(), 1..100_000_u32)
            .prop_map(|(peer, what, amount)| Step::Hold(holding(peer, what, amount))),
        any::<prop::sample::Index>().prop_map(Step::Remove),
        any::<prop::sample::Index>().prop_map(Step::Renew),
        Just(Step::Evict),
        (proptest::option::of(0..31_u32), 0..200_000_usize)
            .prop_map(|(peer, amount)| Step::GiveWay(peer, amount)),
    ]
}

/// All that is held, oldest first.
type Model = Vec<(HoldingId, Holding<u8>)>;

fn sums(model: &Model, key: impl Fn(&Holding<u8>) -> u32) -> BTreeMap<u32, usize> {
    let mut sums = BTreeMap::new();
    for (_, holding) in model {
        *sums.entry(key(holding)).or_default() += holding.amount as usize;
    }
    sums
}

/// Checks that this is the oldest of a peer that holds the most in its origin.
fn check_victim(model: &Model, victim: (HoldingId, Holding<u8>)) -> Result<(), TestCaseError> {
    let Holder { origin, peer } = victim.1.holder;
    let of_peers = sums(model, |it| it.holder.peer.0);
    let most = of_peers.iter().filter(|(peer, _)| *peer % 3 == origin.0);
    prop_assert_eq!(
        Some(of_peers[&peer.0]),
        most.map(|(_, amount)| *amount).max()
    );
    let oldest = model.iter().find(|(_, it)| it.holder.peer == peer);
    prop_assert_eq!(Some(&victim), oldest);
    Ok(())
}

proptest! {
    #[test]
    fn the_largest_loses_its_oldest(steps in prop::collection::vec(step(), 0..300)) {
        let mut holdings = Holdings::new();
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Hold(it) => model.push((holdings.insert(it), it)),
                Step::Remove(_) | Step::Renew(_) if model.is_empty() => {
                    holdings.remove(HoldingId::default());
                }
                Step::Remove(which) => {
                    let (id, _) = model.remove(which.index(model.len()));
                    holdings.remove(id);
                }
                Step::Renew(which) => {
                    let renewed = model.remove(which.index(model.len()));
                    holdings.renew(renewed.0);
                    model.push(renewed);
                }
                Step::Evict => {
                    let of_origins = sums(&model, |it| it.holder.origin.0);
                    let most = of_origins.values().max().copied();
                    let Some(victim) = holdings.oldest_of_largest() else {
                        prop_assert_eq!(most, None);
                        continue;
                    };
                    prop_assert_eq!(Some(of_origins[&victim.1.holder.origin.0]), most);
                    check_victim(&model, victim)?;
                    model.retain(|it| *it != victim);
                    holdings.remove(victim.0);
                }
                Step::GiveWay(peer, amount) => {
                    let wants = peer.map(|peer| holding(peer, 0, 0).holder);
                    let found = holdings.gives_way_to(wants, amount);
                    let of_origins = sums(&model, |it| it.holder.origin.0);
                    let of_peers = sums(&model, |it| it.holder.peer.0);
                    let held = |sums: &BTreeMap<u32, usize>, key: Option<u32>| {
                        key.and_then(|key| sums.get(&key)).copied().unwrap_or(0)
                    };
                    let own = held(&of_origins, peer.map(|peer| peer % 3));
                    let beside = held(&of_peers, peer);
                    match found {
                        Some(victim) => {
                            check_victim(&model, victim)?;
                            let Holder { origin, peer: of } = victim.1.holder;
                            match wants.is_some_and(|wants| wants.origin == origin) {
                                false => prop_assert!((own + amount) * 2 <= of_origins[&origin.0]),
                                true => prop_assert!((beside + amount) * 2 <= of_peers[&of.0]),
                            }
                        }
                        None => {
                            // Nobody else holds anything, or twice as much.
                            let most = of_origins.iter().max_by_key(|(_, amount)| **amount);
                            if let Some((other, most)) = most
                                && Some(*other) != peer.map(|peer| peer % 3)
                            {
                                prop_assert!((own + amount) * 2 > *most);
                            }
                        }
                    }
                }
            }
            let sum: usize = model.iter().map(|(_, it)| it.amount as usize).sum();
            prop_assert_eq!(holdings.total(), sum);
            prop_assert_eq!(holdings.oldest_of_largest().is_none(), model.is_empty());
        }
    }
}

/// However many others of its origin hold a little.
#[test]
fn the_largest_of_a_thousand_peers_gives_way() {
    let mut holdings = Holdings::new();
    let of = |peer: u32, amount| Holding {
        holder: Holder {
            origin: OriginId(0),
            peer: PeerId(peer),
        },
        amount,
        what: (),
    };
    for peer in 0..1000 {
        holdings.insert(of(peer, 1));
    }
    for peer in [100, 700, 101] {
        holdings.insert(of(peer, peer));
    }
    let wants = of(1000, 0).holder;
    for largest in [700, 101, 100] {
        let (_, small) = holdings
            .gives_way_to(Some(wants), 20)
            .expect("one holds much more");
        assert_eq!(small.holder.peer, PeerId(largest));
        // Its oldest one is small.
        for amount in [1, largest] {
            let (id, oldest) = holdings.oldest_of_largest().expect("some are left");
            assert_eq!(
                (oldest.holder.peer, oldest.amount),
                (PeerId(largest), amount)
            );
            holdings.remove(id);
        }
    }
    assert_eq!(holdings.gives_way_to(Some(wants), 20), None);
}

#[test]
fn entries_are_used_again() {
    let mut holdings = Holdings::new();
    for round in 0..100 {
        let ids: Vec<_> = (0..10)
            .map(|what| holdings.insert(holding(round % 3, what, 600)))
            .collect();
        for id in ids {
            holdings.remove(id);
        }
    }
    assert_eq!((holdings.entries.len(), holdings.total()), (10, 0));
}
