//! Errors of a sending system call, and their meaning for the datagrams that it was to send.

use std::io;
use std::sync::atomic::Ordering;

use starling_io::PeerId;

use super::UdpTx;

/// The fate of the oldest datagram after an attempt to send it failed.
pub(super) enum SendOutcome {
    /// The kernel has no room: keep it queued.
    Keep,
    /// Try again now.
    Retry,
    /// The kernel can never send this datagram.
    DropDatagram,
    /// The datagram was lost on the way out, with all others of its message.
    DropMessage,
}

impl UdpTx {
    /// Classifies the error for a datagram to `peer` that failed `failed` times in a row. If it
    /// was the first of a run, `segment` is the size of the run's datagrams in bytes.
    ///
    /// An error may be a late report about an earlier datagram to any peer: the kernel delivers
    /// such a report once, in place of the call's work. So every error that is not about room is
    /// retried once. Only the second counts against this datagram, which is then lost as on a
    /// network.
    ///
    /// Only datagrams that the socket's own buffer has no room for stay queued: the socket becomes
    /// writable when there is room. A full interface queue (ENOBUFS) and short memory (ENOMEM) do
    /// not signal their end. The socket stays writable, and datagrams to other peers would wait
    /// behind one whose queue is full. So this is a loss like one in a switch.
    #[cold]
    pub(super) fn classify_error(
        &mut self,
        error: &io::Error,
        failed: u32,
        segment: Option<usize>,
        peer: PeerId,
    ) -> SendOutcome {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => SendOutcome::Keep,
            Some(libc::ENOBUFS | libc::ENOMEM) => SendOutcome::DropMessage,
            Some(libc::EINTR) => SendOutcome::Retry,
            Some(errno @ (libc::EIO | libc::EINVAL)) if segment.is_some() => {
                // Before Linux 6.14, EINVAL also means for a run what EMSGSIZE means for a datagram.
                if errno == libc::EINVAL && segment > Some(self.update_max_datagram(peer)) {
                    return SendOutcome::DropDatagram;
                }
                // No checksum offload on the interface, or a kernel with other limits for runs.
                self.gso = false;
                SendOutcome::Retry
            }
            errno => {
                self.shared.errors_waiting.store(true, Ordering::Relaxed);
                if failed == 1 {
                    return SendOutcome::Retry;
                }
                if errno == Some(libc::EMSGSIZE) {
                    self.update_max_datagram(peer);
                }
                SendOutcome::DropDatagram
            }
        }
    }
}
