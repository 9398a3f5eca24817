//! A response that is being built: its bytes, and what goes into its header.

use starling_call::header::{
    self, MAX_EXTENSION, RESPONSE_FIELDS_AT, ResponseParts, STREAM_RESPONSE_LEN,
};
use starling_call::{
    CompressedBody, Metadata, ResponseExtra, ResponseMessage, Status, StreamPosition,
};
use starling_proto::{Msgbuf, Prefix};

use crate::convert::prefix_of;

/// A response with at least so many bytes is moved into a reply and not copied.
const MOVED_BYTES: usize = 4096;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) message: Msgbuf,
    // Boxed because it is rare and an answer is built for every request.
    pub(crate) extra: Option<Box<AnswerExtra>>,
}

#[derive(Debug, Default)]
pub(crate) struct AnswerExtra {
    pub(crate) metadata: Metadata,
    pub(crate) stream: Option<StreamPosition>,
    /// How the body is compressed.
    pub(crate) compressed: Option<CompressedBody>,
    /// The end of the stream.
    pub(crate) status: Option<Status>,
    /// Bytes at the beginning of the answer, in place of which the header goes.
    pub(crate) headroom: usize,
}

impl Answer {
    #[inline]
    pub(crate) fn of(message: Msgbuf) -> Self {
        Self {
            message,
            extra: None,
        }
    }

    #[inline]
    pub(crate) fn extra(&mut self) -> &mut AnswerExtra {
        self.extra.get_or_insert_default()
    }

    /// Sends a position in a stream, and how the stream ended. The first `headroom` bytes are no body.
    pub(crate) fn set_stream(
        &mut self,
        stream: StreamPosition,
        status: Option<Status>,
        headroom: usize,
    ) {
        let extra = self.extra();
        extra.stream = Some(stream);
        extra.status = status;
        extra.headroom = headroom;
    }

    /// Writes the header of a successful answer with this position and nothing else in front of the body.
    /// `None`: there is no room for it, or there is something else.
    pub(crate) fn seal_stream(&mut self, stream: StreamPosition) -> Option<Prefix> {
        let place = self.message.head_mut().first_chunk_mut();
        let place = place.filter(|_| self.extra.is_none())?;
        Some(prefix_of(header::put_stream_response(place, stream)))
    }

    /// Something else goes into the header after [`Answer::seal_stream`]. Returns whether it does.
    #[inline]
    pub(crate) fn unseal_stream(&mut self) -> bool {
        let Some(extra) = &mut self.extra else {
            return false;
        };
        let head = self.message.head();
        let fields = head.get(RESPONSE_FIELDS_AT..STREAM_RESPONSE_LEN);
        extra.stream = fields.and_then(header::stream_of);
        extra.headroom = STREAM_RESPONSE_LEN;
        true
    }

    #[inline]
    pub(crate) fn set_response(&mut self, response: ResponseMessage) {
        if response.body.head().len() < MOVED_BYTES && !response.body.has_tail() {
            let head = self.message.head_mut();
            head.extend_from_slice(response.body.head());
        } else {
            self.message = response.body;
        }
        if !response.metadata.is_empty() || response.compressed.is_some() {
            self.set_extra(ResponseExtra {
                metadata: response.metadata,
                compressed: response.compressed,
            });
        }
    }

    #[cold]
    pub(crate) fn set_extra(&mut self, of_response: ResponseExtra) {
        let extra = self.extra();
        extra.metadata = of_response.metadata;
        extra.compressed = of_response.compressed;
    }

    /// Puts the header of a successful answer in front of its body.
    #[inline]
    pub(crate) fn seal_extra(&mut self) -> Prefix {
        let Some(extra) = self.extra.take() else {
            return Prefix::NONE;
        };
        let parts = ResponseParts {
            status: extra.status.as_ref(),
            metadata: (!extra.metadata.is_empty()).then_some(&extra.metadata),
            stream: extra.stream,
            compressed: extra.compressed,
        };
        if !parts.needs_extension() {
            return Prefix::NONE;
        }
        let head = self.message.head_mut();
        let room = extra.headroom.min(head.len());
        let mut extension = Vec::with_capacity(STREAM_RESPONSE_LEN);
        let prefix = prefix_of(parts.put(&mut extension));
        match head.get_mut(..extension.len()) {
            // A large body stays where it is.
            Some(place) if room == extension.len() => place.copy_from_slice(&extension),
            _ => drop(head.splice(..room, extension)),
        }
        prefix
    }

    /// Replaces the answer by a status.
    #[cold]
    pub(crate) fn seal_status(&mut self, status: &Status) -> Prefix {
        self.message.clear();
        // The memory of a large answer is not kept with a status.
        if self.message.capacity() > MAX_EXTENSION {
            self.message = Msgbuf::new();
        }
        self.extra = None;
        prefix_of(ResponseParts::of_status(status).put(self.message.head_mut()))
    }
}

#[cfg(test)]
mod tests {
    use starling_call::header::ResponseHeader;

    use super::*;

    #[test]
    fn a_position_is_in_front_of_the_body_also_if_metadata_comes_before_or_after() {
        let position = StreamPosition {
            id: 7,
            number: 3,
            ..StreamPosition::default()
        };
        let mut metadata = Metadata::default();
        metadata.insert("k", "v").expect("a pair");
        let bytes = [&[0; STREAM_RESPONSE_LEN], &b"body"[..]].concat();
        for (before, after) in [(false, false), (true, false), (false, true)] {
            let mut answer = Answer::of(Msgbuf::from_vec(bytes.clone()));
            if before {
                answer.extra().metadata = metadata.clone();
            }
            let mut prefix = answer.seal_stream(position);
            assert_eq!(prefix.is_none(), before);
            if prefix.is_none() {
                answer.set_stream(position, None, STREAM_RESPONSE_LEN);
            }
            if after {
                answer.extra().metadata = metadata.clone();
                assert!(answer.unseal_stream());
                prefix = None;
            }
            let prefix = prefix.unwrap_or_else(|| answer.seal_extra());
            let sealed = answer.message.head();
            let header = ResponseHeader::parse(sealed).expect("a header");
            assert_eq!(header.stream, Some(position));
            assert_eq!(&sealed[prefix.len.into()..], b"body", "{before} {after}");
            assert_eq!(header.body_at, usize::from(prefix.len));
            assert_eq!(prefix.len as usize > STREAM_RESPONSE_LEN, before || after);
        }
    }
}
