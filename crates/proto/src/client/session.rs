//! A client session: slots, the queue behind them, credits, and what is sent when.
//!
//! ```text
//!  request ──▶ queue ──▶ slot ──▶ pending ──▶ outstanding ──▶ complete
//!              (all       (has a   (no credit,   (timer runs)
//!              slots       place)   paced, or
//!              busy)                sink full)
//! ```
//! An uncongested session with credits skips `pending`: its frame goes to the sink at once.

use std::collections::VecDeque;

use super::PACER_TICK_NS;
use super::slot::{Large, Phase, Slot};
use starling_msgbuf::Msgbuf;

use crate::congestion::{Ack, Controller};
use crate::rtt::Rtt;
use crate::slots::Slots;
use crate::table::{Place, SessionHandle};
use crate::transfer::{SendWindow, fragment_count};
use crate::wire::{
    Accept, FRAGMENT_BYTES, HEADER_BYTES, HeaderStart, Kind, PREAMBLE_BYTES, Token, flags,
};
use crate::{Config, FrameSink, PeerId, Prefix, RequestNumber, SessionId, SinkError, Stats, Tag};

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Connect sent, requests queue.
    Connecting,
    /// Requests flow.
    Open,
    /// Close sent, waiting for the server's confirmation.
    Closing,
}

#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) number: RequestNumber,
    pub(crate) tag: Tag,
    pub(crate) message: Msgbuf,
    pub(crate) prefix: Prefix,
    pub(crate) queued_at: u64,
    /// The caller's message, which it gets back if there is no response.
    pub(crate) is_lent: bool,
}

/// A small request and its response in the first slot need only the first three cache lines, and
/// read only the first two of them before they write:
///
/// ```text
///  0                       64         80              128                     192       384
/// ┌───────────────────────┬──────────┬───────────────┬───────────────────────┬─────────┐
/// │ peer, limits, RTT     │ the rate │ slot 0: state │ slot 0: small request │ the rest│
/// └───────────────────────┴──────────┴───────────────┴───────────────────────┴─────────┘
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientSession {
    pub(crate) id: SessionId,
    pub(crate) peer: PeerId,
    /// How the headers of requests begin: with the server's number of this session, and with
    /// [`flags::WANT`] while more is pending than the credits allow.
    pub(crate) start: HeaderStart,
    pub(crate) preamble: [u8; PREAMBLE_BYTES],
    /// Slots without a request.
    pub(crate) free: u64,
    pub(crate) next_number: RequestNumber,
    pub(crate) credits: u16,
    /// Credits in use, all slots together.
    pub(crate) in_flight: u16,
    /// The largest request that is sent without a check of the other limits.
    pub(crate) single: u16,
    pub(crate) state: State,
    /// Nothing stands between a request of one packet and the sink but credits: the session is
    /// open and not paced, nothing is pending or queued, the sink has room. Never set of members:
    /// the requests that may wait for their slots are in another session's queue.
    pub(crate) ready: bool,
    /// Requests wait until the peer answers: it may have dropped the session.
    pub(crate) suspected: bool,
    /// The server shuts down: it takes no new requests.
    pub(crate) draining: bool,
    pub(crate) timer_armed: bool,
    /// How many slots there are.
    pub(crate) slot_count: u8,
    pub(crate) rtt: Rtt,
    /// The turn of the last RTT sample: the lower half of its time.
    pub(crate) sampled_at: u32,
    pub(crate) control: Controller,
    pub(crate) slots: Slots<Slot>,
    /// See [`SessionHandle`].
    pub(crate) round: u32,
    /// The session that this one is a member of, in its group. `NONE` if it is no member.
    pub(crate) first: SessionId,
    /// A member: it is among those that may have a free slot.
    pub(crate) offered: bool,
    /// There may be members.
    pub(crate) has_members: bool,
    /// Its queue is looked at soon, because requests wait.
    pub(crate) watched: bool,
    pub(crate) in_pacer: bool,
    pub(crate) blocked: bool,
    pub(crate) retries: u8,
    /// The slot at which the next search for a pending slot starts, so that none starves.
    pub(crate) turn: u8,
    /// How often the timeout was doubled since the last RTT sample, and when it was doubled last.
    /// Doubling sets `sampled_at`, too; a later value there means that a sample came since.
    pub(super) backoff: u8,
    pub(super) backed_off_at: u64,
    /// Fragments that may be outstanding, all slots together.
    pub(crate) window: u16,
    pub(crate) fragments_in_flight: u16,
    /// Fragments of responses that this side's receive queue can take at once.
    pub(crate) receive_window: u16,
    /// The most credits that the session can use: with so many it asks for no more.
    pub(crate) most_credits: u16,
    pub(crate) max_message: u32,
    /// The number of the last credit frame that was accepted.
    pub(crate) credit_number: u64,
    /// Data bytes of a full fragment; also the largest message of one packet.
    pub(crate) fragment: u32,
    /// Slots with something to send now.
    pub(crate) pending: u64,
    /// Slots in phase `Sending`.
    pub(crate) sending: u64,
    /// Slots whose requests for response wait for their pacing time.
    pub(crate) paced_rfrs: u64,
    pub(crate) queue: VecDeque<Queued>,
    /// Connecting or closing: when that began, and when the connect or close was last sent.
    pub(crate) began_at: u64,
    pub(crate) control_sent_at: u64,
    pub(crate) cookie: (u64, u64),
    /// When the accept came.
    pub(crate) opened_at: u64,
}

const _: () = assert!(size_of::<ClientSession>() <= 384);

impl Place for ClientSession {
    fn vacant() -> Self {
        Self {
            id: SessionId::NONE,
            peer: PeerId(u32::MAX),
            start: HeaderStart::new(Kind::Request, 0, 0),
            preamble: [0; PREAMBLE_BYTES],
            free: 0,
            next_number: 1,
            credits: 0,
            in_flight: 0,
            single: 0,
            state: State::Connecting,
            ready: false,
            suspected: false,
            draining: false,
            timer_armed: false,
            slot_count: 0,
            rtt: Rtt::default(),
            sampled_at: 0,
            control: Controller::default(),
            slots: Slots::new(0),
            round: 0,
            first: SessionId::NONE,
            offered: false,
            has_members: false,
            watched: false,
            in_pacer: false,
            blocked: false,
            retries: 0,
            turn: 0,
            backoff: 0,
            backed_off_at: 0,
            window: 0,
            fragments_in_flight: 0,
            receive_window: 1,
            most_credits: 0,
            fragment: 0,
            max_message: 0,
            credit_number: 0,
            pending: 0,
            sending: 0,
            paced_rfrs: 0,
            queue: VecDeque::new(),
            began_at: 0,
            control_sent_at: 0,
            cookie: (0, 0),
            opened_at: 0,
        }
    }

    #[inline]
    fn handle(&self) -> SessionHandle {
        SessionHandle::new(self.id, self.round)
    }
}

/// The `n` lowest slots.
pub(crate) fn slots_mask(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

impl ClientSession {
    /// Whether the incarnation of `peer` that this preamble names has accepted the session.
    pub(crate) fn is_known_to(&self, peer: PeerId, preamble: [u8; PREAMBLE_BYTES]) -> bool {
        self.peer == peer && self.state != State::Connecting && self.preamble == preamble
    }

    /// The server, of that token, has accepted the session, with these limits.
    pub(crate) fn open(&mut self, now: u64, accept: &Accept, token: Token, config: &Config) {
        self.start = HeaderStart::new(Kind::Request, 0, accept.session);
        self.preamble = token.preamble();
        self.state = State::Open;
        self.opened_at = now;
        self.credits = accept.credits;
        self.window = accept.window.min(u32::from(u16::MAX)) as u16;
        self.fragment =
            accept.max_datagram - (PREAMBLE_BYTES + HEADER_BYTES + FRAGMENT_BYTES) as u32;
        self.receive_window =
            (config.rx_queue_bytes / 2 / accept.max_datagram as usize).clamp(1, 1024) as u16;
        self.max_message = self.max_message.min(accept.max_message);
        self.single = self.fragment.min(self.max_message).min(u16::MAX.into()) as u16;
        self.slots = Slots::new(accept.slots);
        self.slot_count = accept.slots as u8;
        self.free = slots_mask(usize::from(accept.slots));
        self.control = Controller::new(config, accept.max_datagram);
        if std::mem::take(&mut self.retries) == 0 {
            // A sample of the path's own delay: this session has sent nothing yet that could queue.
            self.control.handle_ack(Ack {
                now,
                rtt_ns: Some(now - self.control_sent_at),
                packets: 1,
                marked: false,
                lost: false,
            });
        }
        self.ready = !self.is_member() && self.control.is_unpaced();
    }

    /// Whether requests have a slot, and wait for the credit of their first packet.
    pub(crate) fn lacks_credits(&self) -> bool {
        let waits = self.pending & !self.sending != 0;
        waits && self.credits <= self.in_flight && self.state == State::Open && !self.suspected
    }

    /// Whether this session belongs to the group of another one.
    pub(crate) fn is_member(&self) -> bool {
        self.first != SessionId::NONE
    }

    /// The session that the caller has.
    pub(crate) fn owner(&self) -> SessionId {
        if self.is_member() {
            self.first
        } else {
            self.id
        }
    }

    /// The slot that holds a request.
    pub(crate) fn slot_of(&self, number: RequestNumber) -> Option<usize> {
        if self.busy() == 0 {
            return None;
        }
        let mut slots = self.slots.iter();
        slots.position(|slot| slot.phase != Phase::Idle && slot.number == number)
    }

    /// Whether a request of one packet can be sent at once.
    #[inline]
    pub(crate) fn can_send_now(&self) -> bool {
        self.ready && self.free != 0 && self.in_flight < self.credits
    }

    /// Sends a message of one packet and stores it in a free slot; `message` is a free buffer
    /// afterwards. `Err`: the slot, if the sink had no room.
    #[inline(always)]
    pub(crate) fn send_single<S: FrameSink>(
        &mut self,
        now: u64,
        message: &mut Msgbuf,
        ext: bool,
        tag: Tag,
        sink: &mut S,
    ) -> Result<(), usize> {
        let index = self.free.trailing_zeros() as usize;
        let slot = self.slots.enter(index).expect("a free slot is one of them");
        self.free &= self.free - 1;
        let number = self.next_number;
        self.next_number += 1;
        slot.number = number;
        slot.tag = tag;
        slot.ext = ext;
        slot.active_at = now;
        slot.retries = 0;
        slot.executing = false;
        slot.is_said_busy = false;
        slot.phase = Phase::Single;
        slot.credits = 1;
        let body = message.head();
        let mut start = self.start;
        if ext {
            start = start.with(flags::EXT);
        }
        let head = start.to_bytes(index as u8, body.len(), number);
        if (sink.push(self.peer, &self.preamble, &head, body, &[])).is_err() {
            slot.store_unsent(message);
            return Err(index);
        }
        slot.store(message);
        self.in_flight += 1;
        Ok(())
    }

    /// Whether requests tell the server that more is pending than the credits allow.
    pub(crate) fn set_want(&mut self, want: bool) {
        let flags = if want { flags::WANT } else { 0 };
        self.start = HeaderStart::new(Kind::Request, flags, self.remote());
    }

    /// The server's number of this session.
    pub(crate) fn remote(&self) -> u32 {
        self.start.session()
    }

    /// Puts a request into a free slot; [`ClientSession::send_pending`] sends it. Returns a free
    /// buffer.
    pub(crate) fn assign_slot(&mut self, now: u64, mut request: Queued) -> Msgbuf {
        if self.busy() == 0 {
            self.control.handle_wake(now);
        }
        let index = self.free.trailing_zeros() as usize;
        self.free &= self.free - 1;
        self.pending |= 1 << index;
        self.ready = false;
        let len = request.message.len();
        let slot = self.slots.enter(index).expect("a free slot is one of them");
        debug_assert!(slot.number < request.number, "the numbers of a slot grow");
        slot.number = request.number;
        slot.tag = request.tag;
        match request.is_lent {
            true => slot.store_buffer(&mut request.message),
            false => slot.store(&mut request.message),
        }
        slot.ext = request.prefix.ext;
        slot.active_at = now;
        slot.retries = 0;
        slot.executing = false;
        slot.is_said_busy = false;
        if len <= self.fragment as usize {
            slot.phase = Phase::Single;
        } else {
            slot.phase = Phase::Sending;
            slot.cold.set_large(Some(Large::Send {
                window: SendWindow::new(fragment_count(len as u32, self.fragment)),
                timed: None,
            }));
            self.sending |= 1 << index;
        }
        request.message
    }

    /// Sends what is pending and allowed.
    pub(crate) fn send_pending<S: FrameSink>(
        &mut self,
        now: u64,
        sink: &mut S,
        stats: &mut Stats,
    ) -> SendOutcome {
        let outcome = self.transmit_pending(now, sink, stats);
        self.ready = self.state == State::Open
            && self.pending == 0
            && self.queue.is_empty()
            && !self.is_member()
            && !self.blocked
            && !self.suspected
            && !self.draining
            && self.control.is_unpaced();
        outcome
    }

    fn transmit_pending<S: FrameSink>(
        &mut self,
        now: u64,
        sink: &mut S,
        stats: &mut Stats,
    ) -> SendOutcome {
        if self.state != State::Open || self.suspected {
            return SendOutcome::Done;
        }
        while self.pending != 0 {
            if self.in_flight >= self.credits {
                self.set_want(self.credits < self.most_credits);
                return SendOutcome::Done;
            }
            let paced = !self.control.is_unpaced();
            // The wheel turns in ticks. A packet that is due within the next tick leaves now;
            // otherwise a fast session could send only one packet a turn.
            if paced && self.control.next_send_ns() > now + PACER_TICK_NS {
                return SendOutcome::Paced(self.control.next_send_ns());
            }
            let above = self.pending & (!0 << self.turn);
            let from = if above != 0 { above } else { self.pending };
            let index = from.trailing_zeros() as usize;
            self.turn = (index as u8 + 1) % 64;
            match self.transmit(index, now, sink, stats) {
                Ok(bytes) if paced => self.control.record_sent(now, bytes),
                Ok(_) => {}
                Err(SinkError::Full) => {
                    stats.sink_full += 1;
                    return SendOutcome::Full;
                }
                // The device will say that the peer is gone.
                Err(SinkError::Gone) => return SendOutcome::Done,
            }
        }
        SendOutcome::Done
    }

    /// Sends one packet of `index`; returns its size, zero if there was none to send.
    fn transmit<S: FrameSink>(
        &mut self,
        index: usize,
        now: u64,
        sink: &mut S,
        stats: &mut Stats,
    ) -> Result<usize, SinkError> {
        let bit = 1u64 << index;
        match self.slots[index].phase {
            Phase::Single => {
                self.push_single(index, sink)?;
                stats.requests_sent += 1;
                self.pending &= !bit;
                self.slots[index].active_at = now;
                self.set_credits(index, 1);
                Ok(HEADER_BYTES + self.slots[index].message_len())
            }
            Phase::Sending => {
                let Some(Large::Send { window, .. }) = self.slots[index].cold.large() else {
                    unreachable!("a slot that sends fragments has a window");
                };
                let Some(fragment) = window.next_to_send().filter(|_| {
                    // One fragment is always allowed, as of a response.
                    window.outstanding() == 0
                        || self.fragments_in_flight < self.window.min(self.control.window())
                }) else {
                    // The next credit return of this session continues it.
                    self.pending &= !bit;
                    return Ok(0);
                };
                let bytes = self.push_fragment(index, fragment, sink)?;
                let slot = &mut self.slots[index];
                let Some(Large::Send { window, timed }) = slot.cold.large_mut() else {
                    unreachable!("checked above");
                };
                let outstanding = window.outstanding();
                let is_first = window.record_sent(fragment);
                debug_assert_eq!(window.outstanding(), outstanding + 1);
                if is_first && timed.is_none() && slot.retries == 0 {
                    *timed = Some((fragment, now));
                }
                if fragment == 0 {
                    stats.requests_sent += 1;
                }
                if outstanding == 0 {
                    slot.active_at = now;
                }
                let outstanding = window.outstanding() as u16;
                self.set_credits(index, outstanding);
                Ok(bytes)
            }
            Phase::Idle | Phase::Receiving => {
                unreachable!("slot {index} is pending but has nothing to send")
            }
        }
    }

    /// Whether all of the request in `index` was sent, so that the server may have run it.
    pub(crate) fn was_sent(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        match slot.cold.large() {
            Some(Large::Send { window, .. }) => window.was_sent(),
            Some(Large::Receive(_)) => true,
            // A request of one packet is pending until it is sent, and never again.
            None => self.pending & 1 << index == 0,
        }
    }

    /// Slot `index` holds `credits` credits from now on.
    #[inline]
    pub(crate) fn set_credits(&mut self, index: usize, credits: u16) {
        let slot = &mut self.slots[index];
        self.in_flight = self.in_flight - slot.credits + credits;
        if slot.phase != Phase::Single {
            self.fragments_in_flight = self.fragments_in_flight - slot.credits + credits;
        }
        slot.credits = credits;
    }

    /// How long slot `index` waits for an answer before its packets are sent again.
    pub(crate) fn timeout_ns(&self, index: usize, config: &Config) -> u64 {
        let slot = &self.slots[index];
        let doublings = slot.retries.max(self.doublings(slot.active_at));
        let max_ns = match slot.is_confirmed() {
            true => config.rto_max_ns.max(config.keepalive_ns),
            false => config.rto_max_ns,
        };
        self.rtt.timeout_ns(doublings, config.rto_min_ns, max_ns)
    }

    /// How often the timeout of a packet sent at `sent_at` is doubled. Without this, a path whose
    /// round trips take longer than the timeout would never give a sample: each packet would be
    /// sent twice.
    fn doublings(&self, sent_at: u64) -> u8 {
        if self.sampled_at != self.backed_off_at as u32 {
            0
        } else if sent_at < self.backed_off_at {
            self.backoff.saturating_sub(1)
        } else {
            self.backoff
        }
    }

    /// A packet that was first sent at `sent_at` was not answered in time (RFC 6298, 5.5). Packets
    /// that were sent before the last doubling do not double the timeout again.
    pub(crate) fn back_off(&mut self, now: u64, sent_at: u64) {
        let is_answered = self.sampled_at != self.backed_off_at as u32;
        if is_answered || sent_at >= self.backed_off_at {
            self.backoff = self.doublings(sent_at).saturating_add(1);
            self.backed_off_at = now;
            self.sampled_at = now as u32;
        }
    }

    /// The slots with a request.
    pub(crate) fn busy(&self) -> u64 {
        slots_mask(self.slot_count.into()) & !self.free
    }

    /// The request in `index` is over: frees the slot. The slot's memory stays.
    pub(crate) fn free_slot(&mut self, index: usize) {
        self.set_credits(index, 0);
        let bit = 1u64 << index;
        self.free |= bit;
        let slot = &mut self.slots[index];
        if slot.phase == Phase::Sending {
            self.sending &= !bit;
        }
        slot.phase = Phase::Idle;
        self.pending &= !bit;
        self.pending |= self.sending;
    }
}

/// Why [`ClientSession::send_pending`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// Nothing is pending, or credits are out: an arrival will continue it.
    Done,
    /// The sink is full: continue at the next flush.
    Full,
    /// The rate allows the next packet at this time.
    Paced(u64),
}
