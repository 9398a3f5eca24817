use std::cell::RefCell;
use std::time::Duration;

use starling_call::{CallOptions, MethodId};
use starling_io::ManualTime;

use super::*;
use crate::table::check;
use crate::testing::{CALLS, KIND, NEXT, Next, table_of};

thread_local! {
    static TIME: RefCell<Option<Arc<ManualTime>>> = const { RefCell::new(None) };
}

/// Engines of a kind that does what a test says, in time that a test moves.
struct Scene {
    kind: PluginKind,
    clock: MonotonicClock,
    shared: Arc<Shared>,
    datapath: Datapath,
}

impl Scene {
    fn new() -> Self {
        let time = ManualTime::new();
        let clock = time.clock();
        TIME.set(Some(time));
        NEXT.set(Next::PASS);
        CALLS.set((0, 0));
        // SAFETY: a table.
        let contents = unsafe {
            check(
                &raw const *Box::leak(Box::new(table_of(&[KIND]))),
                &Arc::default(),
            )
        };
        Self {
            kind: contents.expect("a table").kinds.remove(0),
            clock,
            shared: Arc::default(),
            datapath: Datapath {
                id: 7,
                side: Side::Client,
                program: "frontend".to_owned(),
                server: "udp://h:1".to_owned(),
            },
        }
    }

    fn try_build(&self, more: &str) -> Result<PluginEngine, SpecError> {
        let spec = PolicySpec::parse(&format!(r#"{{"name":"p","kind":"probe"{more}}}"#))?;
        PluginEngine::build(&self.kind, &spec, &self.clock, &self.shared)
    }

    fn build(&self) -> PluginEngine {
        self.try_build("").expect("settings")
    }

    fn ask(&self, engine: &mut PluginEngine) -> Verdict {
        let mut request = PolicyRequest {
            now_ns: 1,
            call: 2,
            method: MethodId(3),
            datapath: &self.datapath,
            options: &mut CallOptions::default(),
            body: b"body",
            message: None,
        };
        engine.on_request(&mut request, 0)
    }

    /// The text of a refusal.
    fn refused(&self, engine: &mut PluginEngine, expected: Code) -> String {
        match self.ask(engine) {
            Verdict::Refuse(status) => {
                assert_eq!(status.code(), expected, "{status}");
                status.message().to_owned()
            }
            verdict => panic!("{verdict:?}"),
        }
    }

    fn end(&self, engine: &mut PluginEngine) {
        engine.on_end(&PolicyEnd {
            now_ns: 5,
            call: 2,
            method: MethodId(3),
            code: Code::Ok,
            datapath: &self.datapath,
            since_ns: 1,
            request_bytes: 4,
            response_bytes: None,
        });
    }
}

fn blocks() {
    let time = TIME.take().expect("a scene");
    time.advance(Duration::from_millis(150));
    TIME.set(Some(time));
}

fn verdict(kind: u32, code: u32) -> Next {
    let until_ns = 9;
    Next {
        verdict: abi::Verdict {
            kind,
            code,
            until_ns,
        },
        ..Next::PASS
    }
}

fn ends(outcome: u32, left: &'static [u8]) -> Next {
    Next {
        outcome,
        left: abi::Bytes::of(left),
        ..Next::PASS
    }
}

#[test]
fn verdicts_come_over() {
    let scene = Scene::new();
    let mut engine = scene.build();
    assert!(matches!(scene.ask(&mut engine), Verdict::Pass));
    NEXT.set(verdict(abi::HOLD, 0));
    assert!(matches!(scene.ask(&mut engine), Verdict::Hold(9)));
    NEXT.set(verdict(abi::BEHIND, 0));
    assert!(matches!(scene.ask(&mut engine), Verdict::Behind));
    NEXT.set(Next {
        left: abi::Bytes::of(b"guests may not"),
        ..verdict(abi::REFUSE, 7)
    });
    let text = scene.refused(&mut engine, Code::PermissionDenied);
    assert_eq!((text.as_str(), engine.failure()), ("guests may not", None));
    scene.end(&mut engine);
    assert_eq!(CALLS.get(), (6, 1));
    NEXT.set(Next::PASS);
    drop(engine);
    assert_eq!(CALLS.get(), (7, 0));
}

/// Whatever a call ends with, the engine has failed from then on, and its plug-in is not called any more.
#[test]
fn an_engine_whose_call_ends_wrongly_has_failed() {
    let long: &'static [u8] = vec![b'x'; abi::MAX_TEXT + 1].leak();
    for (next, expected) in [
        (
            ends(abi::PANICKED, b"oh no"),
            "on_request of  panicked: oh no",
        ),
        (ends(abi::FAILED, b"never"), "returned a failure: never"),
        (ends(77, b""), "returned the outcome 77"),
        (ends(abi::DONE, long), "returned 4097 bytes"),
        (verdict(77, 0), "returned the verdict 77"),
        (verdict(abi::REFUSE, 0), "the code 0 for a refusal"),
        (verdict(abi::REFUSE, 17), "the code 17 for a refusal"),
        (
            Next {
                left: abi::Bytes::of(b"\xff"),
                ..verdict(abi::REFUSE, 7)
            },
            "no UTF-8",
        ),
        (
            Next {
                run: blocks,
                ..Next::PASS
            },
            "on_request of  blocked for 150 ms: it may take 100 ms",
        ),
    ] {
        let scene = Scene::new();
        let mut engine = scene.build();
        NEXT.set(next);
        let first = scene.refused(&mut engine, Code::Unavailable);
        assert!(
            first.contains(expected) && first.starts_with("the policy p has failed: "),
            "{first}"
        );
        NEXT.set(Next::PASS);
        assert_eq!(scene.refused(&mut engine, Code::Unavailable), first);
        scene.end(&mut engine);
        assert!(engine.failure().is_some());
        assert_eq!(engine.save(), Saved::default(), "it has no state any more");
        drop(engine);
        assert_eq!(CALLS.get(), (2, 1), "{expected}");
    }
}

#[test]
fn an_engine_may_fail_at_the_end_of_a_call_and_let_requests_pass() {
    let scene = Scene::new();
    let mut engine = scene
        .try_build(r#","on_failure":"pass""#)
        .expect("settings");
    NEXT.set(ends(abi::PANICKED, b"at the end"));
    scene.end(&mut engine);
    assert_eq!(engine.failure(), Some("on_end of  panicked: at the end"));
    assert!(matches!(scene.ask(&mut engine), Verdict::Pass));
}

#[test]
fn settings_are_refused_with_what_the_plugin_says() {
    let scene = Scene::new();
    let error = |next, more: &str| {
        NEXT.set(next);
        scene.try_build(more).err().expect("refused").to_string()
    };
    assert_eq!(
        error(ends(abi::FAILED, b"rate is 0"), ""),
        "settings: rate is 0"
    );
    assert_eq!(
        error(ends(abi::PANICKED, b"no"), ""),
        "settings: build of  panicked: no"
    );
    assert_eq!(
        error(verdict(77, 0), ""),
        "settings: build of  returned no instance"
    );
    let text = error(Next::PASS, r#","settings":[1]"#);
    assert_eq!(text, "settings: they are no object");
    assert_eq!(CALLS.get(), (3, 0));
    NEXT.set(Next {
        run: blocks,
        ..Next::PASS
    });
    assert!(scene.try_build("").is_ok(), "no call waits for it");
}

#[test]
fn a_state_goes_to_a_successor_that_knows_its_version() {
    let mut scene = Scene::new();
    let engine = scene.build();
    NEXT.set(ends(abi::DONE, b"state"));
    let saved = engine.save();
    assert_eq!(saved, Saved::of_bytes(2, b"state".to_vec()));
    NEXT.set(Next::PASS);
    assert_eq!(scene.build().restore(&mut saved.reader()), Ok(()));
    NEXT.set(ends(abi::FAILED, b"no state of mine"));
    let problem = |text: &str| {
        let problem = text.to_owned();
        Err(RestoreError::Engine { problem })
    };
    let mut next = scene.try_build("");
    assert!(next.is_err());
    NEXT.set(Next::PASS);
    next = scene.try_build("");
    NEXT.set(ends(abi::FAILED, b"no state of mine"));
    let mut next = next.expect("settings");
    assert_eq!(
        next.restore(&mut saved.reader()),
        problem("no state of mine")
    );
    NEXT.set(ends(abi::PANICKED, b"broken"));
    assert_eq!(
        next.restore(&mut saved.reader()),
        problem("restore of  panicked: broken")
    );
    NEXT.set(Next::PASS);
    scene.kind.state_version = 1;
    let (version, newest) = (2, 1);
    let later = RestoreError::Later { version, newest };
    assert_eq!(scene.build().restore(&mut saved.reader()), Err(later));
    // One that has failed leaves nothing.
    let none = Saved::default();
    assert_eq!(scene.build().restore(&mut none.reader()), Ok(()));
}

#[test]
fn a_state_that_cannot_be_saved_keeps_the_engine_as_it_is() {
    let scene = Scene::new();
    let mut engine = scene.build();
    NEXT.set(ends(abi::PANICKED, b"in save"));
    let saved = engine.save();
    NEXT.set(Next::PASS);
    let error = scene
        .build()
        .restore(&mut saved.reader())
        .expect_err("no state");
    let error = error.to_string();
    assert!(
        error.starts_with("save of  panicked: in save; detach it"),
        "{error}"
    );
    assert!(matches!(scene.ask(&mut engine), Verdict::Pass));
    let faults = scene
        .shared
        .faults
        .panics
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(faults, 1);
}

#[test]
fn any_numbers_and_bytes_are_a_verdict_or_a_failure() {
    bolero::check!()
        .with_type::<(u32, u32, u64, Vec<u8>)>()
        .for_each(|(kind, code, until_ns, text)| {
            let raw = abi::Verdict {
                kind: kind % 8,
                code: code % 20,
                until_ns: *until_ns,
            };
            match verdict_of(raw, text.clone()) {
                Ok(Verdict::Refuse(status)) => {
                    assert_eq!((raw.kind, status.code() as u32), (abi::REFUSE, raw.code));
                    assert_eq!(status.message().as_bytes(), text);
                }
                Ok(Verdict::Hold(at_ns)) => assert_eq!(at_ns, *until_ns),
                Ok(_) => assert!([abi::PASS, abi::BEHIND].contains(&raw.kind)),
                Err(failure) => assert!(matches!(failure, Failure::Malformed(_)), "{failure:?}"),
            }
        });
}
