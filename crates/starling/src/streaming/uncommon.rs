//! What most streams of clients do not have, in one place: thousands of streams may be at rest.

use starling_endpoint::Metadata;

use super::again::FirstRequest;
use crate::coding::CallCoding;

pub(super) struct Uncommon(Option<Box<Parts>>);

struct Parts {
    metadata: Metadata,
    coding: Option<CallCoding>,
    first: Option<FirstRequest>,
}

impl Uncommon {
    /// What is sent with the first request, what the options say of messages, and what begins the stream again, if
    /// it may.
    pub(super) fn new(
        metadata: Metadata,
        coding: Option<CallCoding>,
        first: Option<FirstRequest>,
    ) -> Self {
        let is_there = !metadata.is_empty() || coding.is_some() || first.is_some();
        Self(is_there.then(|| {
            Box::new(Parts {
                metadata,
                coding,
                first,
            })
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn metadata(&self) -> Metadata {
        let parts = self.0.as_ref();
        parts.map_or_else(Metadata::default, |parts| parts.metadata.clone())
    }

    pub(super) fn coding(&self) -> Option<&CallCoding> {
        self.0.as_ref()?.coding.as_ref()
    }

    pub(super) fn first(&self) -> Option<&FirstRequest> {
        self.0.as_ref()?.first.as_ref()
    }
}
