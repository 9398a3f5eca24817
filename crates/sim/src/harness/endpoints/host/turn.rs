//! A turn of a host: of its event loop's own thread, or of one of the threads that share its endpoint.

use std::time::Duration;

use starling_endpoint::{SessionId, SessionState};

use super::super::super::US;
use super::super::super::host_set::BusyWorker;
use super::{Host, Process};
use crate::check::{Credits, Violation, granted_within, memory_within};
use crate::cpu::Work;

/// A turn of a host that is never idle takes this long.
const MIN_TURN_NS: u64 = 2 * US;
/// Idle turns without sleep after which an endpoint counts as spinning.
const MAX_IDLE_TURNS: u32 = 2_000;

/// What a turn of the endpoint was.
pub(super) struct Turn {
    pub(super) is_idle: bool,
    /// When the thread is free, ns.
    pub(super) free_ns: u64,
    /// Sessions whose end it had to report.
    pub(super) over: Vec<SessionId>,
}

impl Host {
    /// One turn. Returns workers that began something.
    pub(in super::super) fn turn(&mut self) -> Result<Vec<BusyWorker>, Violation> {
        match &self.process {
            None => Ok(Vec::new()),
            Some(Process { threads: None, .. }) => self.turn_alone(),
            Some(_) => self.turn_in_threads(),
        }
    }

    /// The turn of a host whose event loop has a thread to itself.
    fn turn_alone(&mut self) -> Result<Vec<BusyWorker>, Violation> {
        let now_ns = self.fabric.lock().now_ns();
        while let Some(entry) = self.schedule.first_entry() {
            if entry.key().0 > now_ns {
                break;
            }
            let task = entry.remove();
            // What its owner does may have it spin anew.
            self.idle_turns = 0;
            self.work(task, now_ns)?;
        }
        let turn = self.poll(now_ns)?;
        let slept = turn.is_idle && self.wait(None);
        if !slept {
            self.fabric.lock().wake_at(self.id, turn.free_ns);
        }
        self.note_turn(&turn, slept)?;
        self.wake_for_tasks(turn.free_ns);
        self.check(turn.over)?;
        Ok(self.busy())
    }

    /// A turn of the endpoint.
    pub(super) fn poll(&mut self, now_ns: u64) -> Result<Turn, Violation> {
        // What ends from here on, the next turn reports.
        let over = std::mem::take(&mut self.process().over);
        let endpoint = &mut self.process().endpoint;
        let before = *endpoint.stats();
        let turn = endpoint.poll().expect("the device has no errors");
        let after = *endpoint.stats();
        self.handle_events(now_ns)?;
        self.end_cancelled_streams(now_ns)?;
        let requests = after.requests - before.requests;
        let work = Work {
            rx_frames: requests + after.responses - before.responses,
            handlers: requests + after.completions - before.completions,
            ..Work::default()
        };
        let free_ns = self.fabric.lock().end_turn(self.id, work);
        Ok(Turn {
            is_idle: turn.is_idle(),
            free_ns: free_ns.max(now_ns + MIN_TURN_NS),
            over,
        })
    }

    /// Has the endpoint sleep. Whether it does.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> bool {
        let endpoint = &mut self.process().endpoint;
        let waits = endpoint.io().waits();
        let waited = endpoint.wait(limit);
        waited.expect("the device has no errors");
        endpoint.io().waits() > waits
    }

    /// An endpoint without work sleeps.
    fn note_turn(&mut self, turn: &Turn, slept: bool) -> Result<(), Violation> {
        self.idle_turns = if slept || !turn.is_idle {
            0
        } else {
            self.idle_turns + 1
        };
        if self.idle_turns > MAX_IDLE_TURNS {
            let text = format!("host {} neither works nor sleeps", self.id.0);
            return Err(Violation::new("progress", text));
        }
        Ok(())
    }

    pub(super) fn wake_for_tasks(&mut self, least_ns: u64) {
        if let Some((at_ns, _)) = self.schedule.keys().next() {
            self.fabric.lock().wake_at(self.id, least_ns.max(*at_ns));
        }
    }

    pub(super) fn check(&mut self, over: Vec<SessionId>) -> Result<(), Violation> {
        if let Some(violation) = self.records.lock().broken.take() {
            return Err(violation);
        }
        let process = self.process();
        for session in over {
            if let Some(SessionState::Connecting | SessionState::Connected) =
                process.endpoint.session_state(session)
            {
                let text = format!("{session:?} takes no call, but its end was not reported");
                return Err(Violation::new("nothing stays stuck", text));
            }
        }
        let limits = &self.config.protocol;
        let limit = limits.rx_queue_datagrams * limits.overcommit;
        let process = self.process.as_mut().expect("within a turn");
        let (protocol, grants) = (process.endpoint.protocol(), process.endpoint.io().grants());
        let sessions = process.sessions.values().copied();
        for session in sessions.flat_map(|first| protocol.group(first)) {
            if let Some(credits) = Credits::of(protocol, session, grants) {
                credits.check()?;
            }
        }
        let sessions = process.sessions.values().copied();
        process.queues.check(protocol, limits, sessions)?;
        memory_within(protocol, limits)?;
        granted_within(protocol, limit)
    }

    /// A worker's time is over, unless it died with its process.
    pub(in super::super) fn finish(&mut self, busy: BusyWorker) -> Vec<BusyWorker> {
        match &self.process {
            Some(process) if busy.incarnation == self.incarnation => {
                process.workers.finish(busy.worker);
                self.busy()
            }
            _ => Vec::new(),
        }
    }

    /// Workers that began something since the last time.
    pub(super) fn busy(&mut self) -> Vec<BusyWorker> {
        let begun = self.process().workers.take_begun();
        let busy = begun.into_iter().map(|(worker, until_ns)| BusyWorker {
            host: self.id,
            incarnation: self.incarnation,
            worker,
            until_ns,
        });
        busy.collect()
    }
}
