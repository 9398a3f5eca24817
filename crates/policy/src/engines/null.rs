//! `null`: lets all calls pass. It shows what an engine costs by itself.

use serde::Deserialize;

use crate::engine::{PolicyEngine, PolicyRequest, Verdict};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {}

#[derive(Debug)]
pub(crate) struct Null;

impl Null {
    pub(crate) fn new(_: Settings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl PolicyEngine for Null {
    fn on_request(&mut self, _: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        Verdict::Pass
    }

    fn hears_ends(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::testing::ask;

    #[test]
    fn all_calls_pass() {
        let mut engine = Null::new(Settings {}).expect("settings");
        assert!(matches!(ask(&mut engine, 0), Verdict::Pass));
    }
}
