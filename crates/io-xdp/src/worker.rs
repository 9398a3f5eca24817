//! A worker's part of a device: a socket of its own on the device's queue.
//!
//! A worker answers a datagram in place, in the chunk in which it came, or hands it over to the
//! device's receiving half. It has one Ethernet frame at a time. Others wait in its rx ring.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use starling_ethernet::{Mac, Received, Template, parse};
use starling_io::{Datagram, EventfdWaker, Fault, IoError, Wake, WorkerIo};

use crate::exchange::Exchange;
use crate::peer_cache::PeerCache;
use crate::ring::{CONTINUED, Consumer, Descriptor, Producer};
use crate::shared::Shared;
use crate::socket::kick;

/// How long a worker with an empty ring believes that the requests counted for it are still to
/// arrive.
const SUSPECT_AFTER: Duration = Duration::from_millis(2);

/// One worker's part of an [`XdpIo`](crate::XdpIo).
pub(crate) struct XdpWorker {
    shared: Arc<Shared>,
    exchange: Arc<Exchange>,
    /// Which worker.
    index: usize,
    socket: Arc<OwnedFd>,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    peers: PeerCache,
    current: Option<(Descriptor, Received)>,
    dispatcher: Arc<dyn Wake>,
    waker: Arc<EventfdWaker>,
    /// The count of its requests when its ring became empty, and when that was.
    suspect_since: Option<(u32, Instant)>,
}

/// The parts of a worker.
pub(crate) struct WorkerParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) index: usize,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) rx: Consumer<Descriptor>,
    pub(crate) tx: Producer<Descriptor>,
    pub(crate) peers: PeerCache,
    pub(crate) dispatcher: Arc<dyn Wake>,
    pub(crate) waker: Arc<EventfdWaker>,
}

impl XdpWorker {
    pub(crate) fn new(parts: WorkerParts) -> Self {
        let WorkerParts {
            shared,
            exchange,
            index,
            socket,
            rx,
            tx,
            peers,
            dispatcher,
            waker,
        } = parts;
        Self {
            shared,
            exchange,
            index,
            socket,
            rx,
            tx,
            peers,
            current: None,
            dispatcher,
            waker,
            suspect_since: None,
        }
    }

    /// Gives a chunk with any contents to the dispatcher.
    fn give_to_dispatcher(&self, descriptor: Descriptor) {
        let pushed = self.exchange.handed_over.push(descriptor);
        assert!(pushed.is_ok(), "there is room for all chunks");
        self.dispatcher.wake();
    }

    /// Where the chunk of an Ethernet frame ends.
    fn chunk_end(&self, descriptor: Descriptor) -> u64 {
        let chunk = self.shared.umem.layout.chunk as u64;
        (descriptor.address & !(chunk - 1)) + chunk
    }

    /// Clears the counts of this worker, whose ring is empty, after they have not changed for a
    /// while. They are wrong if the kernel had no chunk for a frame that was counted, or if another
    /// process has written to them.
    fn correct_counts(&mut self) {
        let entry = self.shared.steering_entry();
        self.suspect_since = match (entry.outstanding(self.index), self.suspect_since) {
            (Some(taken), Some((before, since))) if taken == before => {
                if since.elapsed() < SUSPECT_AFTER {
                    return;
                }
                self.exchange.forget(entry, self.index, taken);
                None
            }
            (taken, _) => taken.map(|taken| (taken, Instant::now())),
        };
    }
}

impl WorkerIo for XdpWorker {
    fn receive(&mut self) -> bool {
        assert!(self.current.is_none(), "the worker still has a datagram");
        // Frames that arrive meanwhile are for the next call: a flood of bad frames must not keep
        // the worker from the other work that it was given.
        for _ in 0..self.rx.available() {
            let descriptor = self.rx.get(0);
            self.rx.release(1);
            let (address, len) = (descriptor.address as usize, descriptor.len as usize);
            let end = descriptor.address.checked_add(descriptor.len.into());
            let is_whole = end.is_some_and(|end| end <= self.chunk_end(descriptor))
                && descriptor.address < self.shared.umem.layout.tx_start() as u64
                && descriptor.options & CONTINUED == 0;
            if is_whole {
                // SAFETY: the kernel gave the chunk to this socket, so it is this worker's.
                let frame = unsafe { self.shared.umem.bytes(address, len) };
                if let Ok(received) = parse(frame, &self.shared.local, self.shared.index) {
                    self.current = Some((descriptor, received));
                    return true;
                }
            }
            // The receiving half reassembles the frame, or drops and counts it.
            self.give_to_dispatcher(descriptor);
            self.complete();
        }
        false
    }

    fn sender(&self) -> Option<SocketAddr> {
        self.current.as_ref().map(|(_, received)| received.source)
    }

    fn datagram(&self) -> Datagram<'_> {
        let (descriptor, received) = self.current.as_ref().expect("a datagram was received");
        let start = descriptor.address as usize + received.start;
        Datagram {
            source: self.peers.source(received.source),
            ecn: received.ecn,
            // SAFETY: the chunk is this worker's until it answers or hands over, and both borrow
            // `self` mutably.
            bytes: unsafe { self.shared.umem.bytes(start, received.len) },
        }
    }

    fn answer(&mut self, parts: [&[u8]; 3]) -> bool {
        let (descriptor, received) = self.current.expect("a datagram was received");
        let shared = &*self.shared;
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        // The headers of an answer are as long as those of the received datagram.
        let len = received.start + payload;
        let room = (self.chunk_end(descriptor) - descriptor.address) as usize;
        if len > room || payload > shared.largest || self.tx.room(1) == 0 {
            return false;
        }
        let address = descriptor.address as usize;
        // SAFETY: as in `datagram`; `self` is borrowed mutably, so the parts lie elsewhere.
        let frame = unsafe { shared.umem.bytes_mut(address, len) };
        let sender: Mac = frame[6..12].try_into().expect("6 bytes");
        let mut rest = &mut frame[received.start..];
        for part in parts {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        let template = Template::new(shared.mac, &shared.local, &received.source, shared.ecn);
        template.write(sender, frame);
        self.tx.push(Descriptor {
            address: descriptor.address,
            len: len as u32,
            options: 0,
        });
        self.tx.publish();
        self.current = None;
        // Descriptors that the kernel did not take now stay in the ring. The next wait finds out if
        // the interface is gone.
        let _ = kick(&self.socket, &self.tx);
        true
    }

    fn hand_over(&mut self) {
        let (descriptor, _) = self.current.take().expect("a datagram was received");
        self.give_to_dispatcher(descriptor);
    }

    fn discard(&mut self) {
        let (descriptor, _) = self.current.take().expect("a datagram was received");
        let chunk = self.chunk_end(descriptor) - self.shared.umem.layout.chunk as u64;
        let pushed = self.exchange.answered.push(chunk);
        assert!(pushed.is_ok(), "there is room for all chunks");
    }

    fn complete(&mut self) {
        self.suspect_since = None;
        self.exchange
            .complete(self.shared.steering_entry(), self.index);
    }

    /// # Errors
    /// If the interface was removed or changed, or the system is out of memory.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        if self.rx.available() > 0 {
            return Ok(());
        }
        kick(&self.socket, &self.tx).map_err(|_| self.shared.gone())?;
        self.correct_counts();
        let is_suspect = self.suspect_since.is_some() || !self.tx.is_consumed();
        let timeout = match is_suspect {
            true => Some(timeout.map_or(SUSPECT_AFTER, |timeout| timeout.min(SUSPECT_AFTER))),
            false => timeout,
        };
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        });
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
        ];
        let slept = match self.waker.begin_sleep() {
            true => poll(&mut fds, timeout.as_ref()).map(Some),
            false => Ok(None),
        };
        self.waker.end_sleep();
        if !fds[1].revents().is_empty() {
            self.waker.drain();
        }
        match slept {
            Ok(Some(0)) => self.correct_counts(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(IoError::from_os(
                    Fault::Host,
                    format!("wait as a worker on {}", self.shared.interface),
                    error.into(),
                    "free some memory of this host",
                ));
            }
        }
        self.shared.check()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }
}

impl Drop for XdpWorker {
    /// Sends the answers that wait, as far as there is room: with the socket they would be lost,
    /// and their chunks with them. The worker's chunks go back to the device, with what is in them.
    fn drop(&mut self) {
        let _ = kick(&self.socket, &self.tx);
        if let Some((descriptor, _)) = self.current.take() {
            self.give_to_dispatcher(descriptor);
        }
        for _ in 0..self.rx.available() {
            self.give_to_dispatcher(self.rx.get(0));
            self.rx.release(1);
        }
        self.exchange.sockets.end(&self.socket);
        self.exchange.chunks.add(self.tx.written());
        self.exchange.chunks.subtract(self.rx.released());
    }
}
