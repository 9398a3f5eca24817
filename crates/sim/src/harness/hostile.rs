//! Hostile hosts: they do what their position lets them do ([`Position`]), at the times that the plan says, until the
//! run heals. Then they are silent, as if they were gone.
//!
//! ```text
//!  plan ─▶ attack ─┬─ off the path ─▶ forged datagrams ───────────────────▶ receive queue of an honest host
//!                  ├─ a peer ───────▶ a host of the fabric, with sessions ─▶ link ─▶ ...
//!                  └─ on the path ──▶ recorded datagrams ──────────────────▶ receive queue of an honest host
//! ```
//! All checkers go on for the honest hosts. A request that a hostile peer sends in a session of its own may
//! run once, and not after a later one of its slot; its key is made of session, slot and number. A request
//! that is forged has a key that was never issued: it must not run.

mod forger;
mod material;
mod on_path;
mod peer;
mod server;

use super::{Attack, AttackPlan, Branches, Position, RunPlan};
use crate::fabric::{HostId, SharedFabric};
use forger::Forger;
use on_path::OnPathHost;
use peer::HostilePeer;

/// A request that a hostile peer sends in a session that may be its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostileRequest {
    /// See [`content`](crate::check::content).
    pub(super) key: u64,
    /// Names server, session and slot.
    pub(super) slot: u64,
    /// The request number.
    pub(super) number: u64,
}

/// What every attacker knows of a run.
#[derive(Clone, Copy, Debug)]
struct Scene {
    /// Honest hosts.
    hosts: u32,
    max_datagram: usize,
    /// Requests have headers of calls.
    has_calls: bool,
    heal_ns: u64,
}

/// All hostile hosts of a run.
pub(super) struct Hostile {
    fabric: SharedFabric,
    scene: Scene,
    peers: Vec<HostilePeer>,
    on_path: Option<OnPathHost>,
    requests: Vec<HostileRequest>,
    branches: Branches,
}

impl Hostile {
    pub(super) fn new(fabric: &SharedFabric, plan: &RunPlan) -> Self {
        let hosts = plan.hosts.len() as u32;
        let scene = Scene {
            hosts,
            max_datagram: plan.fabric.max_datagram,
            has_calls: plan.endpoints,
            heal_ns: plan.heal_ns,
        };
        let ids = (hosts..hosts + plan.hostile_hosts).map(HostId);
        let on_path = |attack: &AttackPlan| attack.attack.position() == Position::OnPath;
        let listens = plan.attacks.iter().any(on_path);
        Self {
            fabric: fabric.clone(),
            scene,
            peers: ids.map(|id| HostilePeer::new(fabric, id, scene)).collect(),
            on_path: listens.then(|| OnPathHost::new(fabric, plan.seed, scene)),
            requests: Vec::new(),
            branches: Branches::default(),
        }
    }

    /// Whether `host` is one of them.
    pub(super) fn has(&self, host: HostId) -> bool {
        host.0 >= self.scene.hosts
    }

    /// The requests that they have sent since the last time.
    pub(super) fn take_requests(&mut self) -> Vec<HostileRequest> {
        std::mem::take(&mut self.requests)
    }

    /// The attacks that were made.
    pub(super) fn branches(&self) -> &Branches {
        &self.branches
    }

    /// Begins an attack.
    pub(super) fn strike(&mut self, plan: &AttackPlan) {
        match plan.attack.position() {
            Position::OffPath => self.forge(plan),
            Position::OnPath => {
                let host = self.on_path.as_mut();
                let host = host.expect("there is one in runs with such attacks");
                if host.strike(plan, &self.fabric) {
                    self.branches.add_attack(plan.attack);
                }
            }
            Position::Peer => {
                self.peers[plan.by as usize].begin(plan);
                self.collect(plan.by as usize);
            }
        }
    }

    fn forge(&mut self, plan: &AttackPlan) {
        let peer = &mut self.peers[plan.by as usize];
        let mut forger = Forger::new(plan, self.scene, peer.cookie(plan.on));
        let datagrams = forger.datagrams();
        let mut fabric = self.fabric.lock();
        let now_ns = fabric.now_ns();
        for (source, bytes) in datagrams {
            fabric.inject(now_ns, source, plan.on, bytes);
        }
        drop(fabric);
        if plan.attack == Attack::ForgedConnects {
            // For the next time.
            peer.ask_cookie(plan.on);
        }
        self.branches.add_attack(plan.attack);
    }

    /// One turn of a hostile host.
    pub(super) fn turn(&mut self, host: HostId) {
        let index = (host.0 - self.scene.hosts) as usize;
        self.peers[index].turn();
        self.collect(index);
    }

    /// Takes what a peer has done.
    fn collect(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        self.requests.append(&mut peer.requests);
        for attack in peer.made.drain(..) {
            self.branches.add_attack(attack);
        }
    }
}
