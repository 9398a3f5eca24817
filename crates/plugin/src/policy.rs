//! What the author of a plug-in writes.

use std::borrow::Cow;

use starling_call::Code;

use crate::request::{End, Request};

/// A policy. One thread at a time has it. It must not block: a call that takes longer than 100 ms, or panics, is the
/// last one that it gets, until an operator replaces it.
pub trait Policy: Send + Sized + 'static {
    /// Its kind, as operators write it: letters, digits, dots, dashes and underscores.
    const NAME: &'static str;
    /// What it does, in a line.
    const SUMMARY: &'static str;
    /// Settings to begin with, in JSON.
    const EXAMPLE: &'static str = "{}";
    /// The version of what [`Policy::save`] makes, and the newest that [`Policy::restore`] reads. 0: it has no state.
    const STATE_VERSION: u16 = 0;

    /// One with these settings, a JSON object.
    ///
    /// # Errors
    /// What is wrong with them, for the operator.
    fn new(settings: &str) -> Result<Self, String>;

    /// Decides about a request.
    fn on_request(&mut self, request: &mut Request<'_>) -> Verdict;

    /// Takes in how a call that it let pass has ended.
    fn on_end(&mut self, _end: &End<'_>) {}

    /// The state that a successor goes on with: another build, or the same with other settings.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on with a state of this version, which is not 0 and at most [`Policy::STATE_VERSION`].
    ///
    /// # Errors
    /// Why it is none of this kind's.
    fn restore(&mut self, _version: u16, _state: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It goes on at this time, in nanoseconds of the service's clock.
    Hold(u64),
    /// It goes on behind the requests that do not wait.
    Behind,
    /// It ends with this code and text, and did not run.
    Refuse(Code, Cow<'static, str>),
}

impl Verdict {
    /// [`Verdict::Refuse`].
    pub fn refuse(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self::Refuse(code, text.into())
    }
}
