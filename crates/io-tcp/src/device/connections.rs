//! The connections of a device: how they begin and end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use starling_io::{Fault, IoError, IoEvent, Origin, PeerGone, PeerId, PeerRefusal};

use super::{TcpIo, host_error};
use crate::frame::Defect;
use crate::poller::Interest;
use crate::rx::End;
use crate::sockets;

/// Which end began a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This one, to that address.
    Opened(SocketAddr),
    /// A peer of that host.
    Accepted(Origin),
}

/// The connection to one peer.
pub(super) struct Connection {
    /// `None`: it is over, and the device's user has not closed the peer yet.
    pub(super) socket: Option<Arc<OwnedFd>>,
    pub(super) side: Side,
    /// When it began, or when the device's user closed the peer.
    pub(super) silent_since: Instant,
}

impl TcpIo {
    /// The peer at an address; a new one if there is none yet.
    pub(super) fn open(&mut self, attempt: &str, address: SocketAddr) -> Result<u32, IoError> {
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(IoError::new(
                Fault::Caller,
                attempt,
                "nothing can be sent there",
                "use the peer's own address and port",
            ));
        }
        if let Some(number) = self.find_opened(address) {
            return Ok(number);
        }
        if !self.has_place() {
            return Err(IoError::new(
                Fault::Host,
                attempt,
                format!("there are {} peers already", self.places.places),
                "close some, or raise TcpConfig::max_peers or the limit of open files",
            ));
        }
        let socket = sockets::connect(address).map_err(|error| open_error(attempt, error))?;
        self.insert(socket, address, Side::Opened(address))
            .map_err(|error| host_error(attempt, error.into()))
    }

    /// The live peer that was opened at this address. Any number of sessions share one connection. The other end may
    /// just have gone, and another be there.
    fn find_opened(&self, address: SocketAddr) -> Option<u32> {
        let connections = (0..).zip(&self.connections);
        let mut live = connections.filter_map(|(number, connection)| {
            let connection = connection.as_ref()?;
            let socket = connection.socket.as_ref()?;
            (connection.side == Side::Opened(address)).then_some((number, socket))
        });
        let found = live.find(|(_, socket)| !sockets::is_over(socket));
        found.map(|(number, _)| number)
    }

    pub(super) fn has_place(&self) -> bool {
        self.connections.len() - self.free_numbers.len() < self.places.places
    }

    pub(super) fn insert(
        &mut self,
        socket: OwnedFd,
        address: SocketAddr,
        side: Side,
    ) -> rustix::io::Result<u32> {
        let free = self.free_numbers.last().copied();
        let number = free.unwrap_or(self.connections.len() as u32);
        let is_connected = matches!(side, Side::Accepted(_));
        let interest = match is_connected {
            true => Interest::Read,
            false => Interest::ReadAndWrite,
        };
        self.poller.add(&socket, number.into(), interest)?;
        let socket = Arc::new(socket);
        self.rx.insert(number, Arc::clone(&socket));
        self.tx
            .insert(number, Arc::clone(&socket), address, is_connected);
        let connection = Connection {
            socket: Some(socket),
            side,
            silent_since: Instant::now(),
        };
        if let Side::Accepted(origin) = side {
            *self.held.entry(origin).or_default() += 1;
        }
        match self.free_numbers.pop() {
            Some(number) => self.connections[number as usize] = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        Ok(number)
    }

    /// A connection is over: reports it, or forgets a peer that was never known.
    pub(super) fn end(&mut self, number: u32, why: End) {
        let Some(Some(connection)) = self.connections.get(number as usize) else {
            return;
        };
        let is_accepted = matches!(connection.side, Side::Accepted(_));
        let gone = match why {
            End::Defect(defect) if !is_accepted => gone_by(defect),
            End::Defect(_) | End::HungUp => PeerGone::Certain,
        };
        if is_accepted && let End::Defect(defect) = why {
            self.counts.cut_off += 1;
            if defect == Defect::OtherVersion {
                // It says this end's version.
                self.tx.finish(number);
            }
        }
        if is_accepted && !self.rx.has_sent(number) {
            self.remove(number);
            return;
        }
        self.disconnect(number);
        self.events
            .push_back(IoEvent::PeerGone(PeerId(number), gone));
    }

    /// Closes a connection. The peer keeps its number.
    fn disconnect(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else {
            return;
        };
        if let Some(socket) = connection.socket.take() {
            self.poller.remove(&*socket);
            sockets::hang_up(&socket);
            self.rx.remove(number);
            self.tx.remove(number);
        }
    }

    /// Forgets a peer, and closes its connection.
    pub(super) fn remove(&mut self, number: u32) {
        self.disconnect(number);
        let Some(connection) = self.connections[number as usize].take() else {
            return;
        };
        if let Side::Accepted(origin) = connection.side
            && let Some(held) = self.held.get_mut(&origin)
        {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&origin);
            }
        }
        self.free_numbers.push(number);
        self.events
            .retain(|&IoEvent::PeerGone(gone, _)| gone != PeerId(number));
    }

    /// The device's user forgets a peer.
    pub(super) fn close(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get(number as usize) else {
            return;
        };
        match (connection.side, &connection.socket) {
            (Side::Accepted(_), Some(_)) => self.set_silent(PeerId(number)),
            _ => self.remove(number),
        }
    }
}

/// What the device reports of a server whose connection has such a defect.
fn gone_by(defect: Defect) -> PeerGone {
    match defect {
        Defect::Nonsense => PeerGone::Refused(PeerRefusal::Nonsense),
        Defect::OtherVersion => PeerGone::Refused(PeerRefusal::OtherVersion),
        Defect::Full => PeerGone::Refused(PeerRefusal::Full),
        Defect::Unacceptable => PeerGone::Refused(PeerRefusal::Unacceptable),
        Defect::Length => PeerGone::Certain,
    }
}

/// The error of an address that the kernel knows at once to be of no use.
fn open_error(attempt: &str, error: io::Error) -> IoError {
    match Errno::from_io_error(&error) {
        Some(Errno::CONNREFUSED) => IoError::from_os(
            Fault::Peer,
            attempt,
            error,
            "nothing listens at the peer's address: start the server, or check the address",
        ),
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL | Errno::INVAL) => {
            let remedy = "check the address, and the routes of this host";
            IoError::from_os(Fault::Host, attempt, error, remedy)
        }
        _ => host_error(attempt, error),
    }
}
