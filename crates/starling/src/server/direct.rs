//! The direct plane's server side: one dispatch thread, on a device.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use starling_endpoint::{
    Cancellation, DeferredReply, Handler, MethodId, Reply, ResponseMessage, Stall, Status,
    WorkerConfig,
};
use starling_io::{IoError, PacketIo, Wake};

use crate::address::Address;
use crate::budgets::Budgets;
use crate::channel_factory::ChannelFactory;
use crate::core::{Core, Served};
use crate::device::Device;
use crate::error::Error;
use crate::plane::{
    DecodedRequests, IncomingCall, Listener, ListenerContext, MethodHandler, NestedFn, Serving,
    StreamingFn,
};
use crate::registry::{Registry, SpawnTask};
use crate::streaming::{StreamNeeds, Streams};
use crate::threads::ThreadRole;

/// A device at one of a server's addresses.
pub(crate) struct DirectListener<I> {
    address: Address,
    io: I,
}

impl<I: Device> DirectListener<I> {
    /// The address is the device's own.
    pub(crate) fn new(address: Address, io: I) -> Self {
        Self { address, io }
    }
}

impl<I: Device> Listener for DirectListener<I> {
    fn scheme(&self) -> &str {
        I::SCHEME
    }

    fn local_address(&self) -> String {
        self.io.local_address()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.io.waker()
    }

    fn serve(self: Box<Self>, serving: Serving) -> Result<bool, Error> {
        let mut core = Core::new(
            self.io,
            serving.time.clock(),
            &serving.time,
            serving.config(),
            serving.registry.decode,
        )?;
        serving.time.wake_at_moves(&core.raw.waker());
        let channels = ChannelFactory::new(&core, self.address, serving.registry.outgoing.clone());
        serve_on(&mut core, &serving.registry, &channels, serving.workers())?;
        core.be_known(ThreadRole::Server);
        serving.begun();
        let result = run(&mut core, &serving);
        serving.leave_stats(core.stats());
        Ok(result?)
    }
}

/// Has an endpoint serve all methods, with workers if a method runs in workers.
pub(crate) fn serve_on<I: Device>(
    core: &mut Core<I>,
    registry: &Registry,
    channels: &Arc<ChannelFactory>,
    workers: &WorkerConfig,
) -> Result<(), Error> {
    let context = ListenerContext {
        channels: Arc::clone(channels),
        turns: core.executor.turns.clone(),
        has_executor: registry.spawn.is_some(),
        options: Arc::clone(&registry.options),
        decode: registry.decode,
        decoded: DecodedRequests::new(core.config.max_waiting_bytes),
    };
    let streams = Streams::new(
        registry.streams.within(&core.config),
        registry.decode,
        core.raw.large_buffers(),
        Duration::from_nanos(core.config.protocol.peer_timeout_ns),
    );
    for method in registry.methods() {
        let spawn = match method.is_built_in() {
            true => None,
            false => registry.spawn.clone(),
        };
        let handler = match method.handler(&context) {
            MethodHandler::Inline(handler) => Handler::unary(handler),
            MethodHandler::Worker(handler) => Handler::unary_worker(handler),
            MethodHandler::Nested(handler) => nested(handler, spawn),
            MethodHandler::Streaming(handler) => {
                let needs = match method.is_built_in() {
                    true => StreamNeeds::Little,
                    false => StreamNeeds::Much,
                };
                streaming(handler, Arc::clone(&streams), spawn, needs)
            }
        };
        core.raw.register(MethodId(method.descriptor().id), handler);
    }
    core.raw.count_held(context.decoded.held_most());
    core.raw.count_held(streams.account.held_most());
    let of_peers = Arc::clone(&streams);
    core.raw.on_released(move |peer| of_peers.forget(peer));
    core.served = Some(Served {
        streams,
        stream_threads: Arc::clone(&registry.stream_threads),
        decoded: context.decoded,
        health: registry.health.clone(),
        budgets: Budgets::new(&core.config, registry, workers),
    });
    if registry.has_workers() {
        core.raw.start_workers(workers)?;
    }
    Ok(())
}

/// Runs a nested handler in the dispatch thread, in place as long as it need not wait and then as a task; or
/// as a task of the user's executor.
fn nested<I: PacketIo>(handler: Arc<NestedFn>, spawn: Option<SpawnTask>) -> Handler<I> {
    Handler::deferring(move |cx, request, reply| {
        let cancellation = Cancellation::default();
        let caller = request.peer();
        let call = IncomingCall {
            remaining: request.remaining(),
            peer: cx.peer(caller).clone(),
            cancellation: cancellation.clone(),
        };
        let mut future = match handler(request.into_owned(), call) {
            Ok(future) => future,
            Err(status) => {
                cancellation.finish();
                return reply.refuse(status);
            }
        };
        // A task is polled at least once, so it need not be woken by what this poll waits for.
        if spawn.is_none()
            && let Poll::Ready(result) = future
                .as_mut()
                .poll(&mut TaskContext::from_waker(Waker::noop()))
        {
            cancellation.finish();
            return answer(result, reply);
        }
        let mut reply = reply.defer_as(cancellation);
        let local = cx.local();
        let task = async move {
            let result = until_cancelled(&reply, future).await;
            if result.as_ref().is_err_and(|status| !status.may_have_run()) {
                reply.set_refused();
            }
            let result = result.map(|response| reply.set_response(response));
            local.complete_with(reply, result);
        };
        match &spawn {
            None => cx.spawn_for(caller, task),
            Some(spawn) => spawn(Box::pin(task)),
        }
    })
}

/// Runs a handler with streams as [`nested`] runs a nested one.
fn streaming<I: PacketIo>(
    handler: Arc<StreamingFn>,
    streams: Arc<Streams>,
    spawn: Option<SpawnTask>,
    needs: StreamNeeds,
) -> Handler<I> {
    Handler::streaming(move |cx, request, reply| {
        streams.handle_request(cx, request, reply, (&*handler, needs), spawn.as_ref());
    })
}

/// Answers a request whose handler did not wait.
fn answer(result: Result<ResponseMessage, Status>, mut reply: Reply<'_>) {
    match result {
        Ok(response) => {
            reply.set_response(response);
            reply.ok();
        }
        Err(status) if status.may_have_run() => reply.status(status),
        Err(status) => reply.refuse(status),
    }
}

/// Runs a nested handler until its call is cancelled. The handler's future is dropped then, which
/// cancels the calls that it made.
async fn until_cancelled<T>(
    reply: &DeferredReply,
    future: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => reply.poll_cancelled(cx).map(Err),
    })
    .await
}

/// Takes turns until the server stops. True if all work was finished then.
fn run<I: Device>(core: &mut Core<I>, serving: &Serving) -> Result<bool, IoError> {
    while !serving.must_stop(|| core.stats()) {
        if core.turn()?.is_idle() {
            core.raw.wait(None)?;
        }
        if let Some(stall) = core.raw.take_stall() {
            warn(&serving.registry, stall);
        }
    }
    core.drain(serving.drain_timeout())
}

/// Names a handler that held up this thread.
#[cold]
fn warn(registry: &Registry, stall: Stall) {
    let method = registry.path(stall.method.0);
    let method = method.unwrap_or("a method that is not registered any more");
    let others = match stall.requests {
        1 => "",
        _ => ", or another one of the same moment",
    };
    tracing::warn!(
        method,
        requests = stall.requests,
        lasted_ms = stall.lasted.as_millis() as u64,
        "the handler of {method}{others} held up its dispatch thread, and all clients of it, for \
         {:?}: mark the method WORKER if it computes or blocks, NESTED if it awaits",
        stall.lasted
    );
}
