//! What a channel's service config says of its calls: how long they may take, and how often they are made.
//!
//! ```text
//!  options ─ apply ─▶ call ─▶ interceptors ─▶ attempts ─▶ permit ─▶ transport ─▶ a backend
//!                                                ▲                      │
//!                                                └─ another one ◀─ failed, or takes long
//! ```
//!
//! The decisions are `starling_balance`'s ([`Retry`], [`Hedging`]). A channel without a service config pays a
//! branch.
//!
//! [`Retry`]: starling_balance::Retry
//! [`Hedging`]: starling_balance::Hedging

mod attempts;
mod buffer;
mod hedging;

use std::borrow::Cow;
use std::sync::Arc;

use starling_balance::{Attempts, MethodConfig, ServiceConfig, Throttle};
use starling_message::MethodDescriptor;

use crate::channel_call::{RawCall, Shared};
use crate::coding::CallCoding;
use crate::interceptor::BoxFuture;
use crate::options::CallOptions;
use crate::plane::{CallResult, Operation, OutgoingCall};
pub(crate) use attempts::with_attempts;
use attempts::{once, retry};
pub(crate) use buffer::Kept;
use buffer::RetryBuffer;
use hedging::hedge;

/// A channel's service config, and what its calls share.
pub(crate) struct CallPolicy {
    config: Arc<ServiceConfig>,
    throttle: Option<Throttle>,
    buffer: Arc<RetryBuffer>,
}

impl CallPolicy {
    /// Bytes that are kept of one call and of all calls, unless set.
    pub(crate) const BUFFER: (usize, usize) = (1 << 20, 16 << 20);

    /// None: the config says nothing of calls. `address`: that of the channel.
    pub(crate) fn new(
        config: &Arc<ServiceConfig>,
        buffer: (usize, usize),
        address: &str,
    ) -> Option<Self> {
        config.has_methods().then(|| Self {
            config: Arc::clone(config),
            throttle: config.retry_throttling().map(Throttle::new),
            buffer: RetryBuffer::new(buffer, address),
        })
    }

    fn of_method(&self, path: &str) -> Option<&MethodConfig> {
        self.config.of_method(path)
    }

    /// The options of a call of this method. The shorter timeout and the lower bound count; whether to wait is
    /// the caller's word.
    pub(crate) fn apply<'a>(
        &self,
        path: &str,
        mut options: Cow<'a, CallOptions>,
    ) -> Cow<'a, CallOptions> {
        let Some(method) = self.of_method(path) else {
            return options;
        };
        if let Some(timeout) = method.timeout
            && options.timeout.is_none_or(|own| timeout < own)
        {
            options.to_mut().timeout = Some(timeout);
        }
        if options.wait_for_ready.is_none() && method.wait_for_ready.is_some() {
            options.to_mut().wait_for_ready = method.wait_for_ready;
        }
        if method.max_request_bytes.is_some() || method.max_response_bytes.is_some() {
            let messages = options.to_mut().messages.get_or_insert_default();
            bound(&mut messages.max_request_bytes, method.max_request_bytes);
            bound(&mut messages.max_response_bytes, method.max_response_bytes);
        }
        options
    }

    /// Notes which bounds on a call's messages, after [`CallPolicy::apply`], are those of the config.
    pub(crate) fn note_bounds(&self, path: &str, coding: &mut CallCoding) {
        if let Some(method) = self.of_method(path) {
            coding.note_config(method.max_request_bytes, method.max_response_bytes);
        }
    }

    /// Makes a call as often as it is to be made. The error: it is made once, and nothing is to be done for it.
    ///
    /// The first attempt begins at once, whether or not the future is polled.
    pub(crate) fn attempts(
        &self,
        shared: &Arc<Shared>,
        call: OutgoingCall,
    ) -> Result<BoxFuture<'static, CallResult>, Box<OutgoingCall>> {
        let attempts: BoxFuture<'static, CallResult> = match self.attempts_at(&call) {
            Attempts::Once if self.throttle.is_none() => return Err(Box::new(call)),
            Attempts::Once => {
                let first = RawCall::new(shared, Operation::Call(call));
                Box::pin(once(Arc::clone(shared), first))
            }
            Attempts::Retry(policy) => {
                let kept = self.keep(&call);
                let first = RawCall::new(shared, Operation::Call(call));
                Box::pin(retry(Arc::clone(shared), first, kept, policy.clone()))
            }
            Attempts::Hedge(policy) => {
                let (kept, deadline) = (self.keep(&call), call.message.deadline);
                let first = RawCall::new(shared, Operation::Call(call));
                let (shared, policy) = (Arc::clone(shared), policy.clone());
                Box::pin(hedge(shared, first, kept, policy, deadline))
            }
        };
        Ok(attempts)
    }

    fn attempts_at(&self, call: &OutgoingCall) -> &Attempts {
        self.attempts_of(call.message.path.as_str(), call.types)
    }

    /// Whether this call may be made more than once.
    pub(crate) fn makes_several(&self, call: &OutgoingCall) -> bool {
        !matches!(self.attempts_at(call), Attempts::Once)
    }

    /// How often a call of this method is made.
    pub(crate) fn attempts_of(&self, path: &str, method: Option<&MethodDescriptor>) -> &Attempts {
        let is_idempotent = method.is_some_and(|method| method.idempotent);
        self.config.attempts_of(path, is_idempotent)
    }

    /// Keeps a request, if there is room for it.
    pub(crate) fn keep(&self, call: &OutgoingCall) -> Option<Kept> {
        Kept::of(&self.buffer, call)
    }

    pub(crate) fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }
}

/// The throttle of a channel, if it has one.
fn throttle_of(shared: &Shared) -> Option<&Throttle> {
    shared.policy.as_ref()?.throttle()
}

/// Lowers a bound to another one, if there is one.
fn bound(most: &mut Option<usize>, other: Option<u32>) {
    if let Some(other) = other {
        let other = other as usize;
        *most = Some(most.map_or(other, |most| most.min(other)));
    }
}
