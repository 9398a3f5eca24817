//! The calls that were forwarded and are not over.

use std::task::Waker;

use slab::Slab;
use starling_endpoint::{CallId, DeferredReply, MethodId};

use super::given_up::GivenUp;
use super::links::LinkId;
use super::routes::RouteId;
use crate::account::Charge;
use crate::datapath::Passed;

/// A call that the service makes for a caller.
pub(super) struct Forwarded {
    /// Where the request came from, and its reply.
    pub(super) from: LinkId,
    pub(super) reply: DeferredReply,
    /// Where the call was made.
    pub(super) to: LinkId,
    pub(super) call: Option<CallId>,
    /// That of its caller's streams.
    pub(super) stream_key: u64,
    pub(super) method: MethodId,
    pub(super) passed: Passed,
    /// The id of its stream at the server.
    pub(super) stream: Option<u64>,
    pub(super) route: RouteId,
    /// What it takes, until it is over.
    pub(super) charge: Option<Charge>,
}

#[derive(Default)]
pub(super) struct Calls {
    table: Slab<Forwarded>,
    /// One for each place of the table, made once.
    watchers: Vec<Waker>,
    cancelled: GivenUp<usize>,
}

impl Calls {
    /// Adds a call. Returns its tag.
    pub(super) fn insert(&mut self, call: Forwarded) -> u64 {
        let place = self.table.insert(call);
        if place == self.watchers.len() {
            self.watchers.push(self.cancelled.waker(place));
        }
        place as u64
    }

    /// The call with this tag was made. Its caller may give it up from now on.
    pub(super) fn made(&mut self, tag: u64, call: CallId) {
        let Some(forwarded) = self.table.get_mut(tag as usize) else {
            return;
        };
        forwarded.call = Some(call);
        let (place, reply) = (tag as usize, &mut forwarded.reply);
        self.cancelled.watch(reply, &self.watchers[place], place);
    }

    pub(super) fn remove(&mut self, tag: u64) -> Option<Forwarded> {
        self.table.try_remove(tag as usize)
    }

    /// The calls whose callers have given up since this was last asked.
    pub(super) fn take_cancelled(&mut self) -> Vec<(LinkId, CallId)> {
        let cancelled = self.cancelled.take();
        let given_up = |place: usize| {
            let forwarded = self.table.get(place)?;
            // The place may have another call by now.
            let call = forwarded.call.filter(|_| forwarded.reply.is_cancelled())?;
            Some((forwarded.to, call))
        };
        cancelled.into_iter().filter_map(given_up).collect()
    }

    pub(super) fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Takes out the calls of a link that has failed, made on it or come by it.
    pub(super) fn take_of_link(&mut self, link: LinkId) -> Vec<Forwarded> {
        let of_link = |(_, call): &(usize, &Forwarded)| call.from == link || call.to == link;
        let places: Vec<usize> = self
            .table
            .iter()
            .filter(of_link)
            .map(|(place, _)| place)
            .collect();
        places
            .into_iter()
            .map(|place| self.table.remove(place))
            .collect()
    }
}
