//! The sending half: all peers' producers, and the doorbell for peers that sleep.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use starling_io::{Fault, IoError, PacketTx, PeerId, TxError};

use crate::handshake::DOORBELL;
use crate::map::{MappedSleepWords, Ring};
use crate::ring::Producer;
use crate::sleep::{Doorbell, SLEEPING};
use crate::sys;

struct TxPeer {
    producer: Producer<Ring>,
    words: MappedSleepWords,
    doorbell: Doorbell,
    socket: Arc<OwnedFd>,
    /// Its number is in the list of peers to flush.
    listed: bool,
}

/// The sending half of a [`ShmIo`](crate::ShmIo).
#[derive(Default)]
pub struct ShmTx {
    peers: Vec<Option<Box<TxPeer>>>,
    /// Peers with frames appended since the last flush.
    unflushed: Vec<u32>,
    /// Peers that have broken their ring, for the device to disconnect.
    faults: Vec<u32>,
}

impl ShmTx {
    pub(crate) fn insert(
        &mut self,
        peer: u32,
        producer: Producer<Ring>,
        words: MappedSleepWords,
        socket: Arc<OwnedFd>,
    ) {
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        assert!(self.peers[index].is_none(), "peer {peer} is there already");
        self.peers[index] = Some(Box::new(TxPeer {
            producer,
            words,
            doorbell: Doorbell::default(),
            socket,
            listed: false,
        }));
    }

    /// Removes a peer, and its frames that were not flushed.
    pub(crate) fn remove(&mut self, peer: u32) {
        if self.peers[peer as usize].take().is_some() {
            self.unflushed.retain(|&other| other != peer);
        }
    }

    /// The largest datagram for a peer.
    pub(crate) fn max_datagram(&self, peer: u32) -> Option<usize> {
        let peer = self.peers.get(peer as usize)?.as_ref()?;
        Some(peer.producer.max_datagram())
    }

    /// Whether a peer had no room for the last frame.
    pub(crate) fn wants_room(&self, peer: u32) -> bool {
        matches!(self.peers.get(peer as usize), Some(Some(peer)) if peer.producer.wants_room())
    }

    /// Whether a peer that had no room has room now. True once for each refusal.
    pub(crate) fn poll_room(&mut self) -> bool {
        let mut any = false;
        for peer in self.peers.iter_mut().flatten() {
            any |= peer.producer.poll_room();
        }
        any
    }

    /// Peers that have broken their ring since the last call.
    pub(crate) fn poll_faults(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.faults)
    }

    /// Begins a datagram.
    #[inline(never)]
    fn append_first(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let Some(Some(to)) = self.peers.get_mut(peer.0 as usize) else {
            return Err(TxError::Gone);
        };
        if !to.listed {
            to.listed = true;
            self.unflushed.push(peer.0);
        }
        let result = to.producer.append(preamble, head, body, tail);
        if result.is_err() && to.producer.is_malformed() {
            self.record_fault(peer);
        }
        result
    }

    #[cold]
    fn record_fault(&mut self, peer: PeerId) {
        if !self.faults.contains(&peer.0) {
            self.faults.push(peer.0);
        }
    }
}

impl PacketTx for ShmTx {
    #[inline(always)]
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        // A peer with an open datagram is already in the list.
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize)
            && to.producer.append_to_open(head, body, tail)
        {
            return Ok(());
        }
        self.append_first(peer, preamble, head, body, tail)
    }

    #[inline]
    fn seal(&mut self, peer: PeerId) {
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize)
            && to.producer.is_open()
        {
            to.producer.publish(true);
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), IoError> {
        while let Some(peer) = self.unflushed.pop() {
            let Some(Some(to)) = self.peers.get_mut(peer as usize) else {
                continue;
            };
            to.listed = false;
            to.producer.publish(false);
            if to.doorbell.must_ring(&to.words, SLEEPING) {
                ring(&to.socket);
            }
        }
        Ok(())
    }

    /// Does nothing: every sender that this device can answer is a peer.
    fn send_to_unknown(&mut self, _to: SocketAddr, _datagram: &[u8]) {}

    /// Fails: a peer is accepted when it connects.
    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        Err(IoError::new(
            Fault::Caller,
            format!("make a peer of {address}"),
            "a shm device receives nothing from unknown senders",
            "take the peer from the datagram's source",
        ))
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        // A closed peer takes nothing.
        ShmTx::max_datagram(self, peer.0).unwrap_or(0)
    }
}

/// Ends the sleep of the device at the other end.
#[cold]
pub(crate) fn ring(socket: &OwnedFd) {
    // It fails if the socket is full of bytes that the peer has not received yet, or if the peer is
    // gone, which the connection's own events report.
    let _ = sys::send(socket, &DOORBELL);
}
