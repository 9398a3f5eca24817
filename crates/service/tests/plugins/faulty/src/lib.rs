//! A plug-in that does wrong what its settings say, and a kind that passes all.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use starling_plugin::{End, Policy, Request, Verdict};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    #[default]
    Nowhere,
    Build,
    Request,
    End,
    Save,
    Restore,
    Drop,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Faulty {
    /// Where it panics.
    #[serde(default)]
    panics: Place,
    /// Where it sleeps.
    #[serde(default)]
    blocks: Place,
    /// How long, in milliseconds.
    #[serde(default)]
    ms: u64,
    /// Or until there is this file.
    until: Option<PathBuf>,
    /// A state that it cannot read.
    #[serde(default)]
    refuses: bool,
}

impl Faulty {
    fn at(&self, place: Place) {
        if self.blocks == place {
            std::thread::sleep(Duration::from_millis(self.ms));
            while self.until.as_ref().is_some_and(|file| !file.exists()) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(self.panics != place, "as it was told, in {place:?}");
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.at(Place::Drop);
    }
}

impl Policy for Faulty {
    const NAME: &'static str = "faulty";
    const SUMMARY: &'static str = "does wrong what it is told to";
    const STATE_VERSION: u16 = 1;

    fn new(settings: &str) -> Result<Self, String> {
        let faulty: Self = serde_json::from_str(settings).map_err(|error| error.to_string())?;
        faulty.at(Place::Build);
        Ok(faulty)
    }

    fn on_request(&mut self, _request: &mut Request<'_>) -> Verdict {
        self.at(Place::Request);
        Verdict::Pass
    }

    fn on_end(&mut self, _end: &End<'_>) {
        self.at(Place::End);
    }

    fn save(&self) -> Vec<u8> {
        self.at(Place::Save);
        b"state".to_vec()
    }

    fn restore(&mut self, _version: u16, state: &[u8]) -> Result<(), String> {
        self.at(Place::Restore);
        match self.refuses {
            true => Err(format!("it cannot read {} bytes", state.len())),
            false => Ok(()),
        }
    }
}

struct PassAll;

impl Policy for PassAll {
    const NAME: &'static str = "pass-all";
    const SUMMARY: &'static str = "lets all calls pass: what a call of a plug-in costs by itself";

    fn new(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn on_request(&mut self, _request: &mut Request<'_>) -> Verdict {
        Verdict::Pass
    }
}

starling_plugin::export_policies!(Faulty, PassAll);
