//! Settings of a device.

use std::io;
use std::sync::Arc;

use starling_io::{Fault, IoError};

use crate::address::{XdpAddress, is_ring};
use crate::frame_size::max_frame;
use crate::socket::{Plan, Sizes};
use crate::umem::{Umem, UmemLayout};

/// The most memory for messages, in bytes: addresses in all packet memory have 32 bits.
const MAX_MESSAGE_MEMORY: usize = 1 << 30;

/// Settings of an [`XdpIo`](crate::XdpIo). The interface, its queue and the mode are parts of the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Ethernet frames that can wait to be received, a power of two. A number in the address
    /// overrides this one. The default is 4096. [`XdpConfig::locked_memory`] says how much memory
    /// that takes.
    pub rx_frames: u32,
    /// Ethernet frames that can wait to be sent, a power of two. The default is 256.
    pub tx_frames: u32,
    /// Bytes for messages that the device sends from where they were made
    /// ([`starling_io::PacketIo::memory`]), if the interface has frames that are large enough. The
    /// default is 16 MiB.
    pub message_memory: usize,
    /// The least part of a message in one frame, in bytes, that the device gathers where it lies
    /// rather than copies. The default is 1024 in zero-copy mode. In other modes the default is to
    /// copy all: there the kernel makes a page of each part, which takes longer than a copy.
    pub gather_from: Option<usize>,
    /// Whether runs of large datagrams to one peer leave by the kernel's socket. The default is yes
    /// in all modes but zero-copy: one system call for many datagrams then saves more than the
    /// ring.
    pub runs_by_socket: Option<bool>,
    /// Mark sent datagrams as ECN-capable. On by default.
    pub ecn: bool,
    /// Share the port with devices on other queues that also set this. All of them must be in this
    /// process: a device forwards datagrams of another device's peer. A device of another
    /// process would answer that it does not know the peer. Off by default.
    pub reuse_port: bool,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            rx_frames: 4096,
            tx_frames: 256,
            message_memory: 16 << 20,
            gather_from: None,
            runs_by_socket: None,
            ecn: true,
            reuse_port: false,
        }
    }
}

impl XdpConfig {
    /// Bytes of memory that a device on an interface with this MTU locks. In zero-copy mode it may
    /// lock `message_memory` more.
    pub fn locked_memory(&self, mtu: usize) -> usize {
        let max_frame = max_frame(mtu);
        let layout = self.layout_with_messages(max_frame, false);
        layout.unwrap_or_else(|| self.layout(max_frame)).bytes()
    }

    /// These settings with what the address says.
    ///
    /// # Errors
    /// If a number is not possible.
    pub(super) fn for_address(&self, attempt: &str, address: &XdpAddress) -> Result<Self, IoError> {
        let config = Self {
            rx_frames: address.frames().unwrap_or(self.rx_frames),
            ..self.clone()
        };
        if !is_ring(config.rx_frames) || !is_ring(config.tx_frames) {
            return Err(IoError::new(
                Fault::Caller,
                attempt,
                format!(
                    "rx_frames is {}, tx_frames is {}",
                    config.rx_frames, config.tx_frames
                ),
                "set each to a power of two from 64 to 32768",
            ));
        }
        if config.message_memory > MAX_MESSAGE_MEMORY {
            return Err(IoError::new(
                Fault::Caller,
                attempt,
                format!("message_memory is {} bytes", config.message_memory),
                "set it to at most 1 GiB",
            ));
        }
        Ok(config)
    }

    pub(super) fn layout(&self, max_frame: usize) -> UmemLayout {
        UmemLayout::new(max_frame, self.rx_frames as usize, self.tx_frames as usize)
    }

    /// With memory for messages, if a frame can be large enough for gathering.
    pub(super) fn layout_with_messages(
        &self,
        max_frame: usize,
        zero_copy: bool,
    ) -> Option<UmemLayout> {
        let is_used = max_frame > self.gather_from(zero_copy);
        let layout = self.layout(max_frame).with_messages(self.message_memory);
        (is_used && layout.message_chunks > 0).then_some(layout)
    }

    pub(super) fn gather_from(&self, zero_copy: bool) -> usize {
        let usual = if zero_copy { 1024 } else { usize::MAX };
        self.gather_from.unwrap_or(usual).max(1)
    }

    /// Packet memory with this layout, and the sizes of its rings.
    pub(super) fn plan(&self, layout: UmemLayout) -> io::Result<Plan> {
        Ok(Plan {
            umem: Arc::new(Umem::new(layout)?),
            sizes: Sizes {
                rx: self.rx_frames,
                tx: self.tx_frames * layout.slot_chunks.next_power_of_two() as u32,
                completion: (layout.bytes() / layout.chunk).next_power_of_two() as u32,
            },
        })
    }
}
