//! A host on the path of all honest hosts: it hears every datagram, keeps some, and sends them again.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Attack, AttackPlan, Scene};
use crate::fabric::{Departure, HostId, SharedFabric, Treatment};
use crate::rng::Rng;

/// Datagrams that it keeps. They are of all times: a new one takes the place of any other.
const KEPT: usize = 256;

/// A datagram that was on its way from one honest host to another.
type Heard = (HostId, HostId, Vec<u8>);

pub(super) struct OnPathHost {
    scene: Scene,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl OnPathHost {
    /// Listens from now on.
    pub(super) fn new(fabric: &SharedFabric, seed: u64, scene: Scene) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut count) = (heard.clone(), 0);
        let mut rng = Rng::new(seed ^ 0x68_6561_7264);
        let hook = move |departure: Departure<'_>| {
            let Departure {
                from, to, bytes, ..
            } = departure;
            if from.0 < scene.hosts && to.0 < scene.hosts {
                count += 1;
                let place = rng.below(count) as usize;
                let mut kept = kept.lock();
                if kept.len() < KEPT {
                    kept.push((from, to, bytes.to_vec()));
                } else if let Some(other) = kept.get_mut(place) {
                    *other = (from, to, bytes.to_vec());
                }
            }
            Treatment::DELIVER
        };
        fabric.lock().set_departure_hook(Some(Box::new(hook)));
        Self { scene, heard }
    }

    /// Sends some of what it has heard. Whether there was anything.
    pub(super) fn strike(&mut self, plan: &AttackPlan, fabric: &SharedFabric) -> bool {
        let mut rng = Rng::new(plan.seed);
        let mut fabric = fabric.lock();
        let heard = self.heard.lock();
        if heard.is_empty() {
            return false;
        }
        for _ in 0..plan.count {
            let (from, to, bytes) = &heard[rng.below(heard.len() as u64) as usize];
            // To another host, or in another's name, or both.
            let hosts = u64::from(self.scene.hosts);
            let other = |rng: &mut Rng| HostId(rng.below(hosts) as u32);
            let (source, dest) = match (plan.attack, rng.below(3)) {
                (Attack::Replays, _) => (*from, *to),
                (_, 0) => (*from, other(&mut rng)),
                (_, 1) => (other(&mut rng), *to),
                _ => (*to, *from),
            };
            if source != dest {
                fabric.replay(source, dest, bytes.clone());
            }
        }
        true
    }
}
