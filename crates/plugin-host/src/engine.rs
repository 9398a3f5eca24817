//! A policy of a plug-in as an engine.
//!
//! A call of a plug-in may panic, return what cannot be, or take long. The engine has *failed* then: its plug-in is
//! asked no more, and its memory is left where it is, for no code of it may be run. Its requests are refused, or pass,
//! as the policy says, until an operator has a new engine take its place, which begins anew. One that panics when its
//! state is to be saved has changed nothing: the change is refused, and it goes on.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;
use starling_call::{Code, Encoding, Status};
use starling_io::{Clock, MonotonicClock, ThreadWait};
use starling_plugin::abi;
use starling_policy::{
    Datapath, OnFailure, PolicyEnd, PolicyEngine, PolicyRequest, PolicySpec, RestoreError, Saved,
    SavedReader, Side, SpecError, Verdict,
};

use crate::calling::{Left, options};
use crate::plugins::Shared;
use crate::table::PluginKind;
use crate::watch::Running;

/// A call of a plug-in may take so long.
pub(crate) const BOUND_NS: u64 = 100_000_000;
/// Bytes of a state, at most.
const MAX_STATE: usize = 16 << 20;

/// What has gone wrong in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The plug-in says why.
    Refused(String),
    /// The same, by a panic.
    Panicked(String),
    /// It took so many nanoseconds.
    Blocked(u64),
    /// It returned what cannot be.
    Malformed(String),
}

impl Failure {
    fn says(&self, function: &str, file: &str) -> String {
        match self {
            Self::Refused(text) => text.clone(),
            Self::Panicked(text) => format!("{function} of {file} panicked: {text}"),
            Self::Blocked(took_ns) => {
                let (took, bound) = (took_ns / 1_000_000, BOUND_NS / 1_000_000);
                format!("{function} of {file} blocked for {took} ms: it may take {bound} ms")
            }
            Self::Malformed(text) => format!("{function} of {file} returned {text}"),
        }
    }
}

/// See the head of this file.
pub(crate) struct PluginEngine {
    kind: PluginKind,
    /// What the plug-in has made. Of no use once it has failed.
    instance: *mut c_void,
    policy: String,
    on_failure: OnFailure,
    failure: Option<String>,
    clock: MonotonicClock,
    running: Arc<Running>,
    shared: Arc<Shared>,
    /// How long its thread had waited for a processor when it was looked at last.
    waited: Mutex<Option<ThreadWait>>,
}

// SAFETY: a plug-in takes calls for an instance from any thread, one at a time, and an engine has one owner.
unsafe impl Send for PluginEngine {}

impl PluginEngine {
    /// Has a plug-in make a policy.
    ///
    /// # Errors
    /// What it says of the settings, or how it fails.
    pub(crate) fn build(
        kind: &PluginKind,
        spec: &PolicySpec,
        clock: &MonotonicClock,
        shared: &Arc<Shared>,
    ) -> Result<Self, SpecError> {
        let wrong = |problem| SpecError::Settings {
            path: "settings".to_owned(),
            problem,
        };
        if !spec.settings.is_null() && !spec.settings.is_object() {
            return Err(wrong("they are no object".to_owned()));
        }
        let settings = match spec.settings.is_null() {
            true => "{}".to_owned(),
            false => spec.settings.to_string(),
        };
        let of = format!("the policy {:?}, of {}", spec.name, kind.file.display());
        let mut engine = Self {
            kind: kind.clone(),
            instance: std::ptr::null_mut(),
            policy: spec.name.clone(),
            on_failure: spec.on_failure,
            failure: None,
            clock: clock.clone(),
            running: shared.watch.add(of),
            shared: Arc::clone(shared),
            waited: Mutex::new(None),
        };
        let mut instance = std::ptr::null_mut();
        let (mut text, by) = (Left::at_most(abi::MAX_TEXT), engine.kind.functions.build);
        let settings = abi::Bytes::of(settings.as_bytes());
        let built = engine.call(&mut text, |text| {
            // SAFETY: all is there for the time of this call.
            unsafe { by(settings, &raw mut instance, text) }
        });
        let built = match built {
            // No call waits for it.
            Err(Failure::Blocked(_)) => Ok(()),
            built => built,
        };
        let built = built.and_then(|()| match instance.is_null() {
            true => Err(Failure::Malformed("no instance".to_owned())),
            false => Ok(()),
        });
        built.map_err(|failure| wrong(engine.reports("build", &failure)))?;
        engine.instance = instance;
        Ok(engine)
    }

    /// Makes one call, and sees that it ends well and in time.
    #[inline]
    fn call(&self, left: &mut Left, run: impl FnOnce(abi::Sink) -> u32) -> Result<(), Failure> {
        let began_ns = self.clock.now_ns();
        self.running.begin(began_ns);
        let outcome = run(left.sink());
        self.running.end();
        let took_ns = self.clock.now_ns().saturating_sub(began_ns);
        match outcome {
            abi::DONE if left.too_many.is_none() && took_ns <= BOUND_NS => Ok(()),
            outcome => self.ended(outcome, left, took_ns),
        }
    }

    #[cold]
    fn ended(&self, outcome: u32, left: &Left, took_ns: u64) -> Result<(), Failure> {
        if let Some(bytes) = left.too_many {
            let text = format!("{bytes} bytes, or bytes at no address");
            return Err(Failure::Malformed(text));
        }
        match outcome {
            abi::DONE => {}
            abi::FAILED => return Err(Failure::Refused(left.text())),
            abi::PANICKED => return Err(Failure::Panicked(left.text())),
            other => return Err(Failure::Malformed(format!("the outcome {other}"))),
        }
        match took_ns.saturating_sub(self.waited_ns()) {
            own_ns if own_ns > BOUND_NS => Err(Failure::Blocked(own_ns)),
            _ => {
                let (file, ms) = (self.kind.file.display(), took_ns / 1_000_000);
                let text = format!("a call of {file} took {ms} ms: its thread had no processor");
                tracing::warn!(policy = %self.policy, "{text}");
                Ok(())
            }
        }
    }

    /// How long this thread may have waited for a processor during a call: since it was looked at last.
    fn waited_ns(&self) -> u64 {
        let mut last = self.waited.lock();
        let Some(now) = self.clock.thread_wait() else {
            return 0;
        };
        let before = last.replace(now);
        let before = before.filter(|before| before.thread == now.thread);
        now.waited_ns
            .saturating_sub(before.map_or(0, |before| before.waited_ns))
    }

    /// Counts and tells what went wrong. Returns it as a text.
    fn reports(&self, function: &str, failure: &Failure) -> String {
        let file = self.kind.file.display().to_string();
        let text = failure.says(function, &file);
        if !matches!(failure, Failure::Refused(_)) {
            self.shared.faults.count(failure);
            tracing::error!(policy = %self.policy, "{text}");
        }
        text
    }

    /// It is asked no more.
    fn fail(&mut self, function: &str, failure: Failure) {
        let failure = match failure {
            // There is nothing that it could refuse.
            Failure::Refused(text) => Failure::Malformed(format!("a failure: {text}")),
            failure => failure,
        };
        self.failure = Some(self.reports(function, &failure));
    }

    /// What becomes of a request once the engine has failed.
    fn failed(&self) -> Verdict {
        match self.on_failure {
            OnFailure::Pass => Verdict::Pass,
            OnFailure::Refuse => {
                let why = self.failure.as_deref().unwrap_or_default();
                let text = format!("the policy {} has failed: {why}", self.policy);
                Verdict::Refuse(Status::unavailable(text))
            }
        }
    }

    fn ask(&self, request: &mut PolicyRequest<'_>, held: usize) -> Result<Verdict, Failure> {
        let of = datapath(request.datapath);
        let asked = abi::Request {
            now_ns: request.now_ns,
            call: request.call,
            timeout_ns: request.options.timeout.map_or(abi::NONE, |timeout| {
                u64::try_from(timeout.as_nanos()).unwrap_or(abi::NONE - 1)
            }),
            held: held as u64,
            datapath: request.datapath.id,
            method: request.method.0,
            side: of.side,
            encoding: match request.options.encoding {
                Encoding::Native => 0,
                Encoding::Protobuf => 1,
            },
            compressed: request.options.coding.compressed.is_some().into(),
            program: of.program,
            server: of.server,
            body: abi::Bytes::of(request.body),
            options: options(request.options),
        };
        let mut verdict = abi::Verdict {
            kind: u32::MAX,
            code: 0,
            until_ns: 0,
        };
        let (mut text, by) = (Left::at_most(abi::MAX_TEXT), self.kind.functions.on_request);
        self.call(&mut text, |text| {
            // SAFETY: all is there for the time of this call.
            unsafe { by(self.instance, &raw const asked, &raw mut verdict, text) }
        })?;
        verdict_of(verdict, text.bytes)
    }

    fn tell(&self, end: &PolicyEnd<'_>) -> Result<(), Failure> {
        let of = datapath(end.datapath);
        let told = abi::End {
            now_ns: end.now_ns,
            call: end.call,
            since_ns: end.since_ns,
            request_bytes: end.request_bytes as u64,
            response_bytes: end.response_bytes.map_or(abi::NONE, |bytes| bytes as u64),
            datapath: end.datapath.id,
            method: end.method.0,
            side: of.side,
            code: end.code as u32,
            reserved: 0,
            program: of.program,
            server: of.server,
        };
        let (mut text, by) = (Left::at_most(abi::MAX_TEXT), self.kind.functions.on_end);
        self.call(&mut text, |text| {
            // SAFETY: all is there for the time of this call.
            unsafe { by(self.instance, &raw const told, text) }
        })
    }
}

/// A datapath as a plug-in sees it.
struct Shown {
    side: u32,
    program: abi::Bytes,
    server: abi::Bytes,
}

fn datapath(of: &Datapath) -> Shown {
    Shown {
        side: match of.side {
            Side::Client => 0,
            Side::Server => 1,
        },
        program: abi::Bytes::of(of.program.as_bytes()),
        server: abi::Bytes::of(of.server.as_bytes()),
    }
}

/// What a plug-in has decided, if it is something.
fn verdict_of(verdict: abi::Verdict, text: Vec<u8>) -> Result<Verdict, Failure> {
    match verdict.kind {
        abi::PASS => Ok(Verdict::Pass),
        abi::HOLD => Ok(Verdict::Hold(verdict.until_ns)),
        abi::BEHIND => Ok(Verdict::Behind),
        abi::REFUSE => {
            let code = u8::try_from(verdict.code).ok().and_then(Code::from_u8);
            let code = code.filter(|code| *code != Code::Ok).ok_or_else(|| {
                Failure::Malformed(format!("the code {} for a refusal", verdict.code))
            })?;
            let text = String::from_utf8(text);
            let text =
                text.map_err(|_| Failure::Malformed("a text that is no UTF-8".to_owned()))?;
            Ok(Verdict::Refuse(Status::new(code, text)))
        }
        other => Err(Failure::Malformed(format!("the verdict {other}"))),
    }
}

impl PolicyEngine for PluginEngine {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, held: usize) -> Verdict {
        if self.failure.is_some() {
            return self.failed();
        }
        match self.ask(request, held) {
            Ok(verdict) => verdict,
            Err(failure) => {
                self.fail("on_request", failure);
                self.failed()
            }
        }
    }

    fn on_end(&mut self, end: &PolicyEnd<'_>) {
        if self.failure.is_none()
            && let Err(failure) = self.tell(end)
        {
            self.fail("on_end", failure);
        }
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn save(&self) -> Saved {
        let version = self.kind.state_version;
        if self.failure.is_some() || version == 0 {
            return Saved::default();
        }
        let (mut state, by) = (Left::at_most(MAX_STATE), self.kind.functions.save);
        let saved = self.call(&mut state, |state| {
            // SAFETY: all is there for the time of this call.
            unsafe { by(self.instance, state) }
        });
        match saved {
            Ok(()) => Saved::of_bytes(version, state.bytes),
            Err(failure) => {
                let text = self.reports("save", &failure);
                match failure {
                    // There it is.
                    Failure::Blocked(_) => Saved::of_bytes(version, state.bytes),
                    _ => Saved::failed(format!(
                        "{text}; detach it and attach it again to go on without its state"
                    )),
                }
            }
        }
    }

    fn restore(&mut self, saved: &mut SavedReader<'_>) -> Result<(), RestoreError> {
        let (version, bytes) = saved.bytes(self.kind.state_version)?;
        if version == 0 {
            return Ok(());
        }
        let (mut text, by) = (Left::at_most(abi::MAX_TEXT), self.kind.functions.restore);
        let restored = self.call(&mut text, |text| {
            // SAFETY: all is there for the time of this call.
            unsafe { by(self.instance, version.into(), abi::Bytes::of(bytes), text) }
        });
        restored.map_err(|failure| {
            let problem = self.reports("restore", &failure);
            if !matches!(failure, Failure::Refused(_)) {
                self.failure = Some(problem.clone());
            }
            RestoreError::Engine { problem }
        })
    }
}

impl Drop for PluginEngine {
    fn drop(&mut self) {
        if self.failure.is_some() || self.instance.is_null() {
            return;
        }
        let (mut text, by) = (Left::at_most(abi::MAX_TEXT), self.kind.functions.destroy);
        let destroyed = self.call(&mut text, |text| {
            // SAFETY: it is used no more.
            unsafe { by(self.instance, text) }
        });
        if let Err(failure) = destroyed {
            self.reports("destroy", &failure);
        }
    }
}

#[cfg(test)]
mod tests;
