//! Servers and clients over AF_XDP, in network namespaces joined by veth.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use starling::{Channel, Error, ServerHandle};
use starling_io::IoError;
use starling_netns::{Pair, Shape, inside};

use super::{Gate, LONG, server};

/// Two namespaces in which a server gets an address. If there are none, prints that the test is
/// skipped.
pub(crate) fn pair(test: &str, shape: Shape) -> Option<Pair> {
    let made = Pair::with_shape(shape).and_then(|pair| {
        let bound = inside(&pair.b, || {
            starling::Server::builder()
                .bind("xdp://vb/0.0.0.0:0")?
                .build()
                .map(drop)
        });
        match bound {
            Ok(()) => Ok(pair),
            Err(Error::Device(error)) if is_lacking(&error) => Err(error.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
    if let Err(problem) = &made {
        println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
    }
    made.ok()
}

/// Whether the kernel has no AF_XDP, or does not let this process use it.
fn is_lacking(error: &IoError) -> bool {
    let lacking = [Errno::PERM, Errno::AFNOSUPPORT, Errno::NOSYS];
    let errno = error.source.as_ref().and_then(Errno::from_io_error);
    errno.is_some_and(|errno| lacking.contains(&errno))
}

/// A server in `b`.
pub(crate) fn serve(pair: &Pair, threads: usize, address: &str) -> ServerHandle {
    serve_in(&pair.b, threads, address).0
}

/// A server in any namespace, and its gate.
pub(crate) fn serve_in(
    namespace: &File,
    threads: usize,
    address: &str,
) -> (ServerHandle, Arc<Gate>) {
    let begun = Instant::now();
    inside(namespace, || {
        loop {
            let (builder, gate) = server(&[]);
            let server = builder.threads(threads).bind(address).expect(address);
            match server.build() {
                Ok(server) => return (server.spawn().expect("threads"), gate),
                // A process that another test starts has the socket of a former server until its exec.
                Err(error) if error.to_string().contains("already in use") => {
                    assert!(begun.elapsed() < LONG, "{error}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("a server: {error}"),
            }
        }
    })
}

/// The address by which clients in `a` reach a server: the interface is their own.
pub(crate) fn from_a(server: &ServerHandle) -> String {
    let address = &server.addresses()[0];
    address.replace("xdp://vb/", "xdp://va/")
}

/// A channel in `a`.
pub(crate) fn channel(pair: &Pair, address: &str) -> Channel {
    inside(&pair.a, || Channel::builder(address).own_endpoint().lazy()).expect(address)
}
