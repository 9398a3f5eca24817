//! `access-control`: lets calls pass by the values of their requests, and refuses the others with
//! `PERMISSION_DENIED`.
//!
//! The conditions are compiled for each method as its server has it, when its first request comes. A condition that
//! does not fit a server's method refuses its calls: nothing passes that was not looked at.

use serde::Deserialize;
use starling_call::Status;
use starling_message::FieldChecks;

use crate::engine::{PolicyEngine, PolicyRequest, Verdict};
use crate::expression::{Ast, Subject, Test};
use crate::schema::PolicyMethod;

/// Methods, and versions of them, for which conditions are kept compiled.
const MAX_COMPILED: usize = 256;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Calls pass of which it holds. Missing: all.
    allow: Option<String>,
    /// Calls are refused of which it holds. Missing: none.
    deny: Option<String>,
}

#[derive(Debug)]
pub(crate) struct AccessControl {
    allow: Option<Ast>,
    deny: Option<Ast>,
    /// In the order of the numbers of methods' schemas.
    compiled: Vec<(u64, Result<Conditions, String>)>,
    /// The place of the last one that was asked for.
    last: usize,
}

/// The conditions for one method.
#[derive(Debug)]
struct Conditions {
    allow: Option<Test>,
    deny: Option<Test>,
    /// Of the fields of the request that they read.
    fields: FieldChecks,
}

impl Conditions {
    fn compile(
        allow: Option<&Ast>,
        deny: Option<&Ast>,
        method: &PolicyMethod,
    ) -> Result<Self, String> {
        let mut numbers = Vec::new();
        let mut compile = |name: &str, ast: Option<&Ast>| {
            let compiled = ast.map(|ast| ast.compile(method.request(), &mut numbers));
            let compiled = compiled.transpose();
            compiled.map_err(|error| format!("{name}: {error}"))
        };
        let (allow, deny) = (compile("allow", allow)?, compile("deny", deny)?);
        numbers.sort_unstable();
        numbers.dedup();
        Ok(Self {
            allow,
            deny,
            fields: FieldChecks::new(method.request(), &numbers),
        })
    }

    fn admit(&self, of: &Subject<'_>) -> bool {
        let allows = self.allow.as_ref().is_none_or(|test| test.holds(of));
        allows && !self.deny.as_ref().is_some_and(|test| test.holds(of))
    }
}

impl AccessControl {
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        if settings.allow.is_none() && settings.deny.is_none() {
            return Err("write a condition for allow, or for deny, or both".to_owned());
        }
        let parse = |name: &str, text: Option<String>| {
            let parsed = text.map(|text| Ast::parse(&text)).transpose();
            parsed.map_err(|error| format!("{name}: {error}"))
        };
        Ok(Self {
            allow: parse("allow", settings.allow)?,
            deny: parse("deny", settings.deny)?,
            compiled: Vec::new(),
            last: 0,
        })
    }

    /// The conditions for a method, which are compiled when it comes first.
    #[inline]
    fn conditions(&mut self, method: &PolicyMethod) -> &Result<Conditions, String> {
        let number = method.number();
        let last = self.compiled.get(self.last);
        if last.is_none_or(|(of, _)| *of != number) {
            self.last = self.place_of(method);
        }
        &self.compiled[self.last].1
    }

    fn place_of(&mut self, method: &PolicyMethod) -> usize {
        let Self {
            allow,
            deny,
            compiled,
            last: _,
        } = self;
        let number = method.number();
        let find = |compiled: &[(u64, _)]| compiled.binary_search_by_key(&number, |(of, _)| *of);
        find(compiled).unwrap_or_else(|_| {
            if compiled.len() >= MAX_COMPILED {
                compiled.clear();
            }
            let place = find(compiled).unwrap_or_else(|place| place);
            let conditions = Conditions::compile(allow.as_ref(), deny.as_ref(), method);
            compiled.insert(place, (number, conditions));
            place
        })
    }
}

impl PolicyEngine for AccessControl {
    fn on_request(&mut self, request: &mut PolicyRequest<'_>, _held: usize) -> Verdict {
        let Some(message) = request.message else {
            return Verdict::Refuse(Status::internal(
                "the service has not read the request for its access control; the call did not run",
            ));
        };
        let method = message.method();
        let conditions = match self.conditions(method) {
            Ok(conditions) => conditions,
            Err(problem) => {
                let path = method.path();
                return Verdict::Refuse(Status::failed_precondition(format!(
                    "the access control of this service does not fit the server's {path}: {problem}; the call did not \
                     run"
                )));
            }
        };
        let reader = match message.read(&conditions.fields) {
            Ok(reader) => reader,
            Err(malformed) => return Verdict::Refuse(malformed),
        };
        let of = Subject {
            method,
            reader,
            metadata: &request.options.metadata,
        };
        match conditions.admit(&of) {
            true => Verdict::Pass,
            false => Verdict::Refuse(Status::permission_denied(
                "the access control of this service refuses a call with these values; it did not run",
            )),
        }
    }

    fn hears_ends(&self) -> bool {
        false
    }

    fn reads_messages(&self) -> bool {
        true
    }

    fn check_method(&self, method: &PolicyMethod) -> Result<(), String> {
        Conditions::compile(self.allow.as_ref(), self.deny.as_ref(), method).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use starling_call::{CallOptions, Code, MethodId};

    use super::*;
    use crate::engines::testing::{DATAPATH, refusal};
    use crate::schema::testing::{message, method, request, schema, text};

    fn engine(allow: Option<&str>, deny: Option<&str>) -> Result<AccessControl, String> {
        AccessControl::new(Settings {
            allow: allow.map(str::to_owned),
            deny: deny.map(str::to_owned),
        })
    }

    /// What it says of a customer's request.
    fn ask(engine: &mut AccessControl, method: &PolicyMethod, customer: &str) -> Verdict {
        ask_about(engine, method, &request(method, &[text(1, customer)]))
    }

    /// What it says of a request with these bytes.
    fn ask_about(engine: &mut AccessControl, method: &PolicyMethod, bytes: &[u8]) -> Verdict {
        let mut request = PolicyRequest {
            now_ns: 0,
            call: 0,
            method: MethodId(7),
            datapath: &DATAPATH,
            options: &mut CallOptions::default(),
            body: bytes,
            message: Some(message(method, bytes)),
        };
        engine.on_request(&mut request, 0)
    }

    #[test]
    fn calls_pass_that_are_allowed_and_not_denied() {
        let denied = "request.customerName == 'Mallory'";
        let allowed = "request.customerName.startsWith('M')";
        let method = method();
        let mut both = engine(Some(allowed), Some(denied)).expect("settings");
        let mut allows = engine(Some(allowed), None).expect("settings");
        let mut denies = engine(None, Some(denied)).expect("settings");
        for (customer, expected) in [
            ("Mallory", [false, true, false]),
            ("Mary", [true, true, true]),
            ("Ann", [false, false, true]),
        ] {
            let engines = [&mut both, &mut allows, &mut denies];
            let passed = engines.map(|engine| match ask(engine, &method, customer) {
                Verdict::Pass => true,
                verdict => {
                    assert_eq!(refusal(verdict), Some(Code::PermissionDenied));
                    false
                }
            });
            assert_eq!(passed, expected, "{customer}");
        }
    }

    #[test]
    fn each_version_of_a_method_is_read_by_its_own_schema() {
        let mut swapped = schema();
        let fields = &mut swapped.messages[0].fields;
        fields[0].name = "other".to_owned();
        fields[8].name = "customerName".to_owned();
        let swapped = PolicyMethod::all_of(&swapped).expect("a schema").remove(0);
        let mut renamed = schema();
        renamed.messages[0].fields[0].name = "customer".to_owned();
        let renamed = PolicyMethod::all_of(&renamed).expect("a schema").remove(0);
        let mut engine = engine(None, Some("request.customerName == 'Mallory'")).expect("settings");
        let method = method();
        for _ in 0..2 {
            assert!(refusal(ask(&mut engine, &method, "Mallory")).is_some());
            assert!(matches!(
                ask(&mut engine, &swapped, "Mallory"),
                Verdict::Pass
            ));
            // Nothing passes that cannot be looked at.
            let refused = ask(&mut engine, &renamed, "Ann");
            assert_eq!(refusal(refused), Some(Code::FailedPrecondition));
        }
        assert!(engine.check_method(&method).is_ok());
        let problem = engine.check_method(&renamed).expect_err("no such field");
        assert!(
            problem.starts_with("deny: at character 1: hotel.Request has no"),
            "{problem}"
        );
    }

    #[test]
    fn what_conditions_read_is_checked_and_the_rest_is_the_servers_to_check() {
        let method = method();
        let denies = |condition| engine(None, Some(condition)).expect("settings");
        let mut of_name = denies("request.customerName == 'Mallory'");
        let mut of_guest = denies("has(request.guest) && request.guest.age > 99");
        let name = method.request().field(1).expect("customerName").offset as usize;
        let guest = method.request().field(6).expect("guest").offset as usize;
        let malformed = Some(Code::InvalidArgument);
        for (offset, by_name) in [(name, malformed), (guest, None)] {
            let mut bytes = request(&method, &[text(1, "Ann")]);
            bytes[offset..offset + 8].copy_from_slice(&[0xff; 8]);
            let verdict = ask_about(&mut of_name, &method, &bytes);
            assert_eq!(refusal(verdict), by_name);
            // A message is valid as a whole, or not.
            let verdict = ask_about(&mut of_guest, &method, &bytes);
            assert_eq!(refusal(verdict), malformed);
        }
    }

    #[test]
    fn wrong_conditions_are_refused() {
        assert!(engine(None, None).is_err());
        let error = engine(Some("request."), None).expect_err("no condition");
        assert!(error.starts_with("allow: at character 9: "), "{error}");
    }
}
