//! Messages of a stream: each is packed and bounded by itself.
//!
//! ```text
//!  item │ 0 │ the message            as it is
//!       │ n │ u32 length │ packed    by algorithm n
//! ```
//!
//! A direction whose messages have no such byte says so in its positions. A stream without compression and
//! bounds has no [`CodedEnd`].

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use starling_compress::AlgorithmSet;
use starling_endpoint::{CompressedBody, Encoding, Metadata, Status};
use starling_message::Bytes;
use starling_message::protobuf::DecodeLimits;
use starling_stream::{Items, put_item};

use super::client::{CallCoding, refused_by_client, too_long_to_send};
use super::server::MethodCoding;
use super::{Bound, Refused, is_unpackable, pack, unpack};
use crate::compression::Compression;
use crate::nested::ResponseMetadata;
use crate::plane::Waiting;
use crate::streaming::{HeldBytes, SingleItems, StreamEnd};

/// The first byte of a message that is as it is.
pub(super) const PLAIN: u8 = 0;
/// Bytes in front of a packed message.
const PACKED_HEADER: usize = 1 + 4;

/// Whose end it is, for statuses.
enum Side {
    Client,
    Server(MethodCoding),
}

/// An end of a stream whose messages are packed or bounded.
struct CodedEnd {
    inner: Arc<dyn StreamEnd>,
    side: Side,
    /// Messages that leave here say how they are packed.
    codes: bool,
    compression: Option<Compression>,
    outgoing: Bound,
    incoming: Bound,
    items: SingleItems,
}

/// A client's end, if its options say anything of messages.
pub(crate) fn coded_at_client(
    end: Arc<dyn StreamEnd>,
    coding: Option<&CallCoding>,
) -> Arc<dyn StreamEnd> {
    let Some(coding) = coding else {
        return end;
    };
    Arc::new(CodedEnd {
        inner: end,
        side: Side::Client,
        codes: coding.compression.is_some(),
        compression: coding.compression,
        outgoing: coding.request,
        incoming: coding.response,
        items: SingleItems::default(),
    })
}

/// A server's end, if its options or its client say anything of messages.
pub(crate) fn coded_at_server(
    end: Arc<dyn StreamEnd>,
    coding: &MethodCoding,
) -> Arc<dyn StreamEnd> {
    let compression = coding.compression_for(end.accepts());
    let is_bounded = coding.request.is_set() || coding.response.is_set();
    if compression.is_none() && !is_bounded && !end.is_coded() {
        return end;
    }
    if compression.is_some() {
        end.code_items();
    }
    Arc::new(CodedEnd {
        inner: end,
        side: Side::Server(coding.clone()),
        codes: compression.is_some(),
        compression,
        outgoing: coding.response,
        incoming: coding.request,
        items: SingleItems::default(),
    })
}

impl CodedEnd {
    /// An item, alone, without what was put in front of it.
    fn open(&self, items: Items) -> Result<Items, Status> {
        let item = items.slices().next().unwrap_or_default();
        if !self.inner.is_coded() {
            self.check(item.len())?;
            return Ok(items);
        }
        match split(item) {
            Some((None, body)) => {
                self.check(body.len())?;
                self.counted(body.len(), |out| {
                    out.extend_from_slice(body);
                    Ok(())
                })
            }
            Some((Some(compressed), packed)) => {
                let checked = is_unpackable(compressed, self.incoming);
                checked.map_err(|refused| self.refuse(refused))?;
                self.counted(compressed.len as usize, |out| {
                    unpack(packed, compressed, self.incoming, out)
                })
            }
            None => Err(self.refuse(Refused::CutShort)),
        }
    }

    fn check(&self, len: usize) -> Result<(), Status> {
        match self.incoming.allows(len) {
            true => Ok(()),
            false => {
                let most = self.incoming.most;
                Err(self.refuse(Refused::TooLong { len, most }))
            }
        }
    }

    /// An item of so many bytes that `write` appends, in memory that counts as long as its reader has it.
    fn counted(
        &self,
        len: usize,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) -> Result<Items, Status> {
        let held = self.inner.hold(len);
        let held = held.inspect_err(|status| self.fail(status.clone()))?;
        let mut opened = Vec::new();
        put_item(&mut opened, write).map_err(|refused| self.refuse(refused))?;
        Ok(Items::new(held.around(opened)))
    }

    #[cold]
    fn refuse(&self, refused: Refused) -> Status {
        let status = match &self.side {
            Side::Client => refused_by_client(refused, self.incoming, "a message of the stream"),
            Side::Server(coding) => coding.refused(refused).with_run(),
        };
        self.fail(status.clone());
        status
    }

    #[cold]
    fn too_long_to_send(&self, len: usize) -> Status {
        let status = match &self.side {
            Side::Client => too_long_to_send(len, self.outgoing).with_run(),
            Side::Server(coding) => coding.too_long_to_send("message", len),
        };
        self.fail(status.clone());
        status
    }
}

/// What stands in front of a coded item, and the rest of it. None if it is cut short.
pub(super) fn split(item: &[u8]) -> Option<(Option<CompressedBody>, &[u8])> {
    match item.split_first()? {
        (&PLAIN, body) => Some((None, body)),
        (&algorithm, rest) => {
            let (len, packed) = rest.split_first_chunk::<4>()?;
            let len = u32::from_le_bytes(*len);
            Some((Some(CompressedBody { algorithm, len }), packed))
        }
    }
}

/// Bytes of a coded item, when it is decompressed. Its last part may lie elsewhere.
pub(crate) fn plain_len(head: &[u8], tail: usize) -> usize {
    match split(head) {
        Some((None, body)) => body.len() + tail,
        Some((Some(compressed), _)) => compressed.len as usize,
        None => head.len() + tail,
    }
}

/// Bytes that a coded item has more when it is decompressed.
pub(crate) fn unpacked_more(head: &[u8], tail: usize) -> usize {
    plain_len(head, tail).saturating_sub(head.len() + tail)
}

/// A coded item.
pub(super) fn join(compression: Option<&Compression>, head: &[u8], tail: &[u8]) -> Option<Vec<u8>> {
    let (mut item, body) = pack(compression?, head, tail, PACKED_HEADER)?;
    item[0] = body.algorithm;
    item[1..PACKED_HEADER].copy_from_slice(&body.len.to_le_bytes());
    Some(item)
}

impl StreamEnd for CodedEnd {
    fn poll_ready(&self, cx: &mut Context<'_>, waiting: &mut Waiting) -> Poll<()> {
        self.inner.poll_ready(cx, waiting)
    }

    fn keep_one(&self) {
        self.inner.keep_one();
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, is_last: bool) -> Result<(), Status> {
        let rest = tail.map_or(&[][..], |tail| tail);
        let len = head.len() + rest.len();
        if !self.outgoing.allows(len) {
            return Err(self.too_long_to_send(len));
        }
        if !self.codes {
            return self.inner.push(head, tail, is_last);
        }
        if let Some(item) = join(self.compression.as_ref(), head, rest) {
            return self.inner.push(&item, None, is_last);
        }
        let plain = [&[PLAIN], head].concat();
        self.inner.push(&plain, tail, is_last)
    }

    fn may_hold(&self) -> bool {
        self.inner.may_hold()
    }

    fn poll_pushed(&self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.inner.poll_pushed(cx)
    }

    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.inner.poll_closed(cx)
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        self.inner.poll_failed(cx)
    }

    fn encoding(&self) -> Encoding {
        self.inner.encoding()
    }

    fn close(&self) {
        self.inner.close();
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn fail(&self, status: Status) {
        // What has come stays, in front of the end: so does what lies behind it in the inner one.
        self.inner.fail(status);
    }

    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        let next = ready!(self.items.poll_next(&*self.inner, cx, waiting))?;
        let Some((item, encoding)) = next else {
            return Poll::Ready(Ok(None));
        };
        Poll::Ready(self.open(item).map(|item| Some((item, encoding))))
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        self.inner.hold(bytes)
    }

    fn decode_limits(&self) -> DecodeLimits {
        self.inner.decode_limits()
    }

    fn reject(&self, why: &str) -> Status {
        self.inner.reject(why)
    }

    fn stop_reading(&self) {
        self.inner.stop_reading();
    }

    fn headers(&self) -> Option<Metadata> {
        self.inner.headers()
    }

    fn poll_headers(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Metadata, Status>> {
        self.inner.poll_headers(cx, waiting)
    }

    fn trailers(&self) -> Option<Metadata> {
        self.inner.trailers()
    }

    fn send_headers(&self, metadata: Metadata) -> Result<(), Status> {
        self.inner.send_headers(metadata)
    }

    fn set_trailers(&self, metadata: Metadata) -> Result<(), Status> {
        self.inner.set_trailers(metadata)
    }

    fn send_behind(&self, metadata: ResponseMetadata) {
        self.inner.send_behind(metadata);
    }

    fn refuse(&self) {
        self.inner.refuse();
    }

    fn set_request_metadata(&self, metadata: Metadata) {
        self.inner.set_request_metadata(metadata);
    }

    fn is_coded(&self) -> bool {
        // What this end hands on is not.
        false
    }

    fn accepts(&self) -> AlgorithmSet {
        AlgorithmSet::NONE
    }
}

#[cfg(test)]
mod tests;
