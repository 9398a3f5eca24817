//! What a runtime sleeps by: the descriptors of its links, and a waker for other threads.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::error::ServiceError;

/// Key of the waker. Those below are links'.
const WAKER_KEY: u64 = u64::MAX;

/// Descriptors that one look reports, at most. The others are reported by the next one.
const MAX_READY: usize = 64;

/// Ends a runtime's sleep.
#[derive(Debug)]
pub(crate) struct RuntimeWaker {
    event: OwnedFd,
    /// Nobody has looked since it was used.
    is_used: AtomicBool,
}

impl RuntimeWaker {
    pub(crate) fn wake(&self) {
        if !self.is_used.swap(true, Ordering::AcqRel) {
            // It fails only if the counter is full, which also wakes.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    fn drain(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Whether it was used since this was last asked.
    pub(super) fn take(&self) -> bool {
        if !self.is_used.load(Ordering::Acquire) {
            return false;
        }
        self.drain();
        self.is_used.swap(false, Ordering::AcqRel)
    }
}

#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    waker: Arc<RuntimeWaker>,
}

impl Poller {
    pub(super) fn new() -> Result<Self, ServiceError> {
        let failed = |error| ServiceError::system("make what a runtime sleeps by", error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(failed)?;
        let (data, when) = (epoll::EventData::new_u64(WAKER_KEY), epoll::EventFlags::IN);
        epoll::add(&epoll, &event, data, when).map_err(failed)?;
        Ok(Self {
            epoll,
            waker: Arc::new(RuntimeWaker {
                event,
                is_used: AtomicBool::new(false),
            }),
        })
    }

    pub(super) fn waker(&self) -> &Arc<RuntimeWaker> {
        &self.waker
    }

    /// Knows a link's descriptor from now on, as long as that is open, and does not watch it yet.
    pub(super) fn add(&self, link: usize, descriptor: &OwnedFd) -> Result<(), ServiceError> {
        let data = epoll::EventData::new_u64(link as u64);
        epoll::add(
            &self.epoll,
            descriptor.as_fd(),
            data,
            epoll::EventFlags::ONESHOT,
        )
        .map_err(|error| ServiceError::system("watch a device", error))
    }

    /// Knows a link's descriptor no more.
    pub(super) fn remove(&self, descriptor: &OwnedFd) {
        // It fails only if it does not know it.
        let _ = epoll::delete(&self.epoll, descriptor.as_fd());
    }

    /// Watches a link's descriptor until it is readable, which it may be already.
    pub(super) fn watch(&self, link: usize, descriptor: &OwnedFd) -> Result<(), ServiceError> {
        let data = epoll::EventData::new_u64(link as u64);
        let when = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.epoll, descriptor.as_fd(), data, when)
            .map_err(|error| ServiceError::system("watch a device", error))
    }

    /// The links that may have something to do, after a sleep of at most `timeout`.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<usize>, ServiceError> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut space = [const { MaybeUninit::uninit() }; MAX_READY];
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(ServiceError::system("sleep", error)),
        };
        if events.iter().any(|event| event.data.u64() == WAKER_KEY) {
            // It may have been written after the runtime has seen that it was used.
            self.waker.drain();
        }
        let keys = events.iter().map(|event| event.data.u64());
        Ok(keys
            .filter(|key| *key != WAKER_KEY)
            .map(|key| key as usize)
            .collect())
    }
}
