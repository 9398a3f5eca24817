//! Which application's calls a route has, for the scopes of policies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_policy::{Datapath, Scope, Side};

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
}

impl Identity {
    pub(crate) fn new(side: Side, process: Option<u32>, user: Option<u32>, server: &str) -> Self {
        let read = |process| std::fs::read(format!("/proc/{process}/comm")).ok();
        let program = process.and_then(read).unwrap_or_default();
        let program = String::from_utf8_lossy(&program);
        let datapath = Datapath {
            id: DATAPATHS.fetch_add(1, Ordering::Relaxed),
            side,
            program: printable(program.trim_end()),
            server: printable(server),
        };
        Self {
            datapath: Arc::new(datapath),
            process,
            user,
        }
    }

    /// Whether its calls are in a scope, but for their methods.
    pub(crate) fn is_in(&self, scope: &Scope) -> bool {
        let datapath = &*self.datapath;
        datapath.side == scope.side
            && (scope.process.is_none() || scope.process == self.process)
            && (scope.user.is_none() || scope.user == self.user)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_control_characters() {
        let identity = Identity::new(Side::Client, None, None, "udp://h:1?\u{1b}[2J\n");
        let shown = "udp://h:1?\u{fffd}[2J\u{fffd}";
        assert_eq!(identity.datapath.server, shown);
    }

    #[test]
    fn a_scope_has_those_for_which_all_holds() {
        let own = std::process::id();
        let identity = Identity::new(Side::Client, Some(own), Some(1), "udp://h:1");
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
            scope.user = Some(1);
            scope.server = Some("udp://h:1".to_owned());
        }));
        assert!(!scope(&|scope| scope.side = Side::Server));
        assert!(!scope(&|scope| scope.program = Some("other".to_owned())));
        assert!(!scope(&|scope| scope.process = Some(own + 1)));
        assert!(!scope(&|scope| scope.user = Some(2)));
        assert!(!scope(&|scope| scope.server = Some("udp://h:2".to_owned())));
    }
}
