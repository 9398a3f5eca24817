//! What the connections of one endpoint share, and how they get at it.
//!
//! A connection is used by futures, which cannot hold on to the endpoint. So they leave it in the
//! list of those that want something, and the endpoint's loop looks after them between turns.
//!
//! ```text
//!   futures ── wants ──▶ Hub ──▶ Core::look_after ── connect ──▶ endpoint
//!      ▲                                   │
//!      └──────────── wakers ◀── Connection ◀── state of its session
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use starling_endpoint::{LocalHandle, SessionState};
use starling_io::{Clock, MessageMemory, MonotonicClock};

use crate::address::{Address, Way};
use crate::channel::Channel;
use crate::connection::Connection;
use crate::core::Raw;
use crate::error::Error;
use crate::plane::Plane;

pub(crate) struct Hub {
    pub(crate) local: LocalHandle,
    pub(crate) way: Way,
    /// The device's memory for messages.
    pub(crate) memory: MessageMemory,
    clock: MonotonicClock,
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Those that are found by their address, and stay for the life of the endpoint.
    shared: RefCell<HashMap<Address, Rc<Connection>>>,
    /// Channels of other kinds than the endpoint's device, kept in the same way.
    elsewhere: RefCell<HashMap<Address, Channel>>,
    /// Connections that want a session, wait for one to open, or doubt that theirs lives.
    wants: RefCell<Vec<Rc<Connection>>>,
    /// One of them has come since the loop looked.
    pub(crate) is_wanted: Cell<bool>,
    /// Client sessions of the endpoint that had ended when they were last looked at.
    ended_seen: Cell<u64>,
    /// State of a small generator for jitter.
    random: Cell<u64>,
}

impl Hub {
    pub(crate) fn new(
        local: LocalHandle,
        way: Way,
        memory: MessageMemory,
        clock: MonotonicClock,
        seed: u64,
    ) -> Rc<Self> {
        Rc::new(Self {
            local,
            way,
            memory,
            clock,
            connections: RefCell::default(),
            shared: RefCell::default(),
            elsewhere: RefCell::default(),
            wants: RefCell::default(),
            is_wanted: Cell::new(false),
            ended_seen: Cell::new(0),
            random: Cell::new(seed | 1),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// A number for jitter: xorshift64 (Marsaglia, 2003).
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }

    /// A connection of the caller's own. Its session is closed with the last reference.
    pub(crate) fn connection(&self, address: Address) -> Rc<Connection> {
        let connection = Rc::new(Connection::new(address, self.local.clone()));
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Rc::downgrade(&connection));
        connection
    }

    /// The connection to an address that everybody in this thread shares.
    pub(crate) fn shared_connection(&self, address: Address) -> Rc<Connection> {
        let mut shared = self.shared.borrow_mut();
        let connection = shared
            .entry(address)
            .or_insert_with_key(|address| self.connection(address.clone()));
        Rc::clone(connection)
    }

    /// The channel to an address of another kind that everybody in this thread shares.
    pub(crate) fn channel_elsewhere(&self, address: Address) -> Result<Channel, Error> {
        let mut elsewhere = self.elsewhere.borrow_mut();
        if let Some(channel) = elsewhere.get(&address) {
            return Ok(channel.clone());
        }
        let channel = Channel::lazy(address.as_str())?;
        elsewhere.insert(address, channel.clone());
        Ok(channel)
    }

    /// Has the loop look after a connection.
    pub(crate) fn want(&self, connection: &Rc<Connection>) {
        self.is_wanted.set(true);
        self.wants.borrow_mut().push(Rc::clone(connection));
    }

    /// Between two turns: opens sessions, and tells connections what became of theirs. Says
    /// whether anything changed.
    #[inline]
    pub(crate) fn look_after<I: Plane>(&self, raw: &mut Raw<I>) -> bool {
        // Not how many the protocol has: it drops a session before the endpoint has heard of it.
        let ended = raw.stats().sessions_ended;
        (ended != self.ended_seen.get() || !self.wants.borrow().is_empty())
            && self.look_after_all(raw, ended)
    }

    #[cold]
    fn look_after_all<I: Plane>(&self, raw: &mut Raw<I>, ended: u64) -> bool {
        let mut changed = ended != self.ended_seen.replace(ended);
        self.is_wanted.set(false);
        let wants = std::mem::take(&mut *self.wants.borrow_mut());
        if changed {
            let all: Vec<_> = self
                .connections
                .borrow()
                .iter()
                .filter_map(Weak::upgrade)
                .collect();
            for connection in all {
                if let Some(session) = connection.session() {
                    connection.handle_state(self, raw.session_state(session));
                }
            }
        }
        for connection in wants {
            while let Some(target) = connection.target() {
                changed = true;
                connection.handle_connect(self, raw.connect(&target));
            }
            let state = connection
                .session()
                .map(|session| raw.session_state(session));
            if let Some(state) = state {
                connection.handle_state(self, state);
                let is_connecting = state == Some(SessionState::Connecting);
                changed |= !is_connecting;
                if is_connecting || connection.target().is_some() {
                    self.wants.borrow_mut().push(connection);
                }
            }
        }
        changed
    }
}
