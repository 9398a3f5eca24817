//! The measures of a server's calls: a method with them is a method, outside of its interceptors.

use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use starling_endpoint::{Cancellation, Code, Status, UnaryFn, WorkerFn};
use starling_message::MethodDescriptor;
use starling_metrics::{Recorder, Side, Writers};

use super::turns::TurnRecorder;
use super::{recorder, server_end};
use crate::plane::{
    ListenerContext, Method, MethodHandler, NestedFn, ServerStreamEnd, StreamingFn,
};

/// Recorders of one worker method at one listener. More threads than this share them.
const LANES: usize = 8;

/// A method whose calls are measured.
pub(crate) struct MeasuredMethod(pub(crate) Box<dyn Method>);

impl Method for MeasuredMethod {
    fn descriptor(&self) -> &'static MethodDescriptor {
        self.0.descriptor()
    }

    fn is_built_in(&self) -> bool {
        self.0.is_built_in()
    }

    fn handler(&self, listener: &ListenerContext) -> MethodHandler {
        let path = self.descriptor().path;
        let address = listener.address();
        let recorder = |writers| recorder(Side::Server, &address, path, writers);
        let of_futures = match listener.has_executor && !self.is_built_in() {
            true => Writers::Many,
            false => Writers::One,
        };
        match self.0.handler(listener) {
            MethodHandler::Inline(handler) => {
                let turns = listener.turns.as_ref();
                let by_turns = TurnRecorder::new(turns, Side::Server, &address, path);
                match by_turns.counts_by_turns() {
                    true => inline(by_turns, handler),
                    false => inline_elsewhere(recorder(Writers::Many), handler),
                }
            }
            MethodHandler::Worker(handler) => {
                let address = Arc::clone(&address);
                worker(
                    Lanes::new(move || self::recorder(Side::Server, &address, path, Writers::Many)),
                    handler,
                )
            }
            MethodHandler::Nested(handler) => nested(recorder(of_futures), handler),
            // A handler may send and read in threads of its own.
            MethodHandler::Streaming(handler) => streaming(recorder(Writers::Many), handler),
        }
    }
}

fn code_of<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

fn nanoseconds_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A handler of a listener that ends no turns.
fn inline_elsewhere(recorder: Arc<Recorder>, mut handler: Box<UnaryFn>) -> MethodHandler {
    MethodHandler::Inline(Box::new(move |request, response| {
        let call = Running::begin(&recorder, None, 0);
        recorder.record_request(request.plain_len());
        let result = handler(request, response);
        recorder.record_response(response.plain_len());
        call.end(result)
    }))
}

fn inline(recorder: TurnRecorder, mut handler: Box<UnaryFn>) -> MethodHandler {
    MethodHandler::Inline(Box::new(move |request, response| {
        let bytes = request.plain_len();
        let panicked = OnPanic(|| recorder.record(Code::Internal, bytes, 0));
        let result = handler(request, response);
        std::mem::forget(panicked);
        match &result {
            Ok(()) => recorder.record(Code::Ok, bytes, response.plain_len()),
            Err(status) => recorder.record(status.code(), bytes, 0),
        }
        result
    }))
}

/// Runs a function if it is dropped, which a panic does.
struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    #[cold]
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A call that runs. If it is dropped before it has a result, it ends as its caller has ended it, or by a panic.
struct Running<'a> {
    recorder: &'a Recorder,
    begun: Instant,
    queued_ns: u64,
    cancellation: Option<Cancellation>,
    has_ended: bool,
}

impl<'a> Running<'a> {
    fn begin(recorder: &'a Recorder, cancellation: Option<Cancellation>, queued_ns: u64) -> Self {
        recorder.begin();
        Self {
            recorder,
            begun: Instant::now(),
            queued_ns,
            cancellation,
            has_ended: false,
        }
    }

    fn end<T>(mut self, result: Result<T, Status>) -> Result<T, Status> {
        self.end_with(code_of(&result));
        result
    }

    fn end_with(&mut self, code: Code) {
        self.has_ended = true;
        let elapsed_ns = nanoseconds_since(self.begun).saturating_add(self.queued_ns);
        self.recorder.end(code, elapsed_ns);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let cancelled = self.cancellation.as_ref().and_then(Cancellation::status);
        let code = match cancelled {
            Some(status) if !std::thread::panicking() => status.code(),
            _ => Code::Internal,
        };
        self.end_with(code);
    }
}

/// The recorders of a method that many threads record to.
struct Lanes<F> {
    recorders: [OnceLock<Arc<Recorder>>; LANES],
    make: F,
}

impl<F: Fn() -> Arc<Recorder>> Lanes<F> {
    fn new(make: F) -> Self {
        Self {
            recorders: Default::default(),
            make,
        }
    }

    /// That of this thread.
    fn of_this_thread(&self) -> &Recorder {
        self.recorders[lane_of_this_thread()].get_or_init(&self.make)
    }
}

fn lane_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static LANE: Cell<usize> = const { Cell::new(usize::MAX) });
    let lane = LANE.get();
    if lane < LANES {
        return lane;
    }
    LANE.set(NEXT.fetch_add(1, Ordering::Relaxed) % LANES);
    LANE.get()
}

fn worker<F>(lanes: Lanes<F>, handler: Arc<WorkerFn>) -> MethodHandler
where
    F: Fn() -> Arc<Recorder> + Send + Sync + 'static,
{
    MethodHandler::Worker(Arc::new(move |request, response| {
        let recorder = lanes.of_this_thread();
        let queued_ns = request.queued_ns();
        let call = Running::begin(recorder, None, queued_ns);
        recorder.record_request(request.plain_len());
        if queued_ns > 0 {
            recorder.record_queued(queued_ns);
        }
        let result = handler(request, response);
        if result.is_ok() {
            recorder.record_response(response.plain_len());
        }
        call.end(result)
    }))
}

/// The output of a handler's future, measured.
async fn measured<T>(
    recorder: Arc<Recorder>,
    cancellation: Cancellation,
    future: impl Future<Output = Result<T, Status>>,
    response_len: impl Fn(&T) -> Option<usize>,
) -> Result<T, Status> {
    let call = Running::begin(&recorder, Some(cancellation), 0);
    let result = future.await;
    if let Some(bytes) = result.as_ref().ok().and_then(response_len) {
        recorder.record_response(bytes);
    }
    call.end(result)
}

fn nested(recorder: Arc<Recorder>, handler: Arc<NestedFn>) -> MethodHandler {
    MethodHandler::Nested(Arc::new(move |message, call| {
        recorder.record_request(message.plain_len());
        let cancellation = call.cancellation.clone();
        let future = match handler(message, call) {
            Ok(future) => future,
            Err(status) => return Running::begin(&recorder, None, 0).end(Err(status)),
        };
        let response_len =
            |response: &starling_endpoint::ResponseMessage| Some(response.plain_len());
        let future = measured(Arc::clone(&recorder), cancellation, future, response_len);
        Ok(Box::pin(future))
    }))
}

fn streaming(recorder: Arc<Recorder>, handler: Arc<StreamingFn>) -> MethodHandler {
    MethodHandler::Streaming(Arc::new(move |ServerStreamEnd(end), call| {
        let cancellation = call.cancellation.clone();
        let end = server_end(end, &recorder);
        let future = handler(ServerStreamEnd(end), call);
        Box::pin(measured(
            Arc::clone(&recorder),
            cancellation,
            future,
            |()| None,
        ))
    }))
}
