//! The event loop of one thread.
//!
//! One turn, in order:
//!
//! 1. receive a burst; run the handlers and continuations of what came, in place;
//! 2. take in what other threads left: workers' answers, abandoned replies, device events;
//! 3. end the calls whose deadline has come, wake sleepers;
//! 4. poll the futures that were woken, do what they want;
//! 5. run the continuations of calls that ended without a response;
//! 6. flush the protocol, then the device: everything leaves in as few datagrams as possible.
//!
//! # Time
//!
//! A turn has one time, but to read the clock takes as long as a tenth of a round trip over shared
//! memory, so it is not read between a datagram's arrival and its handler. While nothing arrives
//! the loop reads it, and a turn that finds datagrams takes that reading; only the second of two
//! turns in a row that find some reads it itself. A loop that spins fast reads it in every eighth
//! idle turn, and does nothing in the seven others but ask the device: round-trip times are off by
//! eight such turns at most, about as much as the clock takes.
//!
//! # Long bursts
//!
//! What a burst gives rise to leaves at its end, which is cheapest, unless handlers and
//! continuations take long: then both sides would take turns, one asleep over an empty queue while
//! the other works. So what there is leaves about every [`FLUSH_NS`] of work. The clock for that
//! is read every [`MAX_STRIDE`] frames, more often as far as frames turn out to take longer, and
//! never in a burst of fewer.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use starling_call::Status;
use starling_io::{
    Clock, Ecn, IoError, IoEvent, MAX_BURST, Mark, PacketIo, PacketRx, PacketTx, PeerGone,
    PeerRefusal,
};
use starling_proto::{Body, DeviceRefusal, Event, Frames, Incoming, PeerId, Upcoming};

use crate::client::CallId;
use crate::config::Idle;
use crate::core::Core;
use crate::dispatch::{HANDLER_PANICKED, Tables, late_status};
use crate::endpoint::Endpoint;
use crate::payload::PayloadBytes;
use crate::sink::{Sink, io_peer, proto_peer, proto_source};
use crate::stats::{Stats, Turn};
use crate::workers::{Dispatch, JobEnd};

/// A busy loop looks for device events only every so many turns.
const EVENT_INTERVAL: u64 = 64;

/// A loop whose idle turns take less than this does not do everything in each of them. A system
/// call takes longer: only loops over devices that are asked in memory are so fast.
const FAST_NS: u64 = 200;
/// Idle turns of a fast loop, in a row, that only look for datagrams.
const SKIPS: u32 = 7;
/// What is to be sent may wait for a full device so long after the last news before the endpoint
/// sleeps, unless it spins by choice: a device with room again does not say so.
const FULL_SPIN_NS: u64 = 100_000;
/// How long it sleeps then: no longer than a device needs for 200 kB at 25 Gb/s.
const FULL_SLEEP_NS: u64 = 50_000;

/// What a burst gave rise to is flushed before its end after so much work.
pub(crate) const FLUSH_NS: u64 = 20_000;
/// Reports of workers that one turn takes in, at most.
const CLAIMED_A_TURN: usize = 1024;
/// Frames between two looks at the clock within a burst, at most.
const MAX_STRIDE: u32 = 16;

/// When to flush within a burst.
#[derive(Debug)]
pub(crate) struct Cadence {
    /// Frames between two looks at the clock: 1 to [`MAX_STRIDE`]. Kept from burst to burst.
    stride: u32,
    /// Frames until the next look.
    left: u32,
    /// When the work began that is not flushed.
    since_ns: u64,
}

impl Default for Cadence {
    fn default() -> Self {
        Self {
            stride: MAX_STRIDE,
            left: MAX_STRIDE,
            since_ns: 0,
        }
    }
}

impl Cadence {
    fn begin_burst(&mut self, now_ns: u64) {
        self.left = self.stride;
        self.since_ns = now_ns;
    }

    /// A frame was worked on. True: flush now.
    #[inline]
    fn is_due<C: Clock>(&mut self, clock: &C) -> bool {
        self.left -= 1;
        self.left == 0 && self.look(clock.now_ns())
    }

    #[cold]
    fn look(&mut self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        let due = elapsed_ns >= FLUSH_NS;
        if due {
            self.since_ns = now_ns;
        }
        self.stride = if elapsed_ns >= 2 * FLUSH_NS {
            (self.stride / 2).max(1)
        } else {
            (self.stride + u32::from(!due)).min(MAX_STRIDE)
        };
        self.left = self.stride;
        due
    }
}

/// When the loop does all of a turn, and when it only looks for datagrams.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Idle turns that need not do more, still and as planned.
    skips: u32,
    planned: u32,
    /// The clock was read since the last turn that found datagrams.
    pub(crate) time_is_known: bool,
    /// When an idle turn read the clock last.
    looked_ns: u64,
    /// The loop slept since it read the clock last.
    slept: bool,
}

impl Pace {
    /// An idle turn has read the clock: need the next ones do less? Not if they are slow, nor if
    /// the clock is too coarse to tell.
    fn plan(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.looked_ns);
        let fast_ns = u64::from(self.planned + 1) * FAST_NS;
        self.planned = if (1..fast_ns).contains(&gap_ns) {
            SKIPS
        } else {
            0
        };
        self.skips = self.planned;
        self.looked_ns = now_ns;
        self.time_is_known = true;
    }
}

/// How a job's request is answered.
fn result_of(end: JobEnd, stats: &mut Stats) -> Result<(), Status> {
    match end {
        JobEnd::Answered => Ok(()),
        JobEnd::Failed(status) => Err(status),
        JobEnd::Panicked => {
            stats.panics += 1;
            Err(Status::internal(HANDLER_PANICKED))
        }
        JobEnd::Late(late) => Err(late_status(stats, late)),
        JobEnd::Cancelled => {
            stats.cancelled_in_queue += 1;
            Err(Status::cancelled("cancelled before the handler ran").with_not_run())
        }
    }
}

/// How far the work on a burst is. Kept outside of what a panic unwinds, so that the rest of the
/// burst is worked on after it.
struct Burst<'a, I: PacketIo> {
    rx: &'a I::Rx,
    datagrams: usize,
    /// The first datagram that is not begun.
    next: usize,
    /// What is left of the one before it.
    frames: Option<Frames<'a>>,
}

impl<I: PacketIo> Burst<'_, I> {
    /// Works on what is left. Unless timestamps are `batched`, each datagram has a time of its own.
    fn run<C: Clock>(
        &mut self,
        core: &mut Core<I>,
        tx: &mut I::Tx,
        tables: &mut Tables<I>,
        workers: &mut Option<Box<dyn Dispatch>>,
        (clock, batched): (&C, bool),
        cadence: &mut Cadence,
    ) -> Result<(), IoError> {
        loop {
            if let Some(frames) = &mut self.frames {
                while let Some(upcoming) = core.proto.upcoming(frames) {
                    match upcoming {
                        Upcoming::Requests => {
                            handle_requests(frames, core, tx, tables, workers, clock, cadence)?;
                        }
                        Upcoming::Responses => {
                            handle_responses(frames, core, tx, tables, clock, cadence)?;
                        }
                        Upcoming::Other => {
                            handle_other(frames, core, tx, tables, workers, clock);
                            if cadence.is_due(clock) {
                                tx.flush()?;
                            }
                        }
                    }
                }
            }
            if self.next == self.datagrams {
                return Ok(());
            }
            let datagram = self.rx.datagram(self.next);
            if self.next == 0 {
                core.proto.prefetch(datagram.bytes);
            }
            self.next += 1;
            if self.next < self.datagrams {
                core.proto.prefetch(self.rx.datagram(self.next).bytes);
            }
            if !batched {
                core.now_ns = clock.now_ns();
            }
            let source = proto_source(datagram.source);
            let sink = &mut Sink(&mut *tx);
            let marked = datagram.ecn == Ecn::CongestionExperienced;
            let opened =
                core.proto
                    .handle_datagram(core.now_ns, source, marked, datagram.bytes, sink);
            core.stats.bad_datagrams += u64::from(opened.is_err());
            self.frames = opened.ok();
        }
    }
}

/// Handles requests that came in one packet each, as many as follow one another.
#[inline(always)]
fn handle_requests<I: PacketIo, C: Clock>(
    frames: &mut Frames<'_>,
    core: &mut Core<I>,
    tx: &mut I::Tx,
    tables: &mut Tables<I>,
    workers: &mut Option<Box<dyn Dispatch>>,
    clock: &C,
    cadence: &mut Cadence,
) -> Result<(), IoError> {
    while let Some((peer, frame)) = core.proto.poll_request(frames) {
        let (now, sink) = (core.now_ns, &mut Sink(&mut *tx));
        if let Some(id) = core.proto.handle_request(now, peer, frame, sink) {
            clock.mark(Mark::Taken);
            let bytes = PayloadBytes::InPlace(frame.payload());
            tables.serve(core, tx, workers, clock, id, peer, frame.ext(), bytes);
        }
        if cadence.is_due(clock) {
            tx.flush()?;
        }
    }
    Ok(())
}

/// The same for responses.
#[inline(always)]
fn handle_responses<I: PacketIo, C: Clock>(
    frames: &mut Frames<'_>,
    core: &mut Core<I>,
    tx: &mut I::Tx,
    tables: &mut Tables<I>,
    clock: &C,
    cadence: &mut Cadence,
) -> Result<(), IoError> {
    while let Some((peer, frame)) = core.proto.poll_response(frames) {
        let (now, sink) = (core.now_ns, &mut Sink(&mut *tx));
        if let Some(tag) = core.proto.handle_response(now, peer, frame, sink) {
            clock.mark(Mark::Taken);
            let id = CallId {
                session: frame.session(),
                number: frame.number(),
            };
            let bytes = PayloadBytes::InPlace(frame.payload());
            tables.respond(core, tx, tag, id, frame.ext(), bytes);
        }
        if cadence.is_due(clock) {
            tx.flush()?;
        }
    }
    Ok(())
}

/// Acts on a frame that is no message of one packet.
#[cold]
fn handle_other<I: PacketIo, C: Clock>(
    frames: &mut Frames<'_>,
    core: &mut Core<I>,
    tx: &mut I::Tx,
    tables: &mut Tables<I>,
    workers: &mut Option<Box<dyn Dispatch>>,
    clock: &C,
) {
    let (now, sink) = (core.now_ns, &mut Sink(&mut *tx));
    let Some(incoming) = core.proto.handle_other(now, frames, sink) else {
        return;
    };
    let body = match incoming {
        Incoming::Request {
            id,
            peer,
            ext,
            mut body,
        } => {
            let bytes = PayloadBytes::of(&mut body);
            tables.serve(core, tx, workers, clock, id, peer, ext, bytes);
            body
        }
        Incoming::Response {
            session,
            number,
            tag,
            ext,
            mut body,
        } => {
            let id = CallId { session, number };
            tables.respond(core, tx, tag, id, ext, PayloadBytes::of(&mut body));
            body
        }
        Incoming::Cancelled { id } => {
            if let Some(workers) = workers {
                workers.give_up(id);
            }
            return core.handle_cancelled(id);
        }
    };
    if let Body::Owned(message) = body {
        core.proto.recycle(message);
    }
}

/// A device's word in the session protocol's.
fn refusal(why: PeerRefusal) -> DeviceRefusal {
    match why {
        PeerRefusal::Full => DeviceRefusal::Full,
        PeerRefusal::NotPermitted => DeviceRefusal::NotPermitted,
        PeerRefusal::OtherVersion => DeviceRefusal::OtherVersion,
        PeerRefusal::Unacceptable => DeviceRefusal::Unacceptable,
        PeerRefusal::Nonsense => DeviceRefusal::Nonsense,
    }
}

impl<I: PacketIo, C: Clock> Endpoint<I, C> {
    /// One turn. Never blocks. An error is the device's and final.
    ///
    /// # Panics
    /// With what a continuation panicked with, at the end of the turn; the endpoint stays usable.
    #[inline]
    pub fn poll(&mut self) -> Result<Turn, IoError> {
        self.core.stats.turns += 1;
        if self.between_turns {
            // What the owner asked for does not wait for what has arrived.
            self.clock.mark(Mark::Sending);
            self.io.split().1.flush()?;
            self.clock.mark(Mark::Sent);
        }
        self.clock.mark(Mark::Receiving);
        let datagrams = self.io.split().0.rx_burst()?;
        if datagrams > 0 {
            self.clock.mark(Mark::Received);
        }
        if datagrams == 0 && self.pace.skips > 0 && !self.between_turns && !self.has_work() {
            self.pace.skips -= 1;
            return Ok(Turn::default());
        }
        self.turn(datagrams)
    }

    /// A turn that does more than to look for datagrams.
    fn turn(&mut self, datagrams: usize) -> Result<Turn, IoError> {
        let Stats {
            turns,
            requests,
            responses,
            completions,
            ..
        } = self.core.stats;
        self.apply_registrations();
        if let Some(dispatch) = &self.dispatch {
            dispatch.prefetch();
            self.take_claimed();
        }
        let mut events = 0;
        if datagrams > 0 {
            if !std::mem::take(&mut self.pace.time_is_known) {
                self.read_clock();
            }
            self.catch_up();
            self.handle_burst(datagrams)?;
        } else {
            if !self.between_turns {
                self.read_clock();
                self.pace.plan(self.core.now_ns);
                events += self.take_device_events();
                self.tend_workers();
            }
            self.core.admission.queue_is_empty(self.core.now_ns);
        }
        if turns.is_multiple_of(EVENT_INTERVAL) {
            events += self.take_device_events();
            self.tend_workers();
        }
        if self.core.has_side_work() || self.executor.is_ready() {
            events += self.do_side_work();
        }
        let tx = self.io.split().1;
        self.core.proto.flush(self.core.now_ns, &mut Sink(&mut *tx));
        self.clock.mark(Mark::Sending);
        tx.flush()?;
        self.clock.mark(Mark::Sent);
        while let Some(peer) = self.released.pop() {
            self.close_unused_peer(peer);
        }

        self.between_turns = false;
        let after = &self.core.stats;
        let turn = Turn {
            datagrams,
            requests: after.requests - requests,
            responses: after.responses - responses,
            completions: after.completions - completions,
            events,
        };
        if !turn.is_idle() {
            self.active_ns = self.core.now_ns;
        }
        if let Some(panic) = self.core.panic.take() {
            resume_unwind(panic);
        }
        Ok(turn)
    }

    /// Finds out what time it is.
    #[inline]
    pub(crate) fn read_clock(&mut self) {
        self.core.now_ns = self.clock.now_ns();
        if std::mem::take(&mut self.pace.slept) {
            // Whatever came ended the sleep, so it came just now.
            self.core.admission.queue_is_empty(self.core.now_ns);
        }
    }

    /// What a turn does besides handling datagrams. Returns how much that was.
    #[inline(never)]
    fn do_side_work(&mut self) -> usize {
        self.take_workers_answers();
        let tx = self.io.split().1;
        if !self.core.abandoned.is_empty() {
            self.core.answer_abandoned(tx);
        }
        self.core.expire(tx);
        let mut events = 0;
        while let Some(event) = self.core.proto.poll_event() {
            events += 1;
            if let (Event::RequestAbandoned { id }, Some(dispatch)) = (&event, &self.dispatch) {
                dispatch.give_up(*id);
            }
            self.released.extend(self.core.handle_event(event));
        }
        events += self.run_futures();
        self.deliver_finished();
        events
    }

    /// Waits for work in the way that [`Idle`] says: at most until the next timeout or deadline,
    /// and at most `limit`. May return early.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        if self.between_turns || self.has_work() {
            return Ok(());
        }
        let spin = match self.idle {
            Idle::Spin => true,
            Idle::Adaptive { spin } => {
                u128::from(self.core.now_ns - self.active_ns) < spin.as_nanos()
            }
            Idle::Block => false,
        };
        if spin {
            return Ok(());
        }
        // The next turn is a whole one, in the time after the sleep.
        self.pace = Pace::default();
        // It looks for room in a full device at once, and now and then when there is none for long.
        let room_ns = self.core.proto.has_unsent().then(|| {
            let busy = self.core.now_ns - self.active_ns < FULL_SPIN_NS;
            self.core.now_ns + if busy { 0 } else { FULL_SLEEP_NS }
        });
        let next_ns = [
            room_ns,
            self.core.proto.poll_timer(),
            self.core.next_deadline(),
            self.core.local.next_sleep(),
        ]
        .into_iter()
        .flatten()
        .min();
        // Read again: the turn may have taken long, and who sleeps is in no hurry.
        let now_ns = self.clock.now_ns();
        let until = next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let timeout = match (until, limit) {
            (Some(until), Some(limit)) => Some(until.min(limit)),
            (until, limit) => until.or(limit),
        };
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(());
        }
        let slept = if self.executor.may_sleep() {
            self.io.wait(timeout)
        } else {
            Ok(())
        };
        self.executor.awake();
        self.pace.slept = true;
        slept
    }

    /// One turn, and a wait if it did nothing.
    pub fn run_once(&mut self) -> Result<Turn, IoError> {
        let turn = self.poll()?;
        if turn.is_idle() {
            self.wait(None)?;
        }
        Ok(turn)
    }

    /// Turns until `done` says so; it is asked after each turn.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), IoError> {
        loop {
            let turn = self.poll()?;
            if done(self) {
                return Ok(());
            }
            if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }

    /// Runs the endpoint until `future` is ready. The future may use [`Endpoint::local`].
    pub fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, IoError> {
        let mut future = pin!(future);
        let waker = self.executor.main();
        let mut cx = TaskContext::from_waker(&waker);
        waker.wake_by_ref();
        loop {
            let turn = self.poll()?;
            if self.executor.take_main_woken() {
                self.refresh();
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return Ok(output);
                }
            } else if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }

    /// Whether a turn would do something although nothing arrives.
    pub(crate) fn has_work(&self) -> bool {
        self.executor.is_ready()
            // A flush may end sessions and calls after the turn has looked for such news.
            || self.core.proto.has_event()
            || !self.core.finished.is_empty()
            || !self.core.abandoned.is_empty()
    }

    fn apply_registrations(&mut self) {
        self.tables.apply(&mut self.core.registrations);
    }

    /// Gives up a peer's place on the device, unless a session came to use it.
    pub(crate) fn close_unused_peer(&mut self, peer: PeerId) {
        if !self.core.proto.refers_to(peer) {
            self.io.close_peer(io_peer(peer));
        }
    }

    /// Runs the handlers and continuations of what came in a burst.
    fn handle_burst(&mut self, datagrams: usize) -> Result<(), IoError> {
        let Self {
            io,
            core,
            tables,
            dispatch,
            clock,
            batched_timestamps,
            cadence,
            ..
        } = self;
        let (rx, tx) = io.split();
        cadence.begin_burst(core.now_ns);
        core.stats.datagrams += datagrams as u64;
        let mut burst = Burst {
            rx,
            datagrams,
            next: 0,
            frames: None,
        };
        // One guard for the whole burst: a guard for each handler would cost as much as a handler.
        loop {
            let time = (&*clock, *batched_timestamps);
            match catch_unwind(AssertUnwindSafe(|| {
                burst.run(core, tx, tables, dispatch, time, cadence)
            })) {
                Ok(result) => return result,
                Err(panic) => tables.recover(core, tx, panic),
            }
        }
    }

    pub(crate) fn take_device_events(&mut self) -> usize {
        let mut events = 0;
        while events < MAX_BURST {
            let Some(IoEvent::PeerGone(peer, how)) = self.io.poll_event() else {
                break;
            };
            events += 1;
            let now = self.core.now_ns;
            let id = proto_peer(peer);
            let proto = &mut self.core.proto;
            if how != PeerGone::Suspected && !proto.refers_to(id) {
                // It never had a session, so the protocol has nothing to say of it. Given up at
                // the end of the turn, like those that the protocol releases.
                self.released.push(id);
            }
            let sink = &mut Sink(self.io.split().1);
            match how {
                PeerGone::Certain => proto.handle_peer_gone(now, id, true, sink),
                PeerGone::Suspected => proto.handle_peer_gone(now, id, false, sink),
                PeerGone::Refused(why) => proto.handle_peer_refused(id, refusal(why)),
            }
        }
        events
    }

    fn tend_workers(&mut self) {
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.tend(self.core.now_ns);
        }
    }

    fn take_workers_answers(&mut self) {
        let Some(dispatch) = &mut self.dispatch else {
            return;
        };
        if dispatch.in_flight() == 0 {
            return;
        }
        let tx = self.io.split().1;
        let core = &mut self.core;
        while let Some(mut job) = dispatch.poll() {
            self.tables.note_job(&job, core.now_ns);
            let id = job.id;
            let (request, answer, end) = job.take_parts();
            // As many as were in flight at once, which has a bound.
            core.spare_jobs.push(job);
            core.proto.recycle(request);
            let result = result_of(end, &mut core.stats);
            core.settle(tx, id, answer, result);
        }
    }

    /// Takes in what workers did that claimed requests by themselves.
    fn take_claimed(&mut self) {
        let Some(dispatch) = &mut self.dispatch else {
            return;
        };
        let Some(mut job) = dispatch.poll_claimed() else {
            return;
        };
        let tx = self.io.split().1;
        let core = &mut self.core;
        // The endpoint's time may be that of before a sleep. Whatever the turn does from here on is
        // no earlier than the reports.
        let now = self.clock.now_ns();
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
                    // If the client has it, and is on to the next request, nobody will ask for it again.
                    let _ = core
                        .proto
                        .handle_claimed_response(now, &claim, &mut answer.message);
                    answer.message.clear();
                    job.keep_buffer(answer);
                }
                false => {
                    core.proto.handle_claimed_request(now, &claim);
                    let result = result_of(end, &mut core.stats);
                    core.settle(tx, id, answer, result);
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
    }

    fn run_futures(&mut self) -> usize {
        let now = self.core.now_ns;
        let mut done = self.core.local.wake_sleepers(now);
        if !self.executor.is_ready() {
            return done;
        }
        let (polled, panics) = self.executor.run();
        done += polled;
        self.core.stats.panics += panics;
        self.core.local.arm_sleepers(now);
        let tx = self.io.split().1;
        let core = &mut self.core;
        // Bounded: nothing below polls a future, so nothing adds commands.
        while let Some(command) = core.local.take_command() {
            done += 1;
            core.obey(tx, command);
        }
        done
    }

    /// Runs the continuations of calls that ended without a response.
    fn deliver_finished(&mut self) {
        // A continuation may add to the queue: that is for the next turn.
        for _ in 0..self.core.finished.len() {
            let Some(finished) = self.core.finished.pop_front() else {
                return;
            };
            self.apply_registrations();
            let tx = self.io.split().1;
            self.tables.fail(&mut self.core, tx, finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fast_loop_with_a_fine_clock_skips() {
        let mut pace = Pace::default();
        let mut now_ns = 1_000_000;
        let mut skips_after = |gap_ns| {
            now_ns += gap_ns;
            pace.plan(now_ns);
            pace.skips
        };
        assert_eq!(skips_after(0), 0, "whatever was before");
        assert_eq!(skips_after(FAST_NS), 0);
        assert_eq!(skips_after(FAST_NS - 1), SKIPS);
        assert_eq!(skips_after(u64::from(SKIPS + 1) * FAST_NS - 1), SKIPS);
        assert_eq!(skips_after(u64::from(SKIPS + 1) * FAST_NS), 0);
        assert_eq!(skips_after(1), SKIPS);
        assert_eq!(skips_after(0), 0, "a clock that stands still");
    }
}
