//! The clients' ends of streams: their requests are calls.

use std::collections::BTreeMap;
use std::time::Duration;

use starling_endpoint::{
    CallError, CallId, CallNotMade, CallOptions, Msgbuf, Status, StreamPosition,
};
use starling_stream::{ClientEvent, ClientStream, StreamRequest, StreamResponse};

use super::super::super::StreamPlan;
use super::super::process::STREAM;
use super::Host;
use super::stream_user::{Actor, READER, User, WRITER, check_unread, damage, seeds, split};
use crate::check::{Flow, StreamId, Tag, Violation};

/// A client's end of a stream, with its user.
pub(in super::super) struct ClientEnd {
    plan: StreamPlan,
    stream: ClientStream,
    user: User,
    /// The requests that have no response.
    calls: BTreeMap<Tag, CallId>,
}

impl Host {
    pub(super) fn begin_stream(&mut self, plan: StreamPlan, now_ns: u64) {
        let id = self.records.lock().begin_stream(self.id, &plan);
        let options = CallOptions {
            timeout: plan.timeout_ns.map(Duration::from_nanos),
            stream: Some(StreamPosition::default()),
            ..CallOptions::default()
        };
        let room = options.header_len();
        let end = ClientEnd {
            stream: ClientStream::new(id, plan.windows[0], room, plan.up.items > 0),
            user: User::new(seeds(&plan)[0], &plan.down, &plan.up),
            calls: BTreeMap::new(),
            plan: plan.clone(),
        };
        self.process().client_streams.insert(id, end);
        self.plan_act(now_ns, id, Actor::ClientWriter);
        self.plan_act(now_ns, id, Actor::ClientReader);
        if let Some(after_ns) = plan.cancel_after_ns {
            self.plan_act(now_ns + after_ns, id, Actor::ClientGivesUp);
        }
    }

    pub(super) fn client_reads(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let (host, records) = (self.id, self.records.clone());
        let Some(end) = self.process().client_streams.get_mut(&id) else {
            return Ok(());
        };
        for _ in 0..end.user.burst() {
            if let Some(item) = end.user.unread.next() {
                (records.lock()).take_item(host, id, Flow::Down, &item)?;
                continue;
            }
            match end.stream.poll() {
                None => {
                    end.user.wait(READER);
                    break;
                }
                Some(ClientEvent::Items(items)) => end.user.unread = items,
                Some(ClientEvent::End(result)) => {
                    end.user.end(READER);
                    records.lock().end_stream(host, id, &result)?;
                    break;
                }
            }
        }
        if let Some(pause_ns) = end.user.pause_ns(READER) {
            self.plan_act(now_ns + pause_ns, id, Actor::ClientReader);
        }
        self.transmit_stream(id, now_ns)
    }

    pub(super) fn client_writes(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let records = self.records.clone();
        let Some(end) = self.process().client_streams.get_mut(&id) else {
            return Ok(());
        };
        for _ in 0..end.user.burst() {
            if !end.stream.may_push() {
                end.user.wait(WRITER);
                break;
            }
            if end.user.written == end.plan.up.items {
                end.stream.close();
                records.lock().streams.closed(id);
                end.user.end(WRITER);
                break;
            }
            let item = records.lock().streams.send(id, Flow::Up);
            let (head, tail) = split(item, end.user.lends());
            if end.stream.push(&head, tail.as_ref()).is_err() {
                records.lock().streams.unsend(id, Flow::Up);
                end.user.end(WRITER);
                break;
            }
            end.user.written += 1;
        }
        if let Some(pause_ns) = end.user.pause_ns(WRITER) {
            self.plan_act(now_ns + pause_ns, id, Actor::ClientWriter);
        }
        self.transmit_stream(id, now_ns)
    }

    pub(super) fn client_gives_up(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let records = self.records.clone();
        let Some(end) = self.process().client_streams.get_mut(&id) else {
            return Ok(());
        };
        if end.stream.is_over() {
            return Ok(());
        }
        records.lock().give_up_stream(id);
        let request = end.stream.cancel(Status::cancelled("the client gives up"));
        self.give_up(id, request)?;
        self.wake_client(id, now_ns);
        Ok(())
    }

    /// Cancels the calls of a stream, and tells the server why.
    fn give_up(&mut self, id: StreamId, request: Option<StreamRequest>) -> Result<(), Violation> {
        let end = self.process().client_streams.get_mut(&id);
        let end = end.expect("its caller has it");
        let calls = std::mem::take(&mut end.calls);
        let channel = end.plan.channel;
        if let Some(request) = request {
            // Nobody waits for its response.
            self.start_stream_call(id, channel, request)?.ok();
        }
        for call in calls.into_values() {
            self.process().endpoint.cancel(call);
        }
        Ok(())
    }

    fn wake_client(&mut self, id: StreamId, now_ns: u64) {
        let Some(end) = self.process().client_streams.get_mut(&id) else {
            return;
        };
        let [reader, writer] = end.user.wake();
        if reader {
            self.plan_act(now_ns, id, Actor::ClientReader);
        }
        if writer {
            self.plan_act(now_ns, id, Actor::ClientWriter);
        }
    }

    /// Sends what may leave now, and forgets the stream if it is over and its user knows.
    fn transmit_stream(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        loop {
            let Some(end) = self.process().client_streams.get_mut(&id) else {
                return Ok(());
            };
            let Some(request) = end.stream.poll_request() else {
                break;
            };
            let channel = end.plan.channel;
            match self.start_stream_call(id, channel, request)? {
                Ok((tag, call)) => {
                    let end = self.process().client_streams.get_mut(&id);
                    end.expect("it is not over").calls.insert(tag, call);
                }
                Err(status) => self.client_handles(id, Err(status), now_ns)?,
            }
        }
        if let Some(end) = self.process().client_streams.get_mut(&id)
            && end.stream.may_push()
            && end.user.wake_writer()
        {
            self.plan_act(now_ns, id, Actor::ClientWriter);
        }
        let streams = &mut self.process().client_streams;
        let is_over = |end: &ClientEnd| end.user.has_ended(READER) && end.calls.is_empty();
        if streams.get(&id).is_some_and(is_over) {
            streams.remove(&id);
        }
        Ok(())
    }

    /// Makes a call of a stream. The inner error: the endpoint did not make it.
    fn start_stream_call(
        &mut self,
        id: StreamId,
        channel: usize,
        request: StreamRequest,
    ) -> Result<Result<(Tag, CallId), Status>, Violation> {
        let deadline_ns = self.records.lock().stream_deadline_ns(id);
        let clock_ns = self.fabric.lock().host_now_ns(self.id);
        let remaining =
            |deadline_ns: u64| Duration::from_nanos(deadline_ns.saturating_sub(clock_ns));
        let options = CallOptions {
            timeout: deadline_ns.map(remaining),
            stream: Some(request.position),
            ..CallOptions::default()
        };
        let continues = request.position.number != 0;
        let (mut head, tail) = request.body.into_parts();
        if head.is_empty() {
            // Without items there is no room for the header either.
            head.resize(options.header_len(), 0);
        }
        let mut message = Msgbuf::from_parts(head, tail);
        let mut again = true;
        loop {
            let Some(session) = self.session(channel, continues)? else {
                return Ok(Err(Status::resource_exhausted("no room for a session")));
            };
            let tag = self.records.lock().issue_stream_call(self.id);
            let process = self.process();
            let continuation = process.stream_continuation;
            let endpoint = &mut process.endpoint;
            match endpoint.call_message(session, STREAM, &options, message, continuation, tag) {
                Ok(call) => {
                    process.stream_calls.insert(tag, id);
                    return Ok(Ok((tag, call)));
                }
                // The session ended since the last turn. The next turn must report that.
                Err(CallNotMade {
                    error: CallError::SessionOver,
                    message: unsent,
                }) if std::mem::take(&mut again) => {
                    process.sessions.remove(&channel);
                    process.over.push(session);
                    message = unsent;
                    self.records.lock().end_stream_call(tag)?;
                }
                // The server shuts down since the last turn.
                Err(CallNotMade {
                    error: CallError::Draining,
                    message: unsent,
                }) if std::mem::take(&mut again) => {
                    process.sessions.remove(&channel);
                    process.draining.insert(channel, session);
                    message = unsent;
                    self.records.lock().end_stream_call(tag)?;
                }
                Err(not_made) => {
                    self.records.lock().end_stream_call(tag)?;
                    let text = not_made.error.to_string();
                    return Ok(Err(match not_made.error {
                        CallError::SessionOver | CallError::Draining => Status::unavailable(text),
                        _ => Status::resource_exhausted(text),
                    }));
                }
            }
        }
    }

    /// A call of a stream has ended.
    pub(super) fn stream_response(
        &mut self,
        tag: Tag,
        result: Result<StreamResponse, Status>,
        now_ns: u64,
    ) -> Result<(), Violation> {
        self.records.lock().end_stream_call(tag)?;
        let process = self.process();
        let id = process.stream_calls.remove(&tag);
        let id = id.expect("the records have the same calls");
        let end = process.client_streams.get_mut(&id);
        if end.and_then(|end| end.calls.remove(&tag)).is_none() {
            // The stream has given it up.
            return Ok(());
        }
        self.client_handles(id, result, now_ns)?;
        self.transmit_stream(id, now_ns)
    }

    fn client_handles(
        &mut self,
        id: StreamId,
        result: Result<StreamResponse, Status>,
        now_ns: u64,
    ) -> Result<(), Violation> {
        let records = self.records.clone();
        let result = result.map(|response| StreamResponse {
            body: damage(&records, response.body),
            ..response
        });
        let end = self.process().client_streams.get_mut(&id);
        let end = end.expect("its caller has it");
        let progress = end.stream.handle_response(result);
        let (window, largest) = (end.plan.windows[0], end.plan.down.largest);
        check_unread(id, end.stream.unread_bytes(), window, largest)?;
        if let Some(request) = end.stream.take_failure() {
            self.give_up(id, request)?;
        }
        if progress {
            self.wake_client(id, now_ns);
        }
        Ok(())
    }
}
