//! A simulated process: an endpoint with its handlers, its continuation and its workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use starling_endpoint::{
    CallError, CallId, CallOptions, ContinuationId, DeferredReply, Endpoint, EndpointConfig,
    Handler, MethodId, Msgbuf, Secrets, SessionId, Status, StreamPosition, WorkerHandler,
};
use starling_io::PeerId;
use starling_stream::StreamResponse;

use super::super::US;
use super::call_records::SharedCallRecords;
use super::host::{Call, ClientEnd, ServerEnd, Threads};
use crate::check::content::{self, Expected};
use crate::check::{Queues, StreamId, Tag};
use crate::fabric::{HostId, SharedFabric};
use crate::io::{SimClock, SimIo};
use crate::rng::Rng;
use crate::workers::Workers;

pub(super) const INLINE: MethodId = MethodId(1);
pub(super) const WORKER: MethodId = MethodId(2);
pub(super) const DEFERRED: MethodId = MethodId(3);
pub(super) const STREAM: MethodId = MethodId(4);

/// The longest time of an inline handler.
const MAX_INLINE_US: u32 = 50;

type SimEndpoint = Endpoint<SimIo, SimClock>;

/// A request that is answered later.
pub(super) struct Deferred {
    pub(super) reply: DeferredReply,
    pub(super) expected: Expected,
}

/// An event of a handler or continuation, for the host to handle.
pub(super) enum HandlerEvent {
    Ended {
        tag: Tag,
        answered: bool,
    },
    Deferred {
        deferred: Deferred,
        /// It is answered when a call on this channel has ended.
        via: Option<usize>,
    },
    /// A request of a stream.
    StreamRequest(StreamRequest),
    /// A call of a stream has ended.
    StreamResponse {
        tag: Tag,
        result: Result<StreamResponse, Status>,
    },
}

/// A request of a stream that has arrived.
pub(super) struct StreamRequest {
    pub(super) peer: PeerId,
    pub(super) position: StreamPosition,
    pub(super) body: Bytes,
    pub(super) reply: DeferredReply,
}

pub(super) type HandlerEvents = Arc<Mutex<Vec<HandlerEvent>>>;

/// A process with an endpoint: a crash takes all of it away.
pub(super) struct Process {
    /// The threads that share the endpoint, if any do. First, for they die before what they use.
    pub(super) threads: Option<Threads>,
    pub(super) endpoint: SimEndpoint,
    continuation: ContinuationId,
    pub(super) stream_continuation: ContinuationId,
    pub(super) workers: Workers,
    pub(super) handler_events: HandlerEvents,
    pub(super) sessions: BTreeMap<usize, SessionId>,
    /// Sessions whose server shuts down, by channel: for streams that have begun.
    pub(super) draining: BTreeMap<usize, SessionId>,
    /// Sessions that a call found to be over before the endpoint reported their end.
    pub(super) over: Vec<SessionId>,
    pub(super) queues: Queues,
    pub(super) calls: BTreeMap<Tag, CallId>,
    /// The calls of threads.
    pub(super) waiting: BTreeMap<Tag, Arc<Call>>,
    pub(super) probes: BTreeMap<Tag, (usize, u32)>,
    pub(super) relays: BTreeMap<Tag, Deferred>,
    pub(super) client_streams: BTreeMap<StreamId, ClientEnd>,
    /// The streams that calls belong to.
    pub(super) stream_calls: BTreeMap<Tag, StreamId>,
    pub(super) server_streams: BTreeMap<StreamId, ServerEnd>,
    /// The server's streams are swept.
    pub(super) is_swept: bool,
}

impl Process {
    /// Starts an endpoint on `id`'s device, with so many worker threads and places in their queue.
    /// `shared_by`: threads share it, as this generator draws.
    pub(super) fn start(
        fabric: &SharedFabric,
        records: &SharedCallRecords,
        id: HostId,
        config: EndpointConfig,
        secrets: Secrets,
        workers: (usize, usize),
        shared_by: Option<Rng>,
    ) -> Self {
        let (io, clock) = (SimIo::new(fabric, id), SimClock::new(fabric, id));
        let endpoint = Endpoint::new(io, clock, config, secrets);
        let mut endpoint = endpoint.expect("plans draw sound configurations");
        let handler_events = HandlerEvents::default();
        let (threads, queue) = workers;
        let workers = start_workers(&mut endpoint, fabric, records, id, threads, queue);
        register_inline(&mut endpoint, fabric, records, id);
        register_deferred(&mut endpoint, records, &handler_events, id);
        let continuation = register_continuation(&mut endpoint, records, &handler_events, id);
        register_streams(&mut endpoint, &handler_events);
        let stream_continuation = register_stream_continuation(&mut endpoint, &handler_events);
        let now_ns = fabric.lock().host_now_ns(id);
        let threads = shared_by.map(|rng| Threads::start(endpoint.io(), now_ns, rng));
        Self {
            threads,
            endpoint,
            continuation,
            stream_continuation,
            workers,
            handler_events,
            sessions: BTreeMap::new(),
            draining: BTreeMap::new(),
            over: Vec::new(),
            queues: Queues::default(),
            calls: BTreeMap::new(),
            waiting: BTreeMap::new(),
            probes: BTreeMap::new(),
            relays: BTreeMap::new(),
            client_streams: BTreeMap::new(),
            stream_calls: BTreeMap::new(),
            server_streams: BTreeMap::new(),
            is_swept: false,
        }
    }

    /// Makes a call whose last `tail_len` bytes are memory of the caller's own.
    pub(super) fn call(
        &mut self,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        bytes: &[u8],
        tail_len: u32,
        tag: Tag,
    ) -> Result<CallId, CallError> {
        if tail_len == 0 {
            let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(bytes);
            return (self.endpoint).call(session, method, options, build, self.continuation, tag);
        }
        let (body, tail) = bytes.split_at(bytes.len() - tail_len as usize);
        let mut head = vec![0; options.header_len()];
        head.extend_from_slice(body);
        let message = Msgbuf::from_parts(head, Some(tail.to_vec().into()));
        let called =
            (self.endpoint).call_message(session, method, options, message, self.continuation, tag);
        called.map_err(|not_made| not_made.error)
    }
}

/// Gives the endpoint simulated workers.
fn start_workers(
    endpoint: &mut SimEndpoint,
    fabric: &SharedFabric,
    records: &SharedCallRecords,
    id: HostId,
    threads: usize,
    queue: usize,
) -> Workers {
    let seen = Seen::default();
    endpoint.register_worker(WORKER, worker_handler(&seen));
    let records = records.clone();
    let takes_ns = Box::new(move |_| {
        let (body, deadline_ns) = seen.lock().take()?;
        let expected = records.lock().execute(id, &body, deadline_ns);
        Some(u64::from(expected.delay_us) * US)
    });
    let workers = Workers::new(fabric, id, threads, queue, takes_ns);
    endpoint.set_dispatch(Box::new(workers.clone()));
    workers
}

/// Registers the handler that answers in the dispatch thread.
fn register_inline(
    endpoint: &mut SimEndpoint,
    fabric: &SharedFabric,
    records: &SharedCallRecords,
    id: HostId,
) {
    let (records, fabric) = (records.clone(), fabric.clone());
    let inline = Handler::inline(move |_, request, mut reply| {
        let expected = (records.lock()).execute(id, request.body(), request.deadline_ns());
        let takes_us = expected.delay_us.min(MAX_INLINE_US);
        // Where turns cost nothing, their datagrams leave at once.
        if !fabric.lock().config().cpu.is_free() {
            fabric.lock().spend(id, u64::from(takes_us) * US);
        }
        reply.buffer().extend_from_slice(&response(expected));
        reply.ok();
    });
    endpoint.register(INLINE, inline);
}

/// Registers the handler that answers later.
fn register_deferred(
    endpoint: &mut SimEndpoint,
    records: &SharedCallRecords,
    events: &HandlerEvents,
    id: HostId,
) {
    let (records, events) = (records.clone(), events.clone());
    let deferred = Handler::inline(move |_, request, reply| {
        let expected = (records.lock()).execute(id, request.body(), request.deadline_ns());
        let via = records.lock().relay(expected);
        let reply = reply.defer();
        let deferred = Deferred { reply, expected };
        let event = HandlerEvent::Deferred { deferred, via };
        events.lock().push(event);
    });
    endpoint.register(DEFERRED, deferred);
}

/// Registers the continuation of every call.
fn register_continuation(
    endpoint: &mut SimEndpoint,
    records: &SharedCallRecords,
    events: &HandlerEvents,
    id: HostId,
) -> ContinuationId {
    let (records, events) = (records.clone(), events.clone());
    endpoint.register_continuation(move |_, completion| {
        let tag = completion.tag;
        let result = completion.result.as_ref().map(|response| response.body());
        let mut records = records.lock();
        let answered = result.is_ok();
        if let Err(violation) = records.ended(id, tag, &result) {
            records.report_violation(violation);
        }
        let event = HandlerEvent::Ended { tag, answered };
        events.lock().push(event);
    })
}

/// Registers the handler of streams: the host has their state.
fn register_streams(endpoint: &mut SimEndpoint, events: &HandlerEvents) {
    let events = events.clone();
    let handler = Handler::deferring(move |_, request, reply| {
        let Some(position) = request.stream() else {
            return reply.refuse(Status::unimplemented("the method has streams"));
        };
        let request = StreamRequest {
            peer: request.peer(),
            position,
            body: Bytes::copy_from_slice(request.body()),
            reply: reply.defer(),
        };
        events.lock().push(HandlerEvent::StreamRequest(request));
    });
    endpoint.register(STREAM, handler);
}

/// Registers the continuation of the calls of streams.
fn register_stream_continuation(
    endpoint: &mut SimEndpoint,
    events: &HandlerEvents,
) -> ContinuationId {
    let events = events.clone();
    endpoint.register_continuation(move |_, completion| {
        let tag = completion.tag;
        let result = completion.result.and_then(|response| {
            let position = response
                .stream()
                .ok_or_else(|| Status::internal("the response belongs to no stream"))?;
            let body = Bytes::copy_from_slice(response.body());
            let message = response.into_owned();
            Ok(StreamResponse {
                position,
                status: message.stream_status(),
                metadata: message.to_metadata(),
                body,
            })
        });
        events
            .lock()
            .push(HandlerEvent::StreamResponse { tag, result });
    })
}

/// The body and deadline of the request that a worker's handler saw last. The handler leaves them
/// here for the dispatcher, which enters the execution in the call records.
type Seen = Arc<Mutex<Option<(Vec<u8>, Option<u64>)>>>;

fn worker_handler(seen: &Seen) -> WorkerHandler {
    let seen = Arc::clone(seen);
    Arc::new(move |request, reply| {
        let expected = content::read_request(request.body());
        reply
            .buffer()
            .extend(expected.map(response).unwrap_or_default());
        let saw = (request.body().to_vec(), request.deadline_ns());
        *seen.lock() = Some(saw);
    })
}

pub(super) fn response(expected: Expected) -> Vec<u8> {
    let mut bytes = Vec::new();
    content::respond(expected, &mut bytes);
    bytes
}
