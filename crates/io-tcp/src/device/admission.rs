//! Who gets a place: peers that connect, up to the limits, and who goes for them.
//!
//! A peer is *silent* while it has sent no datagram since it connected, or since the device's user has closed it.
//! Nobody knows a silent peer, and it may be one that only takes a place. After a while it is disconnected; before
//! that, if a place is wanted and none is free, the one that has been silent for longest goes.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use starling_io::{Origin, PeerId};

use super::TcpIo;
use super::connections::Side;
use crate::frame::{Code, hello};
use crate::poller::Interest;
use crate::rx::LISTENER_KEY;
use crate::sockets;

/// The most connections accepted at once. The others are reported again.
const MAX_ACCEPTS: usize = 64;

/// How long accepting stops when the system has no room for another connection, and how often silent peers are
/// looked at while there are some.
const TIMER: Duration = Duration::from_millis(250);

/// What became of peers that connected, so far.
#[derive(Default)]
pub(super) struct AdmissionCounts {
    /// Refused for lack of a place.
    pub(super) refused: u64,
    /// Disconnected for others.
    pub(super) evicted: u64,
    /// Disconnected because they were silent.
    pub(super) timed_out: u64,
    /// Disconnected because of what they sent.
    pub(super) cut_off: u64,
}

impl TcpIo {
    /// Accepts connections.
    pub(super) fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = self.listener.as_ref().filter(|_| !self.is_paused) else {
                return;
            };
            match sockets::accept(listener) {
                Ok((socket, address)) => self.admit(socket, address),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        // The socket stays readable, so polling it again at once would spin.
                        self.poller.remove(listener);
                        self.is_paused = true;
                        self.timer.set(TIMER);
                        return;
                    }
                    Some(Errno::AGAIN) => return,
                    // This one is gone.
                    _ => {}
                },
            }
        }
    }

    /// Makes a peer of a connection, or refuses it.
    fn admit(&mut self, socket: OwnedFd, address: SocketAddr) {
        let origin = Origin::of_address(address);
        if !self.make_place(origin) {
            self.counts.refused += 1;
            // If the peer does not receive this, it sees the connection close.
            let _ = sockets::send(&socket, &hello(Code::Full));
            return;
        }
        // If the kernel has no memory to poll another file, the connection closes.
        if self.insert(socket, address, Side::Accepted(origin)).is_ok() {
            self.timer.set(TIMER);
        }
    }

    /// Whether there is a place for a peer of this host; a silent peer goes for it if necessary.
    fn make_place(&mut self, origin: Origin) -> bool {
        let held = self.held.get(&origin).copied().unwrap_or(0);
        if held >= self.places.places_of_one && !self.evict(|of| of == origin) {
            return false;
        }
        self.has_place() || self.evict(|_| true)
    }

    /// Disconnects the peer that has been silent for longest, of some hosts. False if none of theirs is silent.
    fn evict(&mut self, may_go: impl Fn(Origin) -> bool) -> bool {
        let longest = self
            .silent_peers()
            .filter(|&(_, origin, _)| may_go(origin))
            .min_by_key(|&(_, _, since)| since);
        let Some((number, _, _)) = longest else {
            return false;
        };
        self.counts.evicted += 1;
        self.remove(number);
        true
    }

    /// The timer has rung: accepts again after a pause, and disconnects peers that were silent for too long.
    pub(super) fn handle_timer(&mut self) {
        self.timer.clear();
        if self.is_paused
            && let Some(listener) = &self.listener
        {
            let added = self.poller.add(listener, LISTENER_KEY, Interest::Read);
            self.is_paused = added.is_err();
        }
        let now = Instant::now();
        let timeout = self.config.silent_timeout;
        let too_long = |since: Instant| now.saturating_duration_since(since) >= timeout;
        let silent = self.silent_peers();
        let (gone, others): (Vec<_>, Vec<_>) = silent.partition(|&(_, _, since)| too_long(since));
        if self.is_paused || !others.is_empty() {
            self.timer.set(TIMER);
        }
        for (number, _, _) in gone {
            self.counts.timed_out += 1;
            self.remove(number);
        }
    }

    /// The peer counts as silent from now on.
    pub(super) fn set_silent(&mut self, peer: PeerId) {
        self.rx.forget_sent(peer.0);
        if let Some(Some(connection)) = self.connections.get_mut(peer.0 as usize) {
            connection.silent_since = Instant::now();
            self.timer.set(TIMER);
        }
    }

    /// Accepted peers that are silent: number, host, since when.
    fn silent_peers(&self) -> impl Iterator<Item = (u32, Origin, Instant)> {
        let connections = (0..).zip(&self.connections);
        connections.filter_map(|(number, connection)| {
            let connection = connection.as_ref()?;
            let Side::Accepted(origin) = connection.side else {
                return None;
            };
            let is_silent = connection.socket.is_some() && !self.rx.has_sent(number);
            is_silent.then_some((number, origin, connection.silent_since))
        })
    }
}
