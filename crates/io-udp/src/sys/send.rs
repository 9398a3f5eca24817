//! Sending: one datagram, one datagram gathered from several pieces, or many in one system call.

use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::addr::RawAddr;
use super::{Control, empty_header};

/// The destination of a datagram; `None` on a connected socket.
pub(crate) type To<'a> = Option<&'a RawAddr>;

/// The pointer to an address and its length, as system calls take them.
#[inline]
fn name(to: To<'_>) -> (*const libc::c_void, libc::socklen_t) {
    to.map_or((ptr::null(), 0), |to| (ptr::from_ref(to).cast(), to.len()))
}

/// Sends `bytes` to `to`.
#[inline]
pub(crate) fn send_one(fd: BorrowedFd<'_>, bytes: &[u8], to: To<'_>) -> io::Result<()> {
    let (name, name_len) = name(to);
    // SAFETY: both pointers are valid for the lengths beside them during the call.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            name.cast(),
            name_len,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends the concatenation of `parts` to `to` as one datagram.
pub(crate) fn send_gathered(
    fd: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    to: To<'_>,
) -> io::Result<()> {
    let mut header = empty_header();
    let (name, name_len) = name(to);
    header.msg_name = name.cast_mut();
    header.msg_namelen = name_len;
    // `IoSlice` is documented to have the layout of `iovec`.
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len();
    // SAFETY: the kernel only reads what the header points to, and all of it outlives the call.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, libc::MSG_DONTWAIT) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Memory for [`SendBatch`]es, kept so that sending does not allocate.
pub(crate) struct SendScratch {
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    controls: Vec<Control>,
}

// SAFETY: the pointers in it are used only during the life of a `SendBatch`.
unsafe impl Send for SendScratch {}

impl SendScratch {
    /// Memory for `datagrams` datagrams.
    pub(crate) fn new(datagrams: usize) -> Self {
        Self {
            headers: Vec::with_capacity(datagrams),
            parts: Vec::with_capacity(datagrams),
            controls: Vec::with_capacity(datagrams),
        }
    }

    /// An empty batch for datagrams that live at least as long as `'a`.
    pub(crate) fn batch<'a>(&mut self) -> SendBatch<'_, 'a> {
        self.headers.clear();
        self.parts.clear();
        self.controls.clear();
        SendBatch {
            scratch: self,
            data: PhantomData,
        }
    }
}

/// Messages for one system call. A message is a datagram, or a run of datagrams of equal size (the
/// last may be shorter) to one address, which the kernel or the network card segments (GSO).
pub(crate) struct SendBatch<'s, 'a> {
    scratch: &'s mut SendScratch,
    data: PhantomData<&'a [u8]>,
}

impl<'a> SendBatch<'_, 'a> {
    /// Begins a message to `to`; [`SendBatch::push_datagram`] adds its datagrams. A message of more
    /// than one needs a segment size: that of all but the last.
    pub(crate) fn push_message(&mut self, to: To<'a>, segment: Option<u16>) {
        let mut header = empty_header();
        let (name, name_len) = name(to);
        header.msg_name = name.cast_mut();
        header.msg_namelen = name_len;
        if let Some(segment) = segment {
            self.scratch.controls.push(segment_control(segment));
            header.msg_controllen = SEGMENT_CONTROL_BYTES;
        }
        self.scratch.headers.push(libc::mmsghdr {
            msg_hdr: header,
            msg_len: 0,
        });
    }

    /// Adds a datagram to the last message.
    pub(crate) fn push_datagram(&mut self, bytes: &'a [u8]) {
        self.scratch.parts.push(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
        let message = self.scratch.headers.last_mut().expect("a message begun");
        message.msg_hdr.msg_iovlen += 1;
    }

    /// Sends the messages in order, as far as the kernel takes them; returns how many. An error is
    /// that of the first message.
    pub(crate) fn send(self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // The vectors do not move any more, so the headers can point into them.
        let SendScratch {
            headers,
            parts,
            controls,
        } = self.scratch;
        let mut parts = parts.as_mut_slice();
        let mut controls = controls.as_mut_slice();
        for message in headers.iter_mut() {
            let header = &mut message.msg_hdr;
            let (own, rest) = parts.split_at_mut(header.msg_iovlen);
            header.msg_iov = own.as_mut_ptr();
            parts = rest;
            if header.msg_controllen > 0 {
                let (own, rest) = controls.split_first_mut().expect("pushed with its header");
                header.msg_control = own.0.as_mut_ptr().cast();
                controls = rest;
            }
        }
        // SAFETY: headers point to parts and controls of the scratch, set above, and to names and
        // payloads that `'a` keeps alive; the kernel only reads them, and writes `msg_len`.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as u32,
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(sent as usize)
    }
}

/// Bytes of a control message that holds one `u16`.
// SAFETY: pure arithmetic.
const SEGMENT_CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;

/// The control message that makes the kernel segment a message into datagrams of `segment` bytes.
fn segment_control(segment: u16) -> Control {
    let mut control = Control::EMPTY;
    let header = libc::cmsghdr {
        // SAFETY: pure arithmetic.
        cmsg_len: unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as usize,
        cmsg_level: libc::SOL_UDP,
        cmsg_type: libc::UDP_SEGMENT,
    };
    // SAFETY: the buffer is larger than a header and a `u16`, and aligned for both; the data
    // begins right after a header, whose size is a multiple of the alignment.
    unsafe {
        let start = control.0.as_mut_ptr().cast::<libc::cmsghdr>();
        start.write(header);
        libc::CMSG_DATA(start).cast::<u16>().write(segment);
    }
    control
}
