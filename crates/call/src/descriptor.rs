//! A message of a call on its way through a plane, as all that it passes see it: transports, policies,
//! bindings of other languages, and tools.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use starling_msgbuf::Msgbuf;

use crate::coding::RequestCoding;
use crate::encoding::Encoding;
use crate::metadata::Metadata;
use crate::method::MethodId;
use crate::options::CallOptions;
use crate::stream::StreamPosition;

/// Identifies a call among all calls of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallNumber(u64);

/// Numbers that a thread takes at once.
const BLOCK: u64 = 1 << 20;

impl CallNumber {
    /// A number that no other call of this process has.
    #[inline]
    pub fn next() -> Self {
        static BLOCKS: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NEXT: Cell<u64> = const { Cell::new(0) };
        }
        NEXT.with(|next| {
            let mut number = next.get();
            if number % BLOCK == 0 {
                number = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK;
            }
            next.set(number + 1);
            Self(number)
        })
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A method's path: of generated code, or learned at run time.
#[derive(Clone)]
pub enum MethodPath {
    /// In generated code.
    Static(&'static str),
    /// Learned at run time.
    Owned(Arc<str>),
}

impl MethodPath {
    /// The text: `/package.Service/Method`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Static(path) => path,
            Self::Owned(path) => path,
        }
    }
}

impl fmt::Debug for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the caller to the server.
    Request,
    /// From the server to the caller.
    Response,
}

/// One message of a call.
#[derive(Clone, Debug)]
pub struct CallDescriptor {
    /// The call.
    pub call: CallNumber,
    /// The method's path.
    pub path: MethodPath,
    /// The method's number on the wire.
    pub method: MethodId,
    /// Which way the message goes.
    pub direction: Direction,
    /// When the caller gives up.
    pub deadline: Option<Instant>,
    /// Sent with the message.
    pub metadata: Metadata,
    /// How the body is encoded.
    pub encoding: Encoding,
    /// How the body is compressed, and how that of the response may be. None: not at all.
    // Boxed because it is rare, and descriptors are moved.
    pub coding: Option<Box<RequestCoding>>,
    /// The message's position in a stream.
    pub stream: Option<StreamPosition>,
    /// The body, behind `headroom` bytes.
    pub payload: Msgbuf,
    /// Bytes in front of the body, where a transport may write its header.
    pub headroom: usize,
}

impl CallDescriptor {
    /// The time that the caller still waits. Zero if the deadline has passed. `now` is asked only if there
    /// is a deadline.
    #[inline]
    pub fn remaining(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_duration_since(now()))
    }

    /// The options of the call header, with the time that is left.
    pub fn header_options(&self, now: impl FnOnce() -> Instant) -> CallOptions {
        CallOptions {
            timeout: self.remaining(now),
            encoding: self.encoding,
            coding: self.coding.as_deref().copied().unwrap_or_default(),
            stream: self.stream,
            metadata: self.metadata.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_call_has_a_number_of_its_own_in_all_threads() {
        let numbers = || -> Vec<_> { (0..1000).map(|_| CallNumber::next()).collect() };
        let others: Vec<_> = (0..4).map(|_| std::thread::spawn(numbers)).collect();
        let mut all = numbers();
        for other in others {
            all.extend(other.join().expect("it only counts"));
        }
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 5000);
    }

    #[test]
    fn a_threads_numbers_go_on_in_another_block() {
        let first = CallNumber::next().get();
        let last = (0..=BLOCK).map(|_| CallNumber::next().get()).max();
        assert!(last.is_some_and(|last| last >= first + BLOCK));
    }
}
