//! Who calls a worker that takes requests from the device itself.
//!
//! The dispatch thread's table says that of its requests. A worker has no part in that table: when the
//! number of a peer is used for another one, the worker may not have heard of it. So it goes by the address
//! that the request came from.

use std::net::SocketAddr;

use starling_call::Peer;
use starling_io::PeerId;

/// The callers of one worker's requests, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Callers(Vec<Option<(SocketAddr, Peer)>>);

impl Callers {
    /// The caller with this number, whose request came from this address.
    pub(super) fn of(&mut self, peer: PeerId, sender: Option<SocketAddr>) -> &Peer {
        let Some(sender) = sender else {
            return Peer::unknown();
        };
        let index = peer.0 as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        let known = &mut self.0[index];
        if (known.as_ref()).is_none_or(|(address, _)| *address != sender) {
            *known = Some((
                sender,
                Peer::new(format!("udp://{sender}"), Some(sender), None),
            ));
        }
        match known {
            Some((_, peer)) => peer,
            None => Peer::unknown(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_again_is_another_caller() {
        let mut callers = Callers::default();
        let address = |port| SocketAddr::from(([10, 0, 0, 7], port));
        let first = callers.of(PeerId(3), Some(address(1))).clone();
        assert!(callers.of(PeerId(3), Some(address(1))).is_same(&first));
        let second = callers.of(PeerId(3), Some(address(2)));
        assert_eq!(second.socket_addr(), Some(address(2)));
        assert_eq!(callers.of(PeerId(3), None), Peer::unknown());
    }
}
