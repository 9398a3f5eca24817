//! The listening socket, and connections whose hello has not arrived yet.
//!
//! A connector sends its hello right after it connects, so connections without one are rare. At
//! most [`MAX_PENDING`] of them are kept, for [`HELLO_TIMEOUT`] each, and a new one displaces the
//! oldest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::config::ShmConfig;
use crate::handshake::{Answer, HELLO_BYTES, Hello};
use crate::map::Region;
use crate::sys::{self, Poller};

/// The most connections without a hello.
const MAX_PENDING: usize = 64;

/// How long a connection may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// The most connections accepted in one poll.
const MAX_ACCEPTS: usize = 64;

/// How long accepting stops when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Poller keys from here on belong to the pending handshakes.
pub(crate) const FIRST_KEY: u64 = 1 << 62;
/// The listening socket.
const LISTENER_KEY: u64 = FIRST_KEY;

/// A connection whose hello arrived and was accepted.
pub(crate) struct CompletedHandshake {
    pub(crate) socket: OwnedFd,
    pub(crate) hello: Hello,
    pub(crate) region: Arc<Region>,
}

struct PendingHandshake {
    socket: OwnedFd,
    key: u64,
    until: Instant,
}

/// Accepts connections and holds them until their hello has arrived.
pub(crate) struct PendingHandshakes {
    listener: Option<OwnedFd>,
    pending: VecDeque<PendingHandshake>,
    next_key: u64,
    /// Accepting pauses until then.
    paused_until: Option<Instant>,
}

impl PendingHandshakes {
    /// Pending handshakes of a listening socket; none ever if there is no such socket.
    pub(crate) fn new(listener: Option<OwnedFd>, poller: &Poller) -> rustix::io::Result<Self> {
        if let Some(listener) = &listener {
            poller.add(listener, LISTENER_KEY)?;
        }
        Ok(Self {
            listener,
            pending: VecDeque::new(),
            next_key: FIRST_KEY + 1,
            paused_until: None,
        })
    }

    /// Handles that the file with this key is ready. Returns completed handshakes.
    pub(crate) fn handle_ready(
        &mut self,
        key: u64,
        now: Instant,
        poller: &Poller,
        config: &ShmConfig,
    ) -> Vec<CompletedHandshake> {
        if key == LISTENER_KEY {
            return self.accept(now, poller, config);
        }
        let Some(index) = self.pending.iter().position(|pending| pending.key == key) else {
            return Vec::new();
        };
        let pending = self
            .pending
            .remove(index)
            .expect("its position was just found");
        match receive_hello(pending.socket, config) {
            HandshakeEvent::Completed(handshake) => {
                poller.remove(&handshake.socket);
                vec![handshake]
            }
            HandshakeEvent::Incomplete(socket) => {
                self.pending
                    .insert(index, PendingHandshake { socket, ..pending });
                Vec::new()
            }
            HandshakeEvent::Refused => Vec::new(),
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        poller: &Poller,
        config: &ShmConfig,
    ) -> Vec<CompletedHandshake> {
        let Some(listener) = &self.listener else {
            return Vec::new();
        };
        let mut completed = Vec::new();
        for _ in 0..MAX_ACCEPTS {
            let socket = match sys::accept(listener) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The socket stays readable, so polling it again at once would spin.
                    poller.remove(listener);
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                    break;
                }
                // EAGAIN: no more. On other errors this one is gone; the next poll accepts the rest.
                Err(_) => break,
            };
            if !config.allow_other_users && !sys::peer_is_ours_or_root(&socket).unwrap_or(false) {
                // If the peer does not receive the answer, it sees the connection close.
                let _ = sys::send(&socket, &Answer::NotPermitted.encode());
                continue;
            }
            match receive_hello(socket, config) {
                HandshakeEvent::Completed(handshake) => completed.push(handshake),
                HandshakeEvent::Incomplete(socket) => {
                    if self.pending.len() == MAX_PENDING {
                        self.pending.pop_front();
                    }
                    let key = self.next_key;
                    self.next_key += 1;
                    if poller.add(socket.as_fd(), key).is_ok() {
                        let until = now + HELLO_TIMEOUT;
                        self.pending
                            .push_back(PendingHandshake { socket, key, until });
                    }
                }
                HandshakeEvent::Refused => {}
            }
        }
        completed
    }

    /// Drops connections that have waited too long, and listens again after a pause.
    pub(crate) fn handle_timeout(&mut self, now: Instant, poller: &Poller) {
        while self.pending.front().is_some_and(|first| first.until <= now) {
            self.pending.pop_front();
        }
        if self.paused_until.is_some_and(|until| until <= now)
            && let Some(listener) = &self.listener
            && poller.add(listener, LISTENER_KEY).is_ok()
        {
            self.paused_until = None;
        }
    }

    /// When to call [`PendingHandshakes::handle_timeout`] next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let first = self.pending.front().map(|first| first.until);
        first.into_iter().chain(self.paused_until).min()
    }
}

enum HandshakeEvent {
    Completed(CompletedHandshake),
    Incomplete(OwnedFd),
    Refused,
}

/// Receives a hello and maps the memory that comes with it. Answers a refused peer with the reason.
fn receive_hello(socket: OwnedFd, config: &ShmConfig) -> HandshakeEvent {
    let mut message = [0; HELLO_BYTES + 1];
    let (length, file) = match sys::receive_with_file(&socket, &mut message) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return HandshakeEvent::Incomplete(socket),
        Err(Errno::MFILE) => {
            let _ = sys::send(&socket, &Answer::Full.encode());
            return HandshakeEvent::Refused;
        }
        Err(_) => return HandshakeEvent::Refused,
    };
    let checked = Hello::decode(&message[..length], config).and_then(|hello| {
        let file = file.ok_or(Answer::BadHello)?;
        let region = Region::map_foreign(file.as_fd(), hello.ring_bytes);
        let region = region.map_err(|_| Answer::BadMemory)?;
        Ok((hello, Arc::new(region)))
    });
    match checked {
        Ok((hello, region)) => HandshakeEvent::Completed(CompletedHandshake {
            socket,
            hello,
            region,
        }),
        Err(answer) => {
            // If the peer does not receive the answer, it sees the connection close.
            let _ = sys::send(&socket, &answer.encode());
            HandshakeEvent::Refused
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_hello_are_bounded_and_time_out() {
        let name = format!("starling-shm/test-{}-handshakes", std::process::id());
        let poller = Poller::new().unwrap();
        let listener = sys::listen(name.as_bytes()).unwrap();
        let mut handshakes = PendingHandshakes::new(Some(listener), &poller).unwrap();
        let config = ShmConfig::default();
        let start = Instant::now();
        assert_eq!(handshakes.poll_timeout(), None);
        let silent: Vec<OwnedFd> = (0..2 * MAX_PENDING)
            .map(|_| sys::connect(name.as_bytes()).unwrap())
            .collect();
        for _ in 0..3 {
            assert!(
                handshakes
                    .handle_ready(LISTENER_KEY, start, &poller, &config)
                    .is_empty()
            );
        }
        assert_eq!(handshakes.pending.len(), MAX_PENDING);
        assert_eq!(handshakes.poll_timeout(), Some(start + HELLO_TIMEOUT));
        handshakes.handle_timeout(start + HELLO_TIMEOUT / 2, &poller);
        assert_eq!(handshakes.pending.len(), MAX_PENDING);
        handshakes.handle_timeout(start + HELLO_TIMEOUT, &poller);
        assert_eq!(
            (handshakes.pending.len(), handshakes.poll_timeout()),
            (0, None)
        );
        drop(silent);
    }
}
