//! The parts of an endpoint that handle what arrives.

use std::any::Any;
use std::panic::resume_unwind;

use starling_io::{Clock, PacketIo};

use crate::cadence::FlushCadence;
use crate::context::EndpointCore;
use crate::handler_panic::{self, Running};
use crate::shares::Shares;
use crate::tables::Tables;
use crate::workers::Dispatch;

/// All of an endpoint that handles what arrives, but for the device, whose datagrams are borrowed
/// meanwhile. One place for all, so that the functions of a turn pass one reference on.
pub(crate) struct Parts<I: PacketIo, C> {
    pub(crate) core: EndpointCore<I>,
    pub(crate) tables: Tables<I>,
    /// Who runs worker handlers, if the endpoint has workers.
    pub(crate) dispatch: Option<Box<dyn Dispatch>>,
    pub(crate) clock: C,
    /// When a long burst is flushed.
    pub(crate) cadence: FlushCadence,
    /// Whose turn it is, while handlers are slow.
    pub(crate) shares: Shares,
    /// Unless timestamps are batched, each datagram has its own time.
    pub(crate) batched_timestamps: bool,
    /// The clock is read for each datagram: for its own time, or because time is shared.
    pub(crate) times_datagrams: bool,
}

impl<I: PacketIo, C: Clock> Parts<I, C> {
    /// Puts into the tables what a handler or the owner registered through a context.
    #[inline]
    pub(crate) fn apply_registrations(&mut self) {
        if !self.core.registrations.is_empty() {
            self.tables.apply(&mut self.core.registrations);
        }
    }

    /// Deals with a panic in a handler or a continuation; see [`handler_panic`]. The endpoint's own
    /// panics go on unwinding.
    #[cold]
    pub(crate) fn recover(&mut self, tx: &mut I::Tx, panic: Box<dyn Any + Send>) {
        match std::mem::take(&mut self.tables.running) {
            Running::Endpoint => resume_unwind(panic),
            Running::Handler => {
                self.finish_uncommon(tx, true);
                self.tables.reply.end_uncommon();
                handler_panic::discard(panic);
            }
            Running::Continuation => {
                if self.core.panic.is_none() {
                    self.core.panic = Some(panic);
                } else {
                    handler_panic::discard(panic);
                }
            }
        }
        self.apply_registrations();
    }
}
