//! The dispatcher's part of a device with workers: it assigns the requests that the XDP program did not
//! assign.
//!
//! Both go by the same counts ([`crate::steering_map`]).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::{MatchTable, Steering};

use crate::exchange::{Exchange, Padding};
use crate::shared::Shared;
use crate::steering_map::{SOCKETS, SteeringEntry};

/// Workers of a device, at most.
pub const MAX_WORKERS: usize = SOCKETS as usize - 1;
/// The highest bound on what one worker has at a time.
pub(crate) const MAX_DEPTH: u8 = 8;

/// Finds workers that are blocked: for each worker that had something at the last check, how much
/// it had completed by then.
struct BlockedCheck(Box<[Option<u32>]>);

impl BlockedCheck {
    fn new(workers: usize) -> Self {
        Self(vec![None; workers].into())
    }

    /// Fills up the workers that have completed nothing since the last check.
    fn run(&mut self, entry: &SteeringEntry, padding: &Padding, depth: u32) {
        for (worker, before) in self.0.iter_mut().enumerate() {
            let completed = entry.completed[worker].load(Ordering::Relaxed);
            let now = (entry.load(worker) > 0).then_some(completed);
            if now.is_some() && now == *before {
                padding.fill(entry, worker, depth);
            }
            *before = now;
        }
    }
}

/// The dispatcher's part of a device.
pub(crate) struct XdpSteering {
    shared: Arc<Shared>,
    exchange: Arc<Exchange>,
    workers: usize,
    depth: u32,
    blocked: BlockedCheck,
}

impl XdpSteering {
    /// From now on datagrams that match `table` go to the `sockets` of workers.
    pub(crate) fn start<'a>(
        shared: &Arc<Shared>,
        exchange: &Arc<Exchange>,
        sockets: impl ExactSizeIterator<Item = BorrowedFd<'a>>,
        depth: u8,
        table: &MatchTable,
    ) -> std::io::Result<Self> {
        let entry = shared.steering_entry();
        let workers = sockets.len();
        entry.clear();
        entry.set_table(table);
        for (worker, socket) in sockets.enumerate() {
            let place = shared.queue * SOCKETS + 1 + worker as u32;
            shared.program.set_socket(place, socket.as_raw_fd())?;
            entry.taken[worker].store(0, Ordering::Relaxed);
            entry.completed[worker].store(0, Ordering::Relaxed);
        }
        let room = shared.largest_frame.min(shared.umem.layout.rx_room());
        entry.max_frame.store(room as u32, Ordering::Relaxed);
        entry.depth.store(depth.into(), Ordering::Relaxed);
        entry.workers.store(workers as u32, Ordering::Release);
        Ok(Self {
            shared: Arc::clone(shared),
            exchange: Arc::clone(exchange),
            workers,
            depth: depth.into(),
            blocked: BlockedCheck::new(workers),
        })
    }
}

impl Steering for XdpSteering {
    fn add_key(&mut self, key: u32) {
        self.shared.steering_entry().add_key(key);
    }

    fn reserve(&mut self) -> Option<usize> {
        let entry = self.shared.steering_entry();
        let worker = (0..self.workers).min_by_key(|&worker| entry.load(worker))?;
        if entry.load(worker) >= self.depth {
            return None;
        }
        // The program may have given the worker something in the meantime.
        entry.taken[worker].fetch_add(1, Ordering::Relaxed);
        if entry.load(worker) > self.depth {
            entry.taken[worker].fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(worker)
    }

    fn avoid_blocked(&mut self) {
        let padding = &self.exchange.padding;
        self.blocked
            .run(self.shared.steering_entry(), padding, self.depth);
    }

    fn set_held(&mut self, held: usize) {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        let entry = self.shared.steering_entry();
        entry.held.store(held, Ordering::Relaxed);
    }

    fn stop(&mut self) {
        let entry = self.shared.steering_entry();
        entry.workers.store(0, Ordering::Relaxed);
    }
}

impl Drop for XdpSteering {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
