//! The files that the device waits for: one epoll set, level-triggered, so that no report is ever lost.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// The most files that one look reports. The set takes turns among more.
const MAX_READY: usize = 64;

/// What a file is watched for. The end of its connection is always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    ReadAndWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadAndWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// A report about one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The key that the file was added with.
    pub(crate) key: u64,
    /// It has something to read, or its connection is over.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self)
    }

    pub(crate) fn add(
        &self,
        file: impl AsFd,
        key: u64,
        interest: Interest,
    ) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        epoll::add(&self.0, file, data, interest.flags())
    }

    pub(crate) fn modify(&self, file: impl AsFd, key: u64, interest: Interest) {
        // It fails only if the file has left the set: then its connection is over.
        let data = epoll::EventData::new_u64(key);
        let _ = epoll::modify(&self.0, file, data, interest.flags());
    }

    /// To be called before a file is closed: in the child of a fork it may be open still.
    pub(crate) fn remove(&self, file: impl AsFd) {
        // It fails only if the file is not in the set, which is the intended state.
        let _ = epoll::delete(&self.0, file);
    }

    /// Calls `report` for files that are ready now.
    pub(crate) fn look(&self, mut report: impl FnMut(Ready)) -> rustix::io::Result<()> {
        let mut space = [const { MaybeUninit::uninit() }; MAX_READY];
        let (events, _) = match epoll::wait(&self.0, &mut space, Some(&Timespec::default())) {
            Err(Errno::INTR) => return Ok(()),
            result => result?,
        };
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        for event in events {
            let flags = event.flags;
            report(Ready {
                key: event.data.u64(),
                readable: flags.intersects(readable),
                writable: flags.contains(epoll::EventFlags::OUT),
            });
        }
        Ok(())
    }

    /// Sleeps until a file is ready, `waker` is readable, or `timeout` is over. Returns whether `waker` is readable.
    pub(crate) fn sleep(
        &self,
        waker: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> rustix::io::Result<bool> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut files = [
            PollFd::new(&self.0, PollFlags::IN),
            PollFd::from_borrowed_fd(waker, PollFlags::IN),
        ];
        match rustix::event::poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!files[1].revents().is_empty()),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timer that is a file of the set, so that also a reactor wakes for it.
pub(crate) struct Timer {
    file: OwnedFd,
    is_set: bool,
}

impl Timer {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            file,
            is_set: false,
        })
    }

    /// Sets it, unless it is set already.
    pub(crate) fn set(&mut self, after: Duration) {
        if self.is_set {
            return;
        }
        let after = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            // Zero would stop it.
            tv_nsec: after.subsec_nanos().max(1).into(),
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: after,
        };
        self.is_set = timerfd_settime(&self.file, TimerfdTimerFlags::empty(), &once).is_ok();
    }

    /// It has rung.
    pub(crate) fn clear(&mut self) {
        self.is_set = false;
        // Nothing is there to read if the report of it was an old one.
        let _ = rustix::io::read(&self.file, &mut [0; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
