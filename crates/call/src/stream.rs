//! A message's position in a stream.

/// The position of a message in a stream. The call header carries it for the layer above, which
/// builds streams of unary calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamPosition {
    /// Identifies the stream among those of one session.
    pub call_id: u64,
    /// This message is the last one.
    pub end: bool,
}
