//! The state that the functions of one turn work with, beside the tables of handlers.

use starling_io::PacketIo;

use crate::context::EndpointCore;
use crate::workers::Dispatch;

/// The parts of an endpoint that a turn uses while a handler may be borrowed from the tables.
pub(crate) struct TurnContext<'a, I: PacketIo, C> {
    pub(crate) core: &'a mut EndpointCore<I>,
    pub(crate) tx: &'a mut I::Tx,
    /// Who runs worker handlers, if the endpoint has workers.
    pub(crate) workers: &'a mut Option<Box<dyn Dispatch>>,
    pub(crate) clock: &'a C,
}
