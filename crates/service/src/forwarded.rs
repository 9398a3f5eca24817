//! A call on its way through the service: what arrived, and what leaves.
//!
//! Bodies are handed on as they are. The call header is made anew, so that each hop has a deadline by its own clock
//! and sends nothing that it did not understand.

#[cfg(test)]
mod tests;

use std::time::Duration;

use starling_endpoint::{
    CallOptions, DeferredReply, Metadata, MethodId, Msgbuf, OwnedMessage, Request, ResponseMessage,
    Status, StreamPosition,
};

/// A request that has arrived, without its reply.
#[derive(Debug)]
pub(crate) struct ForwardedRequest {
    pub(crate) method: MethodId,
    /// What its header says. The default for most.
    pub(crate) options: CallOptions,
    message: OwnedMessage,
}

impl ForwardedRequest {
    pub(crate) fn of(request: Request<'_>) -> Self {
        let (method, timeout) = (request.method(), request.remaining());
        Self::of_message(method, timeout, request.into_owned())
    }

    /// The same, of its parts.
    fn of_message(method: MethodId, timeout: Option<Duration>, message: OwnedMessage) -> Self {
        let mut options = CallOptions {
            timeout,
            ..CallOptions::default()
        };
        if !message.fields().is_empty() {
            let (encoding, coding) = message.form();
            options.encoding = encoding;
            options.coding = coding;
            options.stream = message.stream();
            options.metadata = message.to_metadata();
        }
        Self {
            method,
            options,
            message,
        }
    }

    /// A request of the service's own.
    pub(crate) fn new(method: MethodId, options: CallOptions, body: Vec<u8>) -> Self {
        Self {
            method,
            options,
            message: OwnedMessage::of_body(body),
        }
    }

    /// What a policy may change, and the body.
    pub(crate) fn parts_mut(&mut self) -> (&mut CallOptions, &[u8]) {
        (&mut self.options, self.message.body())
    }

    /// The same message once more, to be made with other options.
    pub(crate) fn copy(&self) -> Self {
        Self {
            method: self.method,
            options: CallOptions::default(),
            message: self.message.clone(),
        }
    }

    /// Bytes that it holds: its body, and what its header says.
    pub(crate) fn bytes(&self) -> usize {
        self.message.body().len() + self.message.fields().len()
    }

    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        self.message.body()
    }

    /// What the header says, and the memory of a body that was copied.
    pub(crate) fn into_options(self) -> (CallOptions, Msgbuf) {
        (self.options, self.message.into_parts().0)
    }

    /// What the header says, and the message with room for it in front: not copied, if it has that.
    pub(crate) fn into_parts(self) -> (CallOptions, Msgbuf) {
        let room = self.options.header_len();
        let (message, body_at) = self.message.into_parts();
        if body_at == room {
            return (self.options, message);
        }
        let mut moved = vec![0; room];
        moved.extend_from_slice(message.head().get(body_at..).unwrap_or(&[]));
        (self.options, Msgbuf::from_vec(moved))
    }
}

/// Another stream than the one of the same id that another caller has: callers choose the ids of their streams, and
/// the server behind the service sees all of them as one caller's.
pub(crate) fn translate(stream: Option<StreamPosition>, key: u64) -> Option<StreamPosition> {
    stream.map(|position| StreamPosition {
        id: position.id ^ key,
        ..position
    })
}

/// Puts the end of a call into the reply of the one that it was made for.
pub(crate) fn fill(reply: &mut DeferredReply, response: OwnedMessage, key: u64) {
    let fields = response.fields();
    if fields.is_empty() {
        let (body, body_at) = response.into_parts();
        if body_at == 0 {
            return reply.set_response(ResponseMessage {
                body,
                metadata: Metadata::new(),
                compressed: None,
            });
        }
        reply
            .buffer()
            .extend_from_slice(body.head().get(body_at..).unwrap_or(&[]));
        return;
    }
    reply.buffer().extend_from_slice(response.body());
    let metadata = response.to_metadata();
    if !metadata.is_empty() {
        reply.set_metadata(metadata);
    }
    if let Some(compressed) = response.form().1.compressed {
        reply.set_compressed(compressed);
    }
    if let Some(position) = translate(response.stream(), key) {
        reply.set_stream(position, response.stream_status(), 0);
    }
}

/// How a call ended at the server behind the service.
pub(crate) type CallResult = Result<OwnedMessage, Status>;
