//! From whose requests come to where they go, and the session for it.
//!
//! ```text
//!          request        resolved       session open
//!   Idle ─────────▶ Resolving ──▶ Connecting ──▶ Open
//!    ▲  ▲ request      │ failed      │ the last      │ session ended
//!    │  └──────────── Down ◀─────────┘ target failed ▼
//!    └──────────────────────────────────────────── Leaving: the callers' sessions end, for they have to bind anew
//! ```
//!
//! Requests wait while a session is opened. After the n-th failure in a row, requests fail at once for 2^n times
//! 10 ms, at most 2 s.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use slab::Slab;
use starling_endpoint::{SessionId, Status};
use starling_io::PeerId;

use super::Application;
use super::bindings::Bindings;
use super::identity::Identity;
use super::links::LinkId;
use super::reading::{Known, KnownMethods, Reading};
use super::streams::{StreamKey, Streams};
use super::upgrading::Successor;
use crate::ROOT;
use crate::account::DatapathShare;
use crate::datapath::Chain;
use crate::link::Arrived;

pub(super) type RouteId = usize;

/// The pause after the first failure, and the longest.
const PAUSE_MIN_NS: u64 = 10_000_000;
const PAUSE_MAX_NS: u64 = 2_000_000_000;

/// Whose requests a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callers {
    /// Those of one peer of a link: an application that calls out.
    Peer(LinkId, PeerId),
    /// Those of all peers of a link: an application that is called.
    All(LinkId),
}

impl Callers {
    /// The link by which they come.
    pub(super) fn link(self) -> LinkId {
        let (Self::Peer(link, _) | Self::All(link)) = self;
        link
    }

    /// The same, by a link that has another number.
    pub(super) fn by(self, link: LinkId) -> Self {
        match self {
            Self::Peer(_, peer) => Self::Peer(link, peer),
            Self::All(_) => Self::All(link),
        }
    }
}

#[derive(Debug)]
pub(super) enum RouteState {
    Idle,
    /// A thread resolves the target's host name.
    Resolving,
    Connecting(SessionId),
    Open(SessionId),
    Down {
        until_ns: u64,
        status: Status,
    },
    /// The server is gone, and its callers leave.
    Leaving,
}

/// A server that is an application of this service, and is called without the way by its address.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    /// Where it listens for the service.
    pub(crate) address: String,
    /// As those see it that come by its address.
    pub(crate) identity: Identity,
}

impl Local {
    /// Whether an application of this user may call it. By the network anybody may; within the host, its own user and
    /// root.
    pub(super) fn admits(&self, user: Option<u32>) -> bool {
        !self.identity.datapath.server.starts_with("shm://")
            || user == Some(ROOT)
            || (user.is_some() && user == self.identity.user)
    }
}

/// A session that another one has replaced, and that carries on what it has begun.
#[derive(Debug)]
pub(super) struct Previous {
    pub(super) link: LinkId,
    pub(super) session: SessionId,
    pub(super) streams: Streams,
    /// The calls of the route that are outstanding on its link.
    pub(super) outstanding: usize,
    /// None is since then: if streams run, they have not gone on.
    pub(super) quiet_since_ns: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) callers: Callers,
    /// The address.
    pub(super) target: String,
    /// The link that calls it.
    pub(super) link: LinkId,
    pub(super) state: RouteState,
    /// Where its session is, or was last.
    pub(super) address: String,
    /// Sessions of before, the oldest first.
    pub(super) previous: Vec<Previous>,
    /// The session that is to take the place of its own.
    pub(super) successor: Option<Successor>,
    /// Resolved addresses that were not tried yet.
    pub(super) addresses: VecDeque<String>,
    /// Requests that wait for a session.
    pub(super) waiting: Vec<Arrived>,
    /// Its server shuts down.
    pub(super) is_draining: bool,
    pub(super) identity: Identity,
    /// Whose devices it uses.
    pub(super) application: Application,
    /// The server is an application of this service.
    pub(super) local: Option<Local>,
    /// The policies that its requests pass.
    pub(super) chain: Chain,
    /// Of its session.
    pub(super) streams: Streams,
    pub(super) bindings: Bindings,
    /// Methods of the server that policies look into, in this session.
    pub(super) known: KnownMethods,
    /// Requests that wait for a schema.
    pub(super) reading: Vec<Reading>,
    pub(super) share: Arc<DatapathShare>,
    failures: u32,
}

impl Route {
    pub(super) fn new(
        callers: Callers,
        target: String,
        link: LinkId,
        application: Application,
        identity: Identity,
        share: Arc<DatapathShare>,
    ) -> Self {
        Self {
            callers,
            target,
            link,
            state: RouteState::Idle,
            address: String::new(),
            previous: Vec::new(),
            successor: None,
            addresses: VecDeque::new(),
            waiting: Vec::new(),
            is_draining: false,
            identity,
            application,
            local: None,
            chain: Chain::default(),
            streams: Streams::default(),
            bindings: Bindings::default(),
            known: KnownMethods::default(),
            reading: Vec::new(),
            share,
            failures: 0,
        }
    }

    /// The link by which its requests come.
    pub(super) fn from(&self) -> LinkId {
        self.callers.link()
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        match self.state {
            RouteState::Connecting(session) | RouteState::Open(session) => Some(session),
            _ => None,
        }
    }

    /// Has the text of a failure name an application by the address that its clients know.
    pub(super) fn named_publicly(&self, status: Status) -> Status {
        let (own, public) = match (self.callers, &self.local) {
            (Callers::All(_), _) => (&self.target, &self.identity.datapath.server),
            (Callers::Peer(..), Some(local)) => (&local.address, &self.target),
            (Callers::Peer(..), None) => return status,
        };
        match status.message().strip_prefix(own.as_str()) {
            Some(rest) => {
                let text = format!("{public}{rest}");
                status.with_message(text)
            }
            None => status,
        }
    }

    /// The answers of its server about methods come to nobody.
    pub(super) fn forget_asked(&mut self) {
        self.known
            .retain(|_, known| !matches!(known, Known::Asked(_)));
    }

    /// Its session is open.
    pub(super) fn open(&mut self, session: SessionId) {
        self.state = RouteState::Open(session);
        self.failures = 0;
        // What one server has called a stream, and said of methods, says nothing of the next one's.
        self.streams = Streams::default();
        self.bindings = Bindings::default();
    }

    /// The session takes the place of its own, which carries on what it has begun: so many calls.
    pub(super) fn replace_session(&mut self, link: LinkId, session: SessionId, outstanding: usize) {
        if let RouteState::Open(before) = self.state {
            self.previous.push(Previous {
                link: self.link,
                session: before,
                streams: std::mem::take(&mut self.streams),
                outstanding,
                quiet_since_ns: None,
            });
        }
        (self.link, self.state) = (link, RouteState::Open(session));
        self.is_draining = false;
    }

    /// The streams of its session on a link.
    pub(super) fn streams_on(&mut self, link: LinkId) -> Option<&mut Streams> {
        match self.link == link {
            true => Some(&mut self.streams),
            false => (self.previous_on(link)).map(|previous| &mut previous.streams),
        }
    }

    /// The session of before on a link: there is one at most.
    pub(super) fn previous_on(&mut self, link: LinkId) -> Option<&mut Previous> {
        let mut previous = self.previous.iter_mut();
        previous.find(|previous| previous.link == link)
    }

    /// The session of before that has begun a stream.
    pub(super) fn previous_with(&mut self, stream: StreamKey) -> Option<(LinkId, SessionId)> {
        let mut previous = self.previous.iter_mut();
        let has = previous.find_map(|it| it.streams.contains(stream).then_some(&*it))?;
        Some((has.link, has.session))
    }

    /// No session can be opened now.
    pub(super) fn fail(&mut self, now_ns: u64, status: Status) {
        let pause_ns = (PAUSE_MIN_NS << self.failures.min(16)).min(PAUSE_MAX_NS);
        self.failures += 1;
        self.state = RouteState::Down {
            until_ns: now_ns + pause_ns,
            status,
        };
    }
}

/// All routes of a runtime.
#[derive(Default)]
pub(super) struct Routes {
    table: Slab<Route>,
    by_peer: HashMap<(LinkId, PeerId), RouteId, RandomState>,
    by_link: HashMap<LinkId, RouteId, RandomState>,
    /// How often a route came or went.
    changes: u64,
}

impl Routes {
    /// Another number than before if a route has come or gone since.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn insert(&mut self, route: Route) -> RouteId {
        self.changes += 1;
        let callers = route.callers;
        let id = self.table.insert(route);
        match callers {
            Callers::Peer(link, peer) => self.by_peer.insert((link, peer), id),
            Callers::All(link) => self.by_link.insert(link, id),
        };
        id
    }

    pub(super) fn remove(&mut self, id: RouteId) -> Option<Route> {
        let route = self.table.try_remove(id)?;
        self.changes += 1;
        match route.callers {
            Callers::Peer(link, peer) => self.by_peer.remove(&(link, peer)),
            Callers::All(link) => self.by_link.remove(&link),
        };
        Some(route)
    }

    /// The route of a request that came by a link.
    #[inline]
    pub(super) fn of(&self, link: LinkId, peer: PeerId) -> Option<RouteId> {
        let of_link = || self.by_link.get(&link);
        self.by_peer.get(&(link, peer)).or_else(of_link).copied()
    }

    /// The route of one peer.
    pub(super) fn of_peer(&self, link: LinkId, peer: PeerId) -> Option<RouteId> {
        self.by_peer.get(&(link, peer)).copied()
    }

    /// The route of all peers of a link.
    pub(super) fn of_all(&self, link: LinkId) -> Option<&Route> {
        self.table.get(*self.by_link.get(&link)?)
    }

    pub(super) fn get(&self, id: RouteId) -> Option<&Route> {
        self.table.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.table.iter().map(|(_, route)| route)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Route> {
        self.table.iter_mut().map(|(_, route)| route)
    }

    pub(super) fn get_mut(&mut self, id: RouteId) -> Option<&mut Route> {
        self.table.get_mut(id)
    }

    /// The routes of an application.
    pub(super) fn of_application(&self, application: Application) -> Vec<RouteId> {
        let is_of = |(_, route): &(RouteId, &Route)| route.application == application;
        self.table.iter().filter(is_of).map(|(id, _)| id).collect()
    }

    /// The routes with a session of a link.
    pub(super) fn with_session_of(&self, link: LinkId) -> Vec<RouteId> {
        let of_link =
            |(_, route): &(RouteId, &Route)| route.link == link && route.session().is_some();
        self.table
            .iter()
            .filter(of_link)
            .map(|(id, _)| id)
            .collect()
    }

    /// The routes with a session to come on a link.
    pub(super) fn with_successor_on(&self, link: LinkId) -> Vec<RouteId> {
        let is_on = |(_, route): &(RouteId, &Route)| {
            (route.successor.as_ref()).is_some_and(|successor| successor.link == link)
        };
        self.table.iter().filter(is_on).map(|(id, _)| id).collect()
    }

    /// A route with such a session to come.
    pub(super) fn with_successor(&self, is_it: impl Fn(&Successor) -> bool) -> Option<RouteId> {
        let mut routes = self.table.iter();
        let has = |(_, route): &(RouteId, &Route)| route.successor.as_ref().is_some_and(&is_it);
        routes.find(has).map(|(id, _)| id)
    }

    /// The routes that call by a link.
    pub(super) fn by_adapter(&self, link: LinkId) -> Vec<RouteId> {
        let calls = |(_, route): &(RouteId, &Route)| {
            route.link == link && matches!(route.callers, Callers::Peer(..))
        };
        self.table.iter().filter(calls).map(|(id, _)| id).collect()
    }

    /// The routes with requests that wait for a schema.
    pub(super) fn waiting_for_schemas(&self) -> Vec<RouteId> {
        let waits = |(_, route): &(RouteId, &Route)| !route.reading.is_empty();
        self.table.iter().filter(waits).map(|(id, _)| id).collect()
    }

    /// The routes that have to do with a link.
    pub(super) fn of_link(&self, link: LinkId) -> Vec<RouteId> {
        let of_link = |(_, route): &(RouteId, &Route)| route.link == link || route.from() == link;
        self.table
            .iter()
            .filter(of_link)
            .map(|(id, _)| id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use starling_policy::Side;

    use super::super::Configured;
    use super::*;

    #[test]
    fn within_the_host_a_server_is_its_users_and_roots() {
        let local = |server| Local {
            address: "shm://mesh.app-7-0".to_owned(),
            identity: Identity::new(Side::Server, None, Some(7), server, &Configured::default()),
        };
        let callers = [Some(7), Some(ROOT), Some(8), None];
        let admitted = |server| callers.map(|user| local(server).admits(user));
        assert_eq!(admitted("shm://kv"), [true, true, false, false]);
        assert_eq!(admitted("udp://127.0.0.1:9"), [true; 4]);
    }
}
