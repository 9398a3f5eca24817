//! Whose requests run while handlers are slow.
//!
//! ```text
//!                        no, or fast handlers
//!  request ─▶ slow? ────────────────────────────────▶ handler
//!               │ yes      little used                   ▲
//!               └────▶ FairQueue::admits ────────────────┤
//!                          │ its peer has used more      │ for SLICE_NS in each turn
//!                          └────▶ FairQueue ─────────────┘
//! ```
//! Likewise the futures that serve requests, when they are woken.
//!
//! A burst has up to thousands of requests, and with slow handlers one peer's requests would keep all others
//! waiting for so many runs. So a peer that has used its share has its requests wait here, and the event loop
//! looks for datagrams of others after each slice. Handlers are not interrupted: one that runs for 10 ms holds
//! up everybody for 10 ms.

mod slow_time;

use std::sync::Arc;

use starling_io::{Clock, Mark, Origin, PacketIo, PacketTx};
use starling_proto::{Msgbuf, PeerId, RequestId};

use crate::convert::io_peer;
use crate::executor::TaskWaker;
use crate::fair_queue::{FairQueue, ShareId};
use crate::parts::Parts;
use crate::payload::PayloadBytes;
use crate::refusal::Refusal;
use crate::room::Holding;

use slow_time::SlowTime;

/// What waits is handled for so long in each turn; also the time after which a burst is a slow one.
pub(crate) const SLICE_NS: u64 = 50_000;
/// Handlers and futures are slow that take longer than this on average.
pub(crate) const SLOW_NS: u64 = 2_500;
/// Time is shared until slow work has not taken much of the time for so long. While it is, a fast request costs some
/// 100 ns more: a slow one now and then is not to have all others pay for it.
const SHARED_FOR_NS: u64 = 20_000_000;

/// A request whose handler waits for its peer's turn.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    id: RequestId,
    peer: PeerId,
    ext: bool,
    message: Msgbuf,
    holding: Holding,
}

/// What waits for its peer's turn.
pub(crate) enum Work {
    Request(QueuedRequest),
    /// A future that serves a request, and was woken.
    Task(Arc<TaskWaker>),
}

/// Whose turn it is.
#[derive(Default)]
pub(crate) struct Shares {
    queue: FairQueue<Work>,
    /// Whether time is shared: handlers are slow.
    is_on: bool,
    /// When slow work last took much of the time.
    slow_ns: u64,
    slow_time: SlowTime,
    /// Until then, work may run out of turn.
    immediate_until_ns: u64,
    /// A request has run out of turn since then for lack of room to wait.
    ran_without_room: bool,
    /// The peer that uses the time since then.
    current: Option<(ShareId, u64)>,
    /// How often the device has forgotten each peer's number.
    epochs: Vec<u32>,
}

impl Shares {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Work has lasted so long until now. Returns for how much of it the kernel had stopped the thread, while it
    /// could run, as far as it was not asked before.
    pub(crate) fn away_ns(&mut self, clock: &impl Clock, now_ns: u64, lasted_ns: u64) -> u64 {
        (self.slow_time).away_ns(clock, now_ns, lasted_ns, self.is_on)
    }

    /// The work that began then is slow. Returns whether time is shared from now on.
    #[cold]
    pub(crate) fn record_slow(&mut self, began_ns: u64, now_ns: u64) -> bool {
        if !self.slow_time.add(began_ns, now_ns) {
            return false;
        }
        self.slow_ns = now_ns;
        !std::mem::replace(&mut self.is_on, true)
    }

    /// So many requests were handled, or futures polled, since then. Returns whether time is shared from now on.
    #[cold]
    pub(crate) fn record_run(
        &mut self,
        runs: usize,
        clock: &impl Clock,
        now_ns: u64,
        began_ns: u64,
    ) -> bool {
        let lasted_ns = now_ns.saturating_sub(began_ns);
        let slow_ns = SLICE_NS.max(runs as u64 * SLOW_NS);
        lasted_ns >= slow_ns
            && lasted_ns.saturating_sub(self.away_ns(clock, now_ns, lasted_ns)) >= slow_ns
            && self.record_slow(began_ns, now_ns)
    }

    /// From now on work may run out of turn, for the time of a slice.
    pub(crate) fn begin_immediate(&mut self, now_ns: u64) {
        self.immediate_until_ns = now_ns + SLICE_NS;
        self.ran_without_room = false;
    }

    /// Whether a request runs out of turn that may not wait, for its peer has all that it may have waiting: one in
    /// a burst, if nobody waits. A client is not to be refused for that, and holds up others no longer than one
    /// request does anyway.
    fn admits_without_room(&mut self) -> bool {
        self.queue.is_empty() && !std::mem::replace(&mut self.ran_without_room, true)
    }

    /// From now on this peer uses the time, if it has had some.
    pub(crate) fn set_current(&mut self, peer: Option<PeerId>, now_ns: u64) {
        let share = peer.and_then(|peer| self.queue.find(peer));
        self.set_current_share(share, now_ns);
    }

    fn set_current_share(&mut self, share: Option<ShareId>, now_ns: u64) {
        let before = std::mem::replace(&mut self.current, share.map(|share| (share, now_ns)));
        if let Some((before, since_ns)) = before {
            self.queue.charge(before, now_ns.saturating_sub(since_ns));
        }
    }

    /// Whether work of this peer runs now, which uses the time from now on. Otherwise it is for
    /// [`Shares::push`].
    pub(crate) fn admits(
        &mut self,
        peer: PeerId,
        now_ns: u64,
        origin: impl FnOnce() -> Origin,
    ) -> bool {
        let share = self.queue.share(peer, origin);
        self.set_current_share(Some(share), now_ns);
        now_ns < self.immediate_until_ns && self.queue.admits(share)
    }

    pub(crate) fn push(&mut self, peer: PeerId, origin: impl FnOnce() -> Origin, work: Work) {
        self.queue.push(peer, origin, work);
    }

    /// Removes the work whose turn it is. Its peer uses the time from now on.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<Work> {
        // What the last one has used counts.
        self.set_current_share(None, now_ns);
        let (share, work) = self.queue.pop()?;
        self.set_current_share(Some(share), now_ns);
        Some(work)
    }

    /// The work of whoever uses the time has ended, that began then.
    pub(crate) fn record_cost(&mut self, began_ns: u64, now_ns: u64) {
        if let Some((share, _)) = self.current {
            self.queue
                .record_cost(share, now_ns.saturating_sub(began_ns));
        }
    }

    /// Changes when the device forgets a peer, and may use its number for another one.
    pub(crate) fn epoch(&self, peer: PeerId) -> u32 {
        self.epochs
            .get(peer.0 as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The device forgets a peer.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        let index = peer.0 as usize;
        if index >= self.epochs.len() {
            self.epochs.resize(index + 1, 0);
        }
        self.epochs[index] = self.epochs[index].wrapping_add(1);
        self.queue.forget(peer);
    }

    /// The end of a turn's slice.
    pub(crate) fn end_slice(&mut self, now_ns: u64) {
        self.set_current(None, now_ns);
        if !self.queue.is_empty() {
            return;
        }
        self.queue.forget_debts();
        if now_ns.saturating_sub(self.slow_ns) >= SHARED_FOR_NS {
            self.is_on = false;
            self.current = None;
            self.queue.end();
        }
    }
}

impl<I: PacketIo, C: Clock> Parts<I, C> {
    /// Time is shared from now on, or no longer: requests take the slow path meanwhile, which looks at their
    /// turns.
    #[cold]
    pub(crate) fn apply_sharing(&mut self) {
        let is_on = self.shares.is_on();
        self.times_datagrams = is_on || !self.batched_timestamps;
        self.core.proto.set_fast_path(!is_on);
        if is_on {
            self.core.begin_shared_turns();
        }
    }

    /// Handles a request that arrived while time is shared, or has it wait.
    #[cold]
    pub(crate) fn handle_in_turn(
        &mut self,
        tx: &mut I::Tx,
        id: RequestId,
        peer: PeerId,
        ext: bool,
        bytes: PayloadBytes<'_>,
    ) {
        let began_ns = self.clock.now_ns();
        let holding = Holding::new(io_peer(peer), bytes.as_slice().len());
        let is_admitted = (self.shares).admits(peer, began_ns, || tx.origin(io_peer(peer)));
        let has_room = is_admitted || self.core.pending.admits(holding);
        if is_admitted || !has_room && self.shares.admits_without_room() {
            self.clock.mark(Mark::Taken);
            self.handle_request(tx, id, peer, ext, bytes);
            let now_ns = self.clock.now_ns();
            return self.shares.record_cost(began_ns, now_ns);
        }
        if !has_room {
            self.core.stats.requests += 1;
            self.tables.reply.id = id;
            return self.refuse(tx, Refusal::WaitingFull);
        }
        let message = bytes.into_message(|| self.core.proto.buffer());
        self.core.pending.hold(holding);
        self.core.stats.waited_for_share += 1;
        let request = Work::Request(QueuedRequest {
            id,
            peer,
            ext,
            message,
            holding,
        });
        (self.shares).push(peer, || tx.origin(io_peer(peer)), request);
    }

    /// Handles a request whose peer's turn has come.
    pub(crate) fn handle_queued(&mut self, tx: &mut I::Tx, request: QueuedRequest) {
        let QueuedRequest {
            id,
            peer,
            ext,
            mut message,
            holding,
        } = request;
        self.core.pending.release(holding);
        if self.core.proto.is_wanted(id) {
            let bytes = PayloadBytes::Reassembled(&mut message);
            self.clock.mark(Mark::Taken);
            self.handle_request(tx, id, peer, ext, bytes);
        } else {
            self.core.stats.cancelled_in_queue += 1;
        }
        self.core.proto.recycle(message);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use starling_io::ThreadWait;

    use super::*;

    const US: u64 = 1_000;

    /// A thread that runs, and is stopped, as a test says.
    #[derive(Default)]
    struct Thread {
        number: Cell<u32>,
        now_ns: Cell<u64>,
        waited_ns: Cell<u64>,
    }

    impl Thread {
        fn run(&self, ns: u64) {
            self.now_ns.set(self.now_ns.get() + ns);
        }

        fn be_stopped(&self, ns: u64) {
            self.run(ns);
            self.waited_ns.set(self.waited_ns.get() + ns);
        }

        /// Runs handlers, and perhaps does something else meanwhile. Returns whether time is shared then.
        fn handle(
            &self,
            shares: &mut Shares,
            runs: usize,
            each_ns: u64,
            also: impl FnOnce(&Self),
        ) -> bool {
            let began_ns = self.now_ns();
            self.run(runs as u64 * each_ns);
            also(self);
            shares.record_run(runs, self, self.now_ns(), began_ns);
            shares.is_on()
        }
    }

    impl Clock for Thread {
        fn now_ns(&self) -> u64 {
            self.now_ns.get()
        }

        fn thread_wait(&self) -> Option<ThreadWait> {
            Some(ThreadWait {
                thread: self.number.get(),
                waited_ns: self.waited_ns.get(),
            })
        }
    }

    fn stopped(thread: &Thread) {
        thread.be_stopped(4000 * US);
    }

    #[test]
    fn a_thread_that_is_stopped_does_not_share_time_for_that() {
        let (thread, mut shares) = (Thread::default(), Shares::default());
        shares.away_ns(&thread, 0, 0);
        for _ in 0..100 {
            thread.run(1000 * US);
            assert!(!thread.handle(&mut shares, 64, US, stopped));
            assert!(!thread.handle(&mut shares, 64, US, |_| {}));
        }
    }

    #[test]
    fn slow_handlers_share_time_however_often_the_thread_sleeps_or_is_stopped() {
        let once = |each_ns, also: fn(&Thread)| {
            let (thread, mut shares) = (Thread::default(), Shares::default());
            shares.away_ns(&thread, 0, 0);
            thread.run(16_000 * US);
            thread.be_stopped(10 * US);
            thread.handle(&mut shares, 8, each_ns, also)
        };
        assert!(once(500 * US, |_| {}));
        assert!(once(500 * US, stopped));
        assert!(once(10_000 * US, stopped));
        // They wait for something else than a processor.
        assert!(once(US, |thread| thread.run(4000 * US)));
        assert!(!once(US, stopped));
    }

    #[test]
    fn what_takes_little_of_the_time_shares_none() {
        let (thread, mut shares) = (Thread::default(), Shares::default());
        for tick in 0..10_000 {
            thread.run(3900 * US);
            // Interrupts take long, and now and then the processor is away, and the kernel does not tell.
            assert!(!thread.handle(&mut shares, 16, US, |thread| thread.run(60 * US)));
            let away = if tick % 16 == 0 { 1_000 * US } else { 0 };
            assert!(!thread.handle(&mut shares, 16, US, |thread| thread.run(away)));
        }
        // Nor do slow requests that come as seldom.
        for _ in 0..1_000 {
            thread.run(1900 * US);
            assert!(!thread.handle(&mut shares, 1, 100 * US, |_| {}));
        }
    }

    #[test]
    fn slow_requests_share_time_however_few_they_are_among_fast_ones() {
        for each_ns in [100 * US, 1000 * US, 10_000 * US] {
            let (thread, mut shares) = (Thread::default(), Shares::default());
            let shared = (0..10).position(|_| {
                for _ in 0..100 {
                    thread.handle(&mut shares, 1, US, |_| {});
                }
                thread.handle(&mut shares, 1, each_ns, |_| {})
            });
            assert!(shared.is_some_and(|after| after < 3), "{shared:?}");
        }
    }

    #[test]
    fn a_client_that_pauses_between_slow_bursts_does_not_escape() {
        let (thread, mut shares) = (Thread::default(), Shares::default());
        let shared = (0..10).position(|_| {
            thread.run(850 * US);
            thread.handle(&mut shares, 15, 125 * US, |_| {})
        });
        assert!(shared.is_some_and(|after| after < 4), "{shared:?}");
    }

    #[test]
    fn a_turn_counts_what_its_strides_have_not_counted() {
        let turn = |rest_ns| {
            let (thread, mut shares) = (Thread::default(), Shares::default());
            let began_ns = thread.now_ns();
            thread.run(90 * US);
            assert!(!shares.record_slow(began_ns, thread.now_ns()));
            thread.run(rest_ns);
            shares.record_run(8, &thread, thread.now_ns(), began_ns);
            // One piece more is too much if the last one was large.
            let began_ns = thread.now_ns();
            thread.run(80 * US);
            shares.record_slow(began_ns, thread.now_ns())
        };
        assert!(!turn(10 * US));
        assert!(turn(80 * US));
    }

    #[test]
    fn what_a_stride_has_excused_is_excused_for_its_turn() {
        let turn = |excused| {
            let (thread, mut shares) = (Thread::default(), Shares::default());
            shares.away_ns(&thread, 0, 0);
            let began_ns = thread.now_ns();
            thread.be_stopped(4000 * US);
            if excused {
                let now_ns = thread.now_ns();
                assert_eq!(shares.away_ns(&thread, now_ns, now_ns), 4000 * US);
            } else {
                shares.slow_time = SlowTime::default();
            }
            thread.run(10 * US);
            shares.record_run(8, &thread, thread.now_ns(), began_ns)
        };
        assert!(!turn(true));
        assert!(turn(false), "the kernel was not asked before");
    }

    #[test]
    fn what_another_thread_has_waited_is_no_excuse() {
        let (thread, mut shares) = (Thread::default(), Shares::default());
        shares.away_ns(&thread, 0, 0);
        thread.number.set(1);
        assert!(thread.handle(&mut shares, 16, US, stopped));
    }

    #[test]
    fn one_request_of_a_burst_runs_that_may_not_wait_if_nobody_waits() {
        let mut shares = Shares::default();
        for _ in 0..2 {
            shares.begin_immediate(0);
            assert!(shares.admits_without_room());
            assert!(!shares.admits_without_room());
        }
        shares.begin_immediate(0);
        let work = Work::Request(QueuedRequest {
            id: RequestId::NONE,
            peer: PeerId(0),
            ext: false,
            message: Msgbuf::default(),
            holding: Holding::new(io_peer(PeerId(0)), 0),
        });
        shares.push(PeerId(0), || Origin(0), work);
        assert!(!shares.admits_without_room(), "others wait");
    }

    #[test]
    fn a_number_that_is_used_again_has_another_epoch() {
        let mut shares = Shares::default();
        let before = shares.epoch(PeerId(3));
        shares.forget(PeerId(3));
        assert_ne!(shares.epoch(PeerId(3)), before);
        assert_eq!(shares.epoch(PeerId(2)), before);
    }
}
