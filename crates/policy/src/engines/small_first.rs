//! `small-first`: lets small requests of all applications pass before large ones (mRPC, section 5: global QoS). A large
//! request goes on behind the small ones, and a service hands on a bounded number of bytes of them each round: so a
//! small request waits for so much at most, however much is queued.

use serde::Deserialize;

use crate::engine::{PolicyEngine, PolicyRequest, Verdict};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The largest body that is small, in bytes.
    #[serde(default = "default_small")]
    small: usize,
}

fn default_small() -> usize {
    1024
}

#[derive(Debug)]
pub(crate) struct SmallFirst {
    small: usize,
}

impl SmallFirst {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            small: settings.small,
        })
    }
}

impl PolicyEngine for SmallFirst {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        match request.body.len() <= self.small {
            true => Verdict::Pass,
            false => Verdict::Behind,
        }
    }

    fn hears_ends(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use starling_call::{CallOptions, MethodId};

    use super::*;
    use crate::engines::testing::DATAPATH;

    #[test]
    fn large_requests_go_behind_small_ones() {
        let mut engine = SmallFirst::new(Settings { small: 10 }).expect("settings");
        let mut ask = |bytes: usize| {
            engine.on_request(
                &mut PolicyRequest {
                    now_ns: 0,
                    call: 0,
                    method: MethodId(7),
                    datapath: &DATAPATH,
                    options: &mut CallOptions::default(),
                    body: &vec![0; bytes],
                    message: None,
                },
                0,
            )
        };
        assert!(matches!(ask(10), Verdict::Pass));
        assert!(matches!(ask(11), Verdict::Behind));
    }
}
