//! Conversions between the types of the device, the session protocol and the call. None of the
//! three knows the others; the endpoint knows all.

use starling_call::Unsent;
use starling_call::header::{HeaderSize, MAX_EXTENSION, REQUEST_FIELDS_AT};
use starling_proto::{Msgbuf, Prefix};

// What the call header may take is what a receiver accepts beyond the largest message.
const _: () = assert!(REQUEST_FIELDS_AT + MAX_EXTENSION <= Prefix::MAX as usize);

/// A call header, as the session protocol sees it.
#[inline]
pub(crate) fn prefix_of(header: HeaderSize) -> Prefix {
    Prefix {
        ext: header.extended,
        len: header.len,
    }
}

/// The message of a request that was not sent, for [`Context::call_message`] on another session.
///
/// [`Context::call_message`]: crate::Context::call_message
pub fn unsent_message(unsent: Unsent) -> Msgbuf {
    Msgbuf::from_parts(unsent.head, unsent.tail)
}

/// A request that was not sent, for its status.
pub(crate) fn unsent(request: Msgbuf) -> Unsent {
    let (head, tail) = request.into_parts();
    Unsent { head, tail }
}
