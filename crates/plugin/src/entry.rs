//! The functions of the table, for each policy. A panic ends here, as a text for the service.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi;
use crate::policy::{Policy, Verdict};
use crate::request::{End, Request};

/// The entry of a policy in the table of its library.
pub const fn kind<P: Policy>() -> abi::Kind {
    abi::Kind {
        name: abi::Bytes::of(P::NAME.as_bytes()),
        summary: abi::Bytes::of(P::SUMMARY.as_bytes()),
        example: abi::Bytes::of(P::EXAMPLE.as_bytes()),
        state_version: P::STATE_VERSION as u32,
        reserved: 0,
        build: Some(build::<P>),
        destroy: Some(destroy::<P>),
        on_request: Some(on_request::<P>),
        on_end: Some(on_end::<P>),
        save: Some(save::<P>),
        restore: Some(restore::<P>),
    }
}

unsafe extern "C" fn build<P: Policy>(
    settings: abi::Bytes,
    instance: *mut *mut c_void,
    text: abi::Sink,
) -> u32 {
    guarded(text, || {
        // SAFETY: the service shows them for the time of this call.
        let settings = unsafe { settings.as_slice() };
        let settings = std::str::from_utf8(settings).map_err(|error| error.to_string())?;
        let policy = Box::new(P::new(settings)?);
        // SAFETY: the service's, for the time of this call.
        unsafe { instance.write(Box::into_raw(policy).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn destroy<P: Policy>(instance: *mut c_void, text: abi::Sink) -> u32 {
    guarded(text, || {
        // SAFETY: `build` made it of a box, and nobody uses it after this.
        drop(unsafe { Box::from_raw(instance.cast::<P>()) });
        Ok(())
    })
}

unsafe extern "C" fn on_request<P: Policy>(
    instance: *mut c_void,
    request: *const abi::Request,
    verdict: *mut abi::Verdict,
    text: abi::Sink,
) -> u32 {
    guarded(text, || {
        // SAFETY: one thread at a time has what `build` made.
        let policy = unsafe { &mut *instance.cast::<P>() };
        // SAFETY: the service shows it, and all that it points to, for the time of this call.
        let mut request = unsafe { Request::new(&*request) };
        let (kind, code, until_ns) = match policy.on_request(&mut request) {
            Verdict::Pass => (abi::PASS, 0, 0),
            Verdict::Hold(until_ns) => (abi::HOLD, 0, until_ns),
            Verdict::Behind => (abi::BEHIND, 0, 0),
            Verdict::Refuse(code, why) => {
                put(text, why.as_bytes());
                (abi::REFUSE, code as u32, 0)
            }
        };
        let decided = abi::Verdict {
            kind,
            code,
            until_ns,
        };
        // SAFETY: the service's, for the time of this call.
        unsafe { verdict.write(decided) };
        Ok(())
    })
}

unsafe extern "C" fn on_end<P: Policy>(
    instance: *mut c_void,
    end: *const abi::End,
    text: abi::Sink,
) -> u32 {
    guarded(text, || {
        // SAFETY: one thread at a time has what `build` made.
        let policy = unsafe { &mut *instance.cast::<P>() };
        // SAFETY: the service shows it, and all that it points to, for the time of this call.
        policy.on_end(&unsafe { End::new(&*end) });
        Ok(())
    })
}

unsafe extern "C" fn save<P: Policy>(instance: *mut c_void, state: abi::Sink) -> u32 {
    guarded(state, || {
        // SAFETY: one thread at a time has what `build` made.
        let policy = unsafe { &*instance.cast::<P>() };
        put(state, &policy.save());
        Ok(())
    })
}

unsafe extern "C" fn restore<P: Policy>(
    instance: *mut c_void,
    version: u32,
    state: abi::Bytes,
    text: abi::Sink,
) -> u32 {
    guarded(text, || {
        // SAFETY: one thread at a time has what `build` made.
        let policy = unsafe { &mut *instance.cast::<P>() };
        let version = u16::try_from(version).map_err(|error| error.to_string())?;
        // SAFETY: the service shows it for the time of this call.
        policy.restore(version, unsafe { state.as_slice() })
    })
}

/// Runs an author's code. What it fails with, or panics with, becomes a text.
fn guarded(text: abi::Sink, run: impl FnOnce() -> Result<(), String>) -> u32 {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => abi::DONE,
        Ok(Err(why)) => {
            put(text, why.as_bytes());
            abi::FAILED
        }
        Err(panic) => {
            put(text, words_of(&*panic).as_bytes());
            // What panics when it is dropped, too, is left where it is.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            abi::PANICKED
        }
    }
}

/// What a panic says.
fn words_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => words,
        (_, Some(words)) => words,
        _ => "without a text",
    }
}

fn put(sink: abi::Sink, bytes: &[u8]) {
    // SAFETY: the service's function, with its context.
    unsafe { (sink.write)(sink.context, abi::Bytes::of(bytes)) };
}
