//! What an operator changes, and whatever else is asked for.

use starling::managed::{
    AdapterUpgrade, Adapters, AdaptersUpgraded, HoldRequest, HoldResponse, ListRequest, Listing,
    PluginAddition, Plugins, PolicyChange, PolicyChanges, PublishRequest, Published,
};
use starling::{Code, Message};
use starling_policy::{KINDS, check_list};

use super::*;
use crate::runtime::Runtime;

fn list(json: &str) -> Vec<PolicySpec> {
    parse_list(json).expect("policies")
}

#[test]
fn differences_say_what_a_list_changes() {
    let one = list(
        r#"[{"name":"a","kind":"null"},{"name":"b","kind":"rate-limit"},{"name":"c","kind":"null"}]"#,
    );
    assert_eq!(differences(&one, &one, None), [""; 0]);
    assert_eq!(differences(&one, &one, Some("b")), ["upgrade b"]);
    let other = list(
        r#"[{"name":"b","kind":"rate-limit","settings":{"rate":1.0}},
            {"name":"a","kind":"null"},{"name":"d","kind":"null"}]"#,
    );
    let expected = [
        "detach c",
        r#"configure {"name":"b","kind":"rate-limit","settings":{"rate":1.0}}"#,
        r#"attach {"name":"d","kind":"null"}"#,
        "order b, a",
    ];
    assert_eq!(differences(&one, &other, None), expected);
    let kinds = list(r#"[{"name":"a","kind":"rate-limit"}]"#);
    let expected = [
        "detach b",
        "detach c",
        r#"attach {"name":"a","kind":"rate-limit"}"#,
    ];
    assert_eq!(differences(&one, &kinds, None), expected);
}

/// What an operator may ask for: a policy, a list, a name, or any text.
fn what(choice: u8, text: &str) -> String {
    let kind = &KINDS[usize::from(choice) % KINDS.len()];
    let name = char::from(b'a' + choice % 4);
    let policy = format!(
        r#"{{"name":"{name}","kind":"{}","settings":{}}}"#,
        kind.name, kind.example
    );
    match choice / 32 {
        0..=2 => policy,
        3 => format!("[{policy}]"),
        4 | 5 => name.to_string(),
        // Cut, with something else behind.
        6 => policy
            .chars()
            .take(usize::from(choice) * 2)
            .chain(text.chars())
            .collect(),
        _ => text.to_owned(),
    }
}

#[test]
fn whatever_is_asked_for_the_runtime_has_the_policies_that_the_operator_sees() {
    let mut runtime = Runtime::of_nobody();
    let (handle, shared) = (runtime.handle(), Arc::clone(runtime.shared()));
    let thread = std::thread::spawn(move || runtime.run());
    let operations = Operations::new(shared, Vec::new(), PolicyBuilder::default());
    let changes: [Change; 5] = [
        Operations::attach_policy,
        Operations::configure_policy,
        Operations::upgrade_policy,
        Operations::detach_policy,
        Operations::apply_list,
    ];
    let operations = std::panic::AssertUnwindSafe(&operations);
    let attached = || {
        let attached = operations.policies.lock();
        attached
            .iter()
            .map(|policy| policy.spec.clone())
            .collect::<Vec<_>>()
    };
    bolero::check!()
        .with_type::<Vec<(u8, u8, bool, String)>>()
        .for_each(|steps| {
            for (change, choice, dry_run, text) in steps.iter().take(16) {
                let before = attached();
                let what = what(*choice, text);
                let change = changes[usize::from(*change) % changes.len()];
                let changed = change(&operations, &what, *dry_run);
                let after = attached();
                check_list(&after).expect("a list");
                if let Err(status) = &changed {
                    let codes = [
                        Code::InvalidArgument,
                        Code::NotFound,
                        Code::AlreadyExists,
                        Code::FailedPrecondition,
                    ];
                    assert!(codes.contains(&status.code()), "{status}");
                }
                let is_same = *dry_run || changed.is_err();
                assert!(!is_same || before == after, "nothing has changed");
            }
            let reports = operations.ask_all(|reply| Command::Counts { reply });
            let of_runtime = reports.expect("it answers").remove(0).into_iter();
            let names = of_runtime.map(|(name, _)| name);
            assert!(names.eq(attached().into_iter().map(|spec| spec.name)));
        });
    handle.send(Command::Stop);
    thread.join().expect("no panic").expect("no failure");
}

/// Reads a message of these bytes, if they are one, in either encoding.
fn read<M: Message>(bytes: &[u8]) {
    let native = M::parse(bytes).map(M::from_view);
    let protobuf = M::from_protobuf(bytes, 1 << 20);
    for message in native.into_iter().chain(protobuf) {
        let encoded = message.to_protobuf().expect("it was read");
        let again = M::from_protobuf(&encoded, 1 << 24).expect("its own");
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
}

#[test]
fn any_bytes_are_control_messages_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        read::<PublishRequest>(bytes);
        read::<Published>(bytes);
        read::<HoldRequest>(bytes);
        read::<HoldResponse>(bytes);
        read::<ListRequest>(bytes);
        read::<Listing>(bytes);
        read::<PolicyChange>(bytes);
        read::<PolicyChanges>(bytes);
        read::<AdapterUpgrade>(bytes);
        read::<AdaptersUpgraded>(bytes);
        read::<Adapters>(bytes);
        read::<PluginAddition>(bytes);
        read::<Plugins>(bytes);
    });
}

/// The runtime takes the first change after its operator has given up.
#[test]
fn a_change_that_was_not_answered_in_time_is_made_all_the_same() {
    let mut runtime = Runtime::of_nobody();
    let (handle, shared) = (runtime.handle(), Arc::clone(runtime.shared()));
    let mut operations = Operations::new(shared, Vec::new(), PolicyBuilder::default());
    let null = |name: &str| format!(r#"{{"name":"{name}","kind":"null"}}"#);
    operations.answer_time = Duration::ZERO;
    let error = operations
        .attach_policy(&null("a"), false)
        .expect_err("nobody answers");
    assert_eq!(error.code(), Code::Unavailable);
    operations.answer_time = Duration::from_secs(600);
    let thread = std::thread::spawn(move || runtime.run());
    operations
        .attach_policy(&null("b"), false)
        .expect("it runs");
    let counts = operations.ask_all(|reply| Command::Counts { reply });
    let counts = counts.expect("it runs").remove(0);
    let names: Vec<_> = counts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    handle.send(Command::Stop);
    thread.join().expect("no panic").expect("no failure");
}

/// A runtime that gets new adapters, and does not say what has become of them.
#[test]
fn settings_stay_if_it_is_not_known_in_time_what_has_become_of_adapters() {
    let runtime = Runtime::of_nobody();
    let shared = Arc::clone(runtime.shared());
    let (handle, commands) = runtime.into_commands();
    let operations = Operations::new(Arc::clone(&shared), Vec::new(), PolicyBuilder::default());
    let thread = std::thread::spawn(move || {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Adapters { reply } => reply.send(Vec::new()).expect("it waits"),
                Command::ReplaceAdapters { reply, .. } => drop(reply),
                _ => return,
            }
        }
    });
    let mut answer = AdaptersUpgraded::new();
    let settings = r#"{"gso":false}"#;
    let upgraded = operations.upgrade_adapters_of("udp", None, settings, answer.as_mut());
    let error = upgraded.expect_err("it does not answer");
    assert!(error.message().contains("are replaced when"), "{error}");
    assert_eq!(shared.adapter_settings("udp").to_json(), settings);
    handle.send(Command::Stop);
    thread.join().expect("no panic");
}
