//! `pick_first`: one backend after the other is tried until one works, and that one is used until it fails
//! (gRPC A62; the pause is that of A61).

use starling_balance::Readiness;

use super::super::balancer::Balancer;
use super::Control;

/// An attempt that takes longer gets company by the next one.
const STAGGER_NS: u64 = 250_000_000;

/// How far the attempts are.
#[derive(Default)]
pub(super) struct First {
    /// When the next backend is tried, if none works by then.
    next_at: Option<u64>,
}

impl First {
    pub(super) fn next(&self) -> Option<u64> {
        self.next_at
    }
}

impl Balancer {
    /// What has just been looked at decides which backend is tried next.
    pub(super) fn connect_first(&self, control: &mut Control, now: u64) {
        let works = |readiness| readiness == Readiness::Ready;
        if let Some(current) = control.listed.iter().position(|it| works(it.readiness)) {
            control.first.next_at = None;
            for (index, listed) in control.listed.iter_mut().enumerate() {
                if index != current {
                    listed.give_up();
                    listed.update(now);
                }
            }
            return;
        }
        let begun = |it: &super::Listed| it.backend.is_some() || it.failure.is_some();
        let Some(next) = control.listed.iter().position(|it| !begun(it)) else {
            // All were tried, and go on trying by themselves.
            control.first.next_at = None;
            for index in 0..control.listed.len() {
                self.begin_backend(control, index, now);
            }
            return;
        };
        let mut tried = control.listed.iter().filter(|it| begun(it));
        let none_is_pending = tried.all(|it| it.readiness == Readiness::Failed);
        // One that has lost its connection is the first attempt: its time begins now.
        let next_at = *control.first.next_at.get_or_insert(now + STAGGER_NS);
        if none_is_pending || now >= next_at {
            self.begin_backend(control, next, now);
            control.first.next_at = Some(now + STAGGER_NS);
        }
    }
}
