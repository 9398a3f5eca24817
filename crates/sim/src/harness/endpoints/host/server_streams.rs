//! The servers' ends of streams: their answers are deferred replies.

use std::task::{Context, Poll, Waker};

use starling_endpoint::{DeferredReply, Status, StreamFlags};
use starling_io::PeerId;
use starling_stream::{Answer, Arrival, ServerStream};

use super::super::super::{HandlerReads, StreamPlan};
use super::super::process::StreamRequest;
use super::stream_user::{Actor, READER, User, WRITER, check_unread, damage, seeds, split};
use super::{Host, PlantedBug, Task};
use crate::check::{Flow, StreamId, Violation};

/// A server's end of a stream, with its handler.
pub(in super::super) struct ServerEnd {
    peer: PeerId,
    plan: StreamPlan,
    stream: ServerStream<DeferredReply>,
    user: User,
}

impl ServerEnd {
    /// Whether the handler stops reading now, and whether it ends with that.
    fn stops_reading(&self) -> Option<bool> {
        match self.plan.handler_reads {
            HandlerReads::Some(items) if self.user.read == items => Some(false),
            HandlerReads::AndEnds(items) if self.user.read == items => Some(true),
            _ => None,
        }
    }

    /// Why the client no longer waits for a request that is held.
    fn cancelled(&self) -> Option<Status> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut cancelled = self
            .stream
            .held()
            .iter()
            .filter(|reply| reply.is_cancelled());
        match cancelled.next()?.poll_cancelled(&mut cx) {
            Poll::Ready(status) => Some(status),
            Poll::Pending => None,
        }
    }
}

impl Host {
    /// A request of a stream has arrived.
    pub(super) fn stream_request(
        &mut self,
        request: StreamRequest,
        now_ns: u64,
    ) -> Result<(), Violation> {
        let StreamRequest {
            peer,
            position,
            body,
            reply,
        } = request;
        let id = position.id;
        let found = self.process().server_streams.get(&id);
        if found.is_none_or(|end| end.peer != peer) {
            if position.number != 0 || position.flags.has(StreamFlags::CANCEL) {
                self.respond(starling_stream::gone(reply, id));
                return Ok(());
            }
            self.begin_handler(peer, id, now_ns)?;
        }
        let body = damage(&self.records, body);
        let end = self.process().server_streams.get_mut(&id);
        let end = end.expect("it began at the latest now");
        let arrival = end.stream.handle_request(position, body, reply);
        let (window, largest) = (end.plan.windows[1], end.plan.up.largest);
        check_unread(id, end.stream.unread_bytes(), window, largest)?;
        match arrival {
            Err(violation) => {
                let text = format!("the client broke stream {id}: {violation}");
                return Err(Violation::new("streams", text));
            }
            Ok(Arrival::Cancelled) => {
                end.stream
                    .abort(Status::cancelled("the client cancelled the call"));
            }
            Ok(Arrival::Progress) => self.wake_server(id, now_ns),
            Ok(Arrival::Nothing) => {}
        }
        self.flush_stream(id, now_ns);
        Ok(())
    }

    fn begin_handler(&mut self, peer: PeerId, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let (plan, sweep_ns) = {
            let mut records = self.records.lock();
            records.streams.handler_began(id, now_ns)?;
            records.record(self.id, "stream's handler begins: id", id, 0);
            let plan = records.stream_plan(id).expect("a client has begun it");
            (plan, records.sweep_ns())
        };
        let end = ServerEnd {
            peer,
            stream: ServerStream::new(id, plan.windows[1], 0),
            user: User::new(seeds(&plan)[1], &plan.up, &plan.down),
            plan,
        };
        let process = self.process();
        process.server_streams.insert(id, end);
        if !std::mem::replace(&mut process.is_swept, true) {
            self.plan(now_ns + sweep_ns, Task::Sweep);
        }
        self.plan_act(now_ns, id, Actor::ServerReader);
        self.plan_act(now_ns, id, Actor::ServerWriter);
        Ok(())
    }

    pub(super) fn server_reads(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let (host, records) = (self.id, self.records.clone());
        let Some(end) = self.process().server_streams.get_mut(&id) else {
            return Ok(());
        };
        for _ in 0..end.user.burst() {
            if let Some(ends) = end.stops_reading() {
                end.stream.discard();
                end.user.end(READER);
                if ends {
                    end.user.end(WRITER);
                }
                break;
            }
            if let Some(item) = end.user.unread.next() {
                end.user.read += 1;
                (records.lock()).take_item(host, id, Flow::Up, &item)?;
                continue;
            }
            match end.stream.take() {
                Some(items) => end.user.unread = items,
                None if end.stream.is_read() => {
                    end.user.end(READER);
                    if end.stream.finished().is_none() {
                        records.lock().streams.read_all(id)?;
                    }
                    break;
                }
                None => {
                    end.user.wait(READER);
                    break;
                }
            }
        }
        if let Some(pause_ns) = end.user.pause_ns(READER) {
            self.plan_act(now_ns + pause_ns, id, Actor::ServerReader);
        }
        self.end_handler(id, now_ns);
        Ok(())
    }

    pub(super) fn server_writes(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let records = self.records.clone();
        let Some(end) = self.process().server_streams.get_mut(&id) else {
            return Ok(());
        };
        for _ in 0..end.user.burst() {
            if end.user.has_ended(WRITER) {
                break;
            }
            if !end.stream.may_push() {
                end.user.wait(WRITER);
                break;
            }
            if end.user.written == end.plan.down.items {
                end.user.end(WRITER);
                break;
            }
            let item = records.lock().streams.send(id, Flow::Down);
            let (head, tail) = split(item, end.user.lends());
            if end.stream.push(&head, tail.as_ref()).is_err() {
                records.lock().streams.unsend(id, Flow::Down);
                end.user.end(WRITER);
                break;
            }
            end.user.written += 1;
        }
        if let Some(pause_ns) = end.user.pause_ns(WRITER) {
            self.plan_act(now_ns + pause_ns, id, Actor::ServerWriter);
        }
        self.end_handler(id, now_ns);
        Ok(())
    }

    /// Ends the handler if it has nothing more to do. Sends what may leave now.
    fn end_handler(&mut self, id: StreamId, now_ns: u64) {
        let records = self.records.clone();
        let Some(end) = self.process().server_streams.get_mut(&id) else {
            return;
        };
        let is_done = end.user.has_ended(READER) && end.user.has_ended(WRITER);
        if is_done && end.stream.finished().is_none() {
            end.stream.finish(records.lock().finish_stream(id));
        }
        self.flush_stream(id, now_ns);
    }

    fn wake_server(&mut self, id: StreamId, now_ns: u64) {
        let Some(end) = self.process().server_streams.get_mut(&id) else {
            return;
        };
        let [reader, writer] = end.user.wake();
        if reader {
            self.plan_act(now_ns, id, Actor::ServerReader);
        }
        if writer {
            self.plan_act(now_ns, id, Actor::ServerWriter);
        }
    }

    /// Sends what may leave now, and forgets the stream if that was all.
    fn flush_stream(&mut self, id: StreamId, now_ns: u64) {
        let Some(end) = self.process().server_streams.get_mut(&id) else {
            return;
        };
        let mut answers = Vec::new();
        while let Some(answer) = end.stream.poll_answer() {
            answers.push(answer);
        }
        let is_over = end.stream.is_over();
        let writer_acts = end.stream.may_push() && end.user.wake_writer();
        for answer in answers {
            self.respond(answer);
        }
        if writer_acts {
            self.plan_act(now_ns, id, Actor::ServerWriter);
        }
        if is_over {
            self.forget_stream(id);
        }
    }

    fn forget_stream(&mut self, id: StreamId) {
        self.process().server_streams.remove(&id);
        self.records.lock().streams.server_over(id);
    }

    fn respond(&mut self, answer: Answer<DeferredReply>) {
        let Answer {
            to: mut reply,
            mut position,
            mut status,
            metadata,
            body,
        } = answer;
        let (head, tail) = body.into_parts();
        *reply.buffer() = head;
        if let Some(tail) = tail {
            reply.set_tail(tail);
        }
        if !metadata.is_empty() {
            reply.set_metadata(metadata);
        }
        let is_end = position.flags.has(StreamFlags::END);
        if is_end
            && self
                .records
                .lock()
                .bug_triggers(PlantedBug::StreamEndForgotten)
        {
            position.flags = StreamFlags::NONE;
            status = None;
        }
        reply.set_stream(position, status, 0);
        self.process().endpoint.complete_with(reply, Ok(()));
    }

    /// Ends streams whose client no longer waits for a request that is held.
    pub(super) fn end_cancelled_streams(&mut self, now_ns: u64) -> Result<(), Violation> {
        let streams = &self.process().server_streams;
        let cancelled = streams
            .iter()
            .filter_map(|(&id, end)| Some((id, end.cancelled()?)));
        let cancelled: Vec<_> = cancelled.collect();
        let is_ignored = self.records.lock().planted_bug == Some(PlantedBug::StreamCancelIgnored);
        for (id, status) in cancelled.into_iter().filter(|_| !is_ignored) {
            self.abort_stream(id, status, now_ns);
        }
        Ok(())
    }

    /// Ends a stream at once. Its handler learns of that when it acts next.
    fn abort_stream(&mut self, id: StreamId, status: Status, now_ns: u64) {
        if let Some(end) = self.process().server_streams.get_mut(&id) {
            end.stream.abort(status);
        }
        self.flush_stream(id, now_ns);
    }

    /// Ends the streams of clients that are gone.
    pub(super) fn sweep_streams(&mut self, now_ns: u64) -> Result<(), Violation> {
        let mut gone = Vec::new();
        let sweep_ns = self.records.lock().sweep_ns();
        let process = self.process();
        let backlogged = process.endpoint.backlogged(sweep_ns);
        for (&id, end) in &mut process.server_streams {
            match end.stream.is_forgotten() {
                true if backlogged.contains(&end.peer) => end.stream.spare(),
                true => gone.push(id),
                false => {}
            }
        }
        for id in gone {
            self.forget_stream(id);
        }
        let process = self.process();
        process.is_swept = !process.server_streams.is_empty();
        if process.is_swept {
            self.plan(now_ns + sweep_ns, Task::Sweep);
        }
        Ok(())
    }
}
