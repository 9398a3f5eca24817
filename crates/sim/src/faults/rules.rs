//! Fault rules of the network: which datagrams they hit, when, and what they do to them.
//!
//! All rules apply once to each datagram, when it leaves its sender. Their order only matters in
//! that a datagram that one rule drops is not shown to the rules behind it. Faults of hosts (pause,
//! crash, clock jump) are calls of [`Fabric`](crate::Fabric).

use crate::host_id::HostId;
use crate::rng::Rng;
use crate::trace::DropCause;

/// A fault of the datagrams that a rule applies to. Probabilities are in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Each datagram is lost with this probability.
    Loss {
        /// Probability of the loss.
        ppm: u32,
    },
    /// One datagram in so many is lost, on average: for losses rarer than one in a million.
    RareLoss {
        /// One loss in this many datagrams. Not 0.
        one_in: u64,
    },
    /// The channel of Gilbert and Elliott: two states, each with a loss of its own. With no loss
    /// in the good one and nothing but loss in the bad one it is Gilbert's.
    BurstLoss {
        /// Probability, for each datagram in the good state, to enter the bad one.
        enter_ppm: u32,
        /// Probability, for each datagram in the bad state, to leave it.
        leave_ppm: u32,
        /// Probability of a loss in the good state.
        good_ppm: u32,
        /// Probability of a loss in the bad state.
        bad_ppm: u32,
    },
    /// A second copy arrives, up to `delay_ns` after the first: with a large delay, a replay.
    Duplicate {
        /// Probability of the copy.
        ppm: u32,
        /// The copy's largest extra delay.
        delay_ns: u64,
    },
    /// The datagram is held back, so that later ones overtake it.
    Reorder {
        /// Probability of the delay.
        ppm: u32,
        /// The longest delay.
        delay_ns: u64,
    },
    /// Every datagram is delayed by a random time.
    Jitter {
        /// The longest delay.
        max_ns: u64,
    },
    /// Bits flip.
    Corrupt {
        /// Probability of the corruption.
        ppm: u32,
        /// `false`: the bits flip on the wire, and the receiving kernel's checksum finds it.
        /// `true`: a switch flips them in its memory and checksums the result.
        undetected: bool,
    },
    /// A queue on the way marks the datagram "congestion experienced".
    Mark {
        /// Probability of the mark.
        ppm: u32,
    },
    /// Nothing passes. If one end or both are named, the partition is one-way.
    Partition,
    /// The network delivers the datagram to a host that is drawn at random, not its sender.
    Misroute {
        /// Probability that it does.
        ppm: u32,
    },
    /// The receiver's queue holds no more than so many datagrams: its descriptors were not
    /// replenished, or others use them. Datagrams that wait already stay.
    Starve {
        /// How many it holds.
        datagrams: usize,
    },
}

/// One fault with its place and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Only datagrams from this host.
    pub from: Option<HostId>,
    /// Only datagrams to this host.
    pub to: Option<HostId>,
    /// Only datagrams that leave at or after this time, ns.
    pub start_ns: u64,
    /// Only datagrams that leave before this time, ns.
    pub end_ns: u64,
    /// The fault.
    pub fault: Fault,
}

impl Rule {
    /// A rule for all datagrams from `start_ns` to `end_ns`.
    pub fn everywhere(start_ns: u64, end_ns: u64, fault: Fault) -> Self {
        Self {
            from: None,
            to: None,
            start_ns,
            end_ns,
            fault,
        }
    }

    fn applies(&self, now_ns: u64, from: Option<HostId>, to: HostId) -> bool {
        (self.start_ns..self.end_ns).contains(&now_ns)
            && self.to.is_none_or(|host| host == to)
            && (self.from.is_none() || self.from == from)
    }
}

/// The effect of the rules on one datagram.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) dropped: Option<DropCause>,
    pub(crate) delay_ns: u64,
    /// The extra delay of each further copy.
    pub(crate) copies: Vec<u64>,
    pub(crate) corruption: Corruption,
    pub(crate) marked: bool,
    pub(crate) misrouted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Corruption {
    #[default]
    None,
    OnTheWire,
    InASwitch,
}

/// All rules of a fabric, with the state of those that have one.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<(Rule, bool)>,
}

impl Rules {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(crate) fn add(&mut self, rule: Rule) {
        self.rules.push((rule, false));
    }

    pub(crate) fn apply(
        &mut self,
        rng: &mut Rng,
        now_ns: u64,
        from: Option<HostId>,
        to: HostId,
    ) -> Effect {
        let mut effect = Effect::default();
        for (rule, bad) in &mut self.rules {
            if !rule.applies(now_ns, from, to) {
                continue;
            }
            match rule.fault {
                Fault::Loss { ppm } => {
                    if rng.chance(ppm) {
                        effect.dropped = Some(DropCause::Loss);
                    }
                }
                Fault::RareLoss { one_in } => {
                    if rng.below(one_in) == 0 {
                        effect.dropped = Some(DropCause::Loss);
                    }
                }
                Fault::BurstLoss {
                    enter_ppm,
                    leave_ppm,
                    good_ppm,
                    bad_ppm,
                } => {
                    let turn_ppm = if *bad { leave_ppm } else { enter_ppm };
                    *bad ^= rng.chance(turn_ppm);
                    if rng.chance(if *bad { bad_ppm } else { good_ppm }) {
                        effect.dropped = Some(DropCause::Burst);
                    }
                }
                Fault::Duplicate { ppm, delay_ns } => {
                    if rng.chance(ppm) {
                        effect.copies.push(rng.range(0, delay_ns));
                    }
                }
                Fault::Reorder { ppm, delay_ns } => {
                    if rng.chance(ppm) {
                        effect.delay_ns += rng.range(0, delay_ns);
                    }
                }
                Fault::Jitter { max_ns } => effect.delay_ns += rng.range(0, max_ns),
                Fault::Corrupt { ppm, undetected } => {
                    if rng.chance(ppm) {
                        effect.corruption = if undetected {
                            Corruption::InASwitch
                        } else {
                            Corruption::OnTheWire
                        };
                    }
                }
                Fault::Mark { ppm } => effect.marked |= rng.chance(ppm),
                Fault::Partition => effect.dropped = Some(DropCause::Partition),
                Fault::Misroute { ppm } => effect.misrouted |= rng.chance(ppm),
                // `queue_limit` applies this fault where datagrams arrive.
                Fault::Starve { .. } => {}
            }
            if effect.dropped.is_some() {
                break;
            }
        }
        effect
    }

    /// How many datagrams `host`'s receive queue may hold now, if a rule says so.
    pub(crate) fn queue_limit(&self, now_ns: u64, host: HostId) -> Option<usize> {
        let limits = self.rules.iter().filter_map(|(rule, _)| match rule.fault {
            Fault::Starve { datagrams } if rule.applies(now_ns, rule.from, host) => Some(datagrams),
            _ => None,
        });
        limits.min()
    }
}

/// Flips `count` bits of `bytes`, not all of them necessarily different.
pub(crate) fn flip_bits(rng: &mut Rng, bytes: &mut [u8], count: u64) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..count {
        let bit = rng.below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// The 16-bit one's complement checksum that UDP carries (RFC 1071). It finds every single
/// flipped bit, and most but not all of several.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u64::from(low));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(fault: Fault, count: usize) -> Vec<Effect> {
        let mut rules = Rules::default();
        rules.add(Rule::everywhere(0, 100, fault));
        let mut rng = Rng::new(11);
        (0..count)
            .map(|_| rules.apply(&mut rng, 50, Some(HostId(0)), HostId(1)))
            .collect()
    }

    #[test]
    fn rules_keep_to_their_place_and_time() {
        let mut rules = Rules::default();
        rules.add(Rule {
            from: Some(HostId(0)),
            to: Some(HostId(1)),
            start_ns: 10,
            end_ns: 20,
            fault: Fault::Partition,
        });
        let mut dropped = |now_ns, from, to| {
            let effect = rules.apply(&mut Rng::new(0), now_ns, from, HostId(to));
            effect.dropped.is_some()
        };
        assert!(dropped(10, Some(HostId(0)), 1));
        assert!(!dropped(9, Some(HostId(0)), 1));
        assert!(!dropped(20, Some(HostId(0)), 1));
        assert!(!dropped(10, Some(HostId(1)), 0), "one way only");
        assert!(!dropped(10, None, 1), "an unknown sender is not host 0");
    }

    #[test]
    fn losses_come_at_their_rate_and_bursts_in_runs() {
        let lost = |fault| -> Vec<bool> {
            fates(fault, 10_000)
                .iter()
                .map(|effect| effect.dropped.is_some())
                .collect()
        };
        let count = |lost: &[bool]| lost.iter().filter(|&&lost| lost).count();
        let runs = |lost: &[bool]| lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let single = lost(Fault::Loss { ppm: 100_000 });
        let burst = lost(Fault::BurstLoss {
            enter_ppm: 11_111,
            leave_ppm: 100_000,
            good_ppm: 0,
            bad_ppm: 1_000_000,
        });
        let mixed = lost(Fault::BurstLoss {
            enter_ppm: 11_111,
            leave_ppm: 100_000,
            good_ppm: 10_000,
            bad_ppm: 500_000,
        });
        // A tenth of the time at a half, the rest at a hundredth.
        assert!((450..750).contains(&count(&mixed)));
        assert!((800..1200).contains(&count(&single)));
        assert!((700..1300).contains(&count(&burst)));
        assert!(runs(&burst) * 5 < runs(&single));
    }

    #[test]
    fn every_other_fault_has_its_effect() {
        let duplicated = fates(
            Fault::Duplicate {
                ppm: 500_000,
                delay_ns: 7,
            },
            100,
        );
        assert!(duplicated.iter().any(|effect| effect.copies.is_empty()));
        assert!(duplicated.iter().flat_map(|effect| &effect.copies).count() > 20);
        assert!(
            duplicated
                .iter()
                .flat_map(|effect| &effect.copies)
                .all(|&ns| ns <= 7)
        );
        let delayed = fates(Fault::Jitter { max_ns: 9 }, 100);
        assert!(delayed.iter().any(|effect| effect.delay_ns == 9));
        let held = fates(
            Fault::Reorder {
                ppm: 100_000,
                delay_ns: 1000,
            },
            100,
        );
        assert!(held.iter().filter(|effect| effect.delay_ns > 0).count() < 30);
        assert!(fates(Fault::Mark { ppm: 1_000_000 }, 1)[0].marked);
        let corrupted = fates(
            Fault::Corrupt {
                ppm: 1_000_000,
                undetected: true,
            },
            1,
        );
        assert_eq!(corrupted[0].corruption, Corruption::InASwitch);
        assert!(fates(Fault::Misroute { ppm: 1_000_000 }, 1)[0].misrouted);
    }

    #[test]
    fn a_starved_queue_has_the_least_of_the_limits_for_its_time() {
        let mut rules = Rules::default();
        rules.add(Rule::everywhere(10, 20, Fault::Starve { datagrams: 5 }));
        rules.add(Rule {
            to: Some(HostId(1)),
            ..Rule::everywhere(15, 30, Fault::Starve { datagrams: 2 })
        });
        let limit = |now_ns, host| rules.queue_limit(now_ns, HostId(host));
        assert_eq!(limit(9, 1), None);
        assert_eq!(limit(10, 1), Some(5));
        assert_eq!(limit(15, 1), Some(2));
        assert_eq!(limit(15, 0), Some(5));
        assert_eq!(limit(25, 0), None);
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071_and_finds_single_bits() {
        // The example of RFC 1071, section 3: the sum is ddf2.
        let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&example), !0xddf2);
        let mut bytes = vec![0xa5; 31];
        let good = checksum(&bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&bytes), good, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        flip_bits(&mut Rng::new(0), &mut [], 3);
    }
}
