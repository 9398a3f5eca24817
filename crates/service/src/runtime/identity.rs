//! Which application's calls a route has, for the scopes of policies.
//!
//! The kernel says the process and its user as of when it connected. Its program is read when it makes its first
//! request: the file that it runs is compared by its place on disk, so no mount of its own passes for another.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_policy::{Datapath, Identities, IdentitySpec, Scope, Side};

use crate::error::ServiceError;

/// Numbers the datapaths of this process.
static DATAPATHS: AtomicU64 = AtomicU64::new(0);

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// What policies know of them.
    pub(crate) datapath: Arc<Datapath>,
    /// The application.
    pub(crate) process: Option<u32>,
    pub(crate) user: Option<u32>,
    /// The identities that it has.
    pub(crate) names: Vec<Arc<str>>,
}

impl Identity {
    pub(crate) fn new(
        side: Side,
        process: Option<u32>,
        user: Option<u32>,
        server: &str,
        configured: &Configured,
    ) -> Self {
        // The number may be another's by now: of another user's process nothing is taken over.
        let process_now = process.filter(|process| user.is_none() || user_of(*process) == user);
        let read = |process| std::fs::read(format!("/proc/{process}/comm")).ok();
        let program = process_now.and_then(read).unwrap_or_default();
        let program = String::from_utf8_lossy(&program).trim_end().to_owned();
        let names = configured.of(process_now, user, &program);
        let datapath = Datapath {
            id: DATAPATHS.fetch_add(1, Ordering::Relaxed),
            side,
            program: printable(&program),
            server: printable(server),
        };
        Self {
            datapath: Arc::new(datapath),
            process,
            user,
            names,
        }
    }

    /// Its address, once that is known: with the port that port 0 became.
    pub(crate) fn set_server(&mut self, server: &str) {
        let datapath = Arc::make_mut(&mut self.datapath);
        datapath.server = printable(server);
    }

    fn has(&self, identity: &str) -> bool {
        self.names.iter().any(|name| **name == *identity)
    }

    /// Whether its calls are in a scope, but for their methods.
    pub(crate) fn is_in(&self, scope: &Scope) -> bool {
        let datapath = &*self.datapath;
        datapath.side == scope.side
            && (scope.process.is_none() || scope.process == self.process)
            && (scope.user.is_none() || scope.user == self.user)
            && (scope.identity.as_ref()).is_none_or(|identity| self.has(identity))
            && (scope.program.as_ref()).is_none_or(|program| *program == datapath.program)
            && (scope.server.as_ref()).is_none_or(|server| *server == datapath.server)
    }
}

/// Applications choose names: none of them may move the cursor of an operator who reads it, or be two lines of a text.
fn printable(name: &str) -> String {
    let shown = name.chars().map(|c| match c.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    });
    shown.collect()
}

/// The identities that a service is configured with.
#[derive(Debug, Default)]
pub(crate) struct Configured(Vec<(Arc<str>, IdentitySpec)>);

impl Configured {
    /// # Errors
    /// If the file of one is not there: nobody could have that identity.
    pub(crate) fn new(identities: &Identities) -> Result<Self, ServiceError> {
        for (name, identity) in identities {
            if let Some(exe) = &identity.exe {
                file_of(exe).map_err(|source| ServiceError::Exe {
                    name: name.clone(),
                    exe: exe.clone(),
                    source,
                })?;
            }
        }
        let all = identities.iter();
        Ok(Self(
            all.map(|(name, identity)| (name.as_str().into(), identity.clone()))
                .collect(),
        ))
    }

    /// The names of those that the application in a process has.
    pub(crate) fn of_process(&self, process: u32, user: Option<u32>) -> Vec<Arc<str>> {
        let identity = Identity::new(Side::Client, Some(process), user, "", self);
        identity.names
    }

    /// The names of those that an application has.
    fn of(&self, process: Option<u32>, user: Option<u32>, program: &str) -> Vec<Arc<str>> {
        let has = |(_, identity): &&(Arc<str>, IdentitySpec)| {
            (identity.user.is_none() || identity.user == user)
                && (identity.program.as_ref()).is_none_or(|wanted| wanted == program)
                && (identity.exe.as_ref()).is_none_or(|exe| runs(process, exe))
        };
        let names = self.0.iter().filter(has);
        names.map(|(name, _)| Arc::clone(name)).collect()
    }
}

/// The user with whose rights a process runs.
fn user_of(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process runs the program in a file. Not if that cannot be seen.
fn runs(process: Option<u32>, exe: &Path) -> bool {
    let Some(process) = process else {
        return false;
    };
    let running = file_of(Path::new(&format!("/proc/{process}/exe")));
    matches!((running, file_of(exe)), (Ok(running), Ok(wanted)) if running == wanted)
}

/// Which file it is, wherever it is seen from.
fn file_of(path: &Path) -> std::io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_control_characters() {
        let identity = Identity::new(
            Side::Client,
            None,
            None,
            "udp://h:1?\u{1b}[2J\n",
            &Configured::default(),
        );
        let shown = "udp://h:1?\u{fffd}[2J\u{fffd}";
        assert_eq!(identity.datapath.server, shown);
    }

    #[test]
    fn a_scope_has_those_for_which_all_holds() {
        let own = std::process::id();
        let configured = Configured(vec![("one".into(), IdentitySpec::default())]);
        let user = rustix::process::geteuid().as_raw();
        let identity = Identity::new(
            Side::Client,
            Some(own),
            Some(user),
            "udp://h:1",
            &configured,
        );
        let program = identity.datapath.program.clone();
        assert!(!program.is_empty());
        let scope = |change: &dyn Fn(&mut Scope)| {
            let mut scope = Scope::default();
            change(&mut scope);
            identity.is_in(&scope)
        };
        assert!(scope(&|_| {}));
        assert!(scope(&|scope| {
            scope.program = Some(program.clone());
            scope.process = Some(own);
            scope.user = Some(user);
            scope.identity = Some("one".to_owned());
            scope.server = Some("udp://h:1".to_owned());
        }));
        assert!(!scope(&|scope| scope.side = Side::Server));
        assert!(!scope(&|scope| scope.program = Some("other".to_owned())));
        assert!(!scope(&|scope| scope.process = Some(own + 1)));
        assert!(!scope(&|scope| scope.user = Some(user + 1)));
        assert!(!scope(&|scope| scope.identity = Some("two".to_owned())));
        assert!(!scope(&|scope| scope.server = Some("udp://h:2".to_owned())));
    }

    #[test]
    fn a_process_of_another_user_lends_no_name() {
        let (own, user) = (std::process::id(), rustix::process::geteuid().as_raw());
        let of = |user| {
            Identity::new(
                Side::Client,
                Some(own),
                Some(user),
                "udp://h:1",
                &Configured::default(),
            )
        };
        assert!(!of(user).datapath.program.is_empty());
        assert_eq!(of(user + 1).datapath.program, "");
    }

    #[test]
    fn an_identity_is_had_by_those_for_whom_all_holds() {
        let own = std::env::current_exe().expect("this test has a path");
        let json = |exe: &Path, user: u32| {
            let exe = exe.display();
            format!(r#"{{"own":{{"exe":"{exe}","user":{user}}},"named":{{"program":"x"}}}}"#)
        };
        let names = |exe: &Path, process, user, program: &str| {
            let identities = starling_policy::parse_identities(&json(exe, 7)).expect("identities");
            let configured = Configured::new(&identities).expect("the files are there");
            let names = configured.of(process, user, program);
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let process = Some(std::process::id());
        assert_eq!(names(&own, process, Some(7), "x"), ["named", "own"]);
        assert_eq!(names(&own, process, Some(8), "y"), [""; 0]);
        assert_eq!(names(&own, None, Some(7), "y"), [""; 0]);
        assert_eq!(names(Path::new("/bin/sh"), process, Some(7), "y"), [""; 0]);
        // By another path it is the same file.
        let link = std::env::temp_dir().join(format!("starling-exe-{}", std::process::id()));
        std::os::unix::fs::symlink(&own, &link).expect("a free name");
        let seen = names(&link, process, Some(7), "y");
        std::fs::remove_file(&link).expect("it was made");
        assert_eq!(seen, ["own"]);
        let absent = starling_policy::parse_identities(&json(&link, 7)).expect("identities");
        let error = Configured::new(&absent)
            .expect_err("it is gone")
            .to_string();
        assert!(error.starts_with("identities.own.exe: "), "{error}");
    }
}
