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

/// What waits is handled for so long in each turn; also the time after which a burst is a slow one.
pub(crate) const SLICE_NS: u64 = 50_000;
/// Futures are slow that take longer than this on average.
const SLOW_NS: u64 = 2_500;
/// Time is shared until no burst was slow for so long. While it is, a fast request costs some 100 ns more: a slow
/// one now and then is not to have all others pay for it.
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
    /// When a burst was last slow.
    slow_ns: u64,
    /// Until then, work may run out of turn.
    immediate_until_ns: u64,
    /// The peer that uses the time since then.
    current: Option<(ShareId, u64)>,
}

impl Shares {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Handlers are slow.
    #[cold]
    pub(crate) fn record_slow(&mut self, now_ns: u64) {
        self.is_on = true;
        self.slow_ns = now_ns;
    }

    /// So many futures were polled since then.
    #[cold]
    pub(crate) fn record_run(&mut self, polled: usize, now_ns: u64, began_ns: u64) {
        let passed_ns = now_ns.saturating_sub(began_ns);
        if passed_ns >= SLICE_NS && passed_ns >= polled as u64 * SLOW_NS {
            self.record_slow(now_ns);
        }
    }

    /// From now on work may run out of turn, for the time of a slice.
    pub(crate) fn begin_immediate(&mut self, now_ns: u64) {
        self.immediate_until_ns = now_ns + SLICE_NS;
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

    /// The device forgets a peer.
    pub(crate) fn forget(&mut self, peer: PeerId) {
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
            self.queue.clear();
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
        if (self.shares).admits(peer, began_ns, || tx.origin(io_peer(peer))) {
            self.clock.mark(Mark::Taken);
            self.handle_request(tx, id, peer, ext, bytes);
            let now_ns = self.clock.now_ns();
            return self.shares.record_cost(began_ns, now_ns);
        }
        let holding = Holding {
            peer: io_peer(peer),
            bytes: bytes.as_slice().len(),
        };
        if !self.core.pending.admits(holding) {
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
