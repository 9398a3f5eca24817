//! A server's side: requests are unpacked and bounded, responses are bounded and packed.

use std::borrow::Cow;

use starling_compress::AlgorithmSet;
use starling_endpoint::{
    Metadata, Msgbuf, OwnedMessage, RequestCoding, ResponseBuilder, ResponseMessage, Status,
};
use starling_message::protobuf::DecodeLimits;

use super::{Bound, Refused, name_of, pack, unpack};
use crate::compression::Compression;
use crate::method_options::MethodOptions;

/// The metadata in which a server says which algorithms it has, to a client that used another one.
const ACCEPTS_KEY: &str = "accept-compression";

/// What a method's options say of its messages.
#[derive(Clone, Debug)]
pub(crate) struct MethodCoding {
    pub(super) path: &'static str,
    pub(super) compression: Option<Compression>,
    pub(super) request: Bound,
    pub(super) response: Bound,
    pub(crate) decode: DecodeLimits,
}

impl MethodCoding {
    pub(crate) fn new(path: &'static str, options: &MethodOptions, decode: DecodeLimits) -> Self {
        Self {
            path,
            compression: options.compression,
            request: Bound::at_server(options.max_request_bytes),
            response: Bound::at_server(options.max_response_bytes),
            decode,
        }
    }

    /// Checks the length of a request.
    #[inline]
    pub(crate) fn check_request(&self, len: usize) -> Result<(), Status> {
        match self.request.allows(len) {
            true => Ok(()),
            false => Err(self.too_long(len)),
        }
    }

    #[cold]
    fn too_long(&self, len: usize) -> Status {
        let most = self.request.most;
        self.refused(Refused::TooLong { len, most })
    }

    /// Checks the length of a response.
    #[inline]
    pub(crate) fn check_response(&self, len: usize) -> Result<(), Status> {
        match self.response.allows(len) {
            true => Ok(()),
            false => Err(self.too_long_to_send("response", len)),
        }
    }

    #[cold]
    pub(super) fn too_long_to_send(&self, what: &str, len: usize) -> Status {
        Status::resource_exhausted(format!(
            "a {what} of {} has {len} bytes, and the server sends {} at most: ask for less, or have the \
             server raise MethodOptions::max_response_bytes",
            self.path, self.response.most
        ))
    }

    /// The status of a request that is not run.
    #[cold]
    pub(super) fn refused(&self, refused: Refused) -> Status {
        let path = self.path;
        let status = match refused {
            Refused::TooLong { len, most } => Status::resource_exhausted(format!(
                "the request of {path} has {len} bytes, and the server takes {most} at most: send less, or \
                 have the server raise MethodOptions::max_request_bytes"
            )),
            Refused::Unknown { number } => {
                let mut metadata = Metadata::new();
                let available = AlgorithmSet::AVAILABLE.to_string();
                metadata
                    .insert(ACCEPTS_KEY, &available)
                    .expect("a short pair");
                let text = format!(
                    "the request of {path} is compressed by {}, which this server does not have; it has: \
                     {available}",
                    name_of(number)
                );
                Status::unimplemented(text).with_metadata(metadata)
            }
            Refused::CutShort => Status::invalid_argument(format!(
                "the client's request of {path} is malformed: it is cut short"
            )),
            Refused::Malformed(error) => Status::invalid_argument(format!(
                "the client's request of {path} is malformed: {error}"
            )),
        };
        status.with_not_run()
    }

    /// The body of a request as its handler gets it.
    pub(crate) fn open<'a>(
        &self,
        body: &'a [u8],
        coding: RequestCoding,
    ) -> Result<Cow<'a, [u8]>, Status> {
        let Some(compressed) = coding.compressed else {
            self.check_request(body.len())?;
            return Ok(Cow::Borrowed(body));
        };
        let mut opened = Vec::new();
        unpack(body, compressed, self.request, &mut opened).map_err(|it| self.refused(it))?;
        Ok(Cow::Owned(opened))
    }

    /// A request that was kept, as its handler gets it, and the algorithms that its caller takes.
    pub(crate) fn open_owned(
        &self,
        message: OwnedMessage,
    ) -> Result<(OwnedMessage, AlgorithmSet), Status> {
        if message.fields().is_empty() {
            self.check_request(message.body().len())?;
            return Ok((message, AlgorithmSet::NONE));
        }
        let (encoding, coding) = message.form();
        let body = self.open(message.body(), coding)?;
        if coding.is_plain() {
            return Ok((message, AlgorithmSet::NONE));
        }
        // Without what it said of compression: whoever gets it next answers a handler.
        let opened = OwnedMessage::of_parts(encoding, &message.to_metadata(), &body);
        Ok((opened, AlgorithmSet::from_bits(coding.accepts)))
    }

    /// How a response is packed for a caller that takes these algorithms.
    pub(super) fn compression_for(&self, accepts: AlgorithmSet) -> Option<Compression> {
        let taken = |it: &Compression| it.algorithm().is_some_and(|it| accepts.has(it));
        self.compression.filter(taken)
    }

    /// Packs a response that a handler has built. Its length was checked.
    pub(crate) fn seal(&self, accepts: AlgorithmSet, response: &mut ResponseBuilder<'_>) {
        let Some(compression) = self.compression_for(accepts) else {
            return;
        };
        let tail = response.take_tail();
        let packed = pack(
            &compression,
            response.body(),
            tail.as_deref().unwrap_or_default(),
            0,
        );
        match (packed, tail) {
            (Some((bytes, body)), _) => {
                let out = response.body();
                out.clear();
                out.extend_from_slice(&bytes);
                response.set_compressed(body);
            }
            (None, Some(tail)) => response.set_tail(tail),
            (None, None) => {}
        }
    }

    /// Checks a response that was built elsewhere, and packs it.
    pub(crate) fn seal_message(
        &self,
        accepts: AlgorithmSet,
        mut response: ResponseMessage,
    ) -> Result<ResponseMessage, Status> {
        self.check_response(response.body.len())?;
        let packed = self.compression_for(accepts).and_then(|compression| {
            let body = &response.body;
            pack(&compression, body.head(), body.tail(), 0)
        });
        if let Some((bytes, body)) = packed {
            response.body = Msgbuf::from_vec(bytes);
            response.compressed = Some(body);
        }
        Ok(response)
    }
}
