//! The third random draw of a seed: whether whole endpoints run, and the features that only they have.
//!
//! It has a separate generator, so the other draws stay unchanged.

use super::{HostFault, HostFaultKind, RunPlan, Runs};
use crate::rng::Rng;

impl RunPlan {
    pub(super) fn draw_endpoints(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x77_686f_6c65);
        if !rng.chance(350_000) {
            return;
        }
        self.endpoints = true;
        let hurried_ppm = rng.pick(&[0, 300_000, 1_000_000]);
        let places = rng.pick(&[
            &[Runs::Inline][..],
            &[Runs::Inline, Runs::Worker, Runs::Deferred],
            &[Runs::Worker],
        ]);
        for call in &mut self.calls {
            call.runs = rng.pick(places);
            if rng.chance(hurried_ppm) {
                call.timeout_ns = Some(rng.log_range(10_000, 4 * self.heal_ns));
            }
        }
        if !self.is_faultless() && rng.chance(150_000) {
            for _ in 0..rng.range(1, 2) {
                let at_ns = rng.range(0, self.heal_ns);
                let for_ns = rng.log_range(0, self.heal_ns - at_ns);
                self.host_faults.push(HostFault {
                    at_ns,
                    host: self.any_host(&mut rng),
                    kind: HostFaultKind::Drain { for_ns },
                });
            }
        }
    }
}
