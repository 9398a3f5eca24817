//! Which application's calls a route has, for the scopes of policies.

use starling_policy::{Scope, Side};

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) side: Side,
    /// The application.
    pub(crate) process: Option<u32>,
    pub(crate) user: Option<u32>,
    /// Its program, as `ps` shows it. Empty: it ended, or is not to be seen.
    pub(crate) program: String,
    /// The address of the server, as its callers write it.
    pub(crate) server: String,
}

impl Identity {
    pub(crate) fn new(side: Side, process: Option<u32>, user: Option<u32>, server: &str) -> Self {
        let read = |process| std::fs::read(format!("/proc/{process}/comm")).ok();
        let program = process.and_then(read).unwrap_or_default();
        let program = String::from_utf8_lossy(&program);
        Self {
            side,
            process,
            user,
            program: program.trim_end().to_owned(),
            server: server.to_owned(),
        }
    }

    /// Whether its calls are in a scope, but for their methods.
    pub(crate) fn is_in(&self, scope: &Scope) -> bool {
        self.side == scope.side
            && (scope.process.is_none() || scope.process == self.process)
            && (scope.user.is_none() || scope.user == self.user)
            && (scope.program.as_ref()).is_none_or(|program| *program == self.program)
            && (scope.server.as_ref()).is_none_or(|server| *server == self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_has_those_for_which_all_holds() {
        let own = std::process::id();
        let identity = Identity::new(Side::Client, Some(own), Some(1), "udp://h:1");
        assert!(!identity.program.is_empty());
        let program = identity.program.clone();
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
