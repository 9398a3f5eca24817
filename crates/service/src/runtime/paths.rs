//! The names of methods. Calls have only numbers: the service learns the names from calls that bind methods, and from
//! the scopes of policies.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use starling::reflection::BindRequest;
use starling::{DecodeLimits, Message};
use starling_endpoint::{Encoding, MethodId};
use starling_message::method_id;
use starling_policy::Scope;

use crate::forwarded::ForwardedRequest;

/// Names that are learned from calls, at most: those of further methods stay unknown.
const MAX_LEARNED: usize = 4096;
/// The longest name that is learned, and the longest request that may have one.
const MAX_NAME: usize = 256;
const MAX_REQUEST: usize = 512;

type Names = HashMap<MethodId, Arc<str>, RandomState>;

/// Of all runtimes.
#[derive(Debug)]
pub(crate) struct Paths {
    bind: MethodId,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    learned: Names,
    /// Those of the policies that are attached.
    scoped: Names,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            bind: MethodId(method_id("/starling.reflection.Reflection/Bind")),
            known: Mutex::default(),
        }
    }
}

impl Paths {
    /// Looks whether a request binds a method.
    #[inline]
    pub(super) fn look_at(&self, request: &ForwardedRequest) {
        if request.method == self.bind && request.options.encoding == Encoding::Protobuf {
            self.learn(request.body());
        }
    }

    #[cold]
    fn learn(&self, body: &[u8]) {
        if body.len() > MAX_REQUEST {
            return;
        }
        let Ok(bind) = BindRequest::from_protobuf(body, DecodeLimits::default()) else {
            // Its server says so.
            return;
        };
        let path = bind.path();
        let learned = &mut self.known.lock().learned;
        if let Some(name) = name_of(path).filter(|_| learned.len() < MAX_LEARNED) {
            learned
                .entry(MethodId(method_id(path)))
                .or_insert_with(|| name.into());
        }
    }

    /// These are the scopes of the policies that are attached.
    pub(crate) fn set_scoped<'a>(&self, scopes: impl Iterator<Item = &'a Scope>) {
        let scoped = &mut self.known.lock().scoped;
        scoped.clear();
        for scope in scopes {
            let names = scope.methods.iter().map(|name| name.as_str().into());
            scoped.extend(scope.method_ids().into_iter().zip(names));
        }
    }

    /// The name of a method: `kv.Kv/Get`.
    pub(crate) fn get(&self, method: MethodId) -> Option<Arc<str>> {
        let known = self.known.lock();
        let name = (known.scoped.get(&method)).or_else(|| known.learned.get(&method));
        name.cloned()
    }
}

/// The name of a path, if it can be one: `kv.Kv/Get` of `/kv.Kv/Get`.
fn name_of(path: &str) -> Option<&str> {
    let name = path
        .strip_prefix('/')
        .filter(|name| name.len() <= MAX_NAME)?;
    let (service, method) = name.split_once('/')?;
    let is_part = |part: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        !part.is_empty() && part.bytes().all(is_letter)
    };
    (is_part(service) && is_part(method)).then_some(name)
}

#[cfg(test)]
mod tests {
    use starling_message::protobuf;

    use super::*;

    fn learn(paths: &Paths, path: &str) {
        let mut body = Vec::new();
        let bind = BindRequest::new().with_path(path);
        protobuf::encode(BindRequest::LAYOUT, bind.arena().reader(), &mut body).expect("sound");
        paths.learn(&body);
    }

    fn get(paths: &Paths, path: &str) -> Option<String> {
        let name = paths.get(MethodId(method_id(path)));
        name.map(|name| name.to_string())
    }

    #[test]
    fn names_are_learned_if_they_can_be_some() {
        let paths = Paths::default();
        learn(&paths, "/kv.Kv/Get");
        assert_eq!(get(&paths, "/kv.Kv/Get").as_deref(), Some("kv.Kv/Get"));
        let long = format!("/kv.Kv/{}", "x".repeat(MAX_NAME));
        for wrong in [
            "kv.Kv/Get",
            "/kv",
            "/kv/",
            "//x",
            "/a/b/c",
            "/a/b\n",
            "/ä/b",
            &long,
        ] {
            learn(&paths, wrong);
            assert_eq!(get(&paths, wrong), None, "{wrong:?}");
        }
        paths.learn(b"\xff\xff");
        paths.learn(&[0; 600]);
        assert_eq!(paths.known.lock().learned.len(), 1);
    }

    #[test]
    fn they_are_bounded_but_for_those_of_scopes() {
        let paths = Paths::default();
        for number in 0..2 * MAX_LEARNED {
            learn(&paths, &format!("/a.A/M{number}"));
        }
        assert_eq!(paths.known.lock().learned.len(), MAX_LEARNED);
        let scope = Scope {
            methods: vec!["b.B/M".to_owned()],
            ..Scope::default()
        };
        paths.set_scoped([&scope].into_iter());
        assert_eq!(get(&paths, "/b.B/M").as_deref(), Some("b.B/M"));
        paths.set_scoped([].into_iter());
        assert_eq!(get(&paths, "/b.B/M"), None);
    }
}
