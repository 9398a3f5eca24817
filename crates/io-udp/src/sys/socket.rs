//! Socket options that no safe crate offers, and the error queue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::addr::RawAddr;
use super::{Control, empty_header, for_each_control};

/// Sets an option whose value is an `int`.
pub(crate) fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is valid for the length beside it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Reads an option whose value is an `int`.
pub(crate) fn int(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is valid for the length beside it.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

/// The cookie of a socket's network namespace (Linux 5.14).
pub(crate) fn namespace(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the pointer is valid for the length beside it.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

/// Datagrams that the kernel dropped at a socket, for lack of room or because of a wrong checksum.
/// Zero if the kernel does not report it (before Linux 4.12).
pub(crate) fn dropped(fd: BorrowedFd<'_>) -> u64 {
    const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
    let mut memory = [0_u32; DROPS + 1];
    let mut length = size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the pointer is valid for the length beside it.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result < 0 {
        return 0;
    }
    memory[DROPS].into()
}

/// Connects to `to`, in the form that the device's main socket uses.
pub(crate) fn connect(fd: BorrowedFd<'_>, to: &RawAddr) -> io::Result<()> {
    // SAFETY: the pointer is valid for the length beside it.
    let result = unsafe { libc::connect(fd.as_raw_fd(), (&raw const *to).cast(), to.len()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Why an earlier datagram did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No socket is bound to the port.
    PortUnreachable,
    /// The datagram was larger than the path takes.
    TooLarge,
    /// Anything else, such as a lost route or a filter.
    Other,
}

/// Takes the oldest entry of the socket's error queue: the destination of the datagram, and what
/// happened to it. An empty queue is the error `WouldBlock`.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> io::Result<(RawAddr, Failure)> {
    let mut name = RawAddr::default();
    let mut control = ErrorControl([0; 512]);
    let mut header = empty_header();
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<RawAddr>() as libc::socklen_t;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<ErrorControl>();
    // No space for the payload: the returned part of the datagram is not needed.
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to local variables, with their lengths.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut failure = Failure::Other;
    // SAFETY: the kernel has just filled the buffer; nothing refers to it mutably.
    unsafe {
        for_each_control(&header, |level, kind, data| {
            let is_error = matches!(
                (level, kind),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            // `sock_extended_err` begins with the error number.
            if let (true, Some(errno)) = (is_error, super::control_int(data)) {
                failure = match errno {
                    libc::ECONNREFUSED => Failure::PortUnreachable,
                    libc::EMSGSIZE => Failure::TooLarge,
                    _ => Failure::Other,
                };
            }
        });
    }
    Ok((name, failure))
}

/// Space for the control messages of an entry of the error queue.
#[repr(C, align(8))]
struct ErrorControl([u8; 512]);

const _: () = assert!(align_of::<Control>() == align_of::<ErrorControl>());
