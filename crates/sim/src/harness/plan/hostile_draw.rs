//! The hostile draw of a seed: what hostile hosts do in a tenth of the runs.
//!
//! It has a separate generator, so the other draws stay unchanged.

use super::{CallPlan, ChannelPlan, MS, RunPlan};
use crate::fabric::HostId;
use crate::rng::Rng;

/// The share of runs with hostile hosts.
const SHARE_PPM: u32 = 100_000;

/// The most that an attack does, as [`AttackPlan::count`] says it.
const MOST: u64 = 64;

/// Sessions, and credits, of a server with few of them: five times as many as honest clients want.
const PLACES: usize = 128;

/// The longest time of a handler that a hostile host asks for, us.
pub(in crate::harness) const MAX_DELAY_US: u64 = 200;

/// The longest response that a hostile host asks for, bytes.
pub(in crate::harness) const MAX_RESPONSE: u64 = 64 << 10;

/// Where a hostile host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Off the path: it sends datagrams with forged sources. It knows the addresses of others, no token, and no id.
    OffPath,
    /// A peer: it has sessions, opened as any client opens them, and keeps to none of the rules in them.
    Peer,
    /// On the path: it sends again what others have sent. It makes no datagrams of its own under the tokens that it
    /// sees: no promise holds against a host that does.
    OnPath,
}

/// What a hostile host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// CONNECTs in the name of others, with cookies that it has guessed or made for itself.
    ForgedConnects,
    /// Frames of clients in their names: requests, fragments, cancels, acknowledgements.
    ForgedRequests,
    /// The ends of sessions, requests and incarnations, in the name of either end.
    ForgedEnds,
    /// Frames of servers in their names: responses, fragments, credits.
    ForgedAnswers,
    /// Datagrams that are cut, too long, of other versions, or garbage.
    Malformed,
    /// A thousand CONNECTs from as many addresses.
    Flood,
    /// Requests for slots in use: with numbers that were used, that are lower, and that jump.
    UsedSlots,
    /// Its own datagrams, again.
    OwnReplays,
    /// The first fragments of large requests.
    HalfRequests,
    /// Cancels, acknowledgements and requests for response, of requests that are over or never were.
    Cancels,
    /// Frames of all kinds that name the sessions of others, in its own name.
    OthersSessions,
    /// Datagrams of as many frames as they take.
    Bundles,
    /// Sessions that it does not use.
    ManySessions,
    /// Requests for large responses, which it fetches in part and acknowledges never.
    UnreadAnswers,
    /// Another incarnation of it, which has forgotten its sessions.
    NewIncarnation,
    /// As a server: it accepts sessions, and sends anything in answer to what clients send in them.
    Answers,
    /// Datagrams of others, again, in any order.
    Replays,
    /// Datagrams of others, to another host or from another one.
    Reflections,
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::ForgedConnects,
        Self::ForgedRequests,
        Self::ForgedEnds,
        Self::ForgedAnswers,
        Self::Malformed,
        Self::Flood,
        Self::UsedSlots,
        Self::OwnReplays,
        Self::HalfRequests,
        Self::Cancels,
        Self::OthersSessions,
        Self::Bundles,
        Self::ManySessions,
        Self::UnreadAnswers,
        Self::NewIncarnation,
        Self::Answers,
        Self::Replays,
        Self::Reflections,
    ];

    /// Its name in counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::ForgedConnects => "attack: forged connects",
            Self::ForgedRequests => "attack: forged requests",
            Self::ForgedEnds => "attack: forged ends",
            Self::ForgedAnswers => "attack: forged answers",
            Self::Malformed => "attack: malformed datagrams",
            Self::Flood => "attack: flood of connects",
            Self::UsedSlots => "attack: requests for used slots",
            Self::OwnReplays => "attack: own datagrams again",
            Self::HalfRequests => "attack: requests that never complete",
            Self::Cancels => "attack: cancels and acknowledgements",
            Self::OthersSessions => "attack: sessions of others",
            Self::Bundles => "attack: bundles of many frames",
            Self::ManySessions => "attack: many sessions",
            Self::UnreadAnswers => "attack: responses that it leaves",
            Self::NewIncarnation => "attack: new incarnation",
            Self::Answers => "attack: answers of any kind",
            Self::Replays => "attack: replays of others",
            Self::Reflections => "attack: reflections of others",
        }
    }

    /// Where its host is.
    pub fn position(self) -> Position {
        match self {
            Self::ForgedConnects
            | Self::ForgedRequests
            | Self::ForgedEnds
            | Self::ForgedAnswers
            | Self::Malformed
            | Self::Flood => Position::OffPath,
            Self::Replays | Self::Reflections => Position::OnPath,
            _ => Position::Peer,
        }
    }
}

/// One attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttackPlan {
    /// When it begins, ns.
    pub at_ns: u64,
    /// Which of the hostile hosts does it.
    pub by: u32,
    /// The host that it is aimed at.
    pub on: HostId,
    /// What is done.
    pub attack: Attack,
    /// How often.
    pub count: u32,
    /// The seed of its further choices.
    pub seed: u64,
}

impl AttackPlan {
    /// The most time that it costs handlers, ns.
    pub(super) fn handlers_ns(&self) -> u64 {
        self.requests() * MAX_DELAY_US * 1_000
    }

    /// The most bytes of messages that it has sent, in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.requests() * 2 * MAX_RESPONSE
    }

    fn requests(&self) -> u64 {
        match self.attack.position() {
            Position::Peer => self.count.into(),
            Position::OffPath | Position::OnPath => 0,
        }
    }
}

impl RunPlan {
    pub(super) fn draw_attacks(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x68_6f73_7469_6c65);
        if !rng.chance(SHARE_PPM) {
            return;
        }
        if rng.chance(560_000) {
            // Without other faults most honest calls have no reason to fail.
            self.rules.clear();
            self.host_faults.clear();
            self.outages.clear();
            self.injected.clear();
        }
        // Streams have limits of their own.
        if !self.tight && self.streams.is_empty() && rng.chance(500_000) {
            self.narrow(&mut rng);
        }
        self.hostile_hosts = rng.pick(&[1, 1, 2]);
        let from = rng.pick(&[
            &[Position::OffPath][..],
            &[Position::Peer],
            &[Position::Peer],
            &[Position::OnPath],
            &[Position::OffPath, Position::Peer, Position::OnPath],
        ]);
        let attacks: Vec<Attack> = Attack::ALL
            .into_iter()
            .filter(|attack| from.contains(&attack.position()))
            .collect();
        // Long after the last call there is nobody to harm.
        let last_ns = self.calls.iter().map(|call| call.at_ns).max().unwrap_or(0);
        let until_ns = rng.pick(&[self.heal_ns, (last_ns + MS).min(self.heal_ns)]);
        let honest = self.channels.len() as u64;
        for _ in 0..rng.log_range(1, 24) {
            let attack = rng.pick(&attacks);
            let channel = &self.channels[rng.below(honest) as usize];
            let on = match (rng.chance(200_000), attack) {
                (true, _) => self.any_host(&mut rng),
                (false, Attack::ForgedAnswers | Attack::Answers) => channel.client,
                (false, _) => channel.server,
            };
            let (at_ns, by) = (
                rng.range(0, until_ns),
                rng.below(self.hostile_hosts.into()) as u32,
            );
            if attack == Attack::Answers {
                self.call_hostile(&mut rng, on, by, at_ns);
            }
            self.attacks.push(AttackPlan {
                at_ns,
                by,
                on,
                attack,
                count: rng.log_range(1, MOST) as u32,
                seed: rng.next_u64(),
            });
        }
        self.attacks.sort_by_key(|attack| attack.at_ns);
    }

    /// Lets an honest client call a hostile host.
    fn call_hostile(&mut self, rng: &mut Rng, client: HostId, by: u32, at_ns: u64) {
        let channel = self.channels.len();
        self.channels.push(ChannelPlan {
            client,
            server: HostId(self.hosts.len() as u32 + by),
            close_at_ns: None,
        });
        let longest = 3 * self.fabric.max_datagram as u64;
        let longest = longest.min(self.hosts[client.0 as usize].max_message.into());
        for _ in 0..rng.log_range(1, 20) {
            let at_ns = rng.range(at_ns, self.heal_ns);
            let request_len = rng.log_range(0, longest) as u32;
            self.calls.push(CallPlan {
                cancel_after_ns: rng.chance(100_000).then(|| rng.log_range(1, self.heal_ns)),
                ..CallPlan::new(at_ns, channel, request_len, 100)
            });
        }
        self.calls.sort_by_key(|call| call.at_ns);
    }

    /// Draws limits that hostile hosts can use up, and honest ones cannot: these get what they want all the same,
    /// for they hold less than half as much.
    fn narrow(&mut self, rng: &mut Rng) {
        let [memory, sessions, credits] = [(); 3].map(|()| rng.chance(500_000));
        for config in &mut self.hosts {
            if memory && config.max_message <= 1 << 20 {
                config.reassembly_bytes = 8 << 20;
            }
            if sessions || credits {
                config.max_sessions = PLACES;
                config.group_sessions = 1;
            }
            // A whole endpoint grants as many as its device has places for.
            if credits && !self.endpoints {
                config.rx_queue_datagrams = PLACES;
                config.overcommit = 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_runs_has_hostile_hosts() {
        let plans = (0..2_000).map(RunPlan::from_seed);
        let hostile: Vec<RunPlan> = plans.filter(|plan| !plan.attacks.is_empty()).collect();
        assert!((160..240).contains(&hostile.len()), "{}", hostile.len());
        let strict = hostile.iter().filter(|plan| plan.is_survivable()).count();
        println!(
            "in {strict} of {} no call has a reason to fail",
            hostile.len()
        );
        assert!(strict >= 30, "{strict}");
    }

    #[test]
    fn an_attack_is_printed_and_left_out_as_other_entries_are() {
        let hostile = |plan: &RunPlan| plan.attacks.len() > 1;
        let plan = (0..).map(RunPlan::from_seed).find(hostile).expect("some");
        let rest = "attacks=1".parse::<super::super::Subset>().unwrap();
        let rest = rest.of(&plan);
        assert_eq!(rest.attacks, plan.attacks[1..2]);
        assert!(rest.to_string().contains("AttackPlan"));
    }
}
