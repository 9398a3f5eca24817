//! Host names become IP addresses in threads of their own: the system's resolver may take seconds,
//! and an endpoint's thread has other things to do.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use starling_endpoint::Status;
use starling_io_udp::UdpAddress;

use crate::address::{Address, Scheme};

/// The host name in an address; none if there is nothing to be looked up.
fn name_in(address: &Address) -> Option<UdpAddress> {
    if address.scheme() != Scheme::Udp {
        return None;
    }
    let address = UdpAddress::parse(address.as_str()).ok()?;
    let is_ip = address.host().contains('%') || address.host().parse::<IpAddr>().is_ok();
    (!is_ip).then_some(address)
}

/// Whether an address has a host name.
pub(crate) fn is_needed(address: &Address) -> bool {
    name_in(address).is_some()
}

#[derive(Default)]
struct Found {
    targets: Option<Result<Vec<String>, Status>>,
    waker: Option<Waker>,
}

/// The addresses that a host name stands for, as addresses without names. Begun at once.
pub(crate) fn look_up(
    address: &Address,
) -> impl Future<Output = Result<Vec<String>, Status>> + use<> {
    let found = Arc::new(Mutex::new(Found::default()));
    let (name, text, its_found) = (name_in(address), address.to_string(), Arc::clone(&found));
    let put = move |targets| {
        let mut found = its_found.lock().unwrap_or_else(PoisonError::into_inner);
        found.targets = Some(targets);
        let waker = found.waker.take();
        drop(found);
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    let its_put = put.clone();
    let thread = std::thread::Builder::new()
        .name("starling-resolve".to_owned())
        .spawn(move || {
            its_put(match name.map(|name| name.resolve()) {
                None => Ok(vec![text]),
                Some(Ok(found)) => Ok(found.iter().map(|ip| format!("udp://{ip}")).collect()),
                Some(Err(error)) => Err(Status::unavailable(error.to_string())),
            });
        });
    if let Err(error) = thread {
        put(Err(Status::unavailable(format!(
            "start a thread to resolve a name: {error}"
        ))));
    }
    std::future::poll_fn(move |cx| {
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        match found.targets.take() {
            Some(targets) => Poll::Ready(targets),
            None => {
                found.waker = Some(cx.waker().clone());
                Poll::Pending
            }
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
    fn only_names_are_looked_up() {
        assert!(is_needed(&address("udp://localhost:9000")));
        for text in [
            "udp://127.0.0.1:9000",
            "udp://[::1]:9000",
            "udp://[fe80::1%eth0]:9000",
            "shm://localhost",
        ] {
            assert!(!is_needed(&address(text)), "{text}");
        }
    }

    #[test]
    fn a_name_becomes_addresses_or_an_error_with_the_name() {
        let found = crate::block_on(look_up(&address("udp://localhost:9000")));
        let found = found.expect("every host knows it");
        assert!(
            found.iter().all(|target| !is_needed(&address(target))),
            "{found:?}"
        );
        let missing = crate::block_on(look_up(&address("udp://no-such-host.invalid:1")));
        let status = missing.expect_err("a reserved name");
        assert!(
            status.message().contains("no-such-host.invalid"),
            "{status}"
        );
    }
}
