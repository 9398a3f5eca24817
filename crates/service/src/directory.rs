//! The addresses at which the service listens for applications, whichever of its runtimes does: by them, applications
//! of one service reach each other without the way by the network.

use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::runtime::{Command, Local, RuntimeHandle};

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Directory(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    published: Vec<Published>,
    /// Whoever wants an address that is leaving.
    waiting: Vec<(RuntimeHandle, Command)>,
}

#[derive(Debug)]
struct Published {
    /// That of its publication.
    id: u64,
    local: Local,
    /// Its clients leave: nobody new is sent there.
    is_leaving: bool,
}

impl Published {
    fn address(&self) -> &str {
        &self.local.identity.datapath.server
    }
}

impl Directory {
    /// The service listens for an application.
    pub(crate) fn insert(&self, id: u64, local: Local) {
        self.0.lock().published.push(Published {
            id,
            local,
            is_leaving: false,
        });
    }

    /// The clients of an application leave.
    pub(crate) fn begin_leaving(&self, id: u64) {
        let mut entries = self.0.lock();
        let mut published = entries.published.iter_mut();
        if let Some(published) = published.find(|published| published.id == id) {
            published.is_leaving = true;
        }
    }

    /// The service listens for an application no more: its address is free for those that wait.
    pub(crate) fn remove(&self, id: u64) {
        let mut entries = self.0.lock();
        entries.published.retain(|published| published.id != id);
        let waiting = std::mem::take(&mut entries.waiting);
        drop(entries);
        for (runtime, command) in waiting {
            runtime.send(command);
        }
    }

    /// The application that is reached at an address, if one is.
    pub(crate) fn find(&self, address: &str) -> Option<Local> {
        let entries = self.0.lock();
        let is_at =
            |published: &&Published| !published.is_leaving && is_same(address, published.address());
        let published = entries.published.iter().find(is_at);
        published.map(|published| published.local.clone())
    }

    /// Has a runtime get a command when an address is free that clients leave. Returns it if there is none to wait for.
    pub(crate) fn defer(
        &self,
        address: &str,
        to: &RuntimeHandle,
        command: Command,
    ) -> Result<(), Command> {
        let mut entries = self.0.lock();
        let is_at = |published: &Published| published.is_leaving && published.address() == address;
        if !entries.published.iter().any(is_at) {
            return Err(command);
        }
        entries.waiting.push((to.clone(), command));
        Ok(())
    }
}

/// Whether an address leads to a publication of this host.
fn is_same(address: &str, published: &str) -> bool {
    let parse = |address| {
        let (scheme, host) = str::split_once(address, "://")?;
        Some((host.parse::<SocketAddr>().ok()?, scheme))
    };
    match (parse(address), parse(published)) {
        (Some((wanted, by)), Some((own, its))) if by == its && own.ip().is_unspecified() => {
            // A socket at [::] takes what comes for IPv4, too; one at 0.0.0.0 takes nothing else.
            let takes = own.is_ipv6() || wanted.is_ipv4();
            wanted.port() == own.port() && wanted.ip().is_loopback() && takes
        }
        _ => address == published,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_a_publication_of_this_host() {
        for (address, published) in [
            ("udp://127.0.0.1:9", "udp://127.0.0.1:9"),
            ("udp://127.0.0.1:9", "udp://0.0.0.0:9"),
            ("udp://[::1]:9", "udp://[::]:9"),
            ("udp://127.0.0.1:9", "udp://[::]:9"),
            ("tcp://127.0.0.1:9", "tcp://0.0.0.0:9"),
            ("shm://kv", "shm://kv"),
        ] {
            assert!(is_same(address, published), "{address} {published}");
        }
        for (address, published) in [
            ("udp://127.0.0.1:8", "udp://0.0.0.0:9"),
            ("tcp://127.0.0.1:9", "udp://0.0.0.0:9"),
            ("udp://10.0.0.7:9", "udp://0.0.0.0:9"),
            ("udp://[::1]:9", "udp://0.0.0.0:9"),
            ("udp://127.0.0.1:9", "udp://127.0.0.2:9"),
            ("shm://kv", "shm://kw"),
        ] {
            assert!(!is_same(address, published), "{address} {published}");
        }
    }
}
