//! Handles one burst of datagrams, frame by frame.

use starling_io::{Clock, Ecn, IoError, Mark, PacketIo, PacketRx, PacketTx};
use starling_proto::{Body, Frames, Incoming, Tail, Upcoming};

use crate::cadence::FlushCadence;
use crate::client::CallId;
use crate::convert::proto_source;
use crate::payload::PayloadBytes;
use crate::sink::Sink;
use crate::tables::Tables;
use crate::turn_context::TurnContext;

/// How far the work on a burst is. It lives outside of what a panic unwinds, so that the rest of
/// the burst is handled after a panic.
pub(crate) struct Burst<'a, I: PacketIo> {
    rx: &'a I::Rx,
    datagrams: usize,
    /// The next datagram to open.
    next: usize,
    /// The frames that are left of the one before it.
    frames: Option<Frames<'a>>,
}

impl<'a, I: PacketIo> Burst<'a, I> {
    pub(crate) fn new(rx: &'a I::Rx, datagrams: usize) -> Self {
        Self {
            rx,
            datagrams,
            next: 0,
            frames: None,
        }
    }

    /// Handles what is left. Unless timestamps are `batched`, each datagram has its own time.
    #[inline]
    pub(crate) fn handle<C: Clock>(
        &mut self,
        turn: &mut TurnContext<'_, I, C>,
        tables: &mut Tables<I>,
        cadence: &mut FlushCadence,
        batched: bool,
    ) -> Result<(), IoError> {
        loop {
            if let Some(frames) = &mut self.frames {
                while let Some(upcoming) = turn.core.proto.upcoming(frames) {
                    match upcoming {
                        Upcoming::Requests => handle_requests(frames, turn, tables, cadence)?,
                        Upcoming::Responses => handle_responses(frames, turn, tables, cadence)?,
                        Upcoming::Other => {
                            handle_other(frames, turn, tables);
                            if cadence.is_due(turn.clock) {
                                turn.tx.flush()?;
                            }
                        }
                    }
                }
            }
            if self.next == self.datagrams {
                return Ok(());
            }
            let core = &mut *turn.core;
            let datagram = self.rx.datagram(self.next);
            if self.next == 0 {
                core.proto.prefetch(datagram.bytes);
            }
            self.next += 1;
            if self.next < self.datagrams {
                core.proto.prefetch(self.rx.datagram(self.next).bytes);
            }
            if !batched {
                core.now_ns = turn.clock.now_ns();
            }
            let source = proto_source(datagram.source);
            let sink = &mut Sink(&mut *turn.tx);
            let marked = datagram.ecn == Ecn::CongestionExperienced;
            let opened =
                core.proto
                    .handle_datagram(core.now_ns, source, marked, datagram.bytes, sink);
            core.stats.bad_datagrams += u64::from(opened.is_err());
            let tail = self.rx.tail_bytes(self.next - 1);
            if tail == 0 {
                self.frames = opened.ok();
            } else if let Ok(frames) = opened {
                let tail = LeftTail::<I> {
                    rx: self.rx,
                    index: self.next - 1,
                };
                let incoming = core.proto.handle_fragment(core.now_ns, frames, &tail, sink);
                handle_incoming(incoming, turn, tables);
                if cadence.is_due(turn.clock) {
                    turn.tx.flush()?;
                }
            }
        }
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

/// Handles requests of one packet each, as many as follow one another.
#[inline(always)]
fn handle_requests<I: PacketIo, C: Clock>(
    frames: &mut Frames<'_>,
    turn: &mut TurnContext<'_, I, C>,
    tables: &mut Tables<I>,
    cadence: &mut FlushCadence,
) -> Result<(), IoError> {
    while let Some((peer, frame)) = turn.core.proto.poll_request(frames) {
        let (now, sink) = (turn.core.now_ns, &mut Sink(&mut *turn.tx));
        if let Some(id) = (turn.core.proto).handle_request(now, peer, frame, sink) {
            turn.clock.mark(Mark::Taken);
            let bytes = PayloadBytes::InPlace(frame.payload());
            tables.handle_request(turn, id, peer, frame.ext(), bytes);
        }
        if cadence.is_due(turn.clock) {
            turn.tx.flush()?;
        }
    }
    Ok(())
}

/// Handles responses of one packet each, as many as follow one another.
#[inline(always)]
fn handle_responses<I: PacketIo, C: Clock>(
    frames: &mut Frames<'_>,
    turn: &mut TurnContext<'_, I, C>,
    tables: &mut Tables<I>,
    cadence: &mut FlushCadence,
) -> Result<(), IoError> {
    while let Some((peer, frame)) = turn.core.proto.poll_response(frames) {
        let (now, sink) = (turn.core.now_ns, &mut Sink(&mut *turn.tx));
        if let Some((session, tag)) = (turn.core.proto).handle_response(now, peer, frame, sink) {
            turn.clock.mark(Mark::Taken);
            let id = CallId {
                session,
                number: frame.number(),
            };
            let bytes = PayloadBytes::InPlace(frame.payload());
            tables.handle_response(turn.core, turn.tx, tag, id, frame.ext(), bytes);
        }
        if cadence.is_due(turn.clock) {
            turn.tx.flush()?;
        }
    }
    Ok(())
}

/// Handles a frame that is no message of one packet.
#[cold]
fn handle_other<I: PacketIo, C: Clock>(
    frames: &mut Frames<'_>,
    turn: &mut TurnContext<'_, I, C>,
    tables: &mut Tables<I>,
) {
    let (now, sink) = (turn.core.now_ns, &mut Sink(&mut *turn.tx));
    let incoming = turn.core.proto.handle_other(now, frames, sink);
    handle_incoming(incoming, turn, tables);
}

/// Handles what a frame that is no message of one packet gave.
#[cold]
fn handle_incoming<I: PacketIo, C: Clock>(
    incoming: Option<Incoming<'_>>,
    turn: &mut TurnContext<'_, I, C>,
    tables: &mut Tables<I>,
) {
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
            tables.handle_request(turn, id, peer, ext, bytes);
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
            tables.handle_response(turn.core, turn.tx, tag, id, ext, bytes);
            body
        }
        Incoming::Cancelled { id } => {
            if let Some(workers) = turn.workers {
                workers.handle_cancelled(id);
            }
            return turn.core.handle_cancelled(id);
        }
    };
    if let Body::Owned(message) = body {
        turn.core.proto.recycle(message);
    }
}
