//! A client's side: requests are bounded and packed, responses are unpacked and bounded.

use starling_compress::{Algorithm, AlgorithmSet};
use starling_endpoint::{CallDescriptor, Encoding, Msgbuf, OwnedMessage, RequestCoding, Status};

use super::{Bound, Refused, name_of, pack, unpack};
use crate::compression::Compression;
use crate::options::MessageOptions;
use crate::plane::CallResult;

/// Whose bound it is, in error texts.
const BY_CONFIG: &str = "this client, by its channel's service config,";

/// What a call's options say of its messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallCoding {
    pub(super) compression: Option<Compression>,
    pub(super) accepts: AlgorithmSet,
    pub(super) request: Bound,
    pub(super) response: Bound,
}

impl CallCoding {
    pub(crate) fn of(options: &MessageOptions) -> Self {
        let MessageOptions {
            compression,
            accept_compressed,
            max_request_bytes,
            max_response_bytes,
        } = options;
        let compression = compression.filter(|it| it.algorithm().is_some());
        let accepts = match accept_compressed.unwrap_or(compression.is_some()) {
            true => AlgorithmSet::AVAILABLE,
            false => AlgorithmSet::NONE,
        };
        Self {
            compression,
            accepts,
            request: Bound::at_client(*max_request_bytes),
            response: Bound::at_client(*max_response_bytes),
        }
    }

    /// Notes which bounds are those of a channel's service config, which has these.
    pub(crate) fn note_config(&mut self, request: Option<u32>, response: Option<u32>) {
        let is =
            |bound: Bound, bytes: Option<u32>| bytes.is_some_and(|it| it as usize == bound.most);
        self.request.is_of_config = is(self.request, request);
        self.response.is_of_config = is(self.response, response);
    }

    /// What a request of a stream says.
    pub(crate) fn of_stream(&self, is_first: bool) -> Option<Box<RequestCoding>> {
        let coding = RequestCoding {
            compressed: None,
            accepts: if is_first { self.accepts.bits() } else { 0 },
            items: self.algorithm().map(Algorithm::number),
        };
        (coding != RequestCoding::default()).then(|| Box::new(coding))
    }

    /// The algorithm that packs requests.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.compression.and_then(|it| it.algorithm())
    }

    /// Checks a single request and packs it, for a transport that takes that. Returns the bound on the
    /// response.
    ///
    /// # Errors
    /// If it is too long. It is not sent then.
    pub(crate) fn seal(
        coding: Option<&Self>,
        message: &mut CallDescriptor,
        takes_compressed: bool,
    ) -> Result<Bound, Status> {
        let Some(coding) = coding else {
            return Ok(Bound::at_client(None));
        };
        coding.seal_as_set(message, takes_compressed)?;
        Ok(coding.response)
    }

    fn seal_as_set(
        &self,
        message: &mut CallDescriptor,
        takes_compressed: bool,
    ) -> Result<(), Status> {
        let head = message.payload.head();
        let head = head.get(message.headroom..).unwrap_or_default();
        let len = head.len() + message.payload.tail().len();
        if !self.request.allows(len) {
            return Err(too_long_to_send(len, self.request));
        }
        if !takes_compressed {
            return Ok(());
        }
        let packed = self
            .compression
            .and_then(|compression| pack(&compression, head, message.payload.tail(), 0));
        let coding = RequestCoding {
            compressed: packed.as_ref().map(|(_, body)| *body),
            accepts: self.accepts.bits(),
            items: None,
        };
        if coding.is_plain() {
            return Ok(());
        }
        let before = match packed {
            None => message.headroom,
            Some((bytes, _)) => {
                message.payload = Msgbuf::from_vec(bytes);
                0
            }
        };
        message.coding = Some(Box::new(coding));
        message.headroom = message.header_len();
        message.payload.set_headroom(before, message.headroom);
        Ok(())
    }
}

#[cold]
pub(super) fn too_long_to_send(len: usize, bound: Bound) -> Status {
    let most = bound.most;
    let (whose, raise) = match bound.is_of_config {
        false => ("this client", "CallOptions::max_request_bytes"),
        true => (BY_CONFIG, "maxRequestMessageBytes there"),
    };
    Status::resource_exhausted(format!(
        "the request has {len} bytes, and {whose} sends {most} at most: send less, or raise {raise}; the request \
         was not sent"
    ))
    .with_not_run()
}

#[cold]
pub(super) fn refused_by_client(refused: Refused, bound: Bound, what: &str) -> Status {
    match refused {
        Refused::TooLong { len, most } => {
            let (whose, raise) = match bound.is_of_config {
                false => ("this client", "CallOptions::max_response_bytes"),
                true => (BY_CONFIG, "maxResponseMessageBytes there"),
            };
            Status::resource_exhausted(format!(
                "{what} has {len} bytes, and {whose} takes {most} at most: ask for less, or raise {raise}"
            ))
        }
        Refused::Unknown { number } => Status::internal(format!(
            "the server compressed {what} by {}, which this client does not have and did not ask for: the \
             server has a bug",
            name_of(number)
        )),
        Refused::CutShort => Status::internal(format!("{what} is malformed: it is cut short")),
        Refused::Malformed(error) => Status::internal(format!("{what} is malformed: {error}")),
    }
}

/// A response as its caller gets it.
#[inline]
pub(crate) fn open_response(result: CallResult, bound: Bound) -> CallResult {
    let (message, encoding) = result?;
    if message.fields().is_empty() && bound.allows(message.body().len()) {
        return Ok((message, encoding));
    }
    Ok((open(message, encoding, bound)?, encoding))
}

fn open(message: OwnedMessage, encoding: Encoding, bound: Bound) -> Result<OwnedMessage, Status> {
    let refused = |refused| refused_by_client(refused, bound, "the response");
    let Some(body) = message.form().1.compressed else {
        let len = message.body().len();
        return match bound.allows(len) {
            true => Ok(message),
            false => {
                let most = bound.most;
                Err(refused(Refused::TooLong { len, most }))
            }
        };
    };
    let (mut opened, packed) = (Vec::new(), message.body());
    unpack(packed, body, bound, &mut opened).map_err(refused)?;
    Ok(OwnedMessage::of_parts(
        encoding,
        &message.to_metadata(),
        &opened,
    ))
}
