//! The listening socket, and connections whose hello has not arrived yet.
//!
//! A connector sends its hello in the same breath as it connects, so a connection that has none
//! is rare and not worth much: at most [`MAX_WAITING`] of them are kept, for [`HELLO_TIMEOUT`]
//! each, and a new one displaces the oldest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::config::ShmConfig;
use crate::handshake::{Answer, HELLO_BYTES, Hello};
use crate::map::Region;
use crate::sys::{self, Poller};

/// Connections without a hello.
const MAX_WAITING: usize = 64;

/// How long each may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections accepted in one go.
const MAX_ACCEPTS: usize = 64;

/// How long accepting stops when the process has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// Keys of the poller from here on are the lobby's.
pub(crate) const FIRST_KEY: u64 = 1 << 62;
/// The listening socket.
const LISTENER_KEY: u64 = FIRST_KEY;

/// A connection that brought everything that it takes.
pub(crate) struct Guest {
    pub(crate) socket: OwnedFd,
    pub(crate) hello: Hello,
    pub(crate) region: Arc<Region>,
}

struct Waiting {
    socket: OwnedFd,
    key: u64,
    until: Instant,
}

/// Takes new connections up to the point where they are peers.
pub(crate) struct Lobby {
    listener: Option<OwnedFd>,
    waiting: VecDeque<Waiting>,
    next_key: u64,
    /// Accepting stops until then.
    paused_until: Option<Instant>,
}

impl Lobby {
    /// A lobby that listens, or one that nobody comes to.
    pub(crate) fn new(listener: Option<OwnedFd>, poller: &Poller) -> rustix::io::Result<Self> {
        if let Some(listener) = &listener {
            poller.add(listener, LISTENER_KEY)?;
        }
        Ok(Self {
            listener,
            waiting: VecDeque::new(),
            next_key: FIRST_KEY + 1,
            paused_until: None,
        })
    }

    /// Handles that the file with this key is ready. Returns who has become a guest.
    pub(crate) fn handle_ready(
        &mut self,
        key: u64,
        now: Instant,
        poller: &Poller,
        config: &ShmConfig,
    ) -> Vec<Guest> {
        if key == LISTENER_KEY {
            return self.accept(now, poller, config);
        }
        let Some(index) = self.waiting.iter().position(|waiting| waiting.key == key) else {
            return Vec::new();
        };
        let waiting = self.waiting.remove(index).expect("it was just found");
        match receive_hello(waiting.socket, config) {
            Heard::Guest(guest) => {
                poller.remove(&guest.socket);
                vec![guest]
            }
            Heard::NotYet(socket) => {
                self.waiting.insert(index, Waiting { socket, ..waiting });
                Vec::new()
            }
            Heard::Refused => Vec::new(),
        }
    }

    fn accept(&mut self, now: Instant, poller: &Poller, config: &ShmConfig) -> Vec<Guest> {
        let Some(listener) = &self.listener else {
            return Vec::new();
        };
        let mut guests = Vec::new();
        for _ in 0..MAX_ACCEPTS {
            let socket = match sys::accept(listener) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The socket stays readable; looking at it again at once would spin.
                    poller.remove(listener);
                    self.paused_until = Some(now + PAUSE);
                    break;
                }
                // EAGAIN: no more. Or this one has gone already: the next look takes the rest.
                Err(_) => break,
            };
            if !config.allow_other_users && !sys::peer_is_ours_or_root(&socket).unwrap_or(false) {
                // If it cannot be told, it sees the connection close.
                let _ = sys::send(&socket, &Answer::NotPermitted.encode());
                continue;
            }
            match receive_hello(socket, config) {
                Heard::Guest(guest) => guests.push(guest),
                Heard::NotYet(socket) => {
                    if self.waiting.len() == MAX_WAITING {
                        self.waiting.pop_front();
                    }
                    let key = self.next_key;
                    self.next_key += 1;
                    if poller.add(socket.as_fd(), key).is_ok() {
                        let until = now + HELLO_TIMEOUT;
                        self.waiting.push_back(Waiting { socket, key, until });
                    }
                }
                Heard::Refused => {}
            }
        }
        guests
    }

    /// Drops who has waited too long, and listens again after a pause.
    pub(crate) fn handle_time(&mut self, now: Instant, poller: &Poller) {
        while self.waiting.front().is_some_and(|first| first.until <= now) {
            self.waiting.pop_front();
        }
        if self.paused_until.is_some_and(|until| until <= now)
            && let Some(listener) = &self.listener
            && poller.add(listener, LISTENER_KEY).is_ok()
        {
            self.paused_until = None;
        }
    }

    /// When [`Lobby::handle_time`] is wanted next.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let first = self.waiting.front().map(|first| first.until);
        first.into_iter().chain(self.paused_until).min()
    }
}

enum Heard {
    Guest(Guest),
    NotYet(OwnedFd),
    Refused,
}

/// Receives a hello and maps the memory that comes with it. Who is refused is told why.
fn receive_hello(socket: OwnedFd, config: &ShmConfig) -> Heard {
    let mut message = [0; HELLO_BYTES + 1];
    let (length, file) = match sys::receive_with_file(&socket, &mut message) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Heard::NotYet(socket),
        Err(Errno::MFILE) => {
            let _ = sys::send(&socket, &Answer::Full.encode());
            return Heard::Refused;
        }
        Err(_) => return Heard::Refused,
    };
    let checked = Hello::decode(&message[..length], config).and_then(|hello| {
        let file = file.ok_or(Answer::BadHello)?;
        let region = Region::map_foreign(file.as_fd(), hello.ring_bytes);
        let region = region.map_err(|_| Answer::BadMemory)?;
        Ok((hello, Arc::new(region)))
    });
    match checked {
        Ok((hello, region)) => Heard::Guest(Guest {
            socket,
            hello,
            region,
        }),
        Err(answer) => {
            // If it cannot be told, it sees the connection close.
            let _ = sys::send(&socket, &answer.encode());
            Heard::Refused
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_are_bounded_and_time_out() {
        let name = format!("starling-shm/test-{}-lobby", std::process::id());
        let poller = Poller::new().unwrap();
        let listener = sys::listen(name.as_bytes()).unwrap();
        let mut lobby = Lobby::new(Some(listener), &poller).unwrap();
        let config = ShmConfig::default();
        let start = Instant::now();
        assert_eq!(lobby.next_time(), None);
        let silent: Vec<OwnedFd> = (0..2 * MAX_WAITING)
            .map(|_| sys::connect(name.as_bytes()).unwrap())
            .collect();
        for _ in 0..3 {
            assert!(
                lobby
                    .handle_ready(LISTENER_KEY, start, &poller, &config)
                    .is_empty()
            );
        }
        assert_eq!(lobby.waiting.len(), MAX_WAITING);
        assert_eq!(lobby.next_time(), Some(start + HELLO_TIMEOUT));
        lobby.handle_time(start + HELLO_TIMEOUT / 2, &poller);
        assert_eq!(lobby.waiting.len(), MAX_WAITING);
        lobby.handle_time(start + HELLO_TIMEOUT, &poller);
        assert_eq!((lobby.waiting.len(), lobby.next_time()), (0, None));
        drop(silent);
    }
}
