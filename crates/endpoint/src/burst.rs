//! Handles one burst of datagrams, frame by frame.

use starling_io::{Clock, Ecn, IoError, Mark, PacketIo, PacketRx, PacketTx};
use starling_proto::{Body, Frames, Incoming, PeerId, Protocol, Tail, Upcoming};

use crate::client::CallId;
use crate::convert::proto_source;
use crate::parts::Parts;
use crate::payload::PayloadBytes;
use crate::sink::Sink;

/// How far the work on a burst is. It lives outside of what a panic unwinds, so that the rest of
/// the burst is handled after a panic.
pub(crate) struct Burst<'a, I: PacketIo> {
    rx: &'a I::Rx,
    datagrams: usize,
    /// The next datagram to open.
    next: usize,
    /// The frames that are left of the one before it.
    frames: Frames<'a>,
}

impl<'a, I: PacketIo> Burst<'a, I> {
    pub(crate) fn new(rx: &'a I::Rx, datagrams: usize) -> Self {
        Self {
            rx,
            datagrams,
            next: 0,
            frames: Frames::NONE,
        }
    }

    /// Handles the datagrams that are left, of which there is one at least.
    #[inline(always)]
    pub(crate) fn handle<C: Clock>(
        &mut self,
        parts: &mut Parts<I, C>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        loop {
            self.open_next(parts, tx)?;
            self.handle_frames(parts, tx)?;
            if self.next == self.datagrams {
                return Ok(());
            }
        }
    }

    /// Handles what is left after a panic.
    #[cold]
    pub(crate) fn resume<C: Clock>(
        &mut self,
        parts: &mut Parts<I, C>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        self.handle_frames(parts, tx)?;
        if self.next == self.datagrams {
            return Ok(());
        }
        self.handle(parts, tx)
    }

    /// Handles the frames that are left of a datagram.
    #[inline(always)]
    fn handle_frames<C: Clock>(
        &mut self,
        parts: &mut Parts<I, C>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        while let Some(upcoming) = parts.core.proto.upcoming(&self.frames) {
            match upcoming {
                Upcoming::Requests(peer) => parts.handle_requests(peer, &mut self.frames, tx)?,
                Upcoming::Responses(peer) => parts.handle_responses(peer, &mut self.frames, tx)?,
                Upcoming::Other => parts.handle_other(&mut self.frames, tx)?,
            }
        }
        Ok(())
    }

    /// Opens the next datagram.
    #[inline(always)]
    fn open_next<C: Clock>(
        &mut self,
        parts: &mut Parts<I, C>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        let core = &mut parts.core;
        let index = self.next;
        let datagram = self.rx.datagram(index);
        self.next += 1;
        if core.proto.is_crowded() {
            self.prefetch(&core.proto, index);
        }
        if parts.times_datagrams {
            parts.begin_datagram(index);
        }
        let core = &mut parts.core;
        let source = proto_source(datagram.source);
        let marked = datagram.ecn == Ecn::CongestionExperienced;
        let (now, sink) = (core.now_ns, &mut Sink(&mut *tx));
        match core
            .proto
            .handle_datagram(now, source, marked, datagram.bytes, sink)
        {
            Ok(frames) => self.frames = frames,
            Err(_) => core.stats.bad_datagrams += 1,
        }
        if self.rx.tail_bytes(index) == 0 {
            return Ok(());
        }
        self.handle_tail(index, parts, tx)
    }

    /// Prefetches the sessions of the datagram after this one, and of this one if it is the first.
    #[inline(never)]
    fn prefetch(&self, proto: &Protocol, index: usize) {
        if index == 0 {
            proto.prefetch(self.rx.datagram(index).bytes);
        }
        if index + 1 < self.datagrams {
            proto.prefetch(self.rx.datagram(index + 1).bytes);
        }
    }

    /// Handles the only frame of a datagram whose tail the device has left in its sender's memory.
    #[cold]
    fn handle_tail<C: Clock>(
        &mut self,
        index: usize,
        parts: &mut Parts<I, C>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        let frames = std::mem::replace(&mut self.frames, Frames::NONE);
        if frames.is_empty() {
            return Ok(());
        }
        let tail = LeftTail::<I> { rx: self.rx, index };
        let (now, sink) = (parts.core.now_ns, &mut Sink(&mut *tx));
        let incoming = parts.core.proto.handle_tailed(now, frames, &tail, sink);
        parts.handle_incoming(incoming, tx);
        parts.end_frame(tx)
    }
}

/// The end of a datagram that the device has left in its sender's memory.
struct LeftTail<'a, I: PacketIo> {
    rx: &'a I::Rx,
    index: usize,
}

impl<I: PacketIo> Tail for LeftTail<'_, I> {
    fn bytes(&self) -> usize {
        self.rx.tail_bytes(self.index)
    }

    fn append_to(&self, buffer: &mut Vec<u8>) -> bool {
        self.rx.append_tail(self.index, buffer)
    }

    fn copy_to(&self, into: &mut [u8]) -> bool {
        self.rx.copy_tail(self.index, into)
    }
}

impl<I: PacketIo, C: Clock> Parts<I, C> {
    /// Handles requests of one packet each, as many as follow one another.
    // Apart from the responses: an endpoint has many of one kind, and each kind uses all registers.
    #[inline(never)]
    fn handle_requests(
        &mut self,
        peer: PeerId,
        frames: &mut Frames<'_>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        while let Some(frame) = self.core.proto.poll_request(frames) {
            let (now, sink) = (self.core.now_ns, &mut Sink(&mut *tx));
            if let Some(id) = (self.core.proto).handle_request(now, peer, frame, sink) {
                self.clock.mark(Mark::Taken);
                if frame.ext() {
                    let bytes = PayloadBytes::InPlace(frame.payload());
                    self.handle_request(tx, id, peer, true, bytes);
                } else {
                    self.handle_plain_request(tx, id, peer, frame.payload());
                }
            }
            if self.cadence.reads_clock() {
                self.end_stride(tx)?;
                if self.shares.is_on() {
                    // The frames that are left are handled in turn.
                    break;
                }
            }
        }
        Ok(())
    }

    /// Handles responses of one packet each, as many as follow one another.
    #[inline(never)]
    fn handle_responses(
        &mut self,
        peer: PeerId,
        frames: &mut Frames<'_>,
        tx: &mut I::Tx,
    ) -> Result<(), IoError> {
        while let Some(frame) = self.core.proto.poll_response(frames) {
            let (now, sink) = (self.core.now_ns, &mut Sink(&mut *tx));
            if let Some((session, tag)) = (self.core.proto).handle_response(now, peer, frame, sink)
            {
                self.clock.mark(Mark::Taken);
                let id = CallId {
                    session,
                    number: frame.number(),
                };
                if frame.ext() {
                    let bytes = PayloadBytes::InPlace(frame.payload());
                    self.handle_response(tx, tag, id, true, bytes);
                } else {
                    self.handle_plain_response(tx, tag, id, frame.payload());
                }
            }
            self.end_frame(tx)?;
        }
        Ok(())
    }

    /// Handles a frame that is no message of one packet.
    #[cold]
    fn handle_other(&mut self, frames: &mut Frames<'_>, tx: &mut I::Tx) -> Result<(), IoError> {
        if self.times_datagrams {
            self.begin_frames(frames.sender());
        }
        let (now, sink) = (self.core.now_ns, &mut Sink(&mut *tx));
        let incoming = self.core.proto.handle_other(now, frames, sink);
        self.handle_incoming(incoming, tx);
        self.end_frame(tx)
    }

    /// A datagram is handled next that has its own time, or whose time is its sender's.
    #[cold]
    #[inline(never)]
    fn begin_datagram(&mut self, index: usize) {
        let now_ns = self.clock.now_ns();
        if !self.batched_timestamps {
            self.core.now_ns = now_ns;
        }
        if self.shares.is_on() {
            self.shares.set_current(None, now_ns);
            if index == 0 {
                self.shares.begin_immediate(now_ns);
            }
        }
    }

    /// A frame of this sender is handled next, outside of the fast path.
    #[cold]
    #[inline(never)]
    fn begin_frames(&mut self, sender: Option<PeerId>) {
        if self.shares.is_on() {
            self.shares.set_current(sender, self.clock.now_ns());
        }
    }

    /// A frame is handled: flushes, if that is due.
    #[inline]
    pub(crate) fn end_frame(&mut self, tx: &mut I::Tx) -> Result<(), IoError> {
        if self.cadence.reads_clock() {
            return self.end_stride(tx);
        }
        Ok(())
    }

    /// Notices that handlers are slow, and flushes, if that is due.
    #[cold]
    #[inline(never)]
    fn end_stride(&mut self, tx: &mut I::Tx) -> Result<(), IoError> {
        let now_ns = self.clock.now_ns();
        let (shares, clock) = (&mut self.shares, &self.clock);
        let away_ns = |lasted_ns| shares.away_ns(clock, now_ns, lasted_ns);
        let end = self.cadence.end_stride(now_ns, away_ns);
        if let Some(began_ns) = end.slow_since_ns
            && self.shares.record_slow(began_ns, now_ns)
        {
            self.apply_sharing();
        }
        if end.is_flush_due {
            return tx.flush();
        }
        Ok(())
    }

    /// Handles what a frame that is no message of one packet gave.
    #[cold]
    fn handle_incoming(&mut self, incoming: Option<Incoming<'_>>, tx: &mut I::Tx) {
        let Some(incoming) = incoming else {
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
                match self.shares.is_on() {
                    true => self.handle_in_turn(tx, id, peer, ext, bytes),
                    false => self.handle_request(tx, id, peer, ext, bytes),
                }
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
                let bytes = PayloadBytes::of(&mut body);
                self.handle_response(tx, tag, id, ext, bytes);
                body
            }
            Incoming::Cancelled { id } => {
                if let Some(workers) = &mut self.dispatch {
                    workers.handle_cancelled(id);
                }
                return self.core.handle_cancelled(id);
            }
        };
        if let Body::Owned(message) = body {
            self.core.proto.recycle(message);
        }
    }
}
