//! The slots of session groups, for callers that need some beside those that their requests hold.

use super::Protocol;
use crate::client::{SlotRoom, StreamPart};
use crate::{FrameSink, SessionId};

impl Protocol {
    /// Has the group of a client session grow to so many slots at once, and not only when requests have waited. The
    /// next flush sends the connects.
    pub fn reserve_slots<S: FrameSink>(
        &mut self,
        now: u64,
        session: SessionId,
        wanted: usize,
        sink: &mut S,
    ) -> SlotRoom {
        self.shared.ask_flush();
        (self.client).reserve_slots(&mut self.shared, now, session, wanted, sink)
    }

    /// The slots of all open sessions of a client session's group.
    pub fn group_slots(&self, session: SessionId) -> usize {
        self.client.group_slots(session)
    }

    /// Ends some streams of a session for which [`Event::Standstill`](crate::Event::Standstill) has come, so that the
    /// others go on: their requests fail with [`RequestError::NoSlot`](crate::RequestError::NoSlot). `part_of`: what a
    /// request with an extension is to its stream, if it has one.
    pub fn end_streams<S: FrameSink>(
        &mut self,
        now: u64,
        session: SessionId,
        part_of: impl Fn(&[u8]) -> Option<StreamPart>,
        sink: &mut S,
    ) {
        self.shared.ask_flush();
        (self.client).end_streams(&mut self.shared, now, session, part_of, sink);
    }

    /// Another number when sessions have joined groups or left them.
    #[inline]
    pub fn group_version(&self) -> u64 {
        self.client.group_version()
    }
}
