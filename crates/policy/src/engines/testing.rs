//! What the engines' tests share.

use starling_call::{CallOptions, Code, MethodId};

use crate::datapath::Datapath;
use crate::engine::{PolicyEnd, PolicyEngine, PolicyRequest, Verdict};
use crate::spec::Side;

pub(crate) const MS: u64 = 1_000_000;
const METHOD: MethodId = MethodId(7);
pub(crate) static DATAPATH: Datapath = Datapath {
    id: 1,
    side: Side::Client,
    program: String::new(),
    server: String::new(),
};

/// What an engine says of a request, with nothing held.
pub(crate) fn ask(engine: &mut impl PolicyEngine, now_ns: u64) -> Verdict {
    ask_with(engine, now_ns, &mut CallOptions::default(), 0)
}

pub(crate) fn ask_with(
    engine: &mut impl PolicyEngine,
    now_ns: u64,
    options: &mut CallOptions,
    held: usize,
) -> Verdict {
    ask_for(engine, 0, now_ns, options, held)
}

/// What it says of a certain call.
pub(crate) fn ask_for(
    engine: &mut impl PolicyEngine,
    call: u64,
    now_ns: u64,
    options: &mut CallOptions,
    held: usize,
) -> Verdict {
    let mut request = PolicyRequest {
        now_ns,
        call,
        method: METHOD,
        datapath: &DATAPATH,
        options,
        body: b"",
        message: None,
    };
    engine.on_request(&mut request, held)
}

pub(crate) fn end(engine: &mut impl PolicyEngine, call: u64, now_ns: u64, code: Code) {
    engine.on_end(&end_of(call, now_ns, code));
}

pub(crate) fn end_of(call: u64, now_ns: u64, code: Code) -> PolicyEnd<'static> {
    PolicyEnd {
        now_ns,
        call,
        method: METHOD,
        code,
        datapath: &DATAPATH,
        since_ns: 0,
        request_bytes: 0,
        response_bytes: None,
    }
}

/// The code of a refusal.
pub(crate) fn refusal(verdict: Verdict) -> Option<Code> {
    match verdict {
        Verdict::Refuse(status) => Some(status.code()),
        Verdict::Pass | Verdict::Hold(_) | Verdict::Behind => None,
    }
}

/// Has an engine go on with another's state.
pub(crate) fn succeed(old: &impl PolicyEngine, new: &mut impl PolicyEngine) {
    let saved = old.save();
    new.restore(&mut saved.reader()).expect("its own state");
}
