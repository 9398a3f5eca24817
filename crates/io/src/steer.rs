//! Devices that steer datagrams to workers.
//!
//! A network interface may give an arriving datagram directly to the worker with the fewest
//! outstanding (RPCValet, ASPLOS 2019). Such a device has a part for each worker and one for the
//! dispatcher, the thread that has the device itself:
//!
//! ```text
//!              ┌─ for workers ─▶ WorkerIo 0 ─▶ answers, or
//!  interface ──┼─ for workers ─▶ WorkerIo 1 ─▶ hands over ─┐
//!              └─ the rest ────▶ PacketIo ◀────────────────┘
//!                                Steering: how much each worker has
//! ```
//!
//! The device does not know the content of datagrams. A [`MatchTable`] says which datagrams are for
//! workers, and where each has a key; the device steers those whose key it has from
//! [`Steering::add_key`].
//!
//! The counts by which a device steers are advice. It may give a datagram to any worker, and twice.
//! The code that runs the workers must make sure that no request runs twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Datagram, IoError, Wake};

/// Bytes at the start of a datagram that a [`MatchTable`] compares.
pub const MATCH_BYTES: usize = 16;

/// Which datagrams are for workers, as offsets into their payload.
///
/// A datagram matches if its first bytes have certain bits, and if a number in it tells its length.
/// So it is whole, and nothing follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchTable {
    /// The first bytes of the payload. Bits outside of `mask` are zero.
    pub value: [u8; MATCH_BYTES],
    /// The bits of them that are compared.
    pub mask: [u8; MATCH_BYTES],
    /// Offset of a little-endian 16-bit number: how many bytes there are from `length_from` on.
    pub length_at: u8,
    /// Offset that the number counts from.
    pub length_from: u8,
    /// Offset of a little-endian 32-bit key. The device looks it up in the set of its keys.
    pub key_at: u8,
}

impl MatchTable {
    /// The key of a datagram with this payload, if the datagram matches. This function defines which
    /// datagrams match; a device may compute the same in another way.
    pub fn key_of(&self, payload: &[u8]) -> Option<u32> {
        let start = payload.first_chunk::<MATCH_BYTES>()?;
        let mut bytes = start.iter().zip(&self.value).zip(&self.mask);
        if !bytes.all(|((byte, value), mask)| (byte ^ value) & mask == 0) {
            return None;
        }
        let length = payload.get(self.length_at.into()..)?.first_chunk()?;
        let end = usize::from(self.length_from) + usize::from(u16::from_le_bytes(*length));
        let key = payload.get(self.key_at.into()..)?.first_chunk()?;
        (payload.len() == end).then(|| u32::from_le_bytes(*key))
    }
}

/// A device's parts for workers and dispatcher, from [`PacketIo::steer`](crate::PacketIo::steer).
pub struct Steered {
    /// The dispatcher's part.
    pub steering: Box<dyn Steering>,
    /// One part for each worker.
    pub workers: Vec<Box<dyn WorkerIo>>,
}

/// One worker's part of a device: it has one datagram at a time.
pub trait WorkerIo: Send {
    /// Takes the next datagram for this worker, if there is one. The worker has answered, discarded
    /// or handed over the one before.
    fn receive(&mut self) -> bool;

    /// The datagram that the worker has.
    ///
    /// # Panics
    /// If there is none.
    fn datagram(&self) -> Datagram<'_>;

    /// The address that the worker's current datagram came from. `None` if the device has none.
    fn sender(&self) -> Option<SocketAddr> {
        None
    }

    /// Answers the sender of the worker's current datagram: writes `parts` as one datagram into
    /// that datagram's own memory. Does nothing and returns false if there is no room.
    fn answer(&mut self, parts: [&[u8]; 3]) -> bool;

    /// Gives the datagram to the dispatcher, which receives it as if the device had given it to the
    /// dispatcher at first.
    fn hand_over(&mut self);

    /// Drops the datagram.
    fn discard(&mut self);

    /// The worker has completed one item that it had: a datagram from the device, or a request that
    /// [`Steering::reserve`] counted. Both functions access the counts sequentially consistently. A
    /// worker completes an item and then looks whether the dispatcher holds one; a dispatcher holds
    /// an item and then calls `reserve`. One of the two sees the other.
    fn complete(&mut self);

    /// Sleeps until something may be there, or the waker was used. May return early for no reason.
    ///
    /// The caller has nothing to do. If nothing arrives for a while, the counts of this worker are
    /// wrong, and the device corrects them.
    ///
    /// # Errors
    /// If the device is of no use any more.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError>;

    /// A handle for other threads to end a [`WorkerIo::wait`].
    fn waker(&self) -> Arc<dyn Wake>;
}

/// The dispatcher's part. By the same counts it assigns the requests that the device did not steer.
pub trait Steering: Send {
    /// From now on datagrams with this key are for workers. The device may take some other keys
    /// for this one.
    fn add_key(&mut self, key: u32);

    /// The worker with the fewest outstanding, if it has fewer than its bound. It is counted for
    /// one more.
    fn reserve(&mut self) -> Option<usize>;

    /// Looks for blocked workers: those that have completed no item since the last call. Each of them
    /// counts as having its bound until it completes its current item. So neither the device nor
    /// [`Steering::reserve`] gives it further items, which it could not even acknowledge meanwhile.
    fn avoid_blocked(&mut self);

    /// Sets the number of items that the dispatcher holds until a worker is free. While it is not
    /// zero, the device gives all datagrams to the dispatcher, so none overtakes these items.
    fn set_held(&mut self, held: usize);

    /// From now on everything goes to the dispatcher.
    fn stop(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: MatchTable = MatchTable {
        value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20],
        mask: [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0],
        length_at: 2,
        length_from: 18,
        key_at: 16,
    };

    /// A payload of 20 bytes that matches.
    fn payload() -> [u8; 20] {
        let mut payload = [0xff; 20];
        payload[0] = 1;
        payload[2..4].copy_from_slice(&2_u16.to_le_bytes());
        payload[15] = 0x2f;
        payload[16..].copy_from_slice(&7_u32.to_le_bytes());
        payload
    }

    #[test]
    fn only_bits_of_the_mask_are_compared() {
        assert_eq!(TABLE.key_of(&payload()), Some(7));
        for (at, byte) in [(0, 3), (15, 0x3f)] {
            let mut other = payload();
            other[at] = byte;
            assert_eq!(TABLE.key_of(&other), None);
        }
    }

    #[test]
    fn a_datagram_of_another_length_does_not_match() {
        let longer = [&payload()[..], &[0]].concat();
        assert_eq!(TABLE.key_of(&longer), None);
        for len in 0..payload().len() {
            assert_eq!(TABLE.key_of(&payload()[..len]), None);
        }
    }
}
