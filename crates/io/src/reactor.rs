//! The descriptor that an executor's reactor watches: an epoll set with a device's files and its waker.
//!
//! Each wait arms the set for one event. So while the device is polled, a datagram that arrives costs no
//! notice of the set and of the reactor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

/// The set. It exists once a reactor has asked for it.
#[derive(Default)]
pub struct ReactorSet(Option<OwnedFd>);

impl ReactorSet {
    /// A descriptor of the set.
    ///
    /// # Errors
    /// If the process has reached its limit of open files.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        if self.0.is_none() {
            self.0 = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        }
        let set = self.0.as_ref().expect("it was just made");
        set.try_clone()
    }

    /// Has the set become readable when one of these files is, once. A file leaves the set when it is closed.
    ///
    /// # Errors
    /// If no reactor has asked for the set, or the system is out of memory.
    pub fn arm<'a>(&self, files: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
        let Some(set) = &self.0 else {
            return Err(Errno::BADF.into());
        };
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        for file in files {
            let data = epoll::EventData::new_u64(0);
            match epoll::modify(set, file.as_fd(), data, wanted) {
                Err(Errno::NOENT) => epoll::add(set, file, data, wanted)?,
                armed => armed?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(set: &OwnedFd) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&now)).expect("a descriptor") == 1
    }

    #[test]
    fn a_set_that_is_armed_is_readable_when_one_of_its_files_is() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = socket.local_addr().expect("an address");
        let mut set = ReactorSet::default();
        assert!(set.arm([socket.as_fd()]).is_err(), "nobody watches");
        let descriptor = set.descriptor().expect("a descriptor");
        for _ in 0..2 {
            set.arm([socket.as_fd()]).expect("armed");
            assert!(!is_readable(&descriptor));
            socket.send_to(b"1", address).expect("sent");
            assert!(is_readable(&descriptor));
            socket.recv(&mut [0; 8]).expect("it has arrived");
            assert!(!is_readable(&descriptor));
        }
        // What is there already counts.
        socket.send_to(b"1", address).expect("sent");
        set.arm([socket.as_fd()]).expect("armed");
        assert!(is_readable(&descriptor));
    }
}
