//! Interceptors of a channel.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use starling_endpoint::{CallDescriptor, CallNumber, Status};
use starling_message::MethodDescriptor;

use super::call::{Body, Method};
use super::timer::Timer;
use super::{
    BoxFuture, Callee, InterceptedCall, InterceptedResponse, InterceptedStream, Interceptors,
    Outcome, Side,
};
use crate::channel_call::{DeadlineTimer, RawCall, Shared};
use crate::options::CallOptions;
use crate::plane::{CallResult, Operation, OutgoingCall};

/// The transport behind a channel's interceptors.
struct Connection {
    shared: Arc<Shared>,
    types: Option<&'static MethodDescriptor>,
    wait_for_ready: bool,
    /// What interceptors do not see.
    template: CallDescriptor,
    /// A call was handed to the transport.
    has_run: AtomicBool,
}

impl Connection {
    /// The call that the transport gets.
    fn outgoing(&self, call: InterceptedCall) -> Result<OutgoingCall, Status> {
        let mut message = CallDescriptor {
            call: CallNumber::next(),
            deadline: call.deadline,
            metadata: call.metadata,
            ..self.template.clone()
        };
        message.headroom = message.header_len();
        if let Some(body) = call.body {
            body.check(self.types.map(|method| method.request))?;
            message.payload = body.into_buffer(message.encoding, message.headroom)?;
        }
        Ok(OutgoingCall {
            message,
            types: self.types,
            wait_for_ready: self.wait_for_ready,
        })
    }
}

impl Connection {
    /// The end of a call that an interceptor holds beyond its deadline.
    #[cold]
    fn late(&self) -> Status {
        let text = "the deadline passed while an interceptor of the channel worked on the call";
        let status = Status::deadline_exceeded(text);
        match self.has_run.load(Ordering::Relaxed) {
            true => status,
            false => status.with_not_run(),
        }
    }
}

impl Callee for Connection {
    fn run(&self, call: InterceptedCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let call = self.outgoing(call).map_err(Status::with_not_run)?;
            self.has_run.store(true, Ordering::Relaxed);
            let mut raw = RawCall::new(&self.shared, Operation::Call(call));
            let (message, encoding) = std::future::poll_fn(|cx| raw.poll(cx)).await?;
            Ok(InterceptedResponse {
                method: self.types,
                metadata: message.to_metadata(),
                body: Some(Body::received(message, encoding)),
            })
        })
    }
}

/// Makes a call through interceptors.
pub(crate) fn call_through(
    interceptors: &Interceptors,
    shared: &Arc<Shared>,
    outgoing: OutgoingCall,
) -> BoxFuture<'static, CallResult> {
    let OutgoingCall {
        mut message,
        types,
        wait_for_ready,
    } = outgoing;
    let payload = std::mem::take(&mut message.payload);
    let call = InterceptedCall {
        side: Side::Client,
        timer: Timer::Channel(Arc::clone(shared)),
        method: Method {
            path: message.path.clone(),
            descriptor: types,
        },
        metadata: std::mem::take(&mut message.metadata),
        deadline: message.deadline,
        peer: None,
        body: Some(Body::new(payload, message.headroom, message.encoding)),
    };
    let connection = Connection {
        shared: Arc::clone(shared),
        types,
        wait_for_ready,
        template: message,
        has_run: AtomicBool::new(false),
    };
    let interceptors = interceptors.clone();
    Box::pin(async move {
        let deadline = call.deadline;
        let mut timer = DeadlineTimer::default();
        let mut chain = pin!(interceptors.run(call, &connection));
        let response = std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = chain.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            let timer = timer.poll(deadline, &connection.shared, cx);
            timer.map(|()| Err(connection.late()))
        });
        response.await?.into_message(types)
    })
}

/// Has interceptors see a stream that begins.
pub(crate) fn begin_stream(
    interceptors: &Interceptors,
    method: &'static MethodDescriptor,
    mut options: CallOptions,
) -> Result<CallOptions, Status> {
    let mut stream = InterceptedStream {
        path: method.path,
        metadata: options.metadata,
        timeout: options.timeout,
    };
    for interceptor in interceptors.as_slice() {
        (interceptor.begin_stream(&mut stream)).map_err(Status::with_not_run)?;
    }
    options.metadata = stream.metadata;
    options.timeout = stream.timeout;
    Ok(options)
}
