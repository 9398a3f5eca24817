//! System calls: all `unsafe` code of this crate, behind safe functions.
//!
//! | file | what |
//! |---|---|
//! | [`addr`] | socket addresses in the kernel's form |
//! | [`pages`] | memory for datagrams |
//! | [`recv`] | buffers for received datagrams; one, or many, per system call |
//! | [`send`] | one datagram, one gathered datagram, or many, per system call |
//! | [`socket`] | options of sockets, the error queue |

pub(crate) mod addr;
pub(crate) mod pages;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod socket;

use std::mem;

/// The most bytes of ancillary data with one datagram: the TOS byte of IPv4 or the traffic class of
/// IPv6, and the segment size of GRO, each with its own header.
const CONTROL_BYTES: usize = 128;

/// Space for ancillary data, aligned for its headers.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl Control {
    const EMPTY: Self = Self([0; CONTROL_BYTES]);
}

/// Calls `visit` with level, type and data of each control message in `header`.
///
/// # Safety
/// `header.msg_control` must point to `header.msg_controllen` bytes that the kernel wrote as
/// control messages, aligned for `cmsghdr`, and no reference to them may be mutable.
unsafe fn for_each_control(header: &libc::msghdr, mut visit: impl FnMut(i32, i32, &[u8])) {
    // SAFETY: the caller guarantees the buffer; the macros stay inside `msg_controllen`.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while !next.is_null() {
            let length = (*next).cmsg_len - (libc::CMSG_LEN(0) as usize);
            let data = std::slice::from_raw_parts(libc::CMSG_DATA(next), length);
            visit((*next).cmsg_level, (*next).cmsg_type, data);
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
}

/// The integer at the start of a control message's data, if it is long enough.
fn control_int(data: &[u8]) -> Option<i32> {
    let bytes = data.first_chunk::<{ mem::size_of::<i32>() }>()?;
    Some(i32::from_ne_bytes(*bytes))
}

/// A message header with all fields zero.
fn empty_header() -> libc::msghdr {
    // SAFETY: `msghdr` is a C struct of integers and pointers: all zero is a valid value.
    unsafe { mem::zeroed() }
}
