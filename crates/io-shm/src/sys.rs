//! System calls, in the form that this crate uses.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::MembarrierCommand;

use crate::closer::Closer;

/// The most connections that wait to be accepted; the kernel may lower it.
const BACKLOG: i32 = 4096;

/// Prepares this process for [`heavy_fence`]. False if the kernel does not support it.
pub(crate) fn register_membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        rustix::thread::membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
            && rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    })
}

/// A full fence in this thread and in every running thread of every registered process. False if
/// the latter failed.
pub(crate) fn heavy_fence() -> bool {
    std::sync::atomic::fence(Ordering::SeqCst);
    !register_membarrier() || rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// A socket that listens at an abstract name, which vanishes with the process.
pub(crate) fn listen(name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to an abstract name without waiting; `EAGAIN` if too many others are connecting.
pub(crate) fn connect(name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// The id of the process that listens at a name, if this process may know it.
pub(crate) fn listener_process(name: &[u8]) -> Option<i32> {
    let socket = connect(name).ok()?;
    let process = rustix::net::sockopt::socket_peercred(&socket).ok()?.pid;
    Some(process.as_raw_nonzero().get())
}

/// Accepts one connection without waiting.
pub(crate) fn accept(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Sends a message with one file.
pub(crate) fn send_with_file(
    socket: &OwnedFd,
    message: &[u8],
    file: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(message)],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Sends a short message without waiting.
pub(crate) fn send(socket: &OwnedFd, message: &[u8]) -> rustix::io::Result<()> {
    rustix::net::send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// The next message of a socket, which stays there.
pub(crate) struct Peeked {
    /// Its length; at most that of the buffer. Zero is the end, or a message that counts as the end.
    pub(crate) length: usize,
    /// It has files.
    pub(crate) has_files: bool,
}

/// Looks at the next message of a socket without waiting, and opens none of its files. `EAGAIN` if there
/// is none.
///
/// A message that is received is closed with its files, which may take as long as the sender likes. As
/// long as it is only looked at, the kernel keeps them.
pub(crate) fn peek(socket: &OwnedFd, message: &mut [u8]) -> rustix::io::Result<Peeked> {
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(message)],
        &mut RecvAncillaryBuffer::default(),
        RecvFlags::DONTWAIT | RecvFlags::PEEK,
    )?;
    Ok(Peeked {
        length: received.bytes,
        // There is no room for any.
        has_files: received.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Whether a message is in the socket, also one of a peer that has gone.
pub(crate) fn has_message(socket: &OwnedFd) -> bool {
    // The kernel reports once that the peer left without having read everything, and then what it sent.
    let mut peeks = (0..2).map(|_| peek(socket, &mut [0]));
    peeks.any(|peeked| peeked.is_ok_and(|peeked| peeked.length != 0))
}

/// Opens the one file of the next message, which stays in the socket. `None` if it has another number of
/// files: the closer gets them. `EMFILE` if this process may open no more.
pub(crate) fn peek_file(socket: &OwnedFd, closer: &Closer) -> rustix::io::Result<Option<OwnedFd>> {
    // Room for two: a second file is noticed and refused.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut [0])],
        &mut control,
        RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = part {
            files.extend(more);
        }
    }
    let truncated = received.flags.contains(ReturnFlags::CTRUNC);
    if files.is_empty() && truncated {
        // There was room for two, so the process is at its limit.
        return Err(Errno::MFILE);
    }
    if files.len() == 1 && !truncated {
        return Ok(files.pop());
    }
    for file in files {
        closer.give(file);
    }
    Ok(None)
}

/// Takes the next message out of a socket. Only for one without files, or with files that are memory:
/// they are closed.
pub(crate) fn discard(socket: &OwnedFd) {
    // It was there a moment ago, and nobody else receives it.
    let _ = rustix::net::recv(socket, &mut [0], RecvFlags::DONTWAIT);
}

/// Closes this connection for both ends.
pub(crate) fn hang_up(socket: &OwnedFd) {
    // It fails if the other end is gone already.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// A report of epoll about one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The key that the file was added with.
    pub(crate) key: u64,
    /// The other end has closed it.
    pub(crate) hung_up: bool,
}

/// A set of files to wait for.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// The most files that one poll reports.
    const MAX_READY: usize = 128;

    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds a file; it is reported while it is readable or hung up.
    pub(crate) fn add(&self, file: impl AsFd, key: u64) -> rustix::io::Result<()> {
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, file, epoll::EventData::new_u64(key), wanted)
    }

    /// A descriptor that is readable when something is ready, for others to watch.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// Removes a file.
    pub(crate) fn remove(&self, file: impl AsFd) {
        // It fails only if the file is not in the set, which is the intended state.
        let _ = epoll::delete(&self.epoll, file);
    }

    /// The files that are ready now.
    pub(crate) fn ready(&self) -> rustix::io::Result<Vec<Ready>> {
        let mut space = [const { MaybeUninit::uninit() }; Self::MAX_READY];
        let (events, _) = match epoll::wait(&self.epoll, &mut space, Some(&Timespec::default())) {
            Err(Errno::INTR) => return Ok(Vec::new()),
            result => result?,
        };
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR;
        let ready = events.iter().map(|event| Ready {
            key: event.data.u64(),
            hung_up: { event.flags }.intersects(gone),
        });
        Ok(ready.collect())
    }

    /// Sleeps until something is ready, or `timeout` is over. (By `ppoll`, which takes
    /// nanoseconds where `epoll_wait` takes milliseconds.)
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> rustix::io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            // Three centuries count as for ever.
            tv_sec: timeout.as_secs().min(10_000_000_000) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut files = [PollFd::new(&self.epoll, PollFlags::IN)];
        match rustix::event::poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
