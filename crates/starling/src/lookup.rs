//! Resolves host names in threads of their own: the system's resolver may block for seconds, and an
//! endpoint's thread must not.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use atomic_waker::AtomicWaker;
use starling_endpoint::Status;

use crate::address::Address;

/// Whether an address has a host name.
pub(crate) fn is_needed(address: &Address) -> bool {
    address.device().has_host_name(address.as_str())
}

#[derive(Default)]
struct Found {
    targets: OnceLock<Result<Vec<String>, Status>>,
    waker: AtomicWaker,
}

impl Found {
    fn set(&self, targets: Result<Vec<String>, Status>) {
        // Set once: by the thread, or because there is none.
        let _ = self.targets.set(targets);
        self.waker.wake();
    }
}

/// Resolves the host name of an address. Returns the addresses that it stands for, with IP addresses
/// in place of the name. The thread starts now, not when the future is first polled.
pub(crate) fn look_up(
    address: &Address,
) -> impl Future<Output = Result<Vec<String>, Status>> + use<> {
    let found = Arc::new(Found::default());
    let (address, its_found) = (address.clone(), Arc::clone(&found));
    let thread = std::thread::Builder::new()
        .name("starling-resolve".to_owned())
        .spawn(move || {
            let resolved = address.device().resolve(address.as_str());
            its_found.set(resolved.map_err(|error| Status::unavailable(error.to_string())));
        });
    if let Err(error) = thread {
        found.set(Err(Status::unavailable(format!(
            "start a thread to resolve a name: {error}"
        ))));
    }
    std::future::poll_fn(move |cx| {
        found.waker.register(cx.waker());
        match found.targets.get() {
            Some(targets) => Poll::Ready(targets.clone()),
            None => Poll::Pending,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).expect(text)
    }

    #[test]
    fn only_addresses_with_host_names_are_looked_up() {
        assert!(is_needed(&address("udp://localhost:9000")));
        assert!(is_needed(&address("xdp://eth0/localhost:9000")));
        for text in [
            "udp://127.0.0.1:9000",
            "udp://[::1]:9000",
            "udp://[fe80::1%eth0]:9000",
            "shm://localhost",
            "xdp://eth0/10.0.0.7:9000",
            "xdp://eth0/[fe80::1%eth0]:9000",
        ] {
            assert!(!is_needed(&address(text)), "{text}");
        }
    }

    #[test]
    fn a_host_name_resolves_to_addresses_or_to_an_error_with_the_name() {
        let found = crate::block_on(look_up(&address("udp://localhost:9000")));
        let found = found.expect("every host has this name");
        assert!(
            found.iter().all(|target| !is_needed(&address(target))),
            "{found:?}"
        );
        let found = crate::block_on(look_up(&address("xdp://eth0/localhost:9000?queue=1")));
        let found = found.expect("every host has this name");
        let has_ip = |target: &String| {
            let (v4, v6) = (
                "xdp://eth0/127.0.0.1:9000?queue=1",
                "xdp://eth0/[::1]:9000?queue=1",
            );
            target == v4 || target == v6
        };
        assert!(found.iter().all(has_ip), "{found:?}");
        let missing = crate::block_on(look_up(&address("udp://no-such-host.invalid:1")));
        let status = missing.expect_err("a reserved name");
        assert!(
            status.message().contains("no-such-host.invalid"),
            "{status}"
        );
    }
}
