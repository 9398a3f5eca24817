//! The frame sink of a simulated process: its device, with the capture on it.

use starling_proto::{PeerId, SinkError};

use crate::io::{FrameHook, FrameParts, SimSink, SimTx};
use crate::scenario::capture::Capture;

pub(super) struct CaptureHook<'a> {
    now_ns: u64,
    capture: Option<&'a mut Capture>,
}

pub(super) type CapturingSink<'a> = SimSink<'a, CaptureHook<'a>>;

impl<'a> CapturingSink<'a> {
    pub(super) fn new(now_ns: u64, tx: &'a mut SimTx, capture: Option<&'a mut Capture>) -> Self {
        let hook = CaptureHook { now_ns, capture };
        Self { tx, hook }
    }
}

impl FrameHook for CaptureHook<'_> {
    fn before(&mut self, peer: PeerId, _: FrameParts<'_>) -> Option<Result<(), SinkError>> {
        let capture = self.capture.as_mut()?;
        let holds = capture.holds(self.now_ns, peer.0);
        holds.then_some(Err(SinkError::Full))
    }

    fn sent(&mut self, peer: PeerId, head: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.sent(self.now_ns, peer.0, head);
        }
    }
}
