//! The floor of AF_XDP: each Ethernet frame goes back to its sender in the chunk in which it came.
//!
//! The best that a device on this interface could do: the floor of benchmarks. The addresses change
//! places; nothing else is read, checked or built. The checksums stay right, because a sum
//! does not depend on the order of its terms.

use starling_io::{IoError, MAX_BURST, PacketIo, PacketTx, PeerId};

use crate::device::XdpIo;
use crate::ring::Descriptor;

/// A device that sends back what it receives.
pub struct Reflector(XdpIo);

impl Reflector {
    /// Makes a reflector of a device.
    pub fn new(device: XdpIo) -> Self {
        Self(device)
    }

    /// The address that peers reach the device at.
    pub fn local_address(&self) -> String {
        self.0.local_address()
    }

    /// A peer at `address`.
    ///
    /// # Errors
    /// As of [`PacketIo::open_peer`].
    pub fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        self.0.open_peer(address)
    }

    /// Sends a datagram. The first to a peer may leave by the kernel's socket.
    ///
    /// # Errors
    /// If the interface was removed or changed.
    pub fn send(&mut self, to: PeerId, datagram: &[u8; 32]) -> Result<(), IoError> {
        let (preamble, rest) = datagram.split_first_chunk().expect("32 bytes");
        let tx = self.0.split().1;
        // Without room the datagram is lost.
        let _ = tx.append(to, preamble, rest, &[], &[]);
        tx.seal(to);
        tx.flush()
    }

    /// Sends back what has arrived, at most a burst, and returns how many frames that were.
    ///
    /// # Errors
    /// If the interface was removed or changed.
    #[inline]
    pub fn reflect(&mut self) -> Result<usize, IoError> {
        let (rx, tx) = self.0.halves();
        let start = tx.start();
        tx.reclaim_all(|address| {
            let is_of_rx = address < start;
            if is_of_rx {
                rx.refill(address);
            }
            is_of_rx
        });
        let count = rx.ring().available().min(MAX_BURST as u32);
        let count = count.min(tx.ring().room(count));
        for index in 0..count {
            let descriptor = rx.ring().get(index);
            rx.swap_ends(descriptor);
            tx.ring().push(Descriptor {
                options: 0,
                ..descriptor
            });
        }
        if count > 0 {
            rx.ring().release(count);
            tx.lend(count);
            tx.ring().publish();
            tx.kick()?;
        } else {
            rx.check()?;
        }
        Ok(count as usize)
    }
}
