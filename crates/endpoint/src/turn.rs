//! The event loop of one thread.
//!
//! One turn, in order:
//!
//! 1. receive a burst; run the handlers and continuations of what came, in place (`burst`);
//! 2. while handlers are slow: handle a slice of what waits for its peer's turn (`shares`);
//! 3. take in what other threads left: workers' answers, abandoned replies, device events;
//! 4. end the calls whose deadline has come, wake sleepers;
//! 5. poll the futures that were woken, execute their commands;
//! 6. run the continuations of calls that ended without a response;
//! 7. flush the protocol, then the device: everything leaves in as few datagrams as possible.
//!
//! `schedule` says which turns read the clock, `cadence` when a long burst is flushed, `wait` how
//! the loop sleeps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use starling_io::{
    Clock, IoError, IoEvent, MAX_BURST, Mark, PacketIo, PacketRx, PacketTx, PeerGone,
};
use starling_proto::{Event, PeerId};

use crate::burst::Burst;
use crate::convert::{device_refusal, io_peer, proto_peer};
use crate::endpoint::Endpoint;
use crate::refusal::result_of;
use crate::schedule::Between;
use crate::shares::{SLICE_NS, Work};
use crate::sink::Sink;
use crate::stats::Turn;

/// A busy loop looks for device events only every so many turns.
const EVENT_INTERVAL: u64 = 64;
/// Reports of workers that one turn takes in, at most.
const CLAIMED_A_TURN: usize = 1024;

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// One turn. Never blocks.
    ///
    /// # Errors
    /// If the device fails. The error is final.
    ///
    /// # Panics
    /// With the panic of a continuation, at the end of the turn. The endpoint stays usable.
    #[inline]
    pub fn poll(&mut self) -> Result<Turn, IoError> {
        self.parts.core.stats.turns += 1;
        if self.between_turns {
            self.begin_after_owner()?;
        }
        self.parts.clock.mark(Mark::Receiving);
        let datagrams = self.io.split().0.rx_burst()?;
        if datagrams > 0 {
            self.parts.clock.mark(Mark::Received);
        } else if self.schedule.skips > 0 && !self.between_turns && !self.has_work() {
            self.schedule.skips -= 1;
            return Ok(Turn::default());
        }
        self.turn(datagrams)
    }

    /// A turn that does more than look for datagrams.
    fn turn(&mut self, datagrams: usize) -> Result<Turn, IoError> {
        let mut events = 0;
        if self.parts.dispatch.is_some() {
            events += self.poll_claimed();
        }
        if datagrams > 0 {
            if !self.schedule.take_known() {
                self.read_clock();
            }
            self.handle_absence();
            self.handle_burst(datagrams)?;
        } else {
            events += self.handle_silence();
        }
        if (self.parts.core.stats.turns).is_multiple_of(EVENT_INTERVAL) {
            events += self.poll_device_events();
            self.maintain_workers();
            self.return_memory();
        }
        if self.parts.core.has_side_work() {
            events += self.do_side_work()?;
        }
        let now_ns = self.parts.core.now_ns;
        let tx = self.io.split().1;
        self.parts.core.proto.flush(now_ns, &mut Sink(&mut *tx));
        self.parts.clock.mark(Mark::Sending);
        tx.flush()?;
        self.parts.clock.mark(Mark::Sent);
        while let Some(peer) = self.released.pop() {
            self.close_unused_peer(peer);
        }

        self.between_turns = false;
        let turn = Turn {
            datagrams: datagrams as u32,
            events: events as u32,
        };
        if !turn.is_idle() {
            self.active_ns = now_ns;
        }
        if self.parts.core.panic.is_some() {
            self.parts.core.resume_panic();
        }
        Ok(turn)
    }

    /// The owner did something since the last turn. Its requests are sent before the datagrams that have
    /// arrived are handled, and the loop spins for the responses.
    #[inline(never)]
    fn begin_after_owner(&mut self) -> Result<(), IoError> {
        self.active_ns = self.parts.core.now_ns;
        self.parts.apply_registrations();
        self.parts.clock.mark(Mark::Sending);
        self.io.split().1.flush()?;
        self.parts.clock.mark(Mark::Sent);
        Ok(())
    }

    /// No datagram has arrived. Returns the number of things done.
    #[inline(never)]
    fn handle_silence(&mut self) -> usize {
        let mut events = 0;
        if !self.between_turns {
            self.read_clock();
            self.schedule.plan(self.parts.core.now_ns);
            events += self.poll_device_events();
            self.maintain_workers();
        }
        if self.parts.shares.is_empty() {
            let core = &mut self.parts.core;
            core.admission.queue_is_empty(core.now_ns);
            core.proto.caught_up(core.now_ns);
        }
        events
    }

    /// Sets the time of the turn.
    #[inline]
    pub(crate) fn read_clock(&mut self) {
        let core = &mut self.parts.core;
        let before_ns = std::mem::replace(&mut core.now_ns, self.parts.clock.now_ns());
        // The clock never goes back.
        let passed_ns = core.now_ns.wrapping_sub(before_ns);
        match self.schedule.take_between() {
            Between::Nothing if passed_ns >= SLICE_NS => self.record_long_turn(passed_ns),
            Between::Nothing | Between::OtherWork => {}
            Between::Sleep => {
                // If a datagram ended the sleep, it arrived just now.
                core.admission.queue_is_empty(core.now_ns);
                core.proto.woken(core.now_ns);
            }
        }
        self.requests_seen = self.parts.core.stats.requests;
    }

    /// Does the work of a turn besides handling datagrams. Returns the number of things done.
    #[inline(never)]
    fn do_side_work(&mut self) -> Result<usize, IoError> {
        self.parts.core.sleep.begin_work();
        let mut events = 0;
        if self.parts.shares.is_on() {
            events += self.handle_shared()?;
        }
        let before = self.parts.core.stats.handled();
        self.poll_workers();
        let tx = self.io.split().1;
        if !self.parts.core.abandoned.is_empty() {
            self.parts.core.answer_abandoned(tx);
        }
        self.parts.core.expire(tx);
        while let Some(event) = self.parts.core.proto.poll_event() {
            events += 1;
            if let (Event::RequestAbandoned { id }, Some(dispatch)) = (&event, &self.parts.dispatch)
            {
                dispatch.handle_cancelled(*id);
            }
            self.released
                .extend(self.parts.core.handle_event(event, tx));
        }
        events += self.run_futures();
        self.deliver_finished();
        self.parts.core.end_side_work();
        if self.parts.shares.is_on() {
            self.parts.core.begin_shared_turns();
        }
        Ok(events + (self.parts.core.stats.handled() - before) as usize)
    }

    /// Whether a turn would do something although nothing arrives.
    pub(crate) fn has_work(&self) -> bool {
        self.parts.core.sleep.has_work()
            // A flush may end sessions and calls after the turn has polled the events.
            || self.parts.core.proto.has_event()
            || !self.parts.core.finished.is_empty()
            || !self.parts.shares.is_empty()
    }

    /// Closes a peer on the device, unless a session uses it by now.
    pub(crate) fn close_unused_peer(&mut self, peer: PeerId) {
        if !self.parts.core.proto.refers_to(peer) {
            self.parts.core.peers.forget(peer);
            self.parts.shares.forget(peer);
            let peer = io_peer(peer);
            self.on_released.iter_mut().for_each(|forget| forget(peer));
            self.io.close_peer(peer);
        }
    }

    /// Handles what came in a burst: runs handlers and continuations.
    fn handle_burst(&mut self, datagrams: usize) -> Result<(), IoError> {
        let (rx, tx) = self.io.split();
        let parts = &mut self.parts;
        parts.cadence.begin_burst(parts.core.now_ns);
        parts.core.stats.datagrams += datagrams as u64;
        let mut burst = Burst::<I>::new(rx, datagrams);
        // One guard for the whole burst: a guard for each handler would cost as much as a handler.
        let mut result = catch_unwind(AssertUnwindSafe(|| burst.handle(parts, tx)));
        loop {
            match result {
                Ok(result) => return result,
                Err(panic) => parts.recover(tx, panic),
            }
            result = catch_unwind(AssertUnwindSafe(|| burst.resume(parts, tx)));
        }
    }

    /// Handles a slice of what waits for its peer's turn. Returns of how much.
    #[cold]
    fn handle_shared(&mut self) -> Result<usize, IoError> {
        let tx = self.io.split().1;
        let parts = &mut self.parts;
        if !parts.shares.is_empty() {
            // What the burst was answered leaves before others run.
            parts.clock.mark(Mark::Sending);
            tx.flush()?;
            parts.clock.mark(Mark::Sent);
        }
        parts.core.local.set_turn(parts.core.now_ns);
        let mut now_ns = parts.clock.now_ns();
        parts.cadence.begin_burst(now_ns);
        let until_ns = now_ns + SLICE_NS;
        let mut handled = 0;
        while now_ns < until_ns
            && let Some(work) = parts.shares.pop(now_ns)
        {
            handled += 1;
            match work {
                Work::Task(task) => parts.core.stats.panics += self.executor.poll(&task),
                Work::Request(request) => {
                    let run = AssertUnwindSafe(|| parts.handle_queued(tx, request));
                    if let Err(panic) = catch_unwind(run) {
                        parts.recover(tx, panic);
                    }
                }
            }
            let began_ns = std::mem::replace(&mut now_ns, parts.clock.now_ns());
            parts.shares.record_cost(began_ns, now_ns);
            parts.end_frame(tx)?;
        }
        parts.shares.end_slice(now_ns);
        parts.apply_sharing();
        Ok(handled)
    }

    pub(crate) fn poll_device_events(&mut self) -> usize {
        let mut events = 0;
        while events < MAX_BURST {
            let Some(IoEvent::PeerGone(peer, how)) = self.io.poll_event() else {
                break;
            };
            events += 1;
            let now = self.parts.core.now_ns;
            let id = proto_peer(peer);
            let proto = &mut self.parts.core.proto;
            if how != PeerGone::Suspected && !proto.refers_to(id) {
                // It never had a session, so the protocol does not know it. It is closed at the
                // end of the turn, like the peers that the protocol releases.
                self.released.push(id);
            }
            let sink = &mut Sink(self.io.split().1);
            match how {
                PeerGone::Certain => proto.handle_peer_gone(now, id, true, sink),
                PeerGone::Suspected => proto.handle_peer_gone(now, id, false, sink),
                PeerGone::Refused(why) => proto.handle_peer_refused(id, device_refusal(why)),
            }
        }
        events
    }

    fn maintain_workers(&mut self) {
        if let Some(dispatch) = &mut self.parts.dispatch {
            dispatch.maintain(self.parts.core.now_ns);
        }
    }

    /// Now and then, and before each sleep.
    pub(crate) fn return_memory(&mut self) {
        if self.held.is_due(self.parts.core.now_ns) {
            self.held.handle_due(&mut self.parts.core);
        }
    }

    fn poll_workers(&mut self) {
        let Some(dispatch) = &mut self.parts.dispatch else {
            return;
        };
        if dispatch.in_flight() == 0 {
            return;
        }
        let tx = self.io.split().1;
        let core = &mut self.parts.core;
        while let Some(mut job) = dispatch.poll() {
            self.parts.tables.record_run_time(&job, core.now_ns);
            let id = job.id;
            let (request, answer, end) = job.take_parts();
            // Bounded by the number of jobs that were in flight at once.
            core.spare_jobs.push(job);
            core.proto.recycle(request);
            let result = result_of(end, &mut core.stats);
            core.finish_request(tx, id, answer, result);
        }
    }

    /// Takes in the reports of workers that claim requests by themselves. Returns the number of things
    /// done.
    #[inline(never)]
    fn poll_claimed(&mut self) -> usize {
        let Some(dispatch) = &mut self.parts.dispatch else {
            return 0;
        };
        dispatch.prefetch();
        let Some(mut job) = dispatch.poll_claimed() else {
            return 0;
        };
        let before = self.parts.core.stats.handled();
        let tx = self.io.split().1;
        let core = &mut self.parts.core;
        // The endpoint's time may be from before a sleep, and the turn must not act at a time
        // before the reports.
        let now = self.parts.clock.now_ns();
        core.now_ns = now;
        for left in (0..CLAIMED_A_TURN).rev() {
            let id = job.id;
            let (claim, sent) = job.take_claim();
            let (_, mut answer, end) = job.take_parts();
            core.stats.requests += 1;
            core.stats.claimed += 1;
            match sent {
                true => {
                    core.stats.responses += 1;
                    // An error says that the client has the response and has sent its next request,
                    // so it will not ask for this response again.
                    let _ = core
                        .proto
                        .handle_claimed_response(now, &claim, &mut answer.message);
                    answer.message.clear();
                    job.keep_buffer(answer);
                }
                false => {
                    core.proto.handle_claimed_request(now, &claim);
                    let result = result_of(end, &mut core.stats);
                    core.finish_request(tx, id, answer, result);
                }
            }
            dispatch.reuse(job);
            if left == 0 {
                break;
            }
            let Some(next) = dispatch.poll_claimed() else {
                break;
            };
            job = next;
        }
        (core.stats.handled() - before) as usize
    }

    fn run_futures(&mut self) -> usize {
        let now = self.parts.core.now_ns;
        let mut done = self.parts.core.local.wake_sleepers(now);
        if !self.executor.is_ready() {
            return done;
        }
        self.parts.core.local.set_turn(now);
        let tx = self.io.split().1;
        let origin_of = |peer| tx.origin(io_peer(peer));
        let parts = &mut self.parts;
        let was_on = parts.shares.is_on();
        let (polled, panics) = (self.executor).run(&mut parts.shares, &parts.clock, origin_of);
        if parts.shares.is_on() {
            if !was_on {
                parts.apply_sharing();
            }
            let now_ns = parts.clock.now_ns();
            parts.shares.set_current(None, now_ns);
        }
        done += polled;
        self.parts.core.stats.panics += panics;
        self.parts.core.local.arm_sleepers(now);
        let tx = self.io.split().1;
        let core = &mut self.parts.core;
        // Bounded: executing a command polls no future, and only futures add commands.
        while let Some(command) = core.local.poll_command() {
            done += 1;
            core.execute(tx, command);
        }
        done
    }

    /// Runs the continuations of calls that ended without a response.
    fn deliver_finished(&mut self) {
        // A continuation may add calls to the queue. They are left to the next turn.
        for _ in 0..self.parts.core.finished.len() {
            let Some(finished) = self.parts.core.finished.pop_front() else {
                return;
            };
            self.parts.apply_registrations();
            let tx = self.io.split().1;
            self.parts.fail(tx, finished);
        }
    }
}
