//! A plug-in made by hand, in this process, which does what its settings say.

use std::ffi::c_void;

use starling_plugin::abi;

/// A kind that works.
pub(crate) const KIND: abi::Kind = abi::Kind {
    name: abi::Bytes::of(b"probe"),
    summary: abi::Bytes::of(b"does what it is told"),
    example: abi::Bytes::of(b"{}"),
    state_version: 2,
    reserved: 0,
    build: Some(build),
    destroy: Some(destroy),
    on_request: Some(on_request),
    on_end: Some(on_end),
    save: Some(save),
    restore: Some(restore),
};

/// A table of these kinds, which stay.
pub(crate) fn table_of(kinds: &[abi::Kind]) -> abi::Table {
    let kinds = Box::leak(kinds.to_vec().into_boxed_slice());
    abi::Table::new("test", "1.2.3", kinds)
}

/// What a [`KIND`] returns next: a test sets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) outcome: u32,
    pub(crate) verdict: abi::Verdict,
    pub(crate) left: abi::Bytes,
    /// Runs meanwhile.
    pub(crate) run: fn(),
}

impl Next {
    pub(crate) const PASS: Self = Self {
        outcome: abi::DONE,
        verdict: abi::Verdict {
            kind: abi::PASS,
            code: 0,
            until_ns: 0,
        },
        left: abi::Bytes::of(b""),
        run: || {},
    };
}

thread_local! {
    pub(crate) static NEXT: std::cell::Cell<Next> = const { std::cell::Cell::new(Next::PASS) };
    /// Calls, and instances that are there.
    pub(crate) static CALLS: std::cell::Cell<(u32, u32)> = const { std::cell::Cell::new((0, 0)) };
}

fn next(sink: abi::Sink) -> Next {
    let next = NEXT.get();
    let (calls, instances) = CALLS.get();
    CALLS.set((calls + 1, instances));
    (next.run)();
    if next.left.len > 0 {
        // SAFETY: the sink's context is there.
        unsafe { (sink.write)(sink.context, next.left) };
    }
    next
}

unsafe extern "C" fn build(_: abi::Bytes, instance: *mut *mut c_void, sink: abi::Sink) -> u32 {
    let next = next(sink);
    if next.outcome == abi::DONE && next.verdict.kind == abi::PASS {
        // SAFETY: the host's.
        unsafe { instance.write(std::ptr::without_provenance_mut(1)) };
        let (calls, instances) = CALLS.get();
        CALLS.set((calls, instances + 1));
    }
    next.outcome
}

unsafe extern "C" fn destroy(_: *mut c_void, sink: abi::Sink) -> u32 {
    let (calls, instances) = CALLS.get();
    CALLS.set((calls, instances - 1));
    next(sink).outcome
}

unsafe extern "C" fn on_request(
    _: *mut c_void,
    _: *const abi::Request,
    verdict: *mut abi::Verdict,
    sink: abi::Sink,
) -> u32 {
    let next = next(sink);
    // SAFETY: the host's.
    unsafe { verdict.write(next.verdict) };
    next.outcome
}

unsafe extern "C" fn on_end(_: *mut c_void, _: *const abi::End, sink: abi::Sink) -> u32 {
    next(sink).outcome
}

unsafe extern "C" fn save(_: *mut c_void, sink: abi::Sink) -> u32 {
    next(sink).outcome
}

unsafe extern "C" fn restore(_: *mut c_void, _: u32, _: abi::Bytes, sink: abi::Sink) -> u32 {
    next(sink).outcome
}
