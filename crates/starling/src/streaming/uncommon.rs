//! What most streams of clients do not have, in one place: thousands of streams may be at rest.

use std::time::Instant;

use starling_endpoint::Metadata;

use super::again::FirstRequest;
use crate::coding::CallCoding;

pub(super) struct Parts {
    /// What is sent with the first request.
    pub(super) metadata: Metadata,
    pub(super) deadline: Option<Instant>,
    /// The first request waits while the server cannot be reached.
    pub(super) wait_for_ready: bool,
    /// What the options say of messages.
    pub(super) coding: Option<CallCoding>,
    /// What begins the stream again, if it may. Boxed because a deadline is more common.
    pub(super) first: Option<Box<FirstRequest>>,
}

pub(super) struct Uncommon(Option<Box<Parts>>);

impl Uncommon {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            metadata,
            deadline,
            wait_for_ready,
            coding,
            first,
        } = &parts;
        let is_there = !metadata.is_empty()
            || deadline.is_some()
            || *wait_for_ready
            || coding.is_some()
            || first.is_some();
        Self(is_there.then(|| Box::new(parts)))
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.as_ref()?.deadline
    }

    pub(super) fn waits_for_ready(&self) -> bool {
        self.0.as_ref().is_some_and(|parts| parts.wait_for_ready)
    }

    /// Whether there is anything for the header of the first request alone.
    pub(super) fn is_of_header(&self) -> bool {
        let parts = self.0.as_ref();
        parts.is_some_and(|parts| !parts.metadata.is_empty() || parts.coding.is_some())
    }

    pub(super) fn metadata(&self) -> Metadata {
        let parts = self.0.as_ref();
        parts.map_or_else(Metadata::default, |parts| parts.metadata.clone())
    }

    pub(super) fn coding(&self) -> Option<&CallCoding> {
        self.0.as_ref()?.coding.as_ref()
    }

    pub(super) fn first(&self) -> Option<&FirstRequest> {
        self.0.as_ref()?.first.as_deref()
    }
}
