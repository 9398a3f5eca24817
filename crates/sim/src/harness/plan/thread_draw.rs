//! The last random draw of a seed: whether threads share the endpoints of clients.
//!
//! It has a separate generator, so the other draws stay unchanged.

use super::{ChannelPlan, RunPlan};
use crate::fabric::HostId;
use crate::rng::Rng;

impl RunPlan {
    /// Has threads share the endpoints of clients in half of the runs of whole endpoints without streams. The first
    /// host serves nobody then: where it did, it changes places with its client.
    pub(super) fn draw_threads(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x0074_6872_6561_6473);
        if !self.endpoints || !self.streams.is_empty() || !rng.chance(500_000) {
            return;
        }
        self.threads = true;
        for channel in &mut self.channels {
            if channel.server == HostId(0) {
                let ChannelPlan { client, server, .. } = channel;
                std::mem::swap(client, server);
            }
        }
        // Handlers call on channels of their own hosts.
        for call in &mut self.calls {
            let server = self.channels[call.channel].server;
            let is_its = |via: &usize| self.channels[*via].client == server;
            call.via = call.via.filter(is_its);
        }
        // What comes to an endpoint that nobody drives lies there, for it has no calls: a stranger's connect, too.
        let has_threads = |host| self.has_threads(host);
        let attacked: Vec<bool> = self.attacks.iter().map(|it| has_threads(it.on)).collect();
        let mut attacked = attacked.into_iter();
        self.attacks.retain(|_| attacked.next() == Some(false));
    }
}
