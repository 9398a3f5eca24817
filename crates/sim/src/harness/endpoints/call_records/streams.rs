//! What the records hold of streams: what their users plan, and how they end.

use starling_endpoint::{Code, Status};

use super::super::super::StreamPlan;
use super::{CallRecords, STAMP_NS};
use crate::check::{Flow, StreamBounds, StreamId, Tag, Violation};
use crate::fabric::HostId;

/// A handler that fails ends with this code, which nothing else does.
const FAILURE: Code = Code::NotFound;

/// A stream that a client has begun.
pub(super) struct StreamRecord {
    host: HostId,
    plan: StreamPlan,
    /// By its client's clock.
    deadline_ns: Option<u64>,
    /// Its client has cancelled it, or closed its session.
    given_up: bool,
}

impl CallRecords {
    /// A client begins a stream. Returns its id.
    pub(in super::super) fn begin_stream(&mut self, host: HostId, plan: &StreamPlan) -> StreamId {
        let id = self.new_tag();
        self.record(host, "stream begins: id", id, 0);
        let bounds = StreamBounds {
            client_ns: self.stream_bound_ns(),
            server_after_ns: 3 * self.sweep_ns(),
        };
        let largest = [plan.up.largest, plan.down.largest];
        self.streams.begun(id, bounds, largest);
        let clock_ns = self.fabric.lock().host_now_ns(host);
        let record = StreamRecord {
            host,
            plan: plan.clone(),
            deadline_ns: plan.timeout_ns.map(|timeout_ns| clock_ns + timeout_ns),
            given_up: false,
        };
        self.stream_records.insert(id, record);
        id
    }

    fn stream_bound_ns(&self) -> u64 {
        self.now_ns().max(self.heal_ns) + self.bound_ns
    }

    /// Streams whose clients hold no request for as long as two of these are over.
    pub(in super::super) fn sweep_ns(&self) -> u64 {
        self.forgetting_ns
    }

    /// How the users of a stream act.
    pub(in super::super) fn stream_plan(&self, id: StreamId) -> Option<StreamPlan> {
        self.stream_records
            .get(&id)
            .map(|record| record.plan.clone())
    }

    /// When a stream ends by its client's clock.
    pub(in super::super) fn stream_deadline_ns(&self, id: StreamId) -> Option<u64> {
        self.stream_records.get(&id)?.deadline_ns
    }

    /// A call of a stream is about to be made.
    pub(in super::super) fn issue_stream_call(&mut self, host: HostId) -> Tag {
        let tag = self.new_tag();
        let bound_ns = self.stream_bound_ns() + 3 * self.sweep_ns();
        self.calls.issued(tag, self.now_ns(), bound_ns);
        self.stream_calls.insert(tag, host);
        tag
    }

    /// A call of a stream ended, or was not made.
    pub(in super::super) fn end_stream_call(&mut self, tag: Tag) -> Result<(), Violation> {
        self.stream_calls.remove(&tag);
        self.calls.ended(tag, self.now_ns())
    }

    /// A reader takes an item.
    pub(in super::super) fn take_item(
        &mut self,
        host: HostId,
        id: StreamId,
        flow: Flow,
        item: &[u8],
    ) -> Result<(), Violation> {
        self.outcomes.items += 1;
        self.record(host, "stream's item: id, bytes", id, item.len() as u64);
        self.streams.received(id, flow, item)
    }

    /// The handler of a stream ends, by itself.
    pub(in super::super) fn finish_stream(&mut self, id: StreamId) -> Result<(), Status> {
        let succeeds = self.stream_records[&id].plan.succeeds;
        let code = if succeeds { Code::Ok } else { FAILURE };
        self.streams.handler_finished(id, code);
        match succeeds {
            true => Ok(()),
            false => Err(Status::new(FAILURE, "the handler's end")),
        }
    }

    /// The client cancels a stream.
    pub(in super::super) fn give_up_stream(&mut self, id: StreamId) {
        if let Some(record) = self.stream_records.get_mut(&id) {
            record.given_up = true;
        }
    }

    pub(super) fn close_streams(&mut self, host: HostId, channel: usize) {
        let of = |record: &&mut StreamRecord| record.host == host && record.plan.channel == channel;
        for record in self.stream_records.values_mut().filter(of) {
            record.given_up = true;
        }
    }

    /// A process died that had ends of streams.
    pub(super) fn abandon_streams(&mut self, host: HostId) {
        for (&id, record) in &self.stream_records {
            if record.host == host {
                self.streams.abandon(id);
            }
        }
        let calls = &mut self.calls;
        self.stream_calls.retain(|&tag, of| {
            if *of == host {
                calls.abandon(tag);
            }
            *of != host
        });
    }

    /// A client's reader learned of the end of a stream.
    pub(in super::super) fn end_stream(
        &mut self,
        host: HostId,
        id: StreamId,
        result: &Result<(), Status>,
    ) -> Result<(), Violation> {
        let code = result.as_ref().err().map_or(Code::Ok, Status::code);
        self.record(host, "stream ends: id, code", id, code as u64);
        let is_handlers = matches!(code, Code::Ok | FAILURE);
        let now_ns = self.now_ns();
        self.streams
            .client_ended(id, now_ns, is_handlers.then_some(code))?;
        match result {
            Err(status) if !is_handlers => {
                self.outcomes.streams_failed += 1;
                self.stream_has_cause(host, id, status)
            }
            _ => {
                self.outcomes.streams_ended += 1;
                Ok(())
            }
        }
    }

    /// Fails on an end of a stream that nothing in the run explains.
    fn stream_has_cause(
        &self,
        host: HostId,
        id: StreamId,
        status: &Status,
    ) -> Result<(), Violation> {
        let record = &self.stream_records[&id];
        let clock_ns = self.fabric.lock().host_now_ns(host);
        let explained = match status.code() {
            // A server ends a stream whose client it has not heard for long.
            Code::Cancelled => record.given_up || !self.survivable,
            Code::DeadlineExceeded => record.deadline_ns.is_some_and(|deadline_ns| {
                !self.steady_clocks || clock_ns + STAMP_NS >= deadline_ns
            }),
            Code::ResourceExhausted => record.plan.timeout_ns.is_some() || self.tight,
            Code::Unavailable | Code::Unknown => !self.survivable,
            Code::Internal => self.tight && !status.message().contains("broke the stream"),
            _ => false,
        };
        match explained || self.distrusts_content {
            true => Ok(()),
            false => Err(Violation::new(
                "no failure without a cause",
                format!("stream {id} ended without a reason: {status:?}"),
            )),
        }
    }
}
