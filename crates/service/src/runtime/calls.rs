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
    pub(super) call: Option<CallId>,
    /// That of its caller's streams.
    pub(super) stream_key: u64,
    pub(super) method: MethodId,
    pub(super) passed: Passed,
    /// The id of its stream at the server.
    pub(super) stream: Option<u64>,
    pub(super) route: RouteId,
    /// What its caller asks the server of a method, to remember it with the answer.
    pub(super) question: Option<Box<[u8]>>,
    /// What it takes, until it is over.
    pub(super) charge: Option<Charge>,
}

impl Forwarded {
    /// Whether it asks the server of a method.
    pub(super) fn asks(&self) -> bool {
        self.question.is_some()
    }
}

/// The calls that were made on one link. Their places are their tags there.
#[derive(Default)]
struct Table {
    calls: Slab<Forwarded>,
    /// One for each place, made once.
    watchers: Vec<Waker>,
}

#[derive(Default)]
pub(super) struct Calls {
    /// By link.
    tables: Vec<Table>,
    cancelled: GivenUp<(LinkId, usize)>,
}

impl Calls {
    /// Adds a call that is made on a link. Returns its tag.
    pub(super) fn insert(&mut self, on: LinkId, call: Forwarded) -> u64 {
        if on >= self.tables.len() {
            self.tables.resize_with(on + 1, Table::default);
        }
        let table = &mut self.tables[on];
        let place = table.calls.insert(call);
        if place == table.watchers.len() {
            table.watchers.push(self.cancelled.waker((on, place)));
        }
        place as u64
    }

    /// The call with this tag was made. Its caller may give it up from now on.
    pub(super) fn made(&mut self, on: LinkId, tag: u64, call: CallId) {
        let (place, table) = (tag as usize, self.tables.get_mut(on));
        let Some(table) = table else {
            return;
        };
        let Some(forwarded) = table.calls.get_mut(place) else {
            return;
        };
        forwarded.call = Some(call);
        let (reply, watcher) = (&mut forwarded.reply, &table.watchers[place]);
        self.cancelled.watch(reply, watcher, (on, place));
    }

    pub(super) fn remove(&mut self, on: LinkId, tag: u64) -> Option<Forwarded> {
        self.tables.get_mut(on)?.calls.try_remove(tag as usize)
    }

    /// Whether there is such a call among those that were made on a link.
    pub(super) fn has(&self, on: LinkId, is_it: impl Fn(&Forwarded) -> bool) -> bool {
        let table = self.tables.get(on);
        table.is_some_and(|table| table.calls.iter().any(|(_, call)| is_it(call)))
    }

    /// How many such calls were made on a link.
    pub(super) fn count(&self, on: LinkId, is_it: impl Fn(&Forwarded) -> bool) -> usize {
        let calls = self.tables.get(on).into_iter();
        let calls = calls.flat_map(|table| &table.calls);
        calls.filter(|(_, call)| is_it(call)).count()
    }

    /// How many were made on a link.
    pub(super) fn len(&self, on: LinkId) -> usize {
        self.tables.get(on).map_or(0, |table| table.calls.len())
    }

    /// Takes out the calls that were made on a link, to go on elsewhere.
    pub(super) fn take_table(&mut self, on: LinkId) -> Slab<Forwarded> {
        let table = self.tables.get_mut(on);
        table.map_or_else(Slab::new, |table| std::mem::take(table).calls)
    }

    /// A link is gone: its memory is for others.
    pub(super) fn forget(&mut self, on: LinkId) {
        if let Some(table) = self.tables.get_mut(on) {
            *table = Table::default();
        }
    }

    /// Goes on with calls that were made on a link, which is another one here.
    pub(super) fn put_table(&mut self, on: LinkId, calls: Slab<Forwarded>) {
        if on >= self.tables.len() {
            self.tables.resize_with(on + 1, Table::default);
        }
        let table = &mut self.tables[on];
        table.calls = calls;
        for place in table.watchers.len()..table.calls.capacity() {
            table.watchers.push(self.cancelled.waker((on, place)));
        }
        for (place, forwarded) in &mut table.calls {
            if forwarded.call.is_some() {
                let reply = &mut forwarded.reply;
                self.cancelled
                    .watch(reply, &table.watchers[place], (on, place));
            }
        }
    }

    /// The calls whose callers have given up since this was last asked.
    pub(super) fn take_cancelled(&mut self) -> Vec<(LinkId, CallId)> {
        let cancelled = self.cancelled.take();
        let given_up = |(on, place): (LinkId, usize)| {
            let forwarded = self.tables.get(on)?.calls.get(place)?;
            // The place may have another call by now.
            let call = forwarded.call.filter(|_| forwarded.reply.is_cancelled())?;
            Some((on, call))
        };
        cancelled.into_iter().filter_map(given_up).collect()
    }

    pub(super) fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Takes out the calls of a link that has failed, made on it or come by it. With the links on which they were made.
    pub(super) fn take_of_link(&mut self, link: LinkId) -> Vec<(LinkId, Forwarded)> {
        let mut taken = Vec::new();
        for (on, Table { calls, .. }) in self.tables.iter_mut().enumerate() {
            let of_link = |(_, call): &(usize, &Forwarded)| on == link || call.from == link;
            let places = calls.iter().filter(of_link).map(|(place, _)| place);
            let places: Vec<usize> = places.collect();
            taken.extend(places.into_iter().map(|place| (on, calls.remove(place))));
        }
        taken
    }
}
