//! The connections of a device: how peers connect and disconnect, and how the device removes them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use starling_io::{IoEvent, PeerGone, PeerId};

use super::ShmIo;
use crate::closer::{Closer, PeerSocket};
use crate::config::{ShmConfig, valid_heap_bytes};
use crate::handshake::{ANSWER_BYTES, Answer, HeapMessage, Hello};
use crate::map::{ForeignHeap, MappedSleepWords, Region, Ring, Side};
use crate::ring::{Consumer, Heads, LINE, Producer};
use crate::sys;
use crate::users::Origin;

/// The most messages received from one socket in one poll.
const MAX_MESSAGES_PER_POLL: usize = 16;

/// So often a socket is polled for a heap that must be there: all that the kernel keeps for one.
const MAX_POLLS_FOR_HEAP: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// This end opened it, and the peer has not answered yet. Datagrams already flow.
    Connecting,
    /// Both ends have confirmed the connection.
    Open,
    /// The peer is gone; the datagrams that it published are being delivered.
    Draining,
    /// The peer is gone, and all its datagrams are delivered.
    Closed,
}

/// A peer's message heap, as far as the device's files are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerHeap {
    /// The peer may not share it.
    None,
    /// The peer may share it, and has not. It has a file to itself already.
    Awaited,
    /// The peer has shared it, or something else in its place.
    Received,
}

/// What a message means for its connection.
enum Verdict {
    /// It goes on.
    Fine,
    /// The peer has ended it.
    Over,
    /// The peer has broken the rules.
    Broken,
}

/// The connection to one peer.
pub(super) struct Connection {
    pub(super) socket: Arc<PeerSocket>,
    pub(super) region: Arc<Region>,
    pub(super) words: MappedSleepWords,
    pub(super) side: Side,
    pub(super) state: ConnectionState,
    /// The address by which this end opened it. `None`: the peer opened it.
    pub(super) opened: Option<Box<str>>,
    /// The reason that the device reports when the peer is gone.
    pub(super) gone: PeerGone,
    pub(super) heap: PeerHeap,
    /// Who opened it, if the peer did and the kernel says.
    pub(super) origin: Option<Origin>,
    /// Where in the order of silences the peer's last one began, if the peer opened it.
    pub(super) silent_since: u64,
}

impl ShmIo {
    /// The number for the next peer; `None` if there are as many peers as allowed.
    pub(super) fn free_number(&self) -> Option<u32> {
        let free = self
            .connections
            .iter()
            .position(|connection| connection.is_none());
        let number = free.unwrap_or(self.connections.len());
        (number < self.places.peers).then_some(number as u32)
    }

    /// The live peer that was opened by this address, with its target. Any number of sessions share one pair of
    /// rings.
    pub(super) fn find_opened(&self, address: &str) -> Option<u32> {
        let live = |connection: &Connection| {
            matches!(
                connection.state,
                ConnectionState::Connecting | ConnectionState::Open
            )
        };
        let found = self.connections.iter().position(|connection| {
            connection.as_ref().is_some_and(|connection| {
                live(connection) && connection.opened.as_deref() == Some(address)
            })
        });
        found.map(|number| number as u32)
    }

    pub(super) fn insert(
        &mut self,
        number: u32,
        side: Side,
        socket: PeerSocket,
        region: Arc<Region>,
        hello: Hello,
        opened: Option<&str>,
    ) -> rustix::io::Result<()> {
        self.poller.add(socket.as_fd(), number.into())?;
        let socket = Arc::new(socket);
        let words = MappedSleepWords::new(&region, side);
        let max_sent = self
            .config
            .max_datagram_on(region.bulk_bytes())
            .min(hello.max_datagram);
        let outgoing = Ring::produced_by(&region, side);
        let zeroed = (region.line_bytes() / LINE - 1) as u64;
        let producer = Producer::new(outgoing, max_sent, Heads::default(), zeroed);
        let incoming = Ring::consumed_by(&region, side);
        let consumer = Consumer::new(incoming, hello.max_datagram, Heads::default());
        self.tx
            .insert(number, producer, words.clone(), Arc::clone(&socket));
        if side == Side::Acceptor {
            self.tx.set_target(number, hello.target);
        }
        self.rx
            .insert(number, consumer, words.clone(), Arc::clone(&socket));
        let connection = Connection {
            socket,
            region,
            words,
            side,
            state: match side {
                Side::Connector => ConnectionState::Connecting,
                Side::Acceptor => ConnectionState::Open,
            },
            opened: opened.map(Into::into),
            gone: PeerGone::Certain,
            heap: PeerHeap::None,
            origin: None,
            silent_since: 0,
        };
        let index = number as usize;
        if index == self.connections.len() {
            self.connections.push(Some(connection));
        } else {
            self.connections[index] = Some(connection);
        }
        Ok(())
    }

    /// Receives messages from a peer's socket.
    pub(super) fn handle_messages(&mut self, number: u32, mut hung_up: bool) {
        for _ in 0..MAX_MESSAGES_PER_POLL {
            let Some(Some(connection)) = self.connections.get(number as usize) else {
                return;
            };
            let socket = Arc::clone(&connection.socket);
            let mut message = [0; ANSWER_BYTES + 1];
            match sys::peek(&socket, &mut message) {
                Ok(peeked) if peeked.length != 0 => {
                    match self.handle_message(number, &message[..peeked.length], peeked.has_files) {
                        Verdict::Fine => sys::discard(&socket),
                        Verdict::Over => {
                            hung_up = true;
                            break;
                        }
                        Verdict::Broken => {
                            self.rx.record_fault(number);
                            break;
                        }
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                // The peer left without having read everything. Its earlier messages are still there.
                Err(Errno::CONNRESET) => hung_up = true,
                Ok(_) | Err(_) => {
                    hung_up = true;
                    break;
                }
            }
        }
        if hung_up {
            self.handle_hang_up(number);
        }
    }

    /// Handles one message, which is still in the socket. A file that does not belong there stays in it
    /// and is closed with it, by the closer.
    fn handle_message(&mut self, number: u32, message: &[u8], has_files: bool) -> Verdict {
        let connection = self.connections[number as usize]
            .as_mut()
            .expect("its caller looked");
        if connection.state == ConnectionState::Connecting {
            let answer = Answer::decode(message).filter(|_| !has_files);
            let Some(Answer::Welcome(theirs)) = answer else {
                connection.gone = PeerGone::Refused(Answer::refusal(answer));
                return Verdict::Over;
            };
            connection.state = ConnectionState::Open;
            if theirs.has_membarrier && sys::register_membarrier() {
                connection.region.use_asymmetric_fences();
            }
            // Targets are behind one peer.
            let opened = connection.opened.as_deref();
            let name = opened.map(|address| address.split('?').next().unwrap_or(address));
            if let Some(name) = name {
                let other_user = self.config.other_user;
                self.tx
                    .set_opened(number, theirs.max_heap, name, other_user);
            }
            return Verdict::Fine;
        }
        let may_come = connection.heap == PeerHeap::Awaited;
        let heap = HeapMessage::decode(message).filter(|_| may_come);
        let Some(heap) = heap else {
            // A doorbell message: its arrival was its purpose.
            return if has_files {
                Verdict::Broken
            } else {
                Verdict::Fine
            };
        };
        connection.heap = PeerHeap::Received;
        // A file that this process may not open counts as none.
        let file = sys::peek_file(&connection.socket, &self.closer).unwrap_or(None);
        match file.and_then(|file| map_heap(heap, file, &self.config, &self.closer)) {
            Some(heap) => self.rx.set_heap(number, heap),
            None => return Verdict::Broken,
        }
        Verdict::Fine
    }

    /// Receives the message heaps that peers have sent records for. Each was sent before its record.
    #[cold]
    pub(super) fn receive_heaps(&mut self) {
        for number in self.rx.poll_needed_heaps() {
            for _ in 0..MAX_POLLS_FOR_HEAP {
                let connection = self.connections.get(number as usize);
                match connection.and_then(Option::as_ref) {
                    Some(connection) if connection.heap == PeerHeap::Awaited => {}
                    _ => break,
                }
                self.handle_messages(number, false);
            }
            if !self.rx.has_heap(number) {
                self.rx.record_fault(number);
            }
        }
    }

    /// Begins to drain the connection of a peer that is gone.
    pub(super) fn handle_hang_up(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else {
            return;
        };
        if matches!(
            connection.state,
            ConnectionState::Draining | ConnectionState::Closed
        ) {
            return;
        }
        connection.state = ConnectionState::Draining;
        sys::hang_up(&connection.socket);
        self.poller.remove(connection.socket.as_fd());
        self.tx.remove(number);
        self.rx.finish(number);
        self.draining.push(number);
    }

    /// Ends the connections of peers that broke their rings, and of drained peers. Receives message
    /// heaps, and takes back what peers have consumed of the device's own. Takes in new ones from other
    /// devices. A device that takes turns does this in some of them, so that the others need not look for it.
    pub(super) fn reap_connections(&mut self) {
        self.accept_given();
        self.tx.poll_returned();
        if self.rx.needs_heaps() {
            self.receive_heaps();
        }
        let mut broken = self.rx.poll_faults();
        broken.extend(self.tx.poll_faults());
        broken.sort_unstable();
        broken.dedup();
        for &number in &broken {
            self.cut_off += 1;
            self.handle_hang_up(number);
        }
        self.draining.retain(|number| !broken.contains(number));
        for number in broken {
            self.end_link(number);
        }
        self.end_drained();
    }

    /// Ends the connections of peers that are gone and have nothing more to deliver.
    pub(super) fn end_drained(&mut self) {
        let mut index = 0;
        while let Some(&number) = self.draining.get(index) {
            if self.rx.is_drained(number) {
                self.draining.swap_remove(index);
                self.end_link(number);
            } else {
                index += 1;
            }
        }
    }

    /// Closes a drained connection: reports it, or forgets a peer that was never known.
    pub(super) fn end_link(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else {
            return;
        };
        if connection.state == ConnectionState::Closed {
            return;
        }
        connection.state = ConnectionState::Closed;
        let unknown = connection.side == Side::Acceptor && !self.rx.has_sent(number);
        self.rx.remove(number);
        if unknown {
            if let Some(connection) = self.connections[number as usize].take() {
                self.forget(&connection);
            }
        } else {
            let gone = IoEvent::PeerGone(PeerId(number), connection.gone);
            self.events.push_back(gone);
        }
    }
}

/// Maps the message heap of a peer; `None` if it is not one that this device accepts.
fn map_heap(
    message: HeapMessage,
    file: OwnedFd,
    config: &ShmConfig,
    closer: &Closer,
) -> Option<ForeignHeap> {
    let bytes = usize::try_from(message.bytes).ok();
    let bytes = bytes.filter(|&bytes| valid_heap_bytes(bytes, config.max_accepted_heap_bytes));
    let mapped = match bytes {
        Some(bytes) => ForeignHeap::map(file, bytes).map_err(|(file, _)| file),
        None => Err(file),
    };
    mapped.map_err(|file| closer.give(file)).ok()
}
