//! The listening socket, and connections whose hello has not arrived yet.
//!
//! A connector sends its hello right after it connects, so connections without one are rare. At
//! most [`MAX_PENDING`] of them are kept, for [`HELLO_TIMEOUT`] each, and a new one displaces the
//! oldest.
//!
//! A hello is looked at while it is in the socket, and received only when its file is recognised as
//! memory: to close any other file may take long ([`closer`](crate::closer)).

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::closer::{Closer, PeerSocket};
use crate::config::ShmConfig;
use crate::handshake::{Answer, Hello, MAX_HELLO_BYTES};
use crate::map::Region;
use crate::sys::{self, Poller};
use crate::users;

/// The most connections without a hello.
const MAX_PENDING: usize = 64;

/// How long a connection may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// The most connections accepted in one poll.
const MAX_ACCEPTS: usize = 64;

/// The most connections of users that the device does not talk to, in one poll.
const MAX_NOT_PERMITTED: usize = 4;

/// So many files are kept for refusals when the process has no descriptors left.
const RESERVED_FILES: usize = 8;

/// How long accepting stops when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Poller keys from here on belong to the pending handshakes.
pub(crate) const FIRST_KEY: u64 = 1 << 62;
/// The listening socket.
const LISTENER_KEY: u64 = FIRST_KEY;

/// A connection whose hello arrived and was accepted.
pub(crate) struct CompletedHandshake {
    pub(crate) socket: PeerSocket,
    pub(crate) hello: Hello,
    pub(crate) region: Arc<Region>,
}

struct PendingHandshake {
    socket: PeerSocket,
    key: u64,
    until: Instant,
}

impl PendingHandshake {
    fn end(self, poller: &Poller) {
        // The closer may close it late, and until then it would be ready.
        poller.remove(self.socket.as_fd());
    }
}

/// Accepts connections and holds them until their hello has arrived.
pub(crate) struct PendingHandshakes {
    listener: Option<OwnedFd>,
    closer: Closer,
    pending: VecDeque<PendingHandshake>,
    next_key: u64,
    /// Accepting pauses until then.
    paused_until: Option<Instant>,
    /// Connections of users that the device does not talk to, so far.
    pub(crate) not_permitted: u64,
    /// Connections refused because the process had no file descriptors left, so far.
    pub(crate) refused_files: u64,
    /// Files that are closed when the process has no descriptors left, so that it can refuse peers.
    reserve: Vec<OwnedFd>,
}

impl PendingHandshakes {
    /// Pending handshakes of a listening socket; none ever if there is no such socket.
    pub(crate) fn new(
        listener: Option<OwnedFd>,
        closer: &Closer,
        poller: &Poller,
    ) -> rustix::io::Result<Self> {
        if let Some(listener) = &listener {
            poller.add(listener, LISTENER_KEY)?;
        }
        let mut reserve = Vec::new();
        if let Some(listener) = &listener {
            fill_reserve(&mut reserve, listener);
        }
        Ok(Self {
            listener,
            closer: closer.clone(),
            pending: VecDeque::new(),
            next_key: FIRST_KEY + 1,
            paused_until: None,
            not_permitted: 0,
            refused_files: 0,
            reserve,
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
        match receive_hello(&pending.socket, config, &self.closer) {
            HelloEvent::Complete(hello, region) => {
                poller.remove(pending.socket.as_fd());
                vec![CompletedHandshake {
                    socket: pending.socket,
                    hello,
                    region,
                }]
            }
            HelloEvent::Incomplete => {
                self.pending.insert(index, pending);
                Vec::new()
            }
            HelloEvent::Refused(answer) => {
                self.refused_files += u64::from(answer == Answer::Full);
                pending.end(poller);
                Vec::new()
            }
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
        fill_reserve(&mut self.reserve, listener);
        let mut completed = Vec::new();
        let mut not_permitted = 0;
        for _ in 0..MAX_ACCEPTS {
            if self.closer.is_behind() {
                poller.remove(listener);
                self.paused_until = Some(now + ACCEPT_PAUSE);
                break;
            }
            let socket = match sys::accept(listener) {
                Ok(socket) => PeerSocket::new(socket, &self.closer),
                // This is tried again: another thread may have been faster.
                Err(Errno::MFILE | Errno::NFILE) if self.reserve.pop().is_some() => continue,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The socket stays readable, so polling it again at once would spin.
                    poller.remove(listener);
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                    break;
                }
                // EAGAIN: no more. On other errors this one is gone; the next poll accepts the rest.
                Err(_) => break,
            };
            if !fill_reserve(&mut self.reserve, listener) {
                // It has a number of the reserve's, or one that another refused peer had until the closer closed it.
                self.refused_files += 1;
                let _ = sys::send(&socket, &Answer::Full.encode());
                continue;
            }
            if !users::is_admitted(&socket, config) {
                self.not_permitted += 1;
                not_permitted += 1;
                // If the peer does not receive the answer, it sees the connection close.
                let _ = sys::send(&socket, &Answer::NotPermitted.encode());
                if not_permitted == MAX_NOT_PERMITTED {
                    break;
                }
                continue;
            }
            match receive_hello(&socket, config, &self.closer) {
                HelloEvent::Complete(hello, region) => completed.push(CompletedHandshake {
                    socket,
                    hello,
                    region,
                }),
                HelloEvent::Incomplete => {
                    if self.pending.len() == MAX_PENDING
                        && let Some(oldest) = self.pending.pop_front()
                    {
                        oldest.end(poller);
                    }
                    let key = self.next_key;
                    self.next_key += 1;
                    if poller.add(socket.as_fd(), key).is_ok() {
                        let until = now + HELLO_TIMEOUT;
                        self.pending
                            .push_back(PendingHandshake { socket, key, until });
                    }
                }
                HelloEvent::Refused(answer) => {
                    self.refused_files += u64::from(answer == Answer::Full);
                }
            }
        }
        completed
    }

    /// Drops connections that have waited too long, and listens again after a pause.
    pub(crate) fn handle_timeout(&mut self, now: Instant, poller: &Poller) {
        while self.pending.front().is_some_and(|first| first.until <= now)
            && let Some(first) = self.pending.pop_front()
        {
            first.end(poller);
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

/// Opens files to keep. Returns whether there are as many as there should be.
fn fill_reserve(reserve: &mut Vec<OwnedFd>, listener: &OwnedFd) -> bool {
    while reserve.len() < RESERVED_FILES {
        match rustix::io::fcntl_dupfd_cloexec(listener, 0) {
            Ok(file) => reserve.push(file),
            Err(_) => return false,
        }
    }
    true
}

enum HelloEvent {
    Complete(Hello, Arc<Region>),
    Incomplete,
    Refused(Answer),
}

/// Receives a hello and maps the memory that comes with it. Answers a refused peer with the reason; its
/// message stays in the socket, with its files.
fn receive_hello(socket: &OwnedFd, config: &ShmConfig, closer: &Closer) -> HelloEvent {
    let mut message = [0; MAX_HELLO_BYTES + 1];
    let peeked = match sys::peek(socket, &mut message) {
        Ok(peeked) => peeked,
        Err(Errno::AGAIN | Errno::INTR) => return HelloEvent::Incomplete,
        Err(_) => return HelloEvent::Refused(Answer::BadHello),
    };
    let checked = Hello::decode(&message[..peeked.length], config).and_then(|hello| {
        let file = match sys::peek_file(socket, closer) {
            Ok(file) => file.ok_or(Answer::BadHello)?,
            Err(Errno::MFILE) => return Err(Answer::Full),
            Err(_) => return Err(Answer::BadHello),
        };
        match Region::map_foreign(file.as_fd(), hello.ring_bytes) {
            Ok(region) => Ok((hello, Arc::new(region))),
            Err(_) => {
                closer.give(file);
                Err(Answer::BadMemory)
            }
        }
    });
    match checked {
        Ok((hello, region)) => {
            sys::discard(socket);
            HelloEvent::Complete(hello, region)
        }
        Err(answer) => {
            // If the peer does not receive the answer, it sees the connection close.
            let _ = sys::send(socket, &answer.encode());
            HelloEvent::Refused(answer)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_hello_are_bounded_and_time_out() {
        let closer = Closer::new();
        let name = format!("starling-shm/test-{}-handshakes", std::process::id());
        let poller = Poller::new().unwrap();
        let listener = sys::listen(name.as_bytes()).unwrap();
        let mut handshakes = PendingHandshakes::new(Some(listener), &closer, &poller).unwrap();
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

    #[test]
    fn nobody_is_accepted_while_the_closer_is_behind() {
        let closer = Closer::stuck();
        let name = format!("starling-shm/test-{}-behind", std::process::id());
        let poller = Poller::new().unwrap();
        let listener = sys::listen(name.as_bytes()).unwrap();
        let mut handshakes = PendingHandshakes::new(Some(listener), &closer, &poller).unwrap();
        let config = ShmConfig::default();
        let start = Instant::now();
        let _silent = sys::connect(name.as_bytes()).unwrap();
        handshakes.handle_ready(LISTENER_KEY, start, &poller, &config);
        assert_eq!(handshakes.pending.len(), 0);
        assert_eq!(handshakes.poll_timeout(), Some(start + ACCEPT_PAUSE));
        closer.release();
        handshakes.handle_timeout(start + ACCEPT_PAUSE, &poller);
        assert_eq!(handshakes.poll_timeout(), None);
        handshakes.handle_ready(LISTENER_KEY, start, &poller, &config);
        assert_eq!(handshakes.pending.len(), 1);
    }
}
