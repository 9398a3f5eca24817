//! Requests that are kept to be made again. What one may take, and all of a channel, is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use starling_balance::PREVIOUS_ATTEMPTS_KEY;
use starling_endpoint::CallNumber;

use crate::metrics::record_retry;
use crate::plane::{Avoid, OutgoingCall};

/// The memory of a channel for requests that are kept.
#[derive(Debug)]
pub(super) struct RetryBuffer {
    of_a_call: usize,
    of_all: usize,
    /// That of the channel, for metrics.
    address: String,
    used: AtomicUsize,
}

impl RetryBuffer {
    pub(super) fn new((of_a_call, of_all): (usize, usize), address: &str) -> Arc<Self> {
        Arc::new(Self {
            of_a_call,
            of_all,
            address: address.to_owned(),
            used: AtomicUsize::new(0),
        })
    }

    fn reserve(&self, bytes: usize) -> bool {
        let more = |used: usize| Some(used + bytes).filter(|used| *used <= self.of_all);
        bytes <= self.of_a_call
            && (self.used)
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
                .is_ok()
    }
}

/// A request that is kept.
pub(crate) struct Kept {
    call: OutgoingCall,
    bytes: usize,
    buffer: Arc<RetryBuffer>,
}

impl Kept {
    /// None: there is no room for it.
    pub(super) fn of(buffer: &Arc<RetryBuffer>, call: &OutgoingCall) -> Option<Self> {
        let bytes = call.message.payload.len();
        buffer.reserve(bytes).then(|| Self {
            call: call.clone(),
            bytes,
            buffer: Arc::clone(buffer),
        })
    }

    /// The request once more, after so many attempts, for other backends than these.
    pub(crate) fn again(&self, attempts: u32, avoid: Vec<u64>) -> OutgoingCall {
        record_retry(&self.buffer.address, self.call.message.path.as_str());
        let mut call = self.call.clone();
        call.avoid = Some(Box::new(Avoid(avoid)));
        let message = &mut call.message;
        message.call = CallNumber::next();
        // Without room for it, the server does not learn the number.
        if (message.metadata)
            .set(PREVIOUS_ATTEMPTS_KEY, attempts.to_string())
            .is_ok()
        {
            let before = message.headroom;
            message.headroom = message.header_len();
            message.payload.set_headroom(before, message.headroom);
        }
        call
    }

    pub(crate) fn call(&self) -> &OutgoingCall {
        &self.call
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.buffer.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use starling_endpoint::{Encoding, MethodPath, Msgbuf};

    use super::*;
    use crate::options::CallOptions;
    use crate::time::Time;

    fn call(bytes: usize) -> OutgoingCall {
        let path = MethodPath::Static("/a.B/C");
        let (options, time) = (CallOptions::default(), Time::default());
        let (mut call, _) = options.describe(path, 1, Encoding::Protobuf, None, &time);
        let mut payload = vec![0; call.message.headroom];
        payload.resize(bytes, 7);
        call.message.payload = Msgbuf::from_vec(payload);
        call
    }

    #[test]
    fn no_more_is_kept_than_one_call_and_all_may_take() {
        let buffer = RetryBuffer::new((100, 250), "");
        assert!(Kept::of(&buffer, &call(101)).is_none());
        let first = Kept::of(&buffer, &call(100));
        let second = Kept::of(&buffer, &call(100));
        assert!(first.is_some() && second.is_some());
        assert!(Kept::of(&buffer, &call(51)).is_none());
        assert!(Kept::of(&buffer, &call(50)).is_some());
        drop(first);
        assert!(Kept::of(&buffer, &call(100)).is_some());
        drop(second);
        assert_eq!(buffer.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn another_attempt_has_the_same_message_and_says_how_many_came_before() {
        let buffer = RetryBuffer::new((1000, 1000), "");
        let kept = Kept::of(&buffer, &call(50)).expect("room");
        let again = kept.again(2, vec![9]);
        let before = &kept.call.message;
        let after = &again.message;
        assert_ne!(after.call, before.call);
        assert_eq!(
            after.metadata.value("grpc-previous-rpc-attempts"),
            Some(&b"2"[..])
        );
        assert_eq!(after.headroom, after.header_len());
        let body = |payload: &Msgbuf, at: usize| payload.head()[at..].to_vec();
        assert_eq!(
            body(&after.payload, after.headroom),
            body(&before.payload, before.headroom)
        );
        assert_eq!(again.avoid.expect("some").0, [9]);
    }
}
