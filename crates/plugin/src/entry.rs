//! The functions of the table, for each policy. A panic ends here, as a text for the service.
//!
//! The text has the place, and nothing is printed: a backtrace (`RUST_BACKTRACE`) would have all calls of the service
//! wait for seconds.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

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
    keep_places();
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
                put_text(text, &why);
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

thread_local! {
    /// Whether this thread runs an author's code for the service.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
    /// Where it has panicked.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics of this library keep their place, in calls of the service. Those of other threads are printed, and a
/// second one, which may end the process.
fn keep_places() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_first = PLACE.with_borrow(Option::is_none);
            match IS_GUARDED.get() && is_first {
                true => PLACE.set(panic.location().map(ToString::to_string)),
                false => print(panic),
            }
        }));
    });
}

/// Runs an author's code. What it fails with, or panics with, becomes a text.
fn guarded(text: abi::Sink, run: impl FnOnce() -> Result<(), String>) -> u32 {
    PLACE.set(None);
    IS_GUARDED.set(true);
    let ended = catch_unwind(AssertUnwindSafe(run));
    IS_GUARDED.set(false);
    match ended {
        Ok(Ok(())) => abi::DONE,
        Ok(Err(why)) => {
            put_text(text, &why);
            abi::FAILED
        }
        Err(panic) => {
            let words = cut(words_of(&*panic), abi::MAX_TEXT / 2);
            let place = PLACE.take().map(|place| format!(", at {place}"));
            put_text(text, &format!("{words}{}", place.unwrap_or_default()));
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

/// What of a text is not too long.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn put_text(sink: abi::Sink, text: &str) {
    put(sink, cut(text, abi::MAX_TEXT).as_bytes());
}

fn put(sink: abi::Sink, bytes: &[u8]) {
    // SAFETY: the service's function, with its context.
    unsafe { (sink.write)(sink.context, abi::Bytes::of(bytes)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses its settings, if there are any, and panics for requests.
    struct Loud;

    impl Policy for Loud {
        const NAME: &'static str = "loud";
        const SUMMARY: &'static str = "panics";

        fn new(settings: &str) -> Result<Self, String> {
            match settings {
                "" => Ok(Self),
                settings => Err(settings.to_owned()),
            }
        }

        fn on_request(&mut self, request: &mut Request<'_>) -> Verdict {
            match request.call() {
                0 => panic!("{}", "\u{e4}".repeat(5000)),
                1 => std::panic::panic_any(7),
                _ => Verdict::refuse(starling_call::Code::Aborted, "\u{e4}".repeat(5000)),
            }
        }
    }

    unsafe extern "C" fn write(context: *mut c_void, bytes: abi::Bytes) {
        // SAFETY: a test's text, and bytes of the functions above.
        unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(bytes.as_slice()) }
    }

    /// What a function returns and leaves.
    fn left(call: impl FnOnce(abi::Sink) -> u32) -> (u32, String) {
        let mut bytes = Vec::<u8>::new();
        let context = (&raw mut bytes).cast();
        let outcome = call(abi::Sink { context, write });
        (outcome, String::from_utf8(bytes).expect("a text"))
    }

    unsafe extern "C" fn none(_: *mut c_void, _: abi::Bytes, _: *mut abi::Bytes) -> u32 {
        0
    }

    /// A request of this number, of which only that is read.
    fn request(call: u64) -> abi::Request {
        unsafe extern "C" fn pair(
            _: *mut c_void,
            _: u64,
            _: *mut abi::Bytes,
            _: *mut abi::Bytes,
        ) -> u32 {
            0
        }
        unsafe extern "C" fn add(_: *mut c_void, _: abi::Bytes, _: abi::Bytes) -> u32 {
            abi::TOO_LARGE
        }
        unsafe extern "C" fn remove(_: *mut c_void, _: abi::Bytes) -> u32 {
            0
        }
        unsafe extern "C" fn set_timeout(_: *mut c_void, _: u64) {}
        let empty = abi::Bytes::of(b"");
        abi::Request {
            now_ns: 0,
            call,
            timeout_ns: abi::NONE,
            held: 0,
            datapath: 0,
            method: 0,
            side: 0,
            encoding: 0,
            compressed: 0,
            program: empty,
            server: empty,
            body: empty,
            options: abi::Options {
                context: std::ptr::null_mut(),
                value: none,
                pair,
                insert: add,
                set: add,
                remove,
                set_timeout,
            },
        }
    }

    #[test]
    fn no_panic_leaves_and_texts_are_as_long_as_the_service_takes() {
        let kind = kind::<Loud>();
        let mut instance = std::ptr::null_mut();
        let mut build = |settings: &str| {
            left(|text| {
                let settings = abi::Bytes::of(settings.as_bytes());
                // SAFETY: all is there.
                unsafe { kind.build.expect("there")(settings, &raw mut instance, text) }
            })
        };
        assert_eq!(build("no"), (abi::FAILED, "no".to_owned()));
        let (outcome, text) = build(&"x".repeat(5000));
        assert_eq!((outcome, text.len()), (abi::FAILED, abi::MAX_TEXT));
        assert_eq!(build(""), (abi::DONE, String::new()));
        let ask = |call| {
            let mut verdict = abi::Verdict {
                kind: 0,
                code: 0,
                until_ns: 0,
            };
            let request = request(call);
            let left = left(|text| {
                let on_request = kind.on_request.expect("there");
                // SAFETY: all is there.
                unsafe { on_request(instance, &raw const request, &raw mut verdict, text) }
            });
            (left, verdict)
        };
        let ((outcome, text), _) = ask(0);
        assert_eq!(outcome, abi::PANICKED);
        assert!(
            text.len() <= abi::MAX_TEXT && text.contains("\u{e4}, at crates/plugin/src/entry.rs:"),
            "{text}"
        );
        let ((outcome, text), _) = ask(1);
        assert_eq!(outcome, abi::PANICKED);
        assert!(text.starts_with("without a text, at "), "{text}");
        let ((outcome, text), verdict) = ask(2);
        assert_eq!((outcome, text.len()), (abi::DONE, abi::MAX_TEXT));
        assert_eq!((verdict.kind, verdict.code), (abi::REFUSE, 10));
        // SAFETY: it is used no more.
        let ended = left(|text| unsafe { kind.destroy.expect("there")(instance, text) });
        assert_eq!(ended, (abi::DONE, String::new()));
    }
}
